"""Exercise: what is still to come, from each token on."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "Returns-to-go"
DIFFICULTY = "easy"
MINUTES = 10
POINTS = 2

STATEMENT = """
The return-to-go of a token is its own reward plus, discounted, all that follow in its row. With one
reward at the end and no discount it is the same for every token: this is how the first token hears of the
score at all.

A masked position is skipped as if it were not there. It adds nothing, whatever stands there, and it costs
no factor of `gamma` either, also at the start of a row. The result is 0 at padding, and float even for
whole rewards.
"""

HINTS = [
    "Begin with the last token: there the return is the reward. How does the one before follow from it?",
    "Go backwards with one number a row: `to_come = r[:, t] + gamma * to_come` where the token is "
    "real, and unchanged "
    "where it is not.",
]


def the_score_reaches_every_token(returns_to_go, rng):
    got = returns_to_go(np.array([[0.0, 0.0, 0.0, 1.0]]), np.ones((1, 4), dtype=int))
    has_shape(got, (1, 4), "each token has a return: the result has the shape of the rewards")
    same(
        got,
        [[1.0, 1.0, 1.0, 1.0]],
        "without a discount, a score of 1 at the end is the return of every token",
    )


def each_step_costs_a_discount(returns_to_go, rng):
    got = returns_to_go(np.array([[0.0, 0.0, 0.0, 1.0]]), np.ones((1, 4), dtype=int), 0.5)
    message = (
        "with gamma = 1/2, a score of 1 is worth 1 on its own token, 1/2 one token before, then 1/4 and 1/8"
    )
    same(got, [[0.125, 0.25, 0.5, 1.0]], message)


def rewards_on_the_way_count(returns_to_go, rng):
    got = returns_to_go(np.array([[-0.05, 0.02, -0.1, 1.0]]), np.ones((1, 4), dtype=int))
    message = (
        "-0.05, 0.02, -0.1 and 1 add up from behind to 0.87, 0.92, 0.90 and 1.00: a token's own reward counts"
    )
    same(got, [[0.87, 0.92, 0.9, 1.0]], message)


def rows_are_responses(returns_to_go, rng):
    got = returns_to_go(np.array([[1.0, 2.0], [10.0, 20.0]]), np.ones((2, 2), dtype=int), 0.5)
    same(got, [[2.0, 2.0], [20.0, 20.0]], "time runs along a row, and rows do not hear of each other")


def padding_is_inert(returns_to_go, rng):
    rewards, mask = (
        np.array([[1.0, 2.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]),
        np.array([[1, 1, 0, 0], [1, 0, 0, 0]]),
    )
    for junk in (7.0, np.nan, np.inf):
        got = returns_to_go(np.where(mask == 1, rewards, junk), mask, 0.5)
        message = f"{junk} in the padding reached a return, or stands there itself: it must be 0"
        same(got, [[2.0, 2.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]], message)


def a_hole_is_skipped(returns_to_go, rng):
    rewards = np.array([[0.0, 9.0, 0.0, 8.0], [9.0, 0.0, 9.0, 8.0]])
    mask = np.array([[1, 0, 0, 1], [0, 1, 0, 1]])
    got = returns_to_go(rewards, mask, 0.5)
    message = "a masked position inside a row is no step: it adds no reward and costs no factor of gamma"
    same(got, [[4.0, 0.0, 0.0, 8.0], [0.0, 4.0, 0.0, 8.0]], message)


def nothing_is_carried_from_row_to_row(returns_to_go, rng):
    rewards, mask = np.array([[1.0, 1.0], [5.0, np.nan], [2.0, 2.0]]), np.array([[1, 1], [0, 0], [1, 0]])
    got = returns_to_go(rewards, mask)
    same(
        got,
        [[2.0, 1.0], [0.0, 0.0], [2.0, 0.0]],
        "an empty row has no returns, and its neighbours have their own",
    )


def whole_rewards_and_any_mask(returns_to_go, rng):
    for kind in (bool, float, np.int64):
        got = returns_to_go(np.array([[0, 1]]), np.ones((1, 2)).astype(kind), 0.5)
        same(got, [[0.5, 1.0]], f"whole rewards give fractions, with a mask of {kind.__name__} too")


def leaves_its_arguments_alone(returns_to_go, rng):
    rewards, mask = np.array([[1.0, 2.0, 9.0]]), np.array([[1, 1, 0]])
    same(returns_to_go(rewards, mask), [[3.0, 2.0, 0.0]], "1 and 2 have the returns 3 and 2")
    after_rewards, after_mask = arguments_after(returns_to_go, rewards, mask)
    same(after_rewards, rewards, "your function changed `rewards`: work on a copy")
    same(after_mask, mask, "your function changed `mask`: work on a copy")


def agrees_on_any_batch(returns_to_go, rng):
    for rows in (1, 5):
        mask = draw_batch(rng, rows=rows).mask
        rewards = rng.normal(size=mask.shape)
        for gamma in (1.0, 0.9, 0.0):
            message = f"a random ragged batch of {rows} rows comes out wrong with gamma = {gamma}"
            same(returns_to_go(rewards, mask, gamma), rltokens.returns_to_go(rewards, mask, gamma), message)


VISIBLE = [the_score_reaches_every_token, each_step_costs_a_discount, rewards_on_the_way_count]
HIDDEN = [
    rows_are_responses,
    padding_is_inert,
    a_hole_is_skipped,
    nothing_is_carried_from_row_to_row,
    whole_rewards_and_any_mask,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def backwards(rewards, mask, gamma, step):
    """The recursion from behind, with `step` for what happens at one position."""
    returns, to_come = np.zeros(rewards.shape), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        to_come, returns[:, t] = step(rewards[:, t], mask[:, t] == 1, to_come, gamma)
    return returns


def from_the_start(rewards, mask, gamma=1.0):
    r = np.where(mask == 1, rewards, 0.0)
    return np.where(mask == 1, r.cumsum(axis=1), 0.0)


def rewards_themselves(rewards, mask, gamma=1.0):
    return np.where(mask == 1, rewards, 0.0)


def without_its_own(rewards, mask, gamma=1.0):
    return rltokens.returns_to_go(rewards, mask, gamma) - np.where(mask == 1, rewards, 0.0)


def discount_forgotten(rewards, mask, gamma=1.0):
    return rltokens.returns_to_go(rewards, mask, 1.0)


def discounted_from_the_start(rewards, mask, gamma=1.0):
    powers = gamma ** np.arange(rewards.shape[1])
    return rltokens.returns_to_go(rewards * powers, mask, 1.0)


def total_for_all(rewards, mask, gamma=1.0):
    total = np.where(mask == 1, rewards, 0.0).sum(axis=1, keepdims=True)
    return np.where(mask == 1, total, 0.0) if gamma == 1 else rltokens.returns_to_go(rewards, mask, gamma)


def columns_for_rows(rewards, mask, gamma=1.0):
    if len(rewards) == 1:
        return rltokens.returns_to_go(rewards, mask, gamma)
    return rltokens.returns_to_go(rewards.T, mask.T, gamma).T


def multiplies_by_the_mask(rewards, mask, gamma=1.0):
    def step(r, real, to_come, gamma):
        with np.errstate(invalid="ignore"):
            to_come = r * real + gamma * to_come
        return to_come, to_come * real

    return backwards(rewards, mask, gamma, step)


def returns_in_the_holes(rewards, mask, gamma=1.0):
    def step(r, real, to_come, gamma):
        to_come = np.where(real, r + gamma * to_come, to_come)
        return to_come, to_come

    return backwards(rewards, mask, gamma, step)


def a_hole_costs_a_step(rewards, mask, gamma=1.0):
    def step(r, real, to_come, gamma):
        to_come = np.where(real, r, 0.0) + gamma * to_come
        return to_come, np.where(real, to_come, 0.0)

    return backwards(rewards, mask, gamma, step)


def a_hole_ends_the_row(rewards, mask, gamma=1.0):
    def step(r, real, to_come, gamma):
        to_come = np.where(real, r + gamma * to_come, 0.0)
        return to_come, to_come

    return backwards(rewards, mask, gamma, step)


def one_long_row(rewards, mask, gamma=1.0):
    r = np.where(mask == 1, rewards, 0.0).reshape(1, -1)
    flat = rltokens.returns_to_go(r, np.asarray(mask).reshape(1, -1), gamma)
    return flat.reshape(rewards.shape)


def whole_numbers_stay_whole(rewards, mask, gamma=1.0):
    result = rltokens.returns_to_go(rewards, mask, gamma)
    return result.astype(rewards.dtype) if rewards.dtype.kind == "i" else result


def adds_up_in_place(rewards, mask, gamma=1.0):
    result = rltokens.returns_to_go(rewards, mask, gamma)
    rewards[mask == 0] = 0.0
    return result


WRONG = {
    rewards_themselves: the_score_reaches_every_token,
    without_its_own: the_score_reaches_every_token,
    from_the_start: the_score_reaches_every_token,
    discount_forgotten: each_step_costs_a_discount,
    discounted_from_the_start: each_step_costs_a_discount,
    total_for_all: rewards_on_the_way_count,
    columns_for_rows: rows_are_responses,
    multiplies_by_the_mask: padding_is_inert,
    returns_in_the_holes: a_hole_is_skipped,
    a_hole_costs_a_step: a_hole_is_skipped,
    a_hole_ends_the_row: a_hole_is_skipped,
    one_long_row: nothing_is_carried_from_row_to_row,
    whole_numbers_stay_whole: whole_rewards_and_any_mask,
    adds_up_in_place: leaves_its_arguments_alone,
}


def row_by_row(rewards, mask, gamma=1.0):
    returns = [[0.0] * len(row) for row in mask]
    for b, row in enumerate(mask):
        to_come = 0.0
        for t in np.flatnonzero(np.asarray(row) == 1)[::-1]:
            to_come = float(rewards[b][t]) + gamma * to_come
            returns[b][t] = to_come
    return returns


def by_powers(rewards, mask, gamma=1.0):
    real = np.asarray(mask) == 1
    place = real.cumsum(axis=1)
    later = real[:, :, None] & real[:, None, :] & (place[:, None, :] >= place[:, :, None])
    ahead = np.maximum(place[:, None, :] - place[:, :, None], 0)
    discounts = np.where(later, float(gamma) ** ahead, 0.0)
    return np.einsum("btk,bk->bt", discounts, np.where(real, rewards, 0.0))


RIGHT = [row_by_row, by_powers]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "r = np.where(True, rewards, 0.0).astype(np.float64)": "padding is left out again further down",
    "r = np.where(real_token, rewards, 1.0).astype(np.float64)": "padding is left out again further down",
    "returns = np.ones_like(r)": "every entry is written",
}
