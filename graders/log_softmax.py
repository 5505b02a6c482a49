"""Exercise: stable log-probabilities from logits."""

import math

import numpy as np

import rltokens
from rltokens.checking import arguments_after, same

TITLE = "Stable log-probabilities from logits"
DIFFICULTY = "easy"
MINUTES = 10
POINTS = 3

STATEMENT = """
A network puts out logits: any real numbers, sometimes large, sometimes `-inf` where a token is
forbidden. Turn them into log-probabilities over the last axis, without ever computing the exponential of
a large positive number. A forbidden token stays at `-inf`, also in a row of nothing else. Everything in this
course is built from what you write here.
"""

HINTS = [
    "Write $\\log\\frac{e^{z_v}}{\\sum_w e^{z_w}}$ as a difference of two terms. Which one can overflow?",
    "Adding a constant to a whole row changes no probability. Which constant makes the largest exponent 0?",
    "In a row of nothing but `-inf` the maximum is `-inf`, and `-inf - (-inf)` is NaN. Take off 0 there.",
]


def returns_logarithms(log_softmax, rng):
    same(
        log_softmax(np.array([0.0, 0.0, math.log(2)])),
        [math.log(1 / 4), math.log(1 / 4), math.log(1 / 2)],
        "logits (0, 0, log 2) are the probabilities 1/4, 1/4, 1/2: your result is not their natural "
        "logarithm, so its exponentials are not these three, which add up to 1",
    )


def survives_large_logits(log_softmax, rng):
    same(
        log_softmax(np.array([1000.0, 1000.0])),
        [math.log(1 / 2), math.log(1 / 2)],
        "logits (1000, 1000) are two equal chances, log(1/2) each",
        not_finite="logits (1000, 1000) are two equal chances: your exp overflowed. Take off the maximum",
    )


def works_along_the_last_axis(log_softmax, rng):
    got = log_softmax(np.array([[0.0, 0.0], [0.0, math.log(3)]]))
    same(
        got,
        np.log([[1 / 2, 1 / 2], [1 / 4, 3 / 4]]),
        "two rows at once, each a distribution of its own along the last axis, come out wrong: "
        "over which axis do maximum and sum run, and do they keep it (keepdims)?",
    )


def shifting_a_row_changes_nothing(log_softmax, rng):
    logits = np.array([1.0, 2.0, 4.0])
    weights = [1.0, math.e, math.e**3]
    expected = np.log(weights) - math.log(math.fsum(weights))
    for shift in (0.0, 5.0, -300.0):
        same(
            log_softmax(logits + shift),
            expected,
            "adding the same number to every logit changed the result: what you took off must be added back",
        )


def keeps_the_tail(log_softmax, rng):
    same(
        log_softmax(np.array([5.0, -45.0, -895.0])),
        [-math.exp(-50), -50.0, -900.0],
        "a rare token lost its log-probability: exp(-900) rounds to 0, so take no logarithm of a "
        "probability, and add no small constant to it",
        tolerance=1e-9,
    )


def takes_off_the_maximum(log_softmax, rng):
    for logits in ([-3000.0, 0.0, 0.0], [0.0, 3000.0, 3000.0]):
        same(
            log_softmax(np.array(logits)),
            [-3000 - math.log(2), -math.log(2), -math.log(2)],
            f"logits {tuple(logits)} are two equal chances and a very rare token: take off the *maximum*, "
            "or the exponentials still overflow",
        )


def gives_each_row_its_own_peak(log_softmax, rng):
    same(
        log_softmax(np.array([[1000.0, 1000.0], [-1000.0, -1000.0]])),
        np.full((2, 2), math.log(1 / 2)),
        "one maximum for the whole array leaves other rows with nothing but zeros under the logarithm: "
        "take off each row's own",
    )


def forbids_tokens(log_softmax, rng):
    inf = math.inf
    same(
        log_softmax(np.array([[0.0, -inf, 0.0], [-inf, -inf, -inf]])),
        [[math.log(1 / 2), -inf, math.log(1 / 2)], [-inf, -inf, -inf]],
        "a logit of -inf must give -inf, also in a row of nothing else, and never NaN",
    )


