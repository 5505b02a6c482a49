"""Makes the example class: a file in `examples/class/` for each student, named after the student.

Such a file defines ``hand_in(notebook, course)``. It is given a released notebook as nbformat's
NotebookNode and gives back what the student hands in: the notebook, bytes in its place, or None for nothing.
"""

import importlib.util
import shutil
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook

from rltokens.course.exercises import CourseError
from rltokens.course.notebooks import build, grader_code
from rltokens.course.verdicts import find_cell


def make_class(course, folder):
    """Write a course root for nbgrader, `submitted/` included, over an earlier one. Gives the students."""
    folder = Path(folder)
    mark = folder / "example-class"
    if folder.exists() and not mark.is_file():
        raise CourseError(f"{folder} is there and is no example class: move it away, it would be overwritten")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    build(course, folder, folder / "release")
    recipes = sorted((course.root / "examples" / "class").glob("*.py"))
    if not recipes:
        raise CourseError(f"{course.root}/examples/class holds no student: see its neighbours in git")
    for recipe in recipes:
        hand_in = _load(recipe).hand_in
        for chapter in course.chapters:
            released = folder / "release" / chapter / f"{chapter}.ipynb"
            submission = hand_in(nbformat.read(released, as_version=4), course)
            put_submission(folder, recipe.stem, chapter, submission)
    students = [recipe.stem for recipe in recipes]
    with Gradebook(f"sqlite:///{folder.resolve()}/gradebook.db") as gradebook:
        for student in students:
            gradebook.add_student(student, first_name="Example", last_name=student.replace("_", " "))
    return students


def put_submission(folder, student, chapter, submission):
    """Write what a student hands in where nbgrader looks for it."""
    if submission is None:
        return
    path = Path(folder) / "submitted" / student / chapter / f"{chapter}.ipynb"
    path.parent.mkdir(parents=True)
    if isinstance(submission, bytes):
        path.write_bytes(submission)
    else:
        nbformat.write(submission, path)


# --- What the students' files are written with ---------------------------------------------------


def answer_all(notebook, course, above=""):
    """Fill in the course's own solutions, with the lines `above` before each."""
    for exercise in course.exercises.values():
        answer(notebook, course, exercise.name, above + exercise.solution)


def answer(notebook, course, exercise, code):
    """Write `code` into the exercise's cell, if this is the notebook of its chapter."""
    cell = find_cell(notebook, _exercise(course, exercise).name)
    if cell is not None:
        cell.source = code


def named_answer(course, exercise, name):
    """Code that defines the exercise by a right or wrong answer that `graders/` holds under this name."""
    exercise = _exercise(course, exercise)
    named = [*exercise.right, *(function for function, _ in exercise.wrong)]
    for function in named:
        if function.__name__ == name:
            return grader_code(exercise, [function], f"{exercise.name} = {{}}")
    known = ", ".join(function.__name__ for function in named)
    raise CourseError(f"graders/{exercise.name}.py names no answer {name}; it has {known}")


def delete_cell(notebook, grade_id):
    """Take the cell out, if this is the notebook that has it."""
    cell = find_cell(notebook, grade_id)
    if cell is not None:
        notebook.cells.remove(cell)


def _exercise(course, name):
    if name not in course.exercises:
        raise CourseError(f"the course has no exercise {name}; it has {', '.join(course.exercises)}")
    return course.exercises[name]


def _load(recipe):
    spec = importlib.util.spec_from_file_location(f"examples.{recipe.stem}", recipe)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
