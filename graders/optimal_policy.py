"""Exercise: the closed form of the best policy."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, arguments_after, has_shape, same

TITLE = "The best policy, in closed form"
DIFFICULTY = "hard"
MINUTES = 20
POINTS = 4

STATEMENT = """
Tilt the reference by `exp(r / beta)` and normalize. You get the log-probabilities of all responses under
the reference and the rewards, and give back two things: the log-probabilities of the optimum, and `log
Z`.

The formula is two lines; the numbers are the work. `r / beta` may be 10,000 or more, and `exp` of it
overflows, so stay in logarithms. Responses that the reference cannot write (`-inf`) stay impossible, and
*their* rewards have no say at all: the best reward that you take off must be the best among the possible
ones, or all others vanish beside it. It must come out right for a `beta` of 1e-4 and rewards of any size.
"""

HINTS = [
    "Add the logarithms: `logp_ref + rewards / beta`. What has to be taken off so that the sum of "
    "exponentials can be "
    "computed, and where is it added back?",
    "Find `best = rewards[possible].max()` first, and tilt by `(rewards - best) / beta`, only where "
    "it is possible. "
    "`log Z` of that is a log-sum-exp; `best / beta` is added back to it.",
]


def both_results(result):
    """(logp_star, log_z), if the answer has the form that was asked for."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise BadForm("expected two things: `return logp_star, log_z`")
    return result


def odds_of_e_to_the_reward(optimal_policy, rng):
    logp, log_z = both_results(optimal_policy(np.log([0.5, 0.5]), np.array([0.0, 1.0]), 0.5))
    has_shape(logp, (2,), "each response has a log-probability")
    message = "two equally likely responses whose rewards differ by 1, at a price of 1/2: odds of e^2"
    same(np.exp(logp), [1 / (1 + np.exp(2)), np.exp(2) / (1 + np.exp(2))], message)
    same(
        log_z,
        np.log(0.5 + 0.5 * np.exp(2)),
        "Z is the sum of p_ref exp(r / beta): 1/2 + 1/2 e^2, and log Z its logarithm",
    )


def equal_rewards_change_nothing(optimal_policy, rng):
    reference = np.log([0.2, 0.3, 0.5])
    logp, log_z = both_results(optimal_policy(reference, np.full(3, 2.0), 4.0))
    same(np.exp(logp), [0.2, 0.3, 0.5], "where every response earns the same, the reference is the optimum")
    same(log_z, 0.5, "log Z is then r / beta, 2 / 4")


def the_accounting_holds(optimal_policy, rng):
    reference, p = rng.dirichlet(np.ones(8), size=2)
    rewards, beta = rng.normal(size=8), 0.7
    logp, log_z = both_results(optimal_policy(np.log(reference), rewards, beta))
    left = p @ rewards - beta * (p @ np.log(p / reference))
    right = beta * log_z - beta * (p @ (np.log(p) - np.asarray(logp)))
    same(
        left,
        right,
        "for any policy the objective is beta log Z less beta times its KL to the optimum: it is not",
    )
    same(np.exp(logp).sum(), 1.0, "the probabilities of the optimum must add up to 1")


def a_tiny_price(optimal_policy, rng):
    logp, log_z = both_results(optimal_policy(np.log([0.25, 0.5, 0.25]), np.array([1.0, 1.0, 0.0]), 1e-4))
    message = (
        "at a price of 1e-4 the two best responses share everything, 1 to 2, and exp(10000) must not overflow"
    )
    same(logp, [np.log(1 / 3), np.log(2 / 3), np.log(1 / 3) - 1e4], message)
    same(log_z, 1e4 + np.log(0.75), "log Z is 10,000 and a little less: it fits into a float, Z does not")


def rewards_of_any_size(optimal_policy, rng):
    for offset in (-1e6, 1e6):
        logp, log_z = both_results(optimal_policy(np.log([0.5, 0.5]), offset + np.array([0.0, 1.0]), 0.5))
        same(
            np.exp(logp[0]),
            1 / (1 + np.exp(2)),
            f"{offset} more for everybody changes no odds, and must not overflow",
        )
        same(
            log_z,
            offset / 0.5 + np.log(0.5 + 0.5 * np.exp(2)),
            "and log Z moves by the offset over beta",
            tolerance=1e-9,
        )


def the_impossible_has_no_say(optimal_policy, rng):
    for undeserved in (0.0, 1e9, np.inf):
        logp, log_z = both_results(
            optimal_policy(np.log([0.5, 0.5, 1e-300]) * [1, 1, np.inf], np.array([0.0, 1.0, undeserved]), 0.5)
        )
        right = [np.log(1 / (1 + np.exp(2))), np.log(np.exp(2) / (1 + np.exp(2))), -np.inf]
        message = (
            f"a response that the reference cannot write stays impossible, and its reward of {undeserved} "
            f"plays no part"
        )
        same(logp, right, message)
        same(log_z, np.log(0.5 + 0.5 * np.exp(2)), message)


def leaves_its_arguments_alone(optimal_policy, rng):
    reference, rewards = np.log([0.5, 0.5]), np.array([0.0, 1.0])
    same(both_results(optimal_policy(reference, rewards, 1.0))[1], np.log(0.5 + 0.5 * np.e), "Z is 1/2 + e/2")
    after = arguments_after(optimal_policy, reference, rewards, 1.0)
    same(after[0], reference, "your function changed `logp_ref`: work on a copy")
    same(after[1], rewards, "your function changed `rewards`: work on a copy")