def leaves_its_input_alone(log_softmax, rng):
    logits = rng.normal(size=(3, 5)) + 7
    same(log_softmax(logits), rltokens.log_softmax(logits), "a random array of shape (3, 5) comes out wrong")
    # Forbidden tokens, since an answer may write to its argument only there.
    logits[0, 1:3] = -np.inf
    (after,) = arguments_after(log_softmax, logits)
    same(after, logits, "your function changed the array that it was given: write to a new one")


def agrees_for_any_shape(log_softmax, rng):
    for shape in ((6,), (1, 1, 4), (2, 3, 1, 5)):
        logits = 30 * rng.normal(size=shape)
        same(log_softmax(logits), rltokens.log_softmax(logits), f"logits of shape {shape} come out wrong")


VISIBLE = [returns_logarithms, survives_large_logits, works_along_the_last_axis]
HIDDEN = [
    shifting_a_row_changes_nothing,
    keeps_the_tail,
    takes_off_the_maximum,
    gives_each_row_its_own_peak,
    forbids_tokens,
    leaves_its_input_alone,
    agrees_for_any_shape,
]


def stable_softmax(logits):
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def softmax_for_log_softmax(logits):
    return stable_softmax(logits)


def base_two(logits):
    return rltokens.log_softmax(logits) / math.log(2)


def naive_exp(logits):
    with np.errstate(all="ignore"):
        return np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))


def wrong_axis(logits):
    return np.swapaxes(rltokens.log_softmax(np.swapaxes(logits, 0, -1)), 0, -1)


def sums_everything(logits):
    return logits - np.logaddexp.reduce(logits, axis=None)


def forgets_to_add_the_peak_back(logits):
    peak = logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits - peak).sum(axis=-1, keepdims=True))


def logarithm_of_softmax(logits):
    with np.errstate(divide="ignore"):
        return np.log(stable_softmax(logits))


def epsilon_in_the_logarithm(logits):
    return np.log(stable_softmax(logits) + 1e-12)


def takes_off_the_mean(logits):
    shifted = logits - logits.mean(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def takes_off_the_first(logits):
    shifted = logits - logits[..., :1]
    with np.errstate(over="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def one_peak_for_all(logits):
    shifted = logits - logits.max()
    with np.errstate(all="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def nan_for_a_forbidden_row(logits):
    with np.errstate(all="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def clips_minus_inf(logits):
    return rltokens.log_softmax(np.maximum(logits, -1e4))


def works_in_place(logits):
    logits -= logits.max(axis=-1, keepdims=True)
    return rltokens.log_softmax(logits)


WRONG = {
    softmax_for_log_softmax: returns_logarithms,
    base_two: returns_logarithms,
    naive_exp: survives_large_logits,
    wrong_axis: works_along_the_last_axis,
    sums_everything: works_along_the_last_axis,
    forgets_to_add_the_peak_back: shifting_a_row_changes_nothing,
    logarithm_of_softmax: keeps_the_tail,
    epsilon_in_the_logarithm: keeps_the_tail,
    takes_off_the_mean: takes_off_the_maximum,
    takes_off_the_first: takes_off_the_maximum,
    one_peak_for_all: gives_each_row_its_own_peak,
    nan_for_a_forbidden_row: forbids_tokens,
    clips_minus_inf: forbids_tokens,
    works_in_place: leaves_its_input_alone,
}


def loop_over_rows(logits):
    rows = []
    for row in logits.reshape(-1, logits.shape[-1]).tolist():
        peak = max(row)
        if peak == -math.inf:
            rows.append(row)
        else:
            log_total = peak + math.log(math.fsum(math.exp(z - peak) for z in row))
            rows.append([z - log_total for z in row])
    return np.array(rows).reshape(logits.shape).tolist()


def one_line(logits):
    total = np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return logits - np.where(total == -np.inf, 0, total)


def through_torch(logits):
    import torch

    result = torch.log_softmax(torch.as_tensor(logits).requires_grad_(), dim=-1)
    return torch.where(torch.as_tensor(logits) == -math.inf, -math.inf, result)


RIGHT = [loop_over_rows, one_line, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "shifted = z - np.where(np.isneginf(peak), 1.0, peak)": "-inf less a finite number is -inf",
    "return shifted - np.log(np.where(total > 0, total, 2.0))": "-inf less a finite number is -inf",
    "return shifted - np.log(np.where(total > 1, total, 1.0))": "the sum is at least 1, or the row all -inf",
}
