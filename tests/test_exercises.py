"""What every exercise must have, and the audit of its checks. A failure says what was forgotten."""

import ast
import doctest
import inspect
import json
import re
import sys

import pytest
from conftest import ROOT

import rltokens
from rltokens.course import audit
from rltokens.course.cli import main
from rltokens.course.exercises import DIFFICULTIES, CourseError, grader_files, load_course
from rltokens.course.mutants import mutants, survivors
from rltokens.course.notebooks import given_source
from rltokens.course.source import names_bound, reached_from

EXERCISES = list(load_course(ROOT).exercises.values())
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)


def test_every_grader_stands_in_a_chapter():
    listed = {exercise.name for exercise in EXERCISES}
    forgotten = {path.stem for path in grader_files(ROOT)} - listed
    assert not forgotten, f"add a line {{exercise}}`name` to a file in solutions/ for {sorted(forgotten)}"


@each_exercise
def test_an_exercise_is_complete(exercise):
    assert exercise.difficulty in DIFFICULTIES, f"DIFFICULTY is one of {DIFFICULTIES}"
    assert exercise.minutes > 0
    assert 2 <= exercise.points <= 5, "POINTS: 2 to 5"
    assert len(exercise.hints) >= 2, "HINTS: at least two, that open one by one"
    assert len(exercise.visible) >= 2, "VISIBLE: at least two checks"
    assert exercise.hidden, "HIDDEN: at least one check"
    assert len(exercise.wrong) >= 4, "WRONG: at least four plausible mistakes"
    assert len(exercise.right) >= 2, "RIGHT: at least two unusual right answers"
    assert ">>>" in exercise.stub, "the docstring in src/rltokens needs an example"


@each_exercise
def test_every_check_takes_the_function_and_random_numbers(exercise):
    for check in (*exercise.visible, *exercise.hidden):
        assert list(inspect.signature(check).parameters) == [exercise.name, "rng"], check.__name__


@each_exercise
def test_every_check_is_met_by_a_wrong_answer(exercise):
    meant = {check for _, check in exercise.wrong}
    general = [c.__name__ for c in exercise.hidden if c not in meant and re.match("agrees|works", c.__name__)]
    unmet = {c.__name__ for c in (*exercise.visible, *exercise.hidden) if c not in meant} - set(general)
    assert not unmet, f"no wrong answer is meant for {sorted(unmet)}: name one in WRONG"


@each_exercise
def test_visible_checks_know_no_reference(exercise):
    for check in exercise.visible:
        names = {n.id for n in ast.walk(ast.parse(inspect.getsource(check))) if isinstance(n, ast.Name)}
        assert "rltokens" not in names, f"{check.__name__} is printed in the notebook, which has no rltokens"


def test_no_two_exercises_of_a_notebook_share_a_helper():
    """Their checks live in one notebook: a helper of the one would take the place of the other's."""
    seen = {}
    for exercise in EXERCISES:
        checks = {check.__name__ for check in (*exercise.visible, *exercise.hidden)}
        for node in ast.parse(reached_from(exercise.grader.__file__, checks)).body:
            for name in names_bound(node):
                if name not in checks:  # these are handed over as functions, and not looked up
                    code = ast.unparse(node)
                    other, first = seen.setdefault((exercise.chapter, name), (exercise.name, code))
                    assert code == first, f"{exercise.name} and {other} define {name} differently"


@each_exercise
def test_the_book_shows_the_exercise(exercise):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "book").glob("*.md"))
    assert re.search(rf"\{{exercise\}} {exercise.name}$", pages, re.M), (
        f"add the exercise {exercise.name} to its chapter's page in book/"
    )


@each_exercise
def test_the_example_in_the_docstring_runs(exercise):
    namespace = dict(vars(sys.modules[exercise.function.__module__]))
    test = doctest.DocTestParser().get_doctest(exercise.function.__doc__, namespace, exercise.name, None, 0)
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))


@each_exercise
def test_right_answers_pass(exercise):
    for answer in (exercise.function, *exercise.right):
        assert audit.why_rejected(exercise, answer) == []


@each_exercise
def test_the_solution_as_printed_passes(exercise):
    """The text that goes into the notebook and the book, without the decorator that validates."""
    namespace = {"__name__": "given"}
    exec(given_source(load_course(ROOT), exercise.chapter), namespace)
    for other in EXERCISES:
        if other.chapter == exercise.chapter:
            exec(other.solution, namespace)
    assert audit.why_rejected(exercise, namespace[exercise.name]) == []


