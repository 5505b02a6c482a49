"""Exercise: write the test that four wrong versions of GAE must fail."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, Wrong

TITLE = "Write the test that wrong versions fail"
DIFFICULTY = "hard"
MINUTES = 20
POINTS = 5

STATEMENT = """
You have met many checks by now. This time you write one. Above stand four versions of `gae`, each with one
mistake. Give back a test case in a dictionary: the arguments `rewards`, `values`, `mask`, `gamma`, `lam`,
`bootstrap_value` as `gae` takes them, and `advantages`, what a right version gives.

A single test case must catch all four: for each of them, some real token's advantage is at least 0.01 away
from yours. And it must be fair: your `advantages` are right, by hand or by your own `gae`, within 1e-6, with
0 at padding. Keep it small enough to be read: at most 3 rows of at most 6 tokens, and no number above 10 in
size.
"""

HINTS = [
    "One mistake a version. What must an input have, for each to matter? A response that was cut off; one "
    "that was not; a gap in the mask; a discount and a trace that are neither 0 nor 1.",
    "Two rows will do. Let the first be finished, `bootstrap_value` 0, with a masked position in its middle "
    "at which `values` is not 0. Let the second be cut off, with a `bootstrap_value` of 1. Take 0.5 for "
    "`gamma` and `lam`.",
]


def forgets_the_bootstrap(rewards, values, mask, gamma, lam, bootstrap_value):
    return backward(rewards, values, mask, gamma, gamma * lam, 0.0 * bootstrap_value)


def bootstraps_every_row(rewards, values, mask, gamma, lam, bootstrap_value):
    return backward(
        rewards, values, mask, gamma, gamma * lam, np.max(bootstrap_value) + 0.0 * bootstrap_value
    )


def discounts_the_value_only(rewards, values, mask, gamma, lam, bootstrap_value):
    return backward(rewards, values, mask, gamma, lam, bootstrap_value)


def reads_the_value_next_door(rewards, values, mask, gamma, lam, bootstrap_value):
    advantages = np.zeros(mask.shape)
    for b, row in enumerate(mask):
        real, following = np.flatnonzero(row), 0.0
        for t in real[::-1]:
            is_last = t == real[-1]
            next_value = bootstrap_value[b] if is_last else values[b, t + 1]
            delta = rewards[b, t] + gamma * next_value - values[b, t]
            following = advantages[b, t] = delta + gamma * lam * following
    return advantages


def backward(rewards, values, mask, gamma, decay, bootstrap_value):
    """The recursion over the real tokens of each row, from the last to the first."""
    advantages = np.zeros(mask.shape)
    for b, row in enumerate(mask):
        next_value, following = bootstrap_value[b], 0.0
        for t in np.flatnonzero(row)[::-1]:
            delta = rewards[b, t] + gamma * next_value - values[b, t]
            following = advantages[b, t] = delta + decay * following
            next_value = values[b, t]
    return advantages


VERSIONS = [forgets_the_bootstrap, bootstraps_every_row, discounts_the_value_only, reads_the_value_next_door]
GIVEN = VERSIONS


def gae_test_case():
    """A test case that four wrong versions of `gae` fail.

    Returns
    -------
    dict with `rewards`, `values`, `mask`, (B, T) each, `gamma` and `lam`,
    `bootstrap_value` (B,), and the right `advantages` (B, T), 0 at padding

    Examples
    --------
    >>> case = gae_test_case()
    >>> sorted(case)
    ['advantages', 'bootstrap_value', 'gamma', 'lam', 'mask', 'rewards', 'values']
    """
    return {
        "rewards": [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
        "values": [[0.5, 8.0, 0.5], [0.5, 0.5, 0.5]],
        "mask": [[1, 0, 1], [1, 1, 1]],
        "gamma": 0.5,
        "lam": 0.5,
        "bootstrap_value": [0.0, 1.0],
        "advantages": [[-0.125, 0.0, 0.5], [-0.3125, -0.25, 0.0]],
    }


solution = gae_test_case  # by this name the answers below reach it, whatever a notebook calls gae_test_case

ARGUMENTS = ("rewards", "values", "mask", "gamma", "lam", "bootstrap_value")


def read_case(case):
    """(arguments, advantages, mask) of the learner's case, if it keeps to the rules."""
    if not isinstance(case, dict) or set(case) != {*ARGUMENTS, "advantages"}:
        raise BadForm(f"expected a dictionary with the keys {', '.join(ARGUMENTS)} and advantages")
    try:
        case = {name: np.asarray(value, dtype=np.float64) for name, value in case.items()}
    except (TypeError, ValueError):
        raise BadForm("expected numbers and arrays of numbers") from None
    shape = case["mask"].shape
    if len(shape) != 2 or not (1 <= shape[0] <= 3 and 1 <= shape[1] <= 6):
        raise BadForm(f"mask: expected at most 3 rows of at most 6 tokens, got shape {shape}")
    for name in ("rewards", "values", "advantages"):
        if case[name].shape != shape:
            raise BadForm(f"{name}: expected shape {shape} as mask has, got {case[name].shape}")
    if case["bootstrap_value"].shape != shape[:1]:
        raise BadForm(f"bootstrap_value: expected a number for each of {shape[0]} rows")
    for name in ("gamma", "lam"):
        if case[name].shape != () or not 0 <= case[name] <= 1:
            raise BadForm(f"{name}: expected a number from 0 to 1")
    if not np.isin(case["mask"], (0, 1)).all():
        raise BadForm("mask: expected 0 and 1")
    if not all((np.abs(value) <= 10).all() for value in case.values()):
        raise BadForm("numbers of at most 10 in size are enough, and none of them NaN")
    for name in ("gamma", "lam"):
        case[name] = float(case[name])
    return [case[name] for name in ARGUMENTS], case["advantages"], case["mask"] == 1


