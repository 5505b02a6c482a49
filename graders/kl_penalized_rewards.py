"""Exercise: a toll for each token, and the score at the end."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "One toll a token"
DIFFICULTY = "medium"
MINUTES = 12
POINTS = 3

STATEMENT = """
Turn log-probabilities under the policy and under the reference, and one score a response, into rewards
for each token: every real token pays `beta` times its log-ratio, *policy minus reference*, and the last
real token also collects the score.

A token that the policy made less likely than the reference is paid for. Whatever stands where the mask is
0 must not matter, masks may have holes, and the score of a row without a real token is not read. These
rewards will train the toy at the end of the notebook.
"""

HINTS = [
    "You have written `terminal_rewards` in the chapter before. What is added to it?",
    "`-beta * (logp - logp_ref)` where the mask is 1, else 0; plus `terminal_rewards(score, mask)`. "
    "Choose before you "
    "subtract: padding may hold NaN, and `-inf - (-inf)` is NaN too.",
]


def four_tokens_by_hand(kl_penalized_rewards, rng):
    log_ratio = np.array([[0.5, -0.2, 1.0, 0.0]])
    got = kl_penalized_rewards(
        log_ratio - 2.0, np.full((1, 4), -2.0), np.array([1.0]), np.ones((1, 4), dtype=int), 0.1
    )
    has_shape(got, (1, 4), "each token has a reward: the result has the shape of logp")
    message = (
        "log-ratios of 0.5, -0.2, 1 and 0 at a price of 0.1, and a score of 1 at the end: -0.05, 0.02, "
        "-0.1 and 1"
    )
    same(got, [[-0.05, 0.02, -0.1, 1.0]], message)


def the_last_token_pays_too(kl_penalized_rewards, rng):
    logp, logp_ref, mask = np.full((2, 2), -1.0), np.full((2, 2), -2.0), np.array([[1, 1], [1, 0]])
    got = kl_penalized_rewards(logp, logp_ref, np.array([3.0, 5.0]), mask, 0.5)
    message = (
        "a log-ratio of 1 at a price of 1/2: the last token pays its toll like all others, 3 - 1/2 and 5 "
        "- 1/2"
    )
    same(got, [[-0.5, 2.5], [4.5, 0.0]], message)


def the_sum_is_the_full_reward(kl_penalized_rewards, rng):
    logp, logp_ref = -rng.random((2, 3, 5))
    got = kl_penalized_rewards(logp, logp_ref, np.array([1.0, -2.0, 0.5]), np.ones((3, 5), dtype=int), 0.3)
    right = np.array([1.0, -2.0, 0.5]) - 0.3 * (logp - logp_ref).sum(axis=1)
    same(
        np.sum(got, axis=1),
        right,
        "a row adds up to the score less beta times the log-ratio of the whole response",
    )


def padding_is_inert(kl_penalized_rewards, rng):
    mask = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    right = [[-0.5, 2.5, 0.0, 0.0], [-0.5, 0.0, 4.5, 0.0]]
    for junk in (7.0, np.nan, np.inf, -np.inf):
        logp, logp_ref = (np.where(mask == 1, value, junk) for value in (-1.0, -2.0))
        got = kl_penalized_rewards(logp, logp_ref, np.array([3.0, 5.0]), mask, 0.5)
        same(
            got,
            right,
            f"{junk} where mask is 0 reached a reward, or the score does not stand on the last real token",
        )


def an_empty_row_gets_nothing(kl_penalized_rewards, rng):
    mask = np.array([[0, 0], [1, 1]])
    got = kl_penalized_rewards(
        np.full((2, 2), -1.0), np.full((2, 2), -3.0), np.array([np.nan, 4.0]), mask, 0.5
    )
    same(
        got, [[0.0, 0.0], [-1.0, 3.0]], "a row without a real token has no rewards, and its score is not read"
    )


def no_price_no_toll(kl_penalized_rewards, rng):
    mask = np.array([[1.0, 1.0]])
    got = kl_penalized_rewards(np.array([[-1, -2]]), np.array([[-2, -1]]), np.array([2]), mask, 0.0)
    same(got, [[0.0, 2.0]], "without a price there are no tolls, and the score is left")
    got = kl_penalized_rewards(
        np.array([[-1.0, -2.0]]), np.array([[-np.inf, -1.0]]), np.array([2.0]), mask, 0.0
    )
    message = "without a price there is no toll, also where the reference says -inf: 0 * inf is NaN"
    same(got, [[0.0, 2.0]], message)
    got = kl_penalized_rewards(np.array([[-1.0, -2.0]]), np.array([[-2.0, -1.0]]), np.array([2.0]), mask, 1.0)
    same(got, [[-1.0, 3.0]], "at a price of 1 the tolls are the log-ratios themselves, 1 and -1")
    got = kl_penalized_rewards(np.array([[-1, -2]]), np.array([[-2, -1]]), np.array([2]), mask == 1, 0.25)
    same(got, [[-0.25, 2.25]], "whole log-probs and a boolean mask give fractions all the same")


def leaves_its_arguments_alone(kl_penalized_rewards, rng):
    arguments = np.array([[-1.0, 9.0]]), np.array([[-2.0, 9.0]]), np.array([3.0]), np.array([[1, 0]])
    same(
        kl_penalized_rewards(*arguments, 0.5), [[2.5, 0.0]], "one token: its score of 3 less its toll of 1/2"
    )
    now = arguments_after(kl_penalized_rewards, *arguments, 0.5)
    for name, before, after in zip(("logp", "logp_ref", "score", "mask"), arguments, now[:4], strict=True):
        same(after, before, f"your function changed `{name}`: work on a copy")


def agrees_on_any_batch(kl_penalized_rewards, rng):
    for rows in (1, 5):
        mask = draw_batch(rng, rows=rows).mask
        logp, logp_ref = -rng.exponential(size=(2, *mask.shape))
        score = rng.normal(size=rows)
        right = rltokens.kl_penalized_rewards(logp, logp_ref, score, mask, 0.2)
        message = f"a random ragged batch of {rows} rows comes out wrong"
        same(kl_penalized_rewards(logp, logp_ref, score, mask, 0.2), right, message)


VISIBLE = [four_tokens_by_hand, the_last_token_pays_too, the_sum_is_the_full_reward]
HIDDEN = [
    padding_is_inert,
    an_empty_row_gets_nothing,
    no_price_no_toll,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def tolls(logp, logp_ref, mask, beta):
    real = np.asarray(mask) == 1
    return np.where(real, -beta * (np.where(real, logp, 0.0) - np.where(real, logp_ref, 0.0)), 0.0)


def reference_minus_policy(logp, logp_ref, score, mask, beta):
    return rltokens.terminal_rewards(score, mask) - tolls(logp, logp_ref, mask, beta)


def score_forgotten(logp, logp_ref, score, mask, beta):
    return tolls(logp, logp_ref, mask, beta)


def price_forgotten(logp, logp_ref, score, mask, beta):
    return rltokens.terminal_rewards(score, mask) + tolls(logp, logp_ref, mask, 1.0)


def score_on_every_token(logp, logp_ref, score, mask, beta):
    return tolls(logp, logp_ref, mask, beta) + np.where(
        np.asarray(mask) == 1, np.asarray(score)[:, None], 0.0
    )


def whole_toll_at_the_end(logp, logp_ref, score, mask, beta):
    return rltokens.terminal_rewards(score + tolls(logp, logp_ref, mask, beta).sum(axis=1), mask)


def never_below_zero(logp, logp_ref, score, mask, beta):
    return rltokens.terminal_rewards(score, mask) + np.minimum(tolls(logp, logp_ref, mask, beta), 0.0)


def probabilities_for_logarithms(logp, logp_ref, score, mask, beta):
    with np.errstate(all="ignore"):
        return rltokens.terminal_rewards(score, mask) + tolls(np.exp(logp), np.exp(logp_ref), mask, beta)


def last_token_goes_free(logp, logp_ref, score, mask, beta):
    last = rltokens.terminal_rewards(np.ones(len(mask)), mask) == 1
    return np.where(last, rltokens.terminal_rewards(score, mask), tolls(logp, logp_ref, mask, beta))


def last_column_for_last_token(logp, logp_ref, score, mask, beta):
    rewards = tolls(logp, logp_ref, mask, beta)
    rewards[:, -1] += score
    return rewards


def averaged_over_the_row(logp, logp_ref, score, mask, beta):
    count = np.maximum(np.asarray(mask).sum(axis=1, keepdims=True), 1)
    return rltokens.terminal_rewards(score, mask) + tolls(logp, logp_ref, mask, beta) / count


def multiplies_by_the_mask(logp, logp_ref, score, mask, beta):
    with np.errstate(invalid="ignore"):
        return rltokens.terminal_rewards(score, mask) - beta * (logp - logp_ref) * mask


def counts_the_ones(logp, logp_ref, score, mask, beta):
    rewards = tolls(logp, logp_ref, mask, beta)
    rewards[np.arange(len(mask)), np.asarray(mask).sum(axis=1).astype(int) - 1] += score
    return rewards


def at_least_some_price(logp, logp_ref, score, mask, beta):
    return rltokens.kl_penalized_rewards(logp, logp_ref, score, mask, beta or 0.05)


def blanks_in_place(logp, logp_ref, score, mask, beta):
    logp[np.asarray(mask) == 0] = 0.0
    return rltokens.kl_penalized_rewards(logp, logp_ref, score, mask, beta)


WRONG = {
    reference_minus_policy: four_tokens_by_hand,
    score_forgotten: four_tokens_by_hand,
    price_forgotten: four_tokens_by_hand,
    score_on_every_token: four_tokens_by_hand,
    whole_toll_at_the_end: four_tokens_by_hand,
    never_below_zero: four_tokens_by_hand,
    probabilities_for_logarithms: four_tokens_by_hand,
    last_token_goes_free: the_last_token_pays_too,
    last_column_for_last_token: the_last_token_pays_too,
    averaged_over_the_row: the_sum_is_the_full_reward,
    multiplies_by_the_mask: padding_is_inert,
    counts_the_ones: an_empty_row_gets_nothing,
    at_least_some_price: no_price_no_toll,
    blanks_in_place: leaves_its_arguments_alone,
}


def token_by_token(logp, logp_ref, score, mask, beta):
    rewards = [[0.0] * len(row) for row in mask]
    for b, row in enumerate(np.asarray(mask)):
        for t in np.flatnonzero(row):
            rewards[b][t] = -beta * (float(logp[b][t]) - float(logp_ref[b][t])) if beta else 0.0
        if row.any():
            rewards[b][np.flatnonzero(row)[-1]] += float(score[b])
    return rewards


def through_torch(logp, logp_ref, score, mask, beta):
    import torch

    real = torch.as_tensor(np.asarray(mask) == 1)
    now, ref = (torch.as_tensor(np.asarray(a, dtype=float)).masked_fill(~real, 0.0) for a in (logp, logp_ref))
    last = (torch.arange(real.shape[1]) * real).argmax(dim=1, keepdim=True)
    ends = torch.zeros(real.shape, dtype=torch.bool).scatter(1, last, True) & real
    scores = torch.as_tensor(np.asarray(score, dtype=float))[:, None]
    return torch.where(ends, scores, 0.0) - (beta * (now - ref) if beta else 0.0)


RIGHT = [token_by_token, through_torch]
