"""The grading chain, through nbgrader itself: the example class, named answers, and formgrader."""

import contextlib
import csv
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from browser import open_browser

from rltokens.checking import Answer, grade, run_checks
from rltokens.course.classroom import COLUMNS, grade_class, grade_submissions
from rltokens.course.example_class import answer, answer_all, named_answer, put_submission
from rltokens.course.exercises import CourseError, load_course
from rltokens.course.notebooks import build
from rltokens.course.preprocessors import LINES_KEPT, KeepVerdict
from rltokens.course.verdicts import failures_in

ROOT = Path(__file__).resolve().parent.parent
COURSE = load_course(ROOT)
ALL = list(COURSE.exercises)
BUILT_ON_LOG_SOFTMAX = [
    name
    for name, exercise in COURSE.exercises.items()
    if exercise.chapter == "ch02" and "log_softmax" in Answer(exercise.function).drive("names_used")
]
CH02 = COURSE.chapters["ch02"].exercises

# For each student: the points where they are not full, and what the table says of an exercise.
CLASS = {
    "blank": (dict.fromkeys(ALL, 0), dict.fromkeys(ALL, "not begun")),
    "broken_json": (dict.fromkeys(ALL, 0), dict.fromkeys(ALL, "the file is not a notebook (not JSON): ")),
    "copied_cells": ({}, {}),
    "deleted_a_test": ({}, {}),
    "deleted_an_answer": (
        {"log_softmax": 0, **dict.fromkeys(BUILT_ON_LOG_SOFTMAX, 0)},
        {
            "log_softmax": "log_softmax is not defined: its cell was deleted",
            **{name: f"Mend log_softmax first: {name} is built on it" for name in BUILT_ON_LOG_SOFTMAX},
        },
    ),
    "endless_loop": (
        {"importance_ratios": 0},
        {"importance_ratios": "divides_new_by_old: did not end within 10 seconds: is there a loop"},
    ),
    "full_marks": ({}, {}),
    "killed_kernel": (dict.fromkeys(CH02, 0), dict.fromkeys(CH02, "the kernel died while the notebook ran")),
    "mean_for_sum": (
        {"sequence_logprobs": 0},
        {"sequence_logprobs": "multiplies_the_steps: three tokens of probability 0.5, 0.8 and 0.6 make a"},
    ),
    "multiplies_by_the_mask": (
        {"token_logprobs": 2.45, "sequence_logprobs": 1.78},  # 9 of 11 checks, 8 of 9
        {
            "token_logprobs": "padding_is_inert: nan in padded logits changed the result",
            "sequence_logprobs": "Mend token_logprobs first: sequence_logprobs is built on it",
        },
    ),
    "nothing": (dict.fromkeys(ALL, 0), dict.fromkeys(ALL, "nothing was handed in")),
    "warnings": ({}, {}),
}
NOT_RUN = ("broken_json", "killed_kernel", "nothing")


class Graded:
    """A graded class: its folder, {student: {exercise: row}}, and what was printed."""

    def __init__(self, folder, run):
        self.folder, printed = folder, io.StringIO()
        with contextlib.redirect_stdout(printed):
            rows = run()
        self.printed = printed.getvalue()
        self.rows = {}
        for row in rows:
            self.rows.setdefault(row.student, {})[row.exercise] = row


