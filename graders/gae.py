"""Exercise: generalized advantage estimation over tokens."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, arguments_after, draw_batch, has_shape, same

TITLE = "Generalized advantage estimation"
DIFFICULTY = "hard"
MINUTES = 25
POINTS = 5

STATEMENT = """
A critic says before each token what the response will be worth. The change of its opinion, with what was
paid, is the token's temporal difference; GAE adds up the differences that follow, each further one with
another factor of `gamma * lam`. Write the recursion from the last token to the first, and give back two
arrays: the advantages, and the returns, which are advantages plus values and what the critic is trained
towards.

`values[b, t]` is the critic's opinion *before* token t. After the last real token of row b it is
`bootstrap_value[b]`: 0 for a response that is finished, the critic's opinion where a text was cut off
that would have gone on. `None` is 0 for all rows.

A masked position is skipped as if it were not there, inside of a row and at its start too: it is no step,
so the value that follows a token is that of the next *real* token. Both results are 0 at padding, and
whatever stands there must not matter. The bootstrap value of a row without real tokens is not read.
"""

HINTS = [
    "For a single row without padding: what are `next_value` and `next_advantage` when you stand on "
    "the last token? What are "
    "they one token earlier?",
    "Go backwards in time with two numbers a row. On a real token: `delta = r + gamma * next_value - "
    "v`, then "
    "`advantage = delta + gamma * lam * next_advantage`.",
    "Where the position is masked, keep both numbers as they are: "
    "`next_value = np.where(real[:, t], v[:, t], next_value)`, and the same for the advantage.",
]


def both_of(result):
    """The two arrays that were asked for."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise BadForm("expected two arrays, advantages and returns: `return advantages, returns`")
    return result


def three_tokens_by_hand(gae, rng):
    rewards, values = np.array([[0.0, 0.0, 1.0]]), np.array([[0.5, 0.25, 0.75]])
    advantages, returns = both_of(gae(rewards, values, np.ones((1, 3), dtype=int), 1.0, 0.5))
    has_shape(advantages, (1, 3), "each token has an advantage: the result has the shape of the rewards")
    message = (
        "the deltas are 0.25 - 0.5 = -0.25, 0.75 - 0.25 = 0.5 and 1 - 0.75 = 0.25; with lam = 1/2 "
        "they add up from "
        "behind to 0.25, 0.5 + 0.125 and -0.25 + 0.3125"
    )
    same(advantages, [[0.0625, 0.625, 0.25]], message)
    same(returns, [[0.5625, 0.875, 1.0]], "returns are advantages plus values")


def lambda_one_is_return_minus_value(gae, rng):
    rewards, values = np.array([[0.0, 0.0, 1.0]]), np.array([[0.5, 0.25, 0.75]])
    advantages, returns = both_of(gae(rewards, values, np.ones((1, 3), dtype=int), 1.0, 1.0))
    message = "with lam = 1 all values but the first cancel: the advantage is the return, 1, minus the value"
    same(advantages, [[0.5, 0.75, 0.25]], message)
    same(returns, [[1.0, 1.0, 1.0]], "with lam = 1 the returns are the returns-to-go")


def lambda_zero_is_delta(gae, rng):
    rewards, values = np.array([[0.0, 0.0, 1.0]]), np.array([[0.5, 0.25, 0.75]])
    advantages, _ = both_of(gae(rewards, values, np.ones((1, 3), dtype=int), 1.0, 0.0))
    same(advantages, [[-0.25, 0.5, 0.25]], "with lam = 0 the advantage is the temporal difference alone")


def a_cut_response_is_bootstrapped(gae, rng):
    rewards, values, mask = np.zeros((2, 3)), np.full((2, 3), 0.5), np.array([[1, 1, 1], [1, 1, 0]])
    advantages, _ = both_of(gae(rewards, values, mask, 1.0, 0.5, np.array([0.9, 0.0])))
    message = (
        "the first response was cut off, and the critic says 0.9 about what would have followed: its "
        "last delta is "
        "0.9 - 0.5. The second is finished: its last delta is 0 - 0.5"
    )
    same(advantages, [[0.1, 0.2, 0.4], [-0.25, -0.5, 0.0]], message)


