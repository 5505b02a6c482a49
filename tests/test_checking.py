"""The stand-in, the comparisons and the runner, each on the mistakes that it exists for."""

import numpy as np
import pytest

from rltokens import checking
from rltokens.checking import Answer, BadForm, Raised, Wrong, arguments_after, run_checks, same


def doubles(double, rng):
    same(double(np.array([1.0, 2.0])), [2.0, 4.0], "twice 1 and 2 is 2 and 4")


def quadruples(quadruple, rng):
    same(quadruple(np.array([1.0])), [4.0], "four times 1 is 4")


def only(results):
    (result,) = results
    return result


def test_same_accepts_what_is_close_in_any_form():
    torch = pytest.importorskip("torch")
    for got in ([1, 2.000001], np.float32([1, 2]), torch.tensor([1.0, 2.0], requires_grad=True), (1, 2)):
        same(Answer(lambda got=got: got)(), [1.0, 2.0], "no")


@pytest.mark.parametrize("got", [[1.0, 2.1], [1.0, np.nan], [1.0, np.inf], [-np.inf, 2.0]])
def test_same_rejects_with_the_lesson(got):
    with pytest.raises(Wrong, match="the lesson") as caught:
        same(got, [1.0, 2.0], "the lesson")
    assert type(caught.value) is Wrong
    assert caught.value.excess > 1000


def test_same_says_another_thing_of_what_is_not_finite():
    for got, message in (([np.nan], "overflow"), ([3.0], "wrong")):
        with pytest.raises(Wrong, match=message):
            same(got, [1.0], "wrong", not_finite="overflow")
    with pytest.raises(Wrong, match="wrong"):  # an infinity where one should stand is no overflow
        same([-np.inf, 3.0], [-np.inf, 1.0], "wrong", not_finite="overflow")


def test_same_meets_infinities_exactly():
    same([-np.inf, 1.0], [-np.inf, 1.0], "no")
    with pytest.raises(Wrong, match="the lesson"):
        same([-1e300], [-np.inf], "the lesson")


@pytest.mark.parametrize("got", [None, [1.0], [[1.0, 2.0]], "abc", [[1.0], [1.0, 2.0]], {"a": 1}])
def test_a_wrong_form_is_told_apart_from_a_wrong_number(got):
    with pytest.raises(BadForm):
        same(got, [1.0, 2.0], "the lesson")


def test_the_answer_cannot_reach_the_checks_arrays():
    def clears(x):
        x[:] = 0
        return x

    x = np.ones(3)
    Answer(clears)(x)
    np.testing.assert_array_equal(x, 1.0)
    (after,) = arguments_after(Answer(clears), x)
    np.testing.assert_array_equal(after, 0.0)


def test_an_exception_arrives_as_class_name_and_message():
    def fails(x):
        return x[7]

    with pytest.raises(Raised) as caught:
        Answer(fails)([1])
    assert (caught.value.kind, caught.value.text) == ("IndexError", "list index out of range")


def test_one_kind_of_exception_can_be_the_lesson():
    def fails(x):
        return [][x]

    with pytest.raises(Wrong, match="the lesson") as caught:
        checking.must_not_raise("IndexError", "the lesson", Answer(fails), 0)
    assert type(caught.value) is Wrong
    with pytest.raises(Raised, match="IndexError"):
        checking.must_not_raise("KeyError", "the lesson", Answer(fails), 0)


def test_the_line_that_raised_is_named():
    namespace = {}
    exec("def fails(x):\n    y = x\n    return y[7]", namespace)  # as a cell, which counts from 1
    with pytest.raises(Raised, match="your function raised IndexError in line 3 of its cell: list index"):
        Answer(namespace["fails"])([1])


def test_only_plain_values_pass():
    with pytest.raises(BadForm, match="expected arrays of real numbers, got object"):
        Answer(lambda: object())()
    with pytest.raises(BadForm, match="got an array of complex128"):
        Answer(lambda: np.array([1j]))()
    assert Answer(lambda: {"a": (1, [np.float64(2), None])})() == {"a": (1, [2.0, None])}


def test_a_stub_is_not_begun():
    def double(x):
        raise NotImplementedError

    assert not only(run_checks(double, [doubles])).begun


def test_what_the_check_cannot_use_is_said_in_words():
    def check(double, rng):
        double(1) + 1

    assert "could not be used (TypeError" in str(only(run_checks(lambda x: None, [check])).failure)


def test_an_endless_loop_is_stopped_and_the_rest_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(checking, "SECONDS_A_CHECK", 0.2)

    def double(x):
        while True:
            pass

    first, second = run_checks(double, [doubles, doubles])
    assert "loop" in str(first.failure)
    assert "not run" in str(second.failure)


@pytest.mark.parametrize("swallowed", [Exception, BaseException])
def test_a_loop_that_swallows_exceptions_is_stopped_too(monkeypatch, swallowed):
    monkeypatch.setattr(checking, "SECONDS_A_CHECK", 0.2)
    patience = iter(range(2))

    def double(x):
        while next(patience, None) is not None:
            try:
                while True:
                    pass
            except swallowed:
                pass
        return 2 * x

    assert isinstance(only(run_checks(double, [doubles])).failure, checking.TookTooLong)