@pytest.fixture(scope="module")
def example_class(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "class"
    return Graded(folder, lambda: grade_class(COURSE, folder))


@pytest.mark.slow
@pytest.mark.parametrize("student", CLASS)
def test_each_student_has_the_points_and_the_words(example_class, student):
    less, words = CLASS[student]
    rows = example_class.rows[student]
    assert {name: row.points for name, row in rows.items()} == {
        name: less.get(name, exercise.points) for name, exercise in COURSE.exercises.items()
    }
    assert {name for name, row in rows.items() if row.wrong} == set(words)
    for name, start in words.items():
        assert rows[name].wrong[0].startswith(start)


@pytest.mark.slow
def test_nobody_is_missing_from_table_csv_and_export(example_class):
    assert set(example_class.rows) == set(CLASS)
    with open(example_class.folder / "grades.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert [line[:2] for line in lines] == [
        [s, e] for chapter in COURSE.chapters.values() for s in sorted(CLASS) for e in chapter.exercises
    ]
    for student, exercise, points, most, wrong in lines:
        row = example_class.rows[student][exercise]
        assert (float(points), int(most), wrong) == (row.points, row.max, "; ".join(row.wrong))
    with open(example_class.folder / "nbgrader-export.csv", newline="") as file:
        exported = dict.fromkeys(CLASS, 0.0)
        for line in csv.DictReader(file):  # a line for each chapter
            exported[line["student_id"]] += float(line["score"])
    totals = {s: sum(row.points for row in rows.values()) for s, rows in example_class.rows.items()}
    assert exported == pytest.approx(totals)
    printed = [line.split() for line in example_class.printed.splitlines() if not line.startswith("    ")]
    for student, rows in example_class.rows.items():
        lines = [line[1:] for line in printed if line and line[0] == student]
        points = [[rows[name].points for name in chapter.exercises] for chapter in COURSE.chapters.values()]
        assert lines == [[f"{p:g}" for p in of_chapter] + [f"{sum(of_chapter):g}"] for of_chapter in points]


@pytest.mark.slow
def test_feedback_is_written_for_every_notebook_that_ran(example_class):
    written = {path.parent.parent.name for path in example_class.folder.glob("feedback/*/ch02/ch02.html")}
    assert written == set(CLASS) - set(NOT_RUN)
    page = (example_class.folder / "feedback/multiplies_by_the_mask/ch02/ch02.html").read_text()
    points = CLASS["multiplies_by_the_mask"][0]["token_logprobs"]
    assert f"{points} of 3 points" in page
    assert (example_class.folder / "logs/killed_kernel-ch02.txt").is_file()


@pytest.mark.slow
def test_a_deleted_test_cell_stands_where_it_stood(example_class):
    def order(student):
        path = example_class.folder / "autograded" / student / "ch02/ch02.ipynb"
        cells = nbformat.read(path, as_version=4).cells
        return [cell.metadata.nbgrader.grade_id for cell in cells if "nbgrader" in cell.metadata]

    assert order("deleted_a_test") == order("full_marks")


# --- Named answers, and submissions that are odd in other ways -----------------------------------


def _grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def mostly_deleted(notebook):
    """From Colab, which writes no cell ids; graded and other locked cells gone, one that is left changed."""
    answer_all(notebook, COURSE)
    notebook.nbformat_minor = 0
    for cell in list(notebook.cells):
        cell.pop("id", None)
        if cell.metadata.get("nbgrader", {}).get("locked") and cell.cell_type == "code":
            notebook.cells.remove(cell)
    statement = next(cell for cell in notebook.cells if _grade_id(cell).endswith("-statement"))
    statement.metadata.nbgrader.locked = False
    statement.source = "changed"


@pytest.fixture(scope="module")
def named_answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named") / "class"
    build(COURSE, folder, folder / "release")

    def hand_in(student, change, chapters=COURSE.chapters):
        for chapter in chapters:
            notebook = nbformat.read(folder / "release" / chapter / f"{chapter}.ipynb", as_version=4)
            put_submission(folder, student, chapter, change(notebook) or notebook)

    def all_right(notebook):
        for exercise in COURSE.exercises.values():
            name = exercise.name
            answer(notebook, COURSE, name, named_answer(COURSE, name, exercise.right[0].__name__))

    def one_wrong(name):
        def change(notebook):
            answer_all(notebook, COURSE)
            wrong, _ = COURSE.exercises[name].wrong[0]
            answer(notebook, COURSE, name, named_answer(COURSE, name, wrong.__name__))

        return change

    hand_in("right", all_right)
    for name in ALL:
        hand_in(f"wrong-{name}", one_wrong(name), [COURSE.exercises[name].chapter])
    hand_in("mostly-deleted", mostly_deleted)
    hand_in("a-list", lambda notebook: b"[]")
    hand_in("misnamed", lambda notebook: notebook)
    for path in (folder / "submitted" / "misnamed").glob("*/*.ipynb"):
        path.rename(path.with_name(f"{path.stem} (1).ipynb"))
    return Graded(folder, lambda: grade_submissions(COURSE, folder))


@pytest.mark.slow
@pytest.mark.parametrize("student", ["right", "mostly-deleted"])
def test_full_marks_through_nbgrader(named_answers, student):
    assert [(row.points, row.wrong) for row in named_answers.rows[student].values()] == [
        (exercise.points, ()) for exercise in COURSE.exercises.values()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_wrong_answer_is_named_through_nbgrader(named_answers, name):
    row, (wrong, meant) = named_answers.rows[f"wrong-{name}"][name], COURSE.exercises[name].wrong[0]
    checks = (*COURSE.exercises[name].visible, *COURSE.exercises[name].hidden)
    failed = [result for result in run_checks(wrong, checks) if result.failure]
    assert row.points == pytest.approx(row.max * (1 - len(failed) / len(checks)), abs=0.0051)
    assert [words.partition(": ")[0] for words in row.wrong] == [result.check for result in failed]
    lesson = {result.check: str(result.failure) for result in failed}[meant.__name__]
    assert f"{meant.__name__}: {lesson}" in row.wrong


@pytest.mark.slow
def test_what_is_no_notebook_has_its_reason(named_answers):
    def reasons(student):
        return {row.wrong for row in named_answers.rows[student].values() if row.points == 0}

    assert reasons("misnamed") == {
        (f"{chapter}.ipynb is missing, there is {chapter} (1).ipynb",) for chapter in COURSE.chapters
    }
    for (reason,) in reasons("a-list"):
        assert reason.startswith("nbgrader could not grade it (")


def test_an_answer_that_graders_do_not_name_is_refused():
    with pytest.raises(CourseError, match=r"names no answer median_for_sum; it has .*mean_for_sum"):
        named_answer(COURSE, "sequence_logprobs", "median_for_sum")


# --- Words ---------------------------------------------------------------------------------------


def raises_over_two_lines(*arguments):
    print("  FAILED  by_the_learner: this line is printed by the learner's function")
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize("name", ALL)
def test_failures_are_read_as_they_were_printed(name):
    exercise = COURSE.exercises[name]
    checks = (*exercise.visible, *exercise.hidden)
    for function in (exercise.function, raises_over_two_lines, *(wrong for wrong, _ in exercise.wrong)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            grade({name: function}, exercise.points, *checks)
        with contextlib.redirect_stdout(io.StringIO()):
            expected = [(r.check, str(r.failure)) for r in run_checks(function, checks) if r.failure]
        assert failures_in(printed.getvalue(), name) == [(c, m.replace("\n", " ")) for c, m in expected]


def test_a_flood_of_output_leaves_the_verdict():
    cell = nbformat.v4.new_code_cell(metadata={"nbgrader": {"grade": True}})
    for stream, text in (
        ("stdout", "noise\n" * 5000),
        ("stderr", "a warning\n"),
        ("stdout", "the verdict\n"),
    ):
        cell.outputs.append(nbformat.v4.new_output("stream", name=stream, text=text))
    cell.outputs.append(nbformat.v4.new_output("execute_result", {"text/plain": "1.5"}, execution_count=1))
    kept, _ = KeepVerdict().preprocess_cell(cell, {}, 0)
    (stream, result), lines = kept.outputs, kept.outputs[0].text.splitlines()
    assert stream.name == "stdout" and result.data["text/plain"] == "1.5"
    assert lines[-2:] == ["a warning", "the verdict"] and len(lines) == LINES_KEPT + 1


# --- Formgrader ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def formgrader(example_class):
    """The address of a Jupyter server that was started in the class's folder."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    log = open(example_class.folder / "server.log", "w")  # noqa: SIM115  (the server keeps it open)
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.port_retries=0", "--IdentityProvider.token="],
        cwd=example_class.folder,
        env={**os.environ, "JUPYTER_CONFIG_PATH": str(ROOT / "graders")},
        stdout=log,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    address = f"http://localhost:{port}"
    try:
        for _ in range(60):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/api").close()
                break
            assert server.poll() is None, (example_class.folder / "server.log").read_text()
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)
        log.close()


@pytest.mark.slow
def test_formgrader_lists_the_class(example_class, formgrader):
    def get(path):
        with urllib.request.urlopen(f"{formgrader}/formgrader/{path}") as reply:
            return json.load(reply)

    assert [assignment["name"] for assignment in get("api/assignments")] == list(COURSE.chapters)
    scores = {
        entry["student"]: entry["score"] for entry in get("api/submissions/ch02") if entry["autograded"]
    }
    assert scores == pytest.approx(
        {s: sum(example_class.rows[s][name].points for name in CH02) for s in CLASS if s not in NOT_RUN}
    )


@pytest.mark.slow
def test_formgrader_opens_in_a_browser(formgrader):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{formgrader}/formgrader/gradebook/ch02/ch02")
        page.get_by_text("Submission #1").first.wait_for()
        page.goto(f"{formgrader}/formgrader/manage_submissions/ch02")
        page.get_by_text("multiplies_by_the_mask").first.wait_for()
        shots = ROOT / "build" / "screenshots"
        shots.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=shots / "formgrader.png")
