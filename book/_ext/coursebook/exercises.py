"""`{exercise} NAME`: an exercise with stub, hints and answer. `{exercise-list} CHAPTER`: a table of them."""

import inspect
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from coursebook.html import add_node, depart_details, details, fold, parse, visit_details
from rltokens.course.exercises import load_course


def setup(app):
    add_node(app, details, visit_details, depart_details)
    app.add_directive("exercise", ExerciseDirective)
    app.add_directive("exercise-list", ExerciseListDirective)


@cache
def course(root):
    return load_course(root)


class CourseDirective(SphinxDirective):
    required_arguments = 1

    @property
    def course(self):
        return course(Path(self.env.srcdir).parent)

    def find(self, table, kind):
        """The exercise or chapter that the argument names."""
        if self.arguments[0] not in table:
            raise self.error(f"no {kind} {self.arguments[0]!r}; there are {', '.join(table)}")
        return table[self.arguments[0]]

    def note_sources(self, exercise):
        """A change of the exercise's files makes this page out of date."""
        self.env.note_dependency(exercise.grader.__file__)
        self.env.note_dependency(inspect.getsourcefile(inspect.unwrap(exercise.function)))


class ExerciseDirective(CourseDirective):
    def run(self):
        exercise = self.find(self.course.exercises, "exercise")
        self.note_sources(exercise)
        box = nodes.admonition(ids=[anchor(exercise.name)], classes=["exercise"])
        self.set_source_info(box)
        self.env.get_domain("std").note_hyperlink_target(
            anchor(exercise.name), self.env.docname, anchor(exercise.name), exercise.title
        )
        box += nodes.title("", "", nodes.Text(f"Exercise: {exercise.title}"))
        box += nodes.paragraph("", effort(exercise), classes=["exercise-effort"])
        parse(self, exercise.statement, box)
        if exercise.given:
            box += code(exercise.given_source)
        box += code(exercise.stub)
        box += self.hints(exercise.hints)
        answer = details(summary="Show a solution", classes=["solution"])
        answer += code(exercise.solution)
        box += answer
        return [box]

    def hints(self, hints):
        """Each hint lies inside the one before, so they open one by one."""
        opened = []
        for number, hint in reversed(list(enumerate(hints, 1))):
            node = fold(self, f"Hint {number} of {len(hints)}", hint, "hint")
            node += opened
            opened = [node]
        return opened


class ExerciseListDirective(CourseDirective):
    def run(self):
        chapter = self.find(self.course.chapters, "chapter")
        exercises = [self.course.exercises[name] for name in chapter.exercises]
        self.env.note_dependency(str(self.course.root / "solutions" / f"{chapter.name}.md"))
        for exercise in exercises:
            self.note_sources(exercise)
        minutes, points = sum(e.minutes for e in exercises), sum(e.points for e in exercises)
        rows = [[self.link(e), *words(e.difficulty, e.minutes, e.points)] for e in exercises]
        rows.append(words("All", "", minutes, points))
        return [table(words("Exercise", "Difficulty", "Minutes", "Points"), rows)]

    def link(self, exercise):
        # A reference, not a plain link: an exercise that no page shows is a warning.
        target = addnodes.pending_xref(
            "", nodes.inline("", exercise.title), refdomain="std", reftype="ref", refexplicit=True,
            refwarn=True, reftarget=anchor(exercise.name), refdoc=self.env.docname,
        )  # fmt: skip
        self.set_source_info(target)
        return target


def anchor(name):
    # As HTML ids are written: token_logprobs is found at #exercise-token_logprobs.
    return f"exercise-{name}"


def effort(exercise):
    points = "1 point" if exercise.points == 1 else f"{exercise.points} points"
    return nodes.Text(f"{exercise.difficulty.capitalize()} · {exercise.minutes} minutes · {points}")


def code(source):
    return nodes.literal_block(source, source, language="python")


def words(*values):
    return [nodes.Text(str(value)) for value in values]


def table(head, rows):
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *map(row, rows))
    group[-1][-1]["classes"].append("total")
    return nodes.table("", group, classes=["exercise-list"])


def row(cells):
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))