@each_exercise
def test_wrong_answers_meet_the_check_meant_for_them(exercise):
    for answer, meant in exercise.wrong:
        assert audit.why_accepted(exercise, answer, meant) == []


@each_exercise
def test_no_work_earns_nothing(exercise):
    for answer in audit.trivial_answers(exercise):
        assert audit.why_it_earns(exercise, answer) == []


def test_the_audit_command(capsys):
    assert main(["audit", "--course", str(ROOT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exercises"] == len(EXERCISES) >= 20
    assert found["wrong_answers"] == sum(len(e.wrong) for e in EXERCISES) >= 85
    assert found["accepted_wrong"] == found["rejected_right"] == []
    assert main(["audit", "--course", str(ROOT)]) == 0
    assert "No answer is misjudged." in capsys.readouterr().out


@pytest.mark.slow
@each_exercise
def test_every_mutant_is_rejected_or_excused(exercise):
    count, accepted = survivors(exercise)
    assert accepted == []
    lines = {line for line, _ in mutants(exercise.function)} if count else set()
    assert set(getattr(exercise.grader, "EQUIVALENT", {})) <= lines, "EQUIVALENT lists what is no mutant"


def test_a_mutant_changes_one_operator():
    found = dict(mutants(rltokens.masked_mean))
    assert "real_token = np.asarray(mask) != 1" in found
    dropped = found["kept = np.where(True, x, 0.0).astype(np.float64)"]
    assert dropped([[1.0, 5.0]], [[1, 0]]) == 6.0
    assert rltokens.masked_mean([[1.0, 5.0]], [[1, 0]]) == 1.0


def test_the_audit_lists_mutants_that_are_accepted(course):
    found = audit.audit(course)
    found["mutants"] = {"mutants": 2, "equivalent": 0, "accepted": ["gae: lam + 1"]}
    assert audit.misjudged(found)
    assert "Accepted, a mutant: gae: lam + 1" in audit.table(found)


def test_the_audit_tells_what_is_misjudged(course):
    exercise = course.exercises["sequence_logprobs"]
    answer, meant = exercise.wrong[0]
    # A right answer that is called wrong, a wrong one called right, and one whose named check lets it pass.
    assert "accepts it" in audit.why_accepted(exercise, exercise.function, meant)[0]
    assert "is right, but" in audit.why_rejected(exercise, answer)[0]
    mild = next(check for check in exercise.hidden if check.__name__ == "survives_a_long_response")
    drops_none = next(a for a, _ in exercise.wrong if a.__name__ == "multiplies_by_the_mask")
    assert "accepts it" in audit.why_accepted(exercise, drops_none, mild)[0]


def test_the_audit_asks_for_the_lesson_and_for_a_margin(course):
    exercise = course.exercises["sequence_logprobs"]
    meant = exercise.visible[0]

    def slightly_off(*arguments):
        return exercise.function(*arguments) + 1e-3

    def crashes(*arguments):
        raise RuntimeError("no")

    assert "tolerances only" in audit.why_accepted(exercise, slightly_off, meant)[0]
    assert "for another reason than its lesson" in audit.why_accepted(exercise, crashes, meant)[0]


def test_a_folder_without_a_course_is_named(tmp_path, capsys):
    assert main(["audit", "--course", str(tmp_path)]) == 2
    assert "holds no graders/" in capsys.readouterr().err


def test_what_was_forgotten_is_named(tmp_path):
    (tmp_path / "graders").mkdir()
    (tmp_path / "solutions").mkdir()
    page = tmp_path / "solutions" / "ch02.md"
    page.write_text("# A title\n\n{exercise}`log_softmax`\n", encoding="utf-8")
    with pytest.raises(CourseError, match=r"write graders/log_softmax\.py"):
        load_course(tmp_path)
    (tmp_path / "graders" / "log_softmax.py").write_text("TITLE = 'x'\n", encoding="utf-8")
    with pytest.raises(CourseError, match="STATEMENT is missing"):
        load_course(tmp_path)
    page.write_text("# A title\n\n{exercise}`no_such_function`\n", encoding="utf-8")
    (tmp_path / "graders" / "no_such_function.py").touch()
    with pytest.raises(CourseError, match="add the function to rltokens"):
        load_course(tmp_path)
