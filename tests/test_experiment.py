"""An experiment runs on the learner's functions as far as they hold, and names the one that does not."""

import numpy as np
import pytest

from rltokens import checking
from rltokens.checking import Wrong, same
from rltokens.experiment import experiment, pack, unpack

COURSE = unpack(pack("def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2"))


def doubles(double, rng):
    same(double(np.array([1.0])), [2.0], "twice 1 is 2")


def halves(half, rng):
    same(half(np.array([1.0])), [0.5], "half of 1 is 0.5")


@pytest.fixture
def notebook(monkeypatch):
    """A notebook in which both exercises are solved and their check cells were run."""
    monkeypatch.setattr(checking, "_seen", {})
    namespace = {"double": lambda x: x + x, "half": lambda x: 0.5 * x}
    for check in (doubles, halves):
        checking.check(namespace, check)
    return namespace


def there_and_back(double, half):
    if half(double(3.0)) != 3.0:
        raise Wrong("half of twice 3 is not 3")
    return double(3.0)


def test_it_runs_on_what_passes(notebook, capsys):
    capsys.readouterr()
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    assert capsys.readouterr().out == "double  yours\nhalf    yours\n"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"double": lambda x: 3 * x}, "FAILED doubles"),
        ({"double": 7}, "FAILED doubles"),
    ],
)
def test_the_courses_version_stands_in_for_what_fails(notebook, capsys, change, why):
    notebook.update(change)
    capsys.readouterr()
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    assert capsys.readouterr().out == f"double  the course's, since yours: {why}\nhalf    yours\n"


def test_the_courses_version_stands_in_where_no_check_was_run(notebook, monkeypatch, capsys):
    monkeypatch.setattr(checking, "_seen", {})
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    assert capsys.readouterr().out.count("the course's, since yours: its check cell has not been run") == 2


def test_who_slips_through_the_visible_checks_is_named(notebook, capsys):
    notebook["double"] = lambda x: x + 1  # right for 1 only
    capsys.readouterr()
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    said = capsys.readouterr().out
    assert "double  yours" in said
    assert "The experiment does not come out: half of twice 3 is not 3" in said
    assert "To blame is double: it passes its visible checks" in said


def test_whatever_a_function_raises_is_blamed_on_it(notebook, capsys):
    notebook["half"] = lambda x: x / 2 if np.ndim(x) else {}[x]
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    assert "To blame is half" in capsys.readouterr().out


def test_two_that_are_wrong_together(notebook, capsys):
    notebook["double"] = lambda x: x + 1
    notebook["half"] = lambda x: x - 0.5
    assert experiment(there_and_back, notebook, COURSE, "double", "half") == 6.0
    assert "To blame is more than one of double, half" in capsys.readouterr().out


def test_an_experiment_that_cannot_come_out_is_our_fault(notebook):
    def impossible(double):
        raise Wrong("never")

    with pytest.raises(Wrong, match="never"):
        experiment(impossible, notebook, COURSE, "double")


def test_packed_source_does_not_read_like_source():
    assert "double" not in pack("def double(x):\n    return 2 * x")
