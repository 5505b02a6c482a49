"""Exercise: the KL divergence of two distributions."""

import math

import numpy as np

import rltokens
from rltokens.checking import arguments_after, has_shape, same

TITLE = "A distance that is none"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
`KL(p || q)` is how many nats a draw from `p` is less likely under `q`, on average: the sum of `p log(p /
q)` over the last axis, for any number of leading ones. The first argument draws. It is not symmetric.

What `p` never draws has no part in it, whatever `q` says there: `0 log 0` is 0, and so is `0 log(0 / 0)`.
What `p` draws and `q` cannot makes it infinite. No NaN in either case.
"""

HINTS = [
    "Where p is 0 the term is 0, but computing `0 * log(0)` gives NaN. What has to be done first, "
    "choosing or computing?",
    "Put 1 in place of p where p is 0: `np.where(p > 0, p, 1.0)`, and the same for q there. Then take"
    " logarithms, and "
    "sum `p * (log p - log q)`. A q of 0 under a positive p gives infinity all by itself.",
]


def two_coins(kl_divergence, rng):
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    message = "a fair coin against one of 1/4: 1/2 log 2 + 1/2 log(2/3), 0.1438 nats"
    same(kl_divergence(p, q), 0.5 * math.log(2) + 0.5 * math.log(2 / 3), message)
    message = (
        "the first argument draws: with the coins exchanged it is 1/4 log(1/2) + 3/4 log(3/2), 0.1308 nats"
    )
    same(kl_divergence(q, p), 0.25 * math.log(0.5) + 0.75 * math.log(1.5), message)


def rows_of_distributions(kl_divergence, rng):
    p, q = np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([[0.25, 0.75], [0.25, 0.75]])
    got = kl_divergence(p, q)
    has_shape(got, (2,), "two pairs of distributions must give two numbers: the sum runs over the last axis")
    same(got, [0.143841, 0.0], "a distribution is 0 nats from itself, and its neighbour 0.1438 from another")


def what_is_never_drawn_costs_nothing(kl_divergence, rng):
    p, q = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.25, 0.25, 0.5, 0.0])
    message = "p never draws the last two, whatever q says there: log 2, and no NaN from 0 log 0"
    same(kl_divergence(p, q), math.log(2), message)


def what_the_other_cannot_is_infinite(kl_divergence, rng):
    p, q = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.5, 0.5]])
    message = "where p draws what q cannot, the KL is infinite; the other way round it is log 2"
    same(kl_divergence(p, q), [math.inf, math.log(2)], message)


def leaves_its_arguments_alone(kl_divergence, rng):
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    same(kl_divergence(p, q), math.log(2), "a certain token against a fair coin: log 2")
    after = arguments_after(kl_divergence, p, q)
    same(after[0], p, "your function changed `p`: work on a copy")
    same(after[1], q, "your function changed `q`: work on a copy")


def agrees_on_any_distributions(kl_divergence, rng):
    for shape in ((5,), (3, 4), (2, 3, 6)):
        p, q = rng.dirichlet(np.ones(shape[-1]), size=(2, *shape[:-1]))
        same(
            kl_divergence(p, q),
            rltokens.kl_divergence(p, q),
            f"random distributions of shape {shape} come out wrong",
        )


VISIBLE = [two_coins, rows_of_distributions]
HIDDEN = [
    what_is_never_drawn_costs_nothing,
    what_the_other_cannot_is_infinite,
    leaves_its_arguments_alone,
    agrees_on_any_distributions,
]


def exchanged(p, q):
    return rltokens.kl_divergence(q, p)


def sign_turned(p, q):
    return -rltokens.kl_divergence(p, q)


def cross_entropy(p, q):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -(p * np.log(q)).sum(axis=-1)


def in_bits(p, q):
    return rltokens.kl_divergence(p, q) / math.log(2)


def symmetric(p, q):
    return (rltokens.kl_divergence(p, q) + rltokens.kl_divergence(q, p)) / 2


def mean_for_sum(p, q):
    return rltokens.kl_divergence(p, q) / p.shape[-1]


def total_variation(p, q):
    return np.abs(p - q).sum(axis=-1) / 2


def one_number_for_all(p, q):
    return np.sum(rltokens.kl_divergence(p, q))


def over_the_first_axis(p, q):
    return rltokens.kl_divergence(np.moveaxis(p, 0, -1), np.moveaxis(q, 0, -1))


def not_a_number(p, q):
    with np.errstate(divide="ignore", invalid="ignore"):
        return (p * np.log(p / q)).sum(axis=-1)


def skips_what_the_other_cannot(p, q):
    both = (p > 0) & (q > 0)
    return np.where(both, p * (np.log(np.where(both, p, 1)) - np.log(np.where(both, q, 1))), 0.0).sum(axis=-1)


def with_epsilon(p, q):
    return (p * (np.log(p + 1e-12) - np.log(q + 1e-12))).sum(axis=-1)


def clips_in_place(p, q):
    result = rltokens.kl_divergence(p, q)
    np.maximum(p, 0.01, out=p)
    return result


WRONG = {
    exchanged: two_coins,
    sign_turned: two_coins,
    cross_entropy: two_coins,
    in_bits: two_coins,
    symmetric: two_coins,
    mean_for_sum: two_coins,
    total_variation: two_coins,
    one_number_for_all: rows_of_distributions,
    over_the_first_axis: rows_of_distributions,
    not_a_number: what_is_never_drawn_costs_nothing,
    skips_what_the_other_cannot: what_the_other_cannot_is_infinite,
    with_epsilon: what_the_other_cannot_is_infinite,
    clips_in_place: leaves_its_arguments_alone,
}


def by_loops(p, q):
    result = np.zeros(np.shape(p)[:-1])
    for index in np.ndindex(*result.shape):
        for a, b in zip(p[index], q[index], strict=True):
            if a > 0:
                result[index] += a * math.log(a / b) if b > 0 else math.inf
    return result


def through_torch(p, q):
    import torch

    p, q = torch.as_tensor(p), torch.as_tensor(q)
    return (torch.special.entr(p).neg() - torch.special.xlogy(p, q)).sum(dim=-1)


RIGHT = [by_loops, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "log_ratio = np.log(np.where(possible, p, 2.0)) - np.log(np.where(possible, q, 1.0))": "what is "
    "never drawn is left out in the other factor",
    "log_ratio = np.log(np.where(possible, p, 1.0)) - np.log(np.where(possible, q, 2.0))": "what is "
    "never drawn is left out in the other factor",
    "return (np.where(True, p, 0.0) * log_ratio).sum(axis=-1)": "where p is 0 it is 0 anyway",
    "return (np.where(possible, p, 1.0) * log_ratio).sum(axis=-1)": "the log-ratio is 0 there",
}
