"""Exercise: put the score where it belongs."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "One score, at the end"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
A verifier or a reward model gives one number for a whole response. Turn the scores of a batch into
rewards for each token: the score stands on the last real token of its row, and everything else is 0. It
does not matter whether that token is EOS or the response was cut off there.

A mask may have holes, also at its end or at its start: the last real token is the last position with a 1.
A row without a real token gets nothing, and its score, which may be NaN, must not be read. Scores may be
whole numbers, the result is float.
"""

HINTS = [
    "Which position of a row is the last with a 1? The *number* of ones does not tell where there are holes.",
    "Count from behind: `mask[:, ::-1].cumsum(axis=1)[:, ::-1]` says how many real tokens stand from "
    "t on. The last "
    "real token is real, and there is one from it on. Use `np.where` to write the score there.",
]


def the_score_stands_on_the_last_token(terminal_rewards, rng):
    got = terminal_rewards(np.array([5.0, 7.0]), np.array([[1, 1, 0], [1, 1, 1]]))
    has_shape(got, (2, 3), "each token gets a reward: the result has the shape of the mask")
    message = (
        "the first response has two tokens, so that its score of 5 belongs to the second; the other "
        "has three, "
        "and its 7 belongs to the last. All other rewards are 0"
    )
    same(got, [[0.0, 5.0, 0.0], [0.0, 0.0, 7.0]], message)


def one_token_gets_it_all(terminal_rewards, rng):
    got = terminal_rewards(np.array([-2.0, 3.0]), np.array([[1, 0, 0], [1, 1, 0]]))
    message = "a response of one token has its score on that token, whatever the sign"
    same(got, [[-2.0, 0.0, 0.0], [0.0, 3.0, 0.0]], message)


def a_hole_does_not_move_the_end(terminal_rewards, rng):
    mask = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]])
    got = terminal_rewards(np.array([5.0, 7.0, 9.0]), mask)
    right = [[0, 0, 5.0, 0, 0], [0, 0, 0, 0, 7.0], [0, 0, 9.0, 0, 0]]
    same(
        got,
        right,
        "the score stands on the last position with a 1: counting the ones misses it where there are holes",
    )


def an_empty_row_gets_nothing(terminal_rewards, rng):
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    for score in (4.0, np.nan, np.inf):
        got = terminal_rewards(np.array([5.0, score]), mask)
        message = f"a row without a real token has no reward: its score of {score} must not be read"
        same(got, [[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]], message)


def whole_scores_and_any_mask(terminal_rewards, rng):
    for kind in (bool, float, np.int64):
        mask = np.array([[1, 1, 0], [1, 1, 1]]).astype(kind)
        got = terminal_rewards(np.array([0.5, 2]), mask)
        message = f"with a mask of {kind.__name__} the scores 0.5 and 2 must arrive as they are"
        same(got, [[0.0, 0.5, 0.0], [0.0, 0.0, 2.0]], message)


def leaves_its_arguments_alone(terminal_rewards, rng):
    score, mask = np.array([5.0]), np.array([[1, 1, 0]])
    same(terminal_rewards(score, mask), [[0.0, 5.0, 0.0]], "a score of 5 stands on the second of two tokens")
    after_score, after_mask = arguments_after(terminal_rewards, score, mask)
    same(after_score, score, "your function changed `score`: work on a copy")
    same(after_mask, mask, "your function changed `mask`: work on a copy")


def agrees_on_any_batch(terminal_rewards, rng):
    for rows in (1, 4, 6):
        mask = draw_batch(rng, rows=rows).mask
        score = rng.normal(size=rows)
        message = f"a random ragged batch of {rows} rows comes out wrong"
        same(terminal_rewards(score, mask), rltokens.terminal_rewards(score, mask), message)


