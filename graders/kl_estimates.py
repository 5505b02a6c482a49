"""Exercise: three estimates of one number."""

import math

import numpy as np

import rltokens
from rltokens.checking import BadForm, arguments_after, same

TITLE = "Three estimates of the KL"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
From the log-probabilities of what was drawn, under the policy and under the reference, give back three
estimates of the KL, entry by entry: `k1`, the log-ratio itself, policy minus reference; `k2`, half its
square; `k3`, the *reference-to-policy* ratio less 1 plus the log-ratio.

Near the reference `k3` is tiny, the difference of two numbers that nearly cancel. It must be right there
too: for a log-ratio of 1e-9 it is 5e-19 and not 0. Where the reference cannot write what was drawn, all
three are infinite.
"""

HINTS = [
    "One difference, and everything else follows from it. Which way round is the ratio in k3?",
    "`l = logp - logp_ref`; the ratio is `exp(-l)`. NumPy has a function for `exp(x) - 1` that does "
    "not lose the digits: "
    "`np.expm1`.",
]


def all_three(result):
    """(k1, k2, k3), if the answer has the form that was asked for."""
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        raise BadForm("expected three arrays: `return k1, k2, k3`")
    return result


def a_token_twice_as_likely(kl_estimates, rng):
    k1, k2, k3 = all_three(kl_estimates(np.log(np.array([0.5, 0.25])), np.log(np.array([0.25, 0.5]))))
    l = math.log(2)  # noqa: E741
    message = "k1 is log pi - log pi_ref: log 2 where the policy is twice as likely, -log 2 where it is half"
    same(k1, [l, -l], message)
    same(k2, [l * l / 2, l * l / 2], "k2 is half the square of the log-ratio, whatever its sign")
    message = "k3 is pi_ref / pi - 1 + log(pi / pi_ref): the ratio is the reference over the policy"
    same(k3, [0.5 - 1 + l, 2 - 1 - l], message)


def two_of_them_are_unbiased(kl_estimates, rng):
    p, q = rng.dirichlet(np.ones(6), size=2)
    k1, k2, k3 = all_three(kl_estimates(np.log(p), np.log(q)))
    kl = p @ np.log(p / q)
    same(p @ np.asarray(k1), kl, "averaged over the policy's draws, k1 is the KL")
    same(p @ np.asarray(k3), kl, "averaged over the policy's draws, k3 is the KL")
    same(np.minimum(k3, 0), np.zeros(6), "k3 is never negative")
    same(k2, np.log(p / q) ** 2 / 2, "k2 is half the square of the log-ratio")


def tiny_differences_survive(kl_estimates, rng):
    log_ratio = np.array([1e-9, -1e-9, 1e-5])
    _, k2, k3 = all_three(kl_estimates(log_ratio, np.zeros(3)))
    message = (
        "for tiny log-ratios k3 is half the square: exp(-l) - 1 + l loses it in rounding, expm1 does not"
    )
    same(np.asarray(k3) / (log_ratio**2 / 2), [1.0, 1.0, 1.0], message, tolerance=1e-3)
    same(np.asarray(k2) / (log_ratio**2 / 2), [1.0, 1.0, 1.0], "k2 is half the square of the log-ratio")


def the_impossible_is_infinite(kl_estimates, rng):
    k1, k2, k3 = all_three(kl_estimates(np.array([-1.0, -1.0]), np.array([-np.inf, -2.0])))
    message = (
        "where the reference cannot write what was drawn, the log-ratio is infinite, and so are all three"
    )
    same(k1, [np.inf, 1.0], message)
    same(k2, [np.inf, 0.5], message)
    same(k3, [np.inf, math.exp(-1)], message)


def any_shape(kl_estimates, rng):
    logp, logp_ref = -rng.exponential(size=(2, 3, 4))
    for got, right in zip(
        all_three(kl_estimates(logp, logp_ref)), rltokens.kl_estimates(logp, logp_ref), strict=True
    ):
        same(got, right, "a batch of shape (3, 4) gives three arrays of this shape, entry by entry")


def leaves_its_arguments_alone(kl_estimates, rng):
    logp, logp_ref = np.array([-1.0]), np.array([-2.0])
    same(all_three(kl_estimates(logp, logp_ref))[0], [1.0], "a log-ratio of -1 - (-2) is 1")
    after = arguments_after(kl_estimates, logp, logp_ref)
    same(after[0], logp, "your function changed `logp`: work on a copy")
    same(after[1], logp_ref, "your function changed `logp_ref`: work on a copy")


VISIBLE = [a_token_twice_as_likely, two_of_them_are_unbiased]
HIDDEN = [tiny_differences_survive, the_impossible_is_infinite, any_shape, leaves_its_arguments_alone]


def from_the_ratio(log_ratio):
    with np.errstate(over="ignore", invalid="ignore"):
        return log_ratio, log_ratio**2 / 2, np.expm1(-log_ratio) + log_ratio


def reference_minus_policy(logp, logp_ref):
    return from_the_ratio(logp_ref - logp)


def square_without_the_half(logp, logp_ref):
    k1, k2, k3 = from_the_ratio(logp - logp_ref)
    return k1, 2 * k2, k3


def ratio_upside_down(logp, logp_ref):
    k1, k2, _ = from_the_ratio(logp - logp_ref)
    return k1, k2, np.expm1(k1) - k1


def one_less_forgotten(logp, logp_ref):
    k1, k2, k3 = from_the_ratio(logp - logp_ref)
    return k1, k2, k3 + 1


def logarithm_subtracted(logp, logp_ref):
    k1, k2, _ = from_the_ratio(logp - logp_ref)
    return k1, k2, np.expm1(-k1) - k1


def k1_without_its_sign(logp, logp_ref):
    k1, k2, k3 = from_the_ratio(logp - logp_ref)
    return np.abs(k1), k2, k3


def averaged(logp, logp_ref):
    return tuple(np.full(np.shape(k), np.mean(k)) for k in from_the_ratio(logp - logp_ref))


def clipped_at_ten(logp, logp_ref):
    return from_the_ratio(np.clip(logp - logp_ref, -10, 10))


def cancels(logp, logp_ref):
    k1, k2, _ = from_the_ratio(logp - logp_ref)
    with np.errstate(over="ignore", invalid="ignore"):
        return k1, k2, np.exp(-k1) - 1 + k1


def k2_for_k3_when_small(logp, logp_ref):
    k1, k2, k3 = from_the_ratio(logp - logp_ref)
    return k1, k2, np.where(np.abs(k1) < 1, k2, k3)


def flattened(logp, logp_ref):
    return tuple(
        np.broadcast_to(k.mean(axis=0), k.shape) if k.ndim > 1 else k for k in from_the_ratio(logp - logp_ref)
    )


def subtracts_in_place(logp, logp_ref):
    result = from_the_ratio(logp - logp_ref)
    logp -= logp_ref
    return result


WRONG = {
    reference_minus_policy: a_token_twice_as_likely,
    square_without_the_half: a_token_twice_as_likely,
    ratio_upside_down: a_token_twice_as_likely,
    one_less_forgotten: a_token_twice_as_likely,
    logarithm_subtracted: a_token_twice_as_likely,
    k1_without_its_sign: a_token_twice_as_likely,
    averaged: a_token_twice_as_likely,
    k2_for_k3_when_small: two_of_them_are_unbiased,
    cancels: tiny_differences_survive,
    clipped_at_ten: the_impossible_is_infinite,
    flattened: any_shape,
    subtracts_in_place: leaves_its_arguments_alone,
}


def number_by_number(logp, logp_ref):
    result = np.zeros((3, *np.shape(logp)))
    for index in np.ndindex(*np.shape(logp)):
        l = float(logp[index]) - float(logp_ref[index])  # noqa: E741
        result[(0, *index)], result[(1, *index)] = l, l * l / 2
        result[(2, *index)] = math.expm1(-l) + l if l > -700 else math.inf
    return list(result)


def through_torch(logp, logp_ref):
    import torch

    log_ratio = torch.as_tensor(logp) - torch.as_tensor(logp_ref)
    return log_ratio, 0.5 * log_ratio.square(), torch.expm1(-log_ratio) + log_ratio


RIGHT = [number_by_number, through_torch]