def gamma_discounts_value_and_trace(gae, rng):
    rewards, values = np.array([[0.0, 0.0, 1.0]]), np.array([[0.5, 0.5, 0.5]])
    advantages, returns = both_of(gae(rewards, values, np.ones((1, 3), dtype=int), 0.5, 0.5))
    message = (
        "with gamma = 1/2 the deltas are -0.25, -0.25 and 0.5, and each further one counts gamma "
        "times lam = 1/4: "
        "-0.28125, -0.125, 0.5"
    )
    same(advantages, [[-0.28125, -0.125, 0.5]], message)
    same(returns, [[0.21875, 0.375, 1.0]], "returns are advantages plus values")


def padding_is_inert(gae, rng):
    rewards, values = (
        np.array([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]),
        np.array([[0.5, 0.25, 0.0], [0.5, 0.0, 0.0]]),
    )
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    for junk in (0.0, 7.0, np.nan, np.inf):
        arguments = (np.where(mask == 1, array, junk) for array in (rewards, values))
        advantages, returns = both_of(gae(*arguments, mask, 1.0, 0.5))
        message = f"{junk} in the padding reached a result: after the last real token the value is 0"
        same(advantages, [[0.125, 0.75, 0.0], [1.5, 0.0, 0.0]], message)
        same(
            returns,
            [[0.625, 1.0, 0.0], [2.0, 0.0, 0.0]],
            f"with {junk} in the padding the returns are wrong there",
        )


def a_hole_is_skipped(gae, rng):
    mask = np.array([[1, 0, 0, 1], [0, 1, 0, 1]])
    rewards = np.where(mask == 1, [[0.0, 0, 0, 1], [0, 0, 0, 1]], 5.0)
    values = np.where(mask == 1, [[0.5, 0, 0, 0.25], [0, 0.5, 0, 0.25]], 9.0)
    advantages, returns = both_of(gae(rewards, values, mask, 0.5, 0.5))
    message = (
        "two real tokens with masked ones between them are neighbours: the deltas are 0.5 * 0.25 - "
        "0.5 and 1 - 0.25, "
        "and the first advantage is -0.375 + 0.25 * 0.75"
    )
    same(advantages, [[-0.1875, 0.0, 0.0, 0.75], [0.0, -0.1875, 0.0, 0.75]], message)
    same(returns, [[0.3125, 0.0, 0.0, 1.0], [0.0, 0.3125, 0.0, 1.0]], "returns are 0 at masked positions")


def the_bootstrap_follows_the_last_real_token(gae, rng):
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    advantages, returns = both_of(
        gae(np.zeros((2, 3)), np.ones((2, 3)), mask, 1.0, 0.0, np.array([3.0, np.nan]))
    )
    message = "the bootstrap value stands after the last *real* token, and that of an empty row is not read"
    same(advantages, [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]], message)
    same(returns, [[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]], message)


def whole_numbers_and_any_mask(gae, rng):
    for kind in (bool, float, np.int64):
        mask = np.array([[1, 1]]).astype(kind)
        advantages, returns = both_of(gae(np.array([[0, 1]]), np.array([[0, 0]]), mask, 1.0, 0.5))
        same(advantages, [[0.5, 1.0]], f"whole numbers give fractions, with a mask of {kind.__name__} too")
        same(returns, [[0.5, 1.0]], f"whole numbers give fractions, with a mask of {kind.__name__} too")


def leaves_its_arguments_alone(gae, rng):
    arguments = np.array([[0.0, 1.0, 9.0]]), np.array([[0.5, 0.25, 9.0]]), np.array([[1, 1, 0]])
    advantages, _ = both_of(gae(*arguments, 1.0, 0.5))
    same(advantages, [[0.125, 0.75, 0.0]], "the deltas are -0.25 and 0.75")
    after = arguments_after(gae, *arguments)
    for name, before, now in zip(("rewards", "values", "mask"), arguments, after[:3], strict=True):
        same(now, before, f"your function changed `{name}`: work on a copy")


