"""Grades a class through nbgrader, and says in one table who has what, and why.

What nbgrader cannot run (a dead kernel, a file that is no notebook) it leaves out of its own views; here
it has its rows, with 0 points and the reason. nbgrader's export has the same points.
"""

import csv
import json
import re
import textwrap
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log
from tqdm import tqdm
from traitlets.config import PyFileConfigLoader

from rltokens.course.example_class import make_class
from rltokens.course.notebooks import run_nbgrader
from rltokens.course.verdicts import what_went_wrong

COLUMNS = ("student", "exercise", "points", "max", "what went wrong")
# The last line of a traceback: the exception's name, and what it says.
RAISED = re.compile(r"^\s*(?:\w+\.)*(\w+(?:Error|Exception)): ?(.*)$", re.M)
IN_WORDS = {
    "DeadKernelError": "the kernel died while the notebook ran",
    "CellTimeoutError": "a cell did not end in time and could not be interrupted",
}


class Row(NamedTuple):
    """One student's result in one exercise; `wrong` is empty where all is right."""

    student: str
    exercise: str
    points: float
    max: int
    wrong: tuple[str, ...]


def grade_class(course, folder):
    """Make the example class in `folder`, grade it and print its table; the table's rows."""
    students = make_class(course, folder)
    return grade_submissions(course, folder, students)


def grade_submissions(course, folder, students=()):
    """Grade what lies in `folder`/submitted for every student there and in `students`; a list of `Row`s."""
    folder = Path(folder).resolve()
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root / "graders")).load_config()
    config.CourseDirectory.root = str(folder)
    handed_in = (path.name for path in folder.glob("submitted/*") if path.is_dir())
    students = sorted({*students, *handed_in})
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        for student in students:
            gradebook.update_or_create_student(student)
    rows = []
    for chapter in course.chapters:
        # disable=None: no bar where the output is no terminal.
        for student in tqdm(students, desc=chapter, unit="student", disable=None):
            reason = _autograde(config, folder, chapter, student)
            rows += _rows(course, folder, chapter, student, reason)
        done = _run(GenerateFeedback, config, chapter, "*")
        if not done["success"]:
            print(f"{chapter}: no feedback for some, see {_save_log(folder, 'feedback', chapter, done)}")
    run_nbgrader(
        course, "export", f"--CourseDirectory.root={folder}", f"--to={folder / 'nbgrader-export.csv'}"
    )
    _write_csv(rows, folder / "grades.csv")
    text = table(course, rows)
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(
        f"\nIn {folder}: this table (table.txt) and grades.csv, nbgrader-export.csv, feedback/ with a page "
        "for each notebook that ran, and logs/ of those that did not."
    )
    return rows


def _autograde(config, folder, chapter, student):
    """Let nbgrader grade one notebook; None, or the reason why it could not."""
    notebook = folder / "submitted" / student / chapter / f"{chapter}.ipynb"
    reason = _why_unreadable(notebook)
    if reason is None:
        done = _run(Autograde, config, chapter, student)
        if not done["success"]:
            reason = _why_failed(_save_log(folder, student, chapter, done))
    if reason is not None:
        _set_to_zero(folder, chapter, student)
    return reason


def _run(converter, config, chapter, student):
    """What ``nbgrader autograde CHAPTER --student STUDENT`` does, in this process; {success, log, error}."""
    coursedir = CourseDirectory(config=config, assignment_id=chapter, student_id=student)
    app = converter(coursedir=coursedir, config=config)
    app.force = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="nbgrader")  # about its own use of SQLAlchemy
        done = capture_log(app)
    if done.get("error", "").rstrip().endswith("KeyboardInterrupt"):
        raise KeyboardInterrupt  # capture_log takes the reader's Ctrl-C for one more failure
    return done


def _save_log(folder, whose, chapter, done):
    log = folder / "logs" / f"{whose}-{chapter}.txt"
    log.parent.mkdir(exist_ok=True)
    log.write_text(done.get("log", "") + done["error"], encoding="utf-8")
    return log


def _why_unreadable(notebook):
    if not notebook.is_file():
        others = ", ".join(sorted(path.name for path in notebook.parent.glob("*")))
        return f"{notebook.name} is missing, there is {others}" if others else "nothing was handed in"
    try:
        json.loads(notebook.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"the file is not a notebook (not JSON): {error}"
    return None


def _why_failed(log):
    raised = [match.groups() for match in RAISED.finditer(log.read_text(encoding="utf-8"))]
    # nbgrader ends in an exception of its own that only points to the one before.
    raised = [(name, text) for name, text in raised if name != "NbGraderException"]
    name, text = raised[-1] if raised else ("NbGraderException", "no reason given")
    return IN_WORDS.get(name, f"nbgrader could not grade it ({name}: {text}), see logs/{log.name}")


def _set_to_zero(folder, chapter, student):
    """As nbgrader does for a notebook that is missing; else an earlier score would stay in the gradebook."""
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        try:
            submission = gradebook.find_submission(chapter, student)
        except MissingEntry:
            return
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = 0, False
        gradebook.db.commit()


def _rows(course, folder, chapter, student, reason):
    exercises = [course.exercises[name] for name in course.chapters[chapter].exercises]
    if reason is not None:
        return [Row(student, exercise.name, 0, exercise.points, (reason,)) for exercise in exercises]
    notebook = nbformat.read(folder / "autograded" / student / chapter / f"{chapter}.ipynb", as_version=4)
    rows = []
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        for exercise in exercises:
            grade = gradebook.find_grade(f"{exercise.name}-graded", chapter, chapter, student)
            wrong = []
            if grade.score < exercise.points:
                wrong = what_went_wrong(notebook, exercise.name) or ["its graded cell does not say"]
            rows.append(Row(student, exercise.name, grade.score, exercise.points, tuple(wrong)))
    return rows


def _write_csv(rows, path):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([row.student, row.exercise, f"{row.points:g}", row.max, "; ".join(row.wrong)])


def table(course, rows):
    """The rows as text: a line of points for each student, and below it what went wrong."""
    blocks = []
    for chapter in course.chapters.values():
        numbers = {name: i for i, name in enumerate(chapter.exercises, 1)}
        of_chapter = [row for row in rows if row.exercise in numbers]
        lines = [f"{chapter.name}: " + ", ".join(f"{i} {name}" for name, i in numbers.items())]
        width = max(len("student"), *(len(row.student) for row in of_chapter))
        head = "".join(f"{i:>6}" for i in numbers.values())
        out_of = "".join(f"{'/' + str(course.exercises[name].points):>6}" for name in numbers)
        most = sum(course.exercises[name].points for name in numbers)
        lines += ["", f"{'student':<{width}}{head}   total", f"{'':<{width}}{out_of}{'/' + str(most):>8}"]
        for student in sorted({row.student for row in of_chapter}):
            own = [row for row in of_chapter if row.student == student]
            points = "".join(f"{row.points:>6g}" for row in own)
            lines.append(f"{student:<{width}}{points}{sum(row.points for row in own):>8g}")
            lines += _in_words(own)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _in_words(rows):
    """What went wrong for one student, each reason once."""
    exercises_of = {}
    for row in rows:
        if row.wrong:
            others = len(row.wrong) - 1
            more = f" ({others} more in grades.csv)" if others else ""
            exercises_of.setdefault(row.wrong[0] + more, []).append(row.exercise)
    lines = []
    for words, exercises in exercises_of.items():
        names = "all" if len(exercises) == len(rows) > 1 else ", ".join(exercises)
        lines += textwrap.wrap(f"{names}: {words}", 100, initial_indent="    ", subsequent_indent="      ")
    return lines
