"""Exercise: reward less the price of the distance."""

import numpy as np

import rltokens
from rltokens.checking import same

TITLE = "The objective"
DIFFICULTY = "easy"
MINUTES = 5
POINTS = 2

STATEMENT = """
`p` and `p_ref` are distributions over all responses, `rewards` has a number for each, and `beta` is the
price of a nat. Give back the expected reward under `p` less `beta` times the KL from `p` to the
reference.

Two corners. Without a price there is no penalty: for `beta = 0` it is the expected reward, even where the
KL is infinite. And a response that `p` never draws has no part in it, whatever its reward.
"""

HINTS = [
    "Two terms. You have written one of them above.",
    "`0 * inf` is NaN: leave the penalty out where `beta` is 0. `kl_divergence(p, p_ref)` gives the "
    "other term.",
]


def reward_less_the_toll(regularized_objective, rng):
    p, p_ref = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    got = regularized_objective(p, p_ref, np.array([2.0, 0.0]), 0.5)
    message = "an expected reward of 1, and 0.1438 nats at a price of 1/2: 0.9281"
    same(got, 1 - 0.5 * (0.5 * np.log(2) + 0.5 * np.log(2 / 3)), message)


def staying_costs_nothing(regularized_objective, rng):
    p = np.array([0.2, 0.3, 0.5])
    same(
        regularized_objective(p, p, np.array([1.0, 2.0, -3.0]), 7.0),
        -0.7,
        "at the reference there is no toll at any price",
    )


def no_price_no_penalty(regularized_objective, rng):
    p, p_ref = np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])
    message = "without a price the KL, infinite here, has no part in it: the expected reward is 1.5"
    same(regularized_objective(p, p_ref, np.array([1.0, 2.0, 9.0]), 0.0), 1.5, message)
    message = "a response that p never draws has no part in it, whatever its reward"
    for reward in (np.inf, -np.inf, np.nan):
        same(regularized_objective(p, p, np.array([1.0, 2.0, reward]), 0.5), 1.5, message)


def the_impossible_is_infinitely_bad(regularized_objective, rng):
    p, p_ref = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    same(
        regularized_objective(p[::-1] * [2, 0], p_ref, np.ones(2), 0.1),
        1.0,
        "what both can write costs what the KL says: 0",
    )
    message = "a policy that writes what the reference cannot pays infinitely much"
    same(regularized_objective(p, p_ref, np.ones(2), 0.1), -np.inf, message)


def works_on_the_toy(regularized_objective, rng):
    for beta in (0.02, 0.5, 10.0):
        p, p_ref = rng.dirichlet(np.ones(64), size=2)
        rewards = rng.normal(size=64)
        right = rltokens.regularized_objective(p, p_ref, rewards, beta)
        same(
            regularized_objective(p, p_ref, rewards, beta), right, f"64 random responses at a price of {beta}"
        )


VISIBLE = [reward_less_the_toll, staying_costs_nothing]
HIDDEN = [no_price_no_penalty, the_impossible_is_infinitely_bad, works_on_the_toy]


def toll_added(p, p_ref, rewards, beta):
    return p @ rewards + beta * rltokens.kl_divergence(p, p_ref)


def toll_forgotten(p, p_ref, rewards, beta):
    return p @ rewards


def price_forgotten(p, p_ref, rewards, beta):
    return p @ rewards - rltokens.kl_divergence(p, p_ref)


def divided_by_the_price(p, p_ref, rewards, beta):
    return p @ rewards - rltokens.kl_divergence(p, p_ref) / beta


def forward_kl(p, p_ref, rewards, beta):
    return p @ rewards - beta * rltokens.kl_divergence(p_ref, p)


def reward_of_the_reference(p, p_ref, rewards, beta):
    return p_ref @ rewards - beta * rltokens.kl_divergence(p, p_ref)


def mean_of_the_rewards(p, p_ref, rewards, beta):
    return rewards.mean() - beta * rltokens.kl_divergence(p, p_ref)


def entropy_for_kl(p, p_ref, rewards, beta):
    return p @ rewards - beta * (p @ np.log(np.where(p > 0, p, 1.0)))


def zero_times_infinity(p, p_ref, rewards, beta):
    with np.errstate(invalid="ignore"):
        return p @ rewards - beta * np.float64(rltokens.kl_divergence(p, p_ref))


def skips_the_impossible(p, p_ref, rewards, beta):
    both = (p > 0) & (p_ref > 0)
    kl = (p[both] * np.log(p[both] / p_ref[both])).sum()
    return p @ rewards - beta * kl


WRONG = {
    toll_added: reward_less_the_toll,
    toll_forgotten: reward_less_the_toll,
    price_forgotten: reward_less_the_toll,
    divided_by_the_price: reward_less_the_toll,
    forward_kl: reward_less_the_toll,
    reward_of_the_reference: reward_less_the_toll,
    mean_of_the_rewards: staying_costs_nothing,
    entropy_for_kl: staying_costs_nothing,
    zero_times_infinity: no_price_no_penalty,
    skips_the_impossible: the_impossible_is_infinitely_bad,
}


def response_by_response(p, p_ref, rewards, beta):
    total = 0.0
    for mine, reference, reward in zip(p, p_ref, rewards, strict=True):
        if mine > 0:
            toll = beta * (np.log(mine / reference) if reference > 0 else np.inf) if beta else 0.0
            total += mine * (reward - toll)
    return total


def with_an_if(p, p_ref, rewards, beta):
    reward = np.float32(np.dot(p[p > 0], rewards[p > 0]))
    return reward if beta == 0 else reward - beta * rltokens.kl_divergence(p, p_ref)


RIGHT = [response_by_response, with_an_if]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "expected = (p * np.where(p > 0, rewards, 1.0).astype(np.float64)).sum()": "p is 0 there",
}
