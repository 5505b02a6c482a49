"""Exercise: the controller that finds the price for a wanted KL."""

import rltokens
from rltokens.checking import same

TITLE = "A price that finds itself"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
The controller of Ziegler et al. raises the price while the policy is too far from its reference, and
lowers it while it is too near. The error is the observed KL over the target, less 1, clipped to one fifth
in either direction; the price moves by the share `error * batch_size / horizon`.

`observed_kl` and `target_kl` are nats a response, `batch_size` the responses since the last change.
"""

HINTS = [
    "What is the error if the KL is on target? If it is twice the target? Half of it?",
    "`error = min(max(observed / target - 1, -0.2), 0.2)`, and then `beta * (1 + error * batch_size /"
    " horizon)`.",
]


def on_target_it_stays(adapt_beta, rng):
    same(adapt_beta(0.3, 6.0, 6.0, 500), 0.3, "on target the price stays", tolerance=1e-9)
    same(
        adapt_beta(0.1, 6.6, 6.0, 500),
        0.1005,
        "a tenth above, with 500 of 10,000: up by a tenth of a twentieth",
        tolerance=1e-9,
    )


def far_off_it_is_clipped(adapt_beta, rng):
    same(
        adapt_beta(0.1, 60.0, 6.0, 500),
        0.101,
        "ten times the target counts as a fifth above: 0.1 * (1 + 0.2 * 0.05)",
        tolerance=1e-9,
    )
    message = "a KL of 0 counts as a fifth below: 0.1 * (1 - 0.2 * 0.05)"
    same(adapt_beta(0.1, 0.0, 6.0, 500), 0.099, message, tolerance=1e-9)


def batch_and_horizon(adapt_beta, rng):
    message = "a tenth below, with 100 of 1,000: down by a hundredth"
    same(adapt_beta(1.0, 9.0, 10.0, 100, 1000), 0.99, message, tolerance=1e-9)
    message = "and with the whole horizon at once: down by a tenth"
    same(adapt_beta(1.0, 9.0, 10.0, 1000, 1000), 0.9, message, tolerance=1e-9)


def it_is_relative_to_the_target(adapt_beta, rng):
    same(
        adapt_beta(2.0, 0.55, 0.5, 1000),
        2.02,
        "0.55 for 0.5 is a tenth above: the error is a ratio and no difference",
        tolerance=1e-9,
    )


def agrees_on_any_numbers(adapt_beta, rng):
    for _ in range(20):
        numbers = rng.uniform(0.01, 20, size=3)
        right = rltokens.adapt_beta(*numbers, 512, 4000)
        same(
            adapt_beta(*numbers.tolist(), 512, 4000),
            right,
            f"beta, observed, target = {numbers.round(3)} comes out wrong",
        )


VISIBLE = [on_target_it_stays, far_off_it_is_clipped]
HIDDEN = [batch_and_horizon, it_is_relative_to_the_target, agrees_on_any_numbers]


def clipped(observed_kl, target_kl):
    return min(max(observed_kl / target_kl - 1, -0.2), 0.2)


def wrong_way(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 - clipped(observed_kl, target_kl) * batch_size / horizon)


def not_clipped(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + (observed_kl / target_kl - 1) * batch_size / horizon)


def clipped_above_only(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + min(observed_kl / target_kl - 1, 0.2) * batch_size / horizon)


def added_and_not_multiplied(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta + clipped(observed_kl, target_kl) * batch_size / horizon


def ratio_upside_down(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 - clipped(target_kl, observed_kl or 1e-9) * batch_size / horizon)


def batch_forgotten(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + clipped(observed_kl, target_kl))


def horizon_forgotten(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + clipped(observed_kl, target_kl) * batch_size / 10_000)


def difference_for_ratio(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + min(max(observed_kl - target_kl, -0.2), 0.2) * batch_size / horizon)


def compounded_per_response(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + clipped(observed_kl, target_kl) / horizon) ** batch_size


def one_less_forgotten(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    return beta * (1 + min(observed_kl / target_kl, 0.2) * batch_size / horizon)


WRONG = {
    wrong_way: on_target_it_stays,
    added_and_not_multiplied: on_target_it_stays,
    batch_forgotten: on_target_it_stays,
    one_less_forgotten: on_target_it_stays,
    ratio_upside_down: on_target_it_stays,
    not_clipped: far_off_it_is_clipped,
    clipped_above_only: far_off_it_is_clipped,
    horizon_forgotten: batch_and_horizon,
    compounded_per_response: batch_and_horizon,
    difference_for_ratio: it_is_relative_to_the_target,
}


def with_numpy(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    import numpy as np

    return np.float64(beta) + beta * np.clip(observed_kl / target_kl - 1, -0.2, 0.2) * (batch_size / horizon)


def by_cases(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    share = batch_size / horizon
    if observed_kl > 1.2 * target_kl:
        return beta * (1 + 0.2 * share)
    if observed_kl < 0.8 * target_kl:
        return beta * (1 - 0.2 * share)
    return beta + beta * share * (observed_kl - target_kl) / target_kl


RIGHT = [with_numpy, by_cases]
