"""The notebooks: the same bytes each time, ids that stay, and a release that stands alone."""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from rltokens.course import notebooks
from rltokens.course.exercises import QUESTION
from rltokens.course.source import function_source, reached_from

# Runs a notebook's code cells in order, as Jupyter would, in a Python that has no rltokens.
RUN_CELLS = """
import json, sys
try:
    import rltokens
except ImportError:
    pass
else:
    sys.exit("rltokens can be imported: this environment proves nothing")
import matplotlib
matplotlib.use("agg")
namespace = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8")):
    exec(compile(cell, "cell", "exec"), namespace)
"""


@pytest.fixture(scope="session")
def release(course, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    notebooks.build(course, folder / "work", folder / "release")
    return folder / "release"


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """A Python with this one's libraries but without what is installed in editable mode: ours."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    return [str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")], environment


def cells_of(release, chapter):
    return nbformat.read(release / chapter / f"{chapter}.ipynb", as_version=4).cells


def run(cells, folder, bare_python):
    command, environment = bare_python
    (folder / "cells.json").write_text(json.dumps([c.source for c in cells if c.cell_type == "code"]))
    return subprocess.run(
        [*command, "-c", RUN_CELLS, "cells.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_release_is_the_same_bytes_each_time(course, release, tmp_path):
    notebooks.build(course, tmp_path / "work", tmp_path / "release")
    again = {p.relative_to(tmp_path / "release"): p.read_bytes() for p in (tmp_path / "release").rglob("*.*")}
    before = {p.relative_to(release): p.read_bytes() for p in release.rglob("*.*")}
    assert before == again
    assert {Path("ch02/ch02.ipynb"), Path("ch02/given.py")} <= set(before)


def test_no_id_changes_when_an_exercise_is_added(course):
    def ids(course):
        cells = notebooks.assemble(course, "ch02", "").cells
        return {(cell.id, cell.metadata.get("nbgrader", {}).get("grade_id")) for cell in cells}

    chapter = course.chapters["ch02"]
    fewer = replace(
        chapter,
        text=chapter.text.replace("{exercise}`token_logprobs`\n", ""),
        exercises=chapter.exercises[:-1],
    )
    without = ids(replace(course, chapters={"ch02": fewer}))
    assert without < ids(course)
    assert len(ids(course) - without) == 5  # statement, answer, checks, hints, graded cell


@pytest.mark.slow
def test_no_answer_is_released(course, release):
    for chapter in course.chapters.values():
        cells = cells_of(release, chapter.name)
        text = "\n".join(cell.source for cell in cells)
        assert "BEGIN SOLUTION" not in text
        assert "HIDDEN TESTS" not in text
        for name in chapter.exercises:
            exercise = course.exercises[name]
            body = function_source(exercise.function)[1].strip()
            assert body not in text, f"the answer to {name} stands in the released notebook"
            for check in exercise.hidden:
                assert check.__name__ not in text
            (answer,) = [cell for cell in cells if cell.id == name]
            assert answer.source == exercise.stub


@pytest.mark.slow
def test_every_exercise_has_its_cells_in_order(course, release):
    for chapter in course.chapters.values():
        ids = [cell.id for cell in cells_of(release, chapter.name)]
        assert ids[0] == "setup"
        assert ids[-1] == "report"
        for name in chapter.exercises:
            at = ids.index(f"{name}-statement")
            given = ["-given"] if course.exercises[name].given else []
            kinds = ["-statement", *given, "", "-checks", "-hints", "-graded"]
            assert ids[at : at + len(kinds)] == [name + kind for kind in kinds]


@pytest.mark.slow
def test_questions_are_graded_by_a_person_and_rubrics_stay_with_the_instructor(course, release):
    for chapter in course.chapters.values():
        questions = [match.groupdict() for match in QUESTION.finditer(chapter.text)]
        assert 1 <= len(questions) <= 2
        assert chapter.text.count(":::{question}") == len(questions), (
            "a question is not of the form asked for"
        )
        cells = {cell.id: cell for cell in cells_of(release, chapter.name)}
        source = notebooks.assemble(course, chapter.name, "")
        for question in questions:
            answer, (full,) = cells[question["name"]], [c for c in source.cells if c.id == question["name"]]
            assert answer.source == "YOUR ANSWER HERE"
            assert answer.metadata.nbgrader.grade and answer.metadata.nbgrader.solution
            assert answer.metadata.nbgrader.points == int(question["points"])
            assert question["text"] in cells[f"{question['name']}-question"].source
            assert question["rubric"] in full.source
            assert not any(question["rubric"] in cell.source for cell in cells.values())


@pytest.mark.slow
def test_the_blank_notebook_runs_alone(course, release, tmp_path, bare_python):
    """Without given.py beside it, as on Colab: the first cell writes it."""
    for chapter in course.chapters.values():
        done = run(cells_of(release, chapter.name), tmp_path, bare_python)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "given.py").read_bytes() == (release / chapter.name / "given.py").read_bytes()
        total = sum(course.exercises[name].points for name in chapter.exercises)
        in_the_experiment = done.stdout.count("the course's, since yours: not begun")
        assert in_the_experiment, f"{chapter.name} ends without an experiment"
        assert done.stdout.count("not begun") == 2 * len(chapter.exercises) + in_the_experiment
        assert f"pass for 0 of {total} points; {total} are still at stake" in done.stdout


@pytest.mark.slow
def test_the_solved_notebook_passes_its_checks_alone(course, release, tmp_path, bare_python):
    for chapter in course.chapters.values():
        cells = cells_of(release, chapter.name)
        for cell in cells:
            if cell.id in chapter.exercises:
                cell.source = course.exercises[cell.id].solution
        done = run(cells, tmp_path, bare_python)
        assert done.returncode == 0, done.stderr
        assert "FAILED" not in done.stdout
        assert "the course's" not in done.stdout
        assert "To blame" not in done.stdout
        assert "; 0 are still at stake" in done.stdout


def test_what_is_given_holds_none_of_the_chapters_answers(course):
    for chapter in course.chapters.values():
        given = notebooks.given_source(course, chapter.name)
        for name in chapter.exercises:
            assert f"def {name}(" not in given
        assert "rltokens.validation" not in given
        assert "@validated" not in given


def test_a_visible_check_that_needs_the_package_is_refused(course, monkeypatch):
    exercise = course.exercises["sequence_logprobs"]
    with pytest.raises(notebooks.BuildError, match="a visible check names rltokens"):
        notebooks.grader_code(exercise, exercise.hidden, "check(globals(), {})", "given")


def test_source_is_cut_without_decorators_and_with_all_it_needs(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "A = 1\nB = 2\n\n\ndef f():\n    return A\n\n\ndef g():\n    return f()\n\n\ndef h():\n    return B\n"
    )
    assert reached_from(path, ["g"]) == "A = 1\n\n\ndef f():\n    return A\n\n\ndef g():\n    return f()"