def must_catch(case, version, message):
    arguments, advantages, real = read_case(case)
    off = np.abs(version(*arguments) - advantages)[real]
    if not (off >= 0.01).any():
        raise Wrong(f"{version.__name__} passes your test: {message}")


def must_be_fair(case):
    arguments, advantages, real = read_case(case)
    right, _ = rltokens.gae(*arguments)
    if not np.abs(np.where(real, advantages - right, 0.0)).max() < 1e-6:
        raise Wrong("your advantages are not right, so that a right version would fail your test")


def a_forgotten_bootstrap_is_caught(gae_test_case, rng):
    must_catch(gae_test_case(), forgets_the_bootstrap, "it needs a response that was cut off")


def a_bootstrap_for_all_is_caught(gae_test_case, rng):
    must_catch(
        gae_test_case(), bootstraps_every_row, "it needs a finished response beside one that was cut off"
    )


def an_undiscounted_trace_is_caught(gae_test_case, rng):
    message = "with gamma or lam at an end of its range, or one token in each row, its mistake does not show"
    must_catch(gae_test_case(), discounts_the_value_only, message)


def a_value_from_the_gap_is_caught(gae_test_case, rng):
    message = "it needs a masked position between two real ones, with a value there that gives it away"
    must_catch(gae_test_case(), reads_the_value_next_door, message)


def the_test_is_fair(gae_test_case, rng):
    case = gae_test_case()
    must_be_fair(case)
    _, advantages, real = read_case(case)
    if not real.any() or not (advantages[real] != 0).any():
        raise Wrong("all advantages are 0: a test that expects nothing but zeros tests nothing")
    if (advantages[~real] != 0).any():
        raise Wrong("a masked position has no advantage: write 0 there")


VISIBLE = [
    a_forgotten_bootstrap_is_caught,
    a_bootstrap_for_all_is_caught,
    an_undiscounted_trace_is_caught,
    a_value_from_the_gap_is_caught,
]
HIDDEN = [the_test_is_fair]


def changed(**changes):
    """The reference's case with some entries changed, and the advantages computed anew."""
    case = {**solution(), **changes}
    if "advantages" not in changes:
        case["advantages"] = rltokens.gae(*(case[name] for name in ARGUMENTS))[0]
    return case


def nothing_is_cut_off():
    return changed(bootstrap_value=[0.0, 0.0])


def everything_is_cut_off():
    return changed(bootstrap_value=[1.0, 1.0])


def no_discount():
    return changed(gamma=1.0)


def no_trace():
    return changed(lam=0.0)


def no_gap():
    return changed(mask=[[1, 1, 1], [1, 1, 1]])


def a_gap_that_tells_nothing():
    return changed(values=[[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]])


def wrong_advantages():
    return changed(advantages=[[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])


def advantage_in_the_gap():
    return changed(advantages=[[-0.125, 4.0, 0.5], [-0.3125, -0.25, 0.0]])


WRONG = {
    nothing_is_cut_off: a_forgotten_bootstrap_is_caught,
    everything_is_cut_off: a_bootstrap_for_all_is_caught,
    no_discount: an_undiscounted_trace_is_caught,
    no_trace: an_undiscounted_trace_is_caught,
    no_gap: a_value_from_the_gap_is_caught,
    a_gap_that_tells_nothing: a_value_from_the_gap_is_caught,
    wrong_advantages: the_test_is_fair,
    advantage_in_the_gap: the_test_is_fair,
}


def three_rows_with_an_empty_one():
    return changed(
        rewards=[[0, 0, 1, 0], [0, 0, 0, 0], [5, 5, 5, 5]],
        values=[[0.5, 4, 0.5, 3], [0.5, 1, 0.5, 0.5], [7, 7, 7, 7]],
        mask=[[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]],
        bootstrap_value=[0, 2, 9],
    )


def as_arrays():
    return {
        name: np.asarray(value, dtype=np.float32) for name, value in changed(gamma=0.75, lam=0.25).items()
    }


RIGHT = [three_rows_with_an_empty_one, as_arrays]