VISIBLE = [the_score_stands_on_the_last_token, one_token_gets_it_all]
HIDDEN = [
    a_hole_does_not_move_the_end,
    an_empty_row_gets_nothing,
    whole_scores_and_any_mask,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def on_the_last_column(score, mask):
    rewards = np.zeros(mask.shape)
    rewards[:, -1] = score
    return rewards


def on_every_token(score, mask):
    return np.where(mask == 1, score[:, None], 0.0)


def on_the_first_token(score, mask):
    rewards = np.zeros(mask.shape)
    rewards[:, 0] = score
    return rewards


def shared_by_the_tokens(score, mask):
    return np.where(mask == 1, score[:, None] / np.maximum(mask.sum(axis=1, keepdims=True), 1), 0.0)


def one_token_too_late(score, mask):
    rewards = np.zeros(mask.shape)
    rewards[np.arange(len(mask)), np.minimum(mask.sum(axis=1).astype(int), mask.shape[1] - 1)] = score
    return rewards


def one_token_too_early(score, mask):
    rewards = np.zeros(mask.shape)
    rewards[np.arange(len(mask)), np.maximum(mask.sum(axis=1).astype(int) - 2, 0)] = score
    return rewards


def only_good_scores(score, mask):
    return np.maximum(rltokens.terminal_rewards(score, mask), 0.0)


def counts_the_ones(score, mask):
    rewards = np.zeros(mask.shape)
    length = mask.sum(axis=1).astype(int)
    full = length > 0
    rewards[full, length[full] - 1] = score[full]
    return rewards


def where_the_mask_drops(score, mask):
    ends = (mask == 1) & (np.pad(mask, ((0, 0), (0, 1)))[:, 1:] == 0)
    return np.where(ends, score[:, None], 0.0)


def counts_back_from_an_empty_row(score, mask):
    rewards = np.zeros(mask.shape)
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1] == 1, axis=1)
    rewards[np.arange(len(mask)), last] = score
    return rewards


def multiplies_by_the_mask(score, mask):
    behind = (mask == 1)[:, ::-1].cumsum(axis=1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        return (behind == 1) * (mask == 1) * score[:, None]


def whole_numbers(score, mask):
    rewards = np.zeros_like(mask)
    rewards[:] = rltokens.terminal_rewards(score, mask)
    return rewards


def blanks_the_score_in_place(score, mask):
    rewards = rltokens.terminal_rewards(score, mask)
    score[:] = 0.0
    return rewards


WRONG = {
    on_the_last_column: the_score_stands_on_the_last_token,
    on_every_token: the_score_stands_on_the_last_token,
    on_the_first_token: the_score_stands_on_the_last_token,
    shared_by_the_tokens: the_score_stands_on_the_last_token,
    one_token_too_late: the_score_stands_on_the_last_token,
    one_token_too_early: the_score_stands_on_the_last_token,
    only_good_scores: one_token_gets_it_all,
    counts_the_ones: a_hole_does_not_move_the_end,
    where_the_mask_drops: a_hole_does_not_move_the_end,
    counts_back_from_an_empty_row: an_empty_row_gets_nothing,
    multiplies_by_the_mask: an_empty_row_gets_nothing,
    whole_numbers: whole_scores_and_any_mask,
    blanks_the_score_in_place: leaves_its_arguments_alone,
}


def loop_over_rows(score, mask):
    rewards = [[0.0] * len(row) for row in mask]
    for b, row in enumerate(mask):
        real = [t for t, value in enumerate(row) if value]
        if real:
            rewards[b][real[-1]] = float(score[b])
    return rewards


def from_the_last_index(score, mask):
    real, place = np.asarray(mask) == 1, np.arange(np.shape(mask)[1])
    last = np.where(real, place, -1).max(axis=1, keepdims=True)
    return np.where(place == last, np.asarray(score)[:, None], 0).astype(np.float32)


def through_torch(score, mask):
    import torch

    real = torch.as_tensor(np.asarray(mask) == 1)
    last = (torch.arange(real.shape[1]) * real).argmax(dim=1, keepdim=True)
    rewards = torch.zeros(real.shape, dtype=torch.float64)
    rewards.scatter_(1, last, torch.as_tensor(np.asarray(score, dtype=np.float64))[:, None])
    return torch.where(real, rewards, 0.0)


RIGHT = [loop_over_rows, from_the_last_index, through_torch]