def works_on_the_toy(optimal_policy, rng):
    for beta in (0.05, 0.5, 10.0):
        reference, rewards = np.log(rng.dirichlet(np.ones(64))), rng.normal(size=64)
        logp, log_z = both_results(optimal_policy(reference, rewards, beta))
        right, right_z = rltokens.optimal_policy(reference, rewards, beta)
        same(logp, right, f"64 random responses at a price of {beta}")
        same(log_z, right_z, f"log Z of 64 random responses at a price of {beta}")


VISIBLE = [odds_of_e_to_the_reward, equal_rewards_change_nothing, the_accounting_holds]
HIDDEN = [
    a_tiny_price,
    rewards_of_any_size,
    the_impossible_has_no_say,
    leaves_its_arguments_alone,
    works_on_the_toy,
]


def tilt(logp_ref, exponent, log_z_from=None):
    """Normalized tilt, with log Z; `log_z_from` for answers whose log Z is another's."""
    with np.errstate(all="ignore"):
        tilted = logp_ref + exponent
        peak = np.max(tilted)
        log_z = peak + np.log(np.exp(tilted - peak).sum())
        return tilted - log_z, log_z if log_z_from is None else log_z_from


def price_forgotten(logp_ref, rewards, beta):
    return tilt(logp_ref, rewards)


def multiplied_by_the_price(logp_ref, rewards, beta):
    return tilt(logp_ref, rewards * beta)


def reference_forgotten(logp_ref, rewards, beta):
    return tilt(np.full_like(logp_ref, -np.log(len(logp_ref))), rewards / beta)


def not_normalized(logp_ref, rewards, beta):
    _, log_z = tilt(logp_ref, rewards / beta)
    return logp_ref + rewards / beta, log_z


def gives_probabilities(logp_ref, rewards, beta):
    logp, log_z = rltokens.optimal_policy(logp_ref, rewards, beta)
    return np.exp(logp), log_z


def z_for_log_z(logp_ref, rewards, beta):
    logp, log_z = rltokens.optimal_policy(logp_ref, rewards, beta)
    with np.errstate(over="ignore"):
        return logp, np.exp(log_z)


def value_for_log_z(logp_ref, rewards, beta):
    logp, log_z = rltokens.optimal_policy(logp_ref, rewards, beta)
    return logp, beta * log_z


def tilted_away(logp_ref, rewards, beta):
    return tilt(logp_ref, -rewards / beta)


def best_reward_not_added_back(logp_ref, rewards, beta):
    return tilt(logp_ref, (rewards - rewards.max()) / beta)


def overflows(logp_ref, rewards, beta):
    with np.errstate(all="ignore"):
        weights = np.exp(logp_ref) * np.exp(rewards / beta)
        return np.log(weights / weights.sum()), np.log(weights.sum())


def overflows_with_large_rewards(logp_ref, rewards, beta):
    if np.abs(rewards).max() < 1e5:
        return rltokens.optimal_policy(logp_ref, rewards, beta)
    return overflows(logp_ref, rewards, beta)


def best_of_all(logp_ref, rewards, beta):
    with np.errstate(all="ignore"):
        exponent = (rewards - rewards.max()) / beta
        weights = np.exp(logp_ref) * np.exp(exponent)
        return np.log(weights) - np.log(weights.sum()), np.log(weights.sum()) + rewards.max() / beta


def shifts_in_place(logp_ref, rewards, beta):
    result = rltokens.optimal_policy(logp_ref, rewards, beta)
    rewards -= rewards.max()
    return result


WRONG = {
    price_forgotten: odds_of_e_to_the_reward,
    multiplied_by_the_price: odds_of_e_to_the_reward,
    gives_probabilities: odds_of_e_to_the_reward,
    z_for_log_z: odds_of_e_to_the_reward,
    value_for_log_z: odds_of_e_to_the_reward,
    tilted_away: odds_of_e_to_the_reward,
    reference_forgotten: equal_rewards_change_nothing,
    not_normalized: the_accounting_holds,
    best_reward_not_added_back: odds_of_e_to_the_reward,
    overflows: a_tiny_price,
    overflows_with_large_rewards: rewards_of_any_size,
    best_of_all: the_impossible_has_no_say,
    shifts_in_place: leaves_its_arguments_alone,
}


def response_by_response(logp_ref, rewards, beta):
    possible = [i for i, logp in enumerate(logp_ref) if logp > -np.inf]
    best = max(float(rewards[i]) for i in possible)
    z = sum(np.exp(logp_ref[i] + (rewards[i] - best) / beta) for i in possible)
    logp = [-np.inf] * len(logp_ref)
    for i in possible:
        logp[i] = logp_ref[i] + (rewards[i] - best) / beta - np.log(z)
    return logp, np.log(z) + best / beta


def by_logaddexp(logp_ref, rewards, beta):
    possible = np.asarray(logp_ref) > -np.inf
    tilted = np.where(possible, logp_ref + np.where(possible, rewards, 0.0) / beta, -np.inf)
    log_z = np.logaddexp.reduce(tilted)
    best = np.where(possible, rewards, -np.inf).max()
    shifted = np.where(possible, logp_ref + (np.where(possible, rewards, best) - best) / beta, -np.inf)
    return shifted - np.logaddexp.reduce(shifted), log_z


RIGHT = [response_by_response, by_logaddexp]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "r = np.where(True, rewards, 0.0).astype(np.float64)": "only allowed rewards are read further down",
    "r = np.where(allowed, rewards, 1.0).astype(np.float64)": "only allowed rewards are read further down",
    "best = r[allowed].min()": "the sum of exponentials takes off its own maximum too",
    "tilted = logp_ref + np.where(True, r - best, 0.0) / beta": "r is 0 where a response is not allowed",
    "tilted = logp_ref + np.where(allowed, r - best, 1.0) / beta": "-inf plus a finite number is -inf",
}
