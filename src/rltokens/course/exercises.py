"""The course as data: chapters from `solutions/`, exercises from `graders/`, references from the package."""

import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import rltokens
from rltokens.course.source import function_source, reached_from

EXERCISE_LINE = re.compile(r"^\{exercise\}`(\w+)`$", re.M)
QUESTION = re.compile(
    r"^:::\{question\} (?P<name>[\w-]+)\n:points: (?P<points>\d+)\n\n(?P<text>.+?)\n\n"
    r"\*\*Rubric\.\*\* (?P<rubric>.+?)\n:::$",
    re.M | re.S,
)
DIFFICULTIES = ("easy", "medium", "hard")


class CourseError(Exception):
    """The folder does not hold what a course needs; the message says what to add where."""


@dataclass(frozen=True)
class Exercise:
    """One function to write: the reference from the package, all else from its file in `graders/`.

    An exercise of another kind, such as an input that breaks a given function, has its reference in
    that file too, since it is no function of the package.
    """

    name: str
    chapter: str
    grader: object  # the module graders/<name>.py
    function: object  # the reference, rltokens.<name> or grader.<name>

    title = property(lambda self: self.grader.TITLE)
    statement = property(lambda self: self.grader.STATEMENT.strip())
    difficulty = property(lambda self: self.grader.DIFFICULTY)
    minutes = property(lambda self: self.grader.MINUTES)
    points = property(lambda self: self.grader.POINTS)
    hints = property(lambda self: tuple(hint.strip() for hint in self.grader.HINTS))
    visible = property(lambda self: tuple(self.grader.VISIBLE))
    hidden = property(lambda self: tuple(self.grader.HIDDEN))
    wrong = property(lambda self: tuple(self.grader.WRONG.items()))  # (function, the check meant for it)
    right = property(lambda self: tuple(self.grader.RIGHT))
    given = property(lambda self: tuple(getattr(self.grader, "GIVEN", ())))  # functions that it is about

    @cached_property
    def _source(self):
        return function_source(self.function)

    @property
    def given_source(self):
        """The functions that the exercise is about, as text; empty where there are none."""
        return reached_from(self.grader.__file__, [function.__name__ for function in self.given])

    @property
    def stub(self):
        return f"{self._source[0]}\n    raise NotImplementedError"

    @property
    def solution(self):
        return "\n".join(self._source)

    @property
    def marked_solution(self):
        """The solution between the marks that nbgrader looks for."""
        head, body = self._source
        return f"{head}\n    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION"


@dataclass(frozen=True)
class Chapter:
    name: str  # "ch02"
    title: str
    text: str  # the notebook as MyST, with a line {exercise}`name` where each exercise goes
    exercises: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    root: Path
    chapters: dict[str, Chapter]
    exercises: dict[str, Exercise]


def load_course(root="."):
    """Read the course in `root`, the folder that holds `graders/` and `solutions/`."""
    root = Path(root).resolve()
    for folder in ("graders", "solutions"):
        if not (root / folder).is_dir():
            raise CourseError(f"{root} holds no {folder}/: name the course's folder with --course")
    chapters = {path.stem: _load_chapter(path) for path in sorted((root / "solutions").glob("ch*.md"))}
    exercises = {}
    for chapter in chapters.values():
        for name in chapter.exercises:
            exercises[name] = _load_exercise(root, name, chapter.name)
    return Course(root, chapters, exercises)


def grader_files(root):
    """The files in `graders/` that hold an exercise each."""
    return sorted(p for p in (Path(root) / "graders").glob("*.py") if p.stem != "nbgrader_config")


def _load_chapter(path):
    text = path.read_text(encoding="utf-8")
    heading = re.search(r"^# (.+)$", text, re.M)
    if heading is None:
        raise CourseError(f"{path}: expected a first heading, `# Title of the chapter`")
    return Chapter(path.stem, heading[1], text, tuple(EXERCISE_LINE.findall(text)))


def _load_exercise(root, name, chapter):
    path = root / "graders" / f"{name}.py"
    if not path.is_file():
        raise CourseError(f"solutions/{chapter}.md names the exercise {name}: write graders/{name}.py")
    # Under a name of its own, so that inspect finds the source and no installed package is shadowed.
    spec = importlib.util.spec_from_file_location(f"graders.{name}", path)
    grader = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = grader
    spec.loader.exec_module(grader)
    function = getattr(rltokens, name, None) or getattr(grader, name, None)
    if function is None:
        raise CourseError(
            f"solutions/{chapter}.md names the exercise {name}: add the function to rltokens, or to {path} "
            "if it is of another kind"
        )
    for setting in ("TITLE", "STATEMENT", "DIFFICULTY", "MINUTES", "POINTS", "HINTS", "VISIBLE", "HIDDEN"):
        if not hasattr(grader, setting):
            raise CourseError(f"{path}: {setting} is missing")
    return Exercise(name, chapter, grader, function)