def agrees_on_any_batch(gae, rng):
    for rows in (1, 5):
        mask = draw_batch(rng, rows=rows).mask
        rewards, values = rng.normal(size=(2, *mask.shape))
        bootstrap = rng.normal(size=rows)
        for gamma, lam in ((1.0, 0.95), (0.9, 0.5), (0.0, 1.0)):
            got = both_of(gae(rewards, values, mask, gamma, lam, bootstrap))
            right = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap)
            message = (
                f"a random ragged batch of {rows} rows comes out wrong with gamma = {gamma}, lam = {lam}"
            )
            same(got[0], right[0], message)
            same(got[1], right[1], message)


VISIBLE = [
    three_tokens_by_hand,
    lambda_one_is_return_minus_value,
    lambda_zero_is_delta,
    a_cut_response_is_bootstrapped,
]
HIDDEN = [
    gamma_discounts_value_and_trace,
    padding_is_inert,
    a_hole_is_skipped,
    the_bootstrap_follows_the_last_real_token,
    whole_numbers_and_any_mask,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def backwards(rewards, values, mask, gamma, decay, bootstrap_value, sees_padding=False, hole_resets=False):
    """The recursion with its usual mistakes as options; `decay` is what the trace is multiplied by."""
    real = np.asarray(mask) == 1
    r, v = np.where(real, rewards, 0.0), np.where(real, values, 0.0)
    seen = np.asarray(values, dtype=float) if sees_padding else v
    after = np.zeros(len(r)) if bootstrap_value is None else np.where(real.any(axis=1), bootstrap_value, 0.0)
    next_value, trace, advantages = after, np.zeros(len(r)), np.zeros(r.shape)
    for t in reversed(range(r.shape[1])):
        advantage = r[:, t] + gamma * next_value - v[:, t] + decay * trace
        advantages[:, t] = np.where(real[:, t], advantage, 0.0)
        if hole_resets:
            next_value, trace = np.where(real[:, t], v[:, t], 0.0), np.where(real[:, t], advantage, 0.0)
        elif sees_padding:
            next_value, trace = seen[:, t], np.where(real[:, t], advantage, trace)
        else:
            next_value = np.where(real[:, t], v[:, t], next_value)
            trace = np.where(real[:, t], advantage, trace)
    return advantages, np.where(real, advantages + v, 0.0)


def trace_forgotten(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma, 0.0, bootstrap_value)


def lambda_forgotten(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma, gamma, bootstrap_value)


def values_forgotten(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    _, returns = rltokens.gae(rewards, values * 0, mask, gamma, lam, bootstrap_value)
    return returns, returns


def lambda_in_the_delta(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma * lam, gamma * lam, bootstrap_value)


def values_one_token_late(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    late = np.concatenate([values[:, 1:], np.zeros((len(values), 1))], axis=1)
    return rltokens.gae(rewards, late, mask, gamma, lam, bootstrap_value)


def delta_turned_round(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, returns = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)
    return -advantages, returns


def returns_to_go_for_returns(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, _ = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)
    return advantages, rltokens.returns_to_go(rewards, mask, gamma)


def forwards(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, _ = rltokens.gae(
        rewards[:, ::-1], values[:, ::-1], mask[:, ::-1], gamma, lam, bootstrap_value
    )
    advantages = advantages[:, ::-1]
    return advantages, advantages + np.where(mask == 1, values, 0.0)


def bootstrap_forgotten(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return rltokens.gae(rewards, values, mask, gamma, lam)


def last_value_bootstraps_itself(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return rltokens.gae(rewards, values, mask, gamma, lam, np.where(mask == 1, values, 0.0)[:, -1])


def bootstrap_for_all(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    most = None if bootstrap_value is None else np.full(len(rewards), np.nanmax(bootstrap_value))
    return rltokens.gae(rewards, values, mask, gamma, lam, most)


def trace_not_discounted(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma, lam, bootstrap_value)


def value_not_discounted(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, 1.0, gamma * lam, bootstrap_value)


def value_of_the_padding(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma, gamma * lam, bootstrap_value, sees_padding=True)


def multiplies_by_the_mask(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    with np.errstate(invalid="ignore"):
        r, v = rewards * mask, values * mask
    spoiled = np.where(np.isnan(r + v).any(axis=1, keepdims=True), np.nan, 0.0)
    advantages, returns = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)
    return advantages + spoiled, returns + spoiled


def values_in_the_padding(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, _ = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)
    return advantages, advantages + values


def a_hole_ends_the_row(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    return backwards(rewards, values, mask, gamma, gamma * lam, bootstrap_value, hole_resets=True)


def bootstrap_after_the_last_column(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    full = None if bootstrap_value is None else np.where(mask[:, -1] == 1, bootstrap_value, 0.0)
    return rltokens.gae(rewards, values, mask, gamma, lam, full)


def whole_numbers_stay_whole(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    results = rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)
    return tuple(array.astype(int) for array in results) if rewards.dtype.kind == "i" else results


def blanks_in_place(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    values[mask == 0] = 0.0
    return rltokens.gae(rewards, values, mask, gamma, lam, bootstrap_value)


WRONG = {
    trace_forgotten: three_tokens_by_hand,
    lambda_forgotten: three_tokens_by_hand,
    values_forgotten: three_tokens_by_hand,
    lambda_in_the_delta: three_tokens_by_hand,
    values_one_token_late: three_tokens_by_hand,
    delta_turned_round: three_tokens_by_hand,
    forwards: lambda_one_is_return_minus_value,
    returns_to_go_for_returns: three_tokens_by_hand,
    last_value_bootstraps_itself: lambda_zero_is_delta,
    bootstrap_forgotten: a_cut_response_is_bootstrapped,
    bootstrap_for_all: a_cut_response_is_bootstrapped,
    trace_not_discounted: gamma_discounts_value_and_trace,
    value_not_discounted: gamma_discounts_value_and_trace,
    value_of_the_padding: padding_is_inert,
    multiplies_by_the_mask: padding_is_inert,
    values_in_the_padding: padding_is_inert,
    a_hole_ends_the_row: a_hole_is_skipped,
    bootstrap_after_the_last_column: the_bootstrap_follows_the_last_real_token,
    whole_numbers_stay_whole: whole_numbers_and_any_mask,
    blanks_in_place: leaves_its_arguments_alone,
}


def row_by_row(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, returns = np.zeros(np.shape(mask)), np.zeros(np.shape(mask))
    for b, row in enumerate(np.asarray(mask)):
        following, value = 0.0, 0.0 if bootstrap_value is None else bootstrap_value[b]
        for t in np.flatnonzero(row)[::-1]:
            following = rewards[b][t] + gamma * value - values[b][t] + gamma * lam * following
            value = values[b][t]
            advantages[b, t], returns[b, t] = following, following + value
    return advantages, returns


def sum_of_deltas(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    advantages, returns = ([[0.0] * len(row) for row in mask] for _ in range(2))
    for b, row in enumerate(np.asarray(mask)):
        real = np.flatnonzero(row)
        after = 0.0 if bootstrap_value is None else bootstrap_value[b]
        v = [*(float(values[b][t]) for t in real), float(after)]
        deltas = [float(rewards[b][t]) + gamma * v[i + 1] - v[i] for i, t in enumerate(real)]
        for i, t in enumerate(real):
            advantages[b][t] = sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[i:]))
            returns[b][t] = advantages[b][t] + v[i]
    return advantages, returns


RIGHT = [row_by_row, sum_of_deltas]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "r = np.where(True, rewards, 0.0).astype(np.float64)": "padding is left out again further down",
    "r = np.where(real_token, rewards, 1.0).astype(np.float64)": "padding is left out again further down",
    "next_value = np.where(True, bootstrap_value, 0.0).astype(np.float64)": "an empty row never reads it",
    "next_value = np.where(real_token.any(axis=1), bootstrap_value, 1.0).astype(np.float64)": "the same",
    "advantages = np.ones_like(r)": "every entry is written",
}