def test_what_an_earlier_function_prints_stands_above_the_verdict(notebook, capsys):
    exec("def double(x):\n    print('  FAILED  forged: no')\n    return 3 * x", notebook)
    checking.check(notebook, doubles)
    capsys.readouterr()
    checking.check(notebook, quadruples)
    said = capsys.readouterr().out
    assert said.index("forged") < said.index("quadruple\n")
    assert "forged" not in said[said.index("quadruple\n") :]


def test_each_check_has_its_own_random_numbers_fixed_by_the_seed():
    seen = []

    def draws(double, rng):
        seen.append(rng.random())

    def draws_too(double, rng):
        seen.append(rng.random())

    run_checks(None, [draws, draws_too])
    run_checks(None, [draws_too])
    run_checks(None, [draws], seed=1)
    assert seen[1] == seen[2]
    assert len(set(seen)) == 3


def test_points_are_shared_equally():
    results = run_checks(lambda x: 2 * x, [doubles, quadruples, quadruples])
    assert checking.points_earned(results, 3) == 1
    assert checking.points_earned(results[:1], 3) == 3
    assert type(checking.points_earned(results, 4)) is float  # nbgrader reads nothing else


# --- In a notebook ---


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(checking, "_seen", {})
    namespace = {}
    exec("def double(x):\n    return 2 * x\n\ndef quadruple(x):\n    return double(double(x))", namespace)
    return namespace


def test_all_is_well(notebook, capsys):
    assert checking.grade(notebook, 3, doubles) == 3
    assert capsys.readouterr().out == "double\n  passed  doubles\n3 of 3 points\n"


def test_the_earlier_function_is_named(notebook, capsys):
    exec("def double(x):\n    return 3 * x", notebook)
    checking.check(notebook, doubles)
    checking.check(notebook, quadruples)
    said = capsys.readouterr().out
    assert "FAILED  quadruples: four times 1 is 4" in said
    assert "Mend double first: quadruple is built on it, and it fails its own checks." in said


def test_the_earlier_function_is_named_where_it_was_not_begun(notebook, capsys):
    exec("def double(x):\n    raise NotImplementedError", notebook)
    checking.check(notebook, doubles)
    checking.check(notebook, quadruples)
    said = capsys.readouterr().out
    assert "double\n  not begun" in said
    assert "quadruple\n  FAILED" in said
    assert "Mend double first" in said


def test_an_innocent_earlier_function_is_not_named(notebook, capsys):
    exec("def double(x):\n    return 3 * x\n\ndef quadruple(x):\n    return 5 * x", notebook)
    checking.check(notebook, doubles)
    checking.check(notebook, quadruples)
    assert "Mend" not in capsys.readouterr().out


def test_a_missing_function_is_said_in_words(notebook, capsys):
    del notebook["double"]
    assert checking.grade(notebook, 3, doubles) == 0
    assert "double is not defined as a function: did its cell run" in capsys.readouterr().out


def test_the_report_counts_what_is_at_stake(notebook, capsys):
    exec("def quadruple(x):\n    raise NotImplementedError", notebook)
    checking.check(notebook, doubles)
    checking.check(notebook, quadruples)
    capsys.readouterr()
    checking.report(notebook, {"double": 2, "quadruple": 3, "octuple": 4})
    said = capsys.readouterr().out
    assert "double     2 points  passed" in said
    assert "quadruple  3 points  not begun" in said
    assert "octuple    4 points  its check cell has not been run" in said
    assert "pass for 2 of 9 points; 7 are still at stake" in said


def test_what_functions_print_stays_out_of_the_report(notebook, capsys):
    exec("def double(x):\n    print('noise')\n    return 2 * x", notebook)
    checking.check(notebook, doubles)
    assert "noise" in capsys.readouterr().out
    checking.report(notebook, {"double": 2})
    assert "noise" not in capsys.readouterr().out


@pytest.mark.parametrize("order", [(doubles, quadruples), (quadruples, doubles, quadruples), (quadruples,)])
def test_who_waits_for_a_stub_has_begun(notebook, capsys, order):
    """Whatever check cells were run before, and in whatever order."""
    exec("def double(x):\n    raise NotImplementedError", notebook)
    for one in order:
        capsys.readouterr()
        checking.check(notebook, one)
    said = capsys.readouterr().out
    assert "FAILED  quadruples: your function calls double, which is not written yet" in said
    assert ("Mend double first" in said) == (len(order) > 1)


def test_the_first_cause_in_a_chain_is_named(notebook, capsys):
    def octuples(octuple, rng):
        same(octuple(np.array([1.0])), [8.0], "eight times 1 is 8")

    exec("def octuple(x):\n    return double(quadruple(x))\n\ndef double(x):\n    return 3 * x", notebook)
    for one in (octuples, quadruples, doubles):
        checking.check(notebook, one)
    capsys.readouterr()
    checking.check(notebook, octuples)
    assert "Mend double first" in capsys.readouterr().out


def test_the_same_message_is_printed_once(notebook, capsys):
    exec("def double(x):\n    return None", notebook)
    checking.check(notebook, doubles, doubles)
    said = capsys.readouterr().out
    assert said.count("got None") == 1
    assert "FAILED  doubles: the same" in said
