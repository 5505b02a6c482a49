"""Exercise: the log-probability of each token that was drawn."""

import math

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, must_not_raise, same

TITLE = "The log-probability of each drawn token"
DIFFICULTY = "medium"
MINUTES = 15
POINTS = 3

STATEMENT = """
For every real token of every response, read off the log-probability that the policy gave to the token it
drew. At padding the answer is 0, whatever stands there: padded logits may hold NaN, and padded ids may be
no ids at all. These numbers are the currency of all that follows; ratios, penalties and losses are
differences and sums of them.
"""

HINTS = [
    "`np.take_along_axis` picks one entry of each row; it wants the ids with an axis of length 1 at the end.",
    "Multiplying by the mask does not remove NaN, since `0 * nan` is NaN. `np.where(mask == 1, x, 0)` does.",
    "Put harmless values at padded positions *before* you compute (logits 0, id 0), and 0 afterwards.",
]


def reads_off_the_drawn_token(token_logprobs, rng):
    steps = np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]])
    same(
        token_logprobs(np.log(steps), np.array([[1, 1, 0]]), np.ones((1, 3), dtype=int)),
        np.log([[0.25, 0.8, 0.2]]),
        "tokens 1, 1, 0 had probabilities 0.25, 0.8, 0.2: entry t is the logarithm for token t under row t",
    )


def is_zero_at_padding(token_logprobs, rng):
    logits = np.log(np.full((2, 3, 4), 0.25))
    mask = np.array([[1, 1, 1], [1, 0, 0]])
    same(
        token_logprobs(logits, np.zeros((2, 3), dtype=int), mask),
        math.log(0.25) * mask,
        "four equal chances give log(1/4) at a real token and exactly 0 where mask is 0",
    )


def normalizes_the_logits(token_logprobs, rng):
    logp = np.log([[[0.5, 0.5], [0.25, 0.75]]])
    same(
        token_logprobs(logp, np.array([[0, 1]]), np.array([[1, 1]])),
        [[math.log(1 / 2), math.log(3 / 4)]],
        "tokens of probability 1/2 and 3/4 have log-probabilities log(1/2) and log(3/4)",
    )
    same(
        token_logprobs(np.array([[[3.0, 3.0], [0.0, math.log(3)]]]), np.array([[0, 1]]), np.array([[1, 1]])),
        [[math.log(1 / 2), math.log(3 / 4)]],
        "logits (3, 3) are two equal chances: a logit is no log-probability until log_softmax made it one",
    )


def padding_is_inert(token_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    real = mask == 1
    expected = rltokens.token_logprobs(logits, tokens, mask)
    same(
        token_logprobs(logits, tokens, mask),
        expected,
        "a random batch comes out wrong, before anything strange stands in its padding",
    )
    for junk in (np.nan, np.inf, -np.inf):
        same(
            token_logprobs(np.where(real[..., None], logits, junk), tokens, mask),
            expected,
            f"{junk} in padded logits changed the result: choose by mask before the arithmetic, "
            "since 0 * nan is nan",
        )


def padded_ids_are_not_looked_up(token_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    expected = rltokens.token_logprobs(logits, tokens, mask)
    same(
        token_logprobs(logits, tokens, mask),
        expected,
        "a random batch comes out wrong, before anything strange stands in its padding",
    )
    for junk in (99, -1, -100):
        message = f"a padded id of {junk} is no token: put a harmless id there before you look anything up"
        dirty = np.where(mask == 1, tokens, junk)
        same(must_not_raise("IndexError", message, token_logprobs, logits, dirty, mask), expected, message)


def a_forbidden_token_has_minus_inf(token_logprobs, rng):
    logits = np.array([[[0.0, -np.inf, 0.0], [0.0, 0.0, -np.inf]]])
    same(
        token_logprobs(logits, np.array([[1, 1]]), np.array([[1, 1]])),
        [[-np.inf, math.log(1 / 2)]],
        "a drawn token of probability 0 has log-probability -inf: neither clipped nor NaN",
    )


def is_as_stable_as_log_softmax(token_logprobs, rng):
    logits = np.array(
        [[[1000.0, 1000.0, 0.0], [0.0, -900.0, 0.0]], [[-1000.0, -1000.0, -1000.0], [5.0, -895.0, 5.0]]]
    )
    same(
        token_logprobs(logits, np.array([[0, 1], [2, 1]]), np.ones((2, 2), dtype=int)),
        np.array([[0, -900], [-math.log(3 / 2), -900]]) - math.log(2),
        "logits of 1000 or rare tokens come out wrong here: use your log_softmax, row by row",
    )


def nothing_real_is_all_zeros(token_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    same(
        token_logprobs(logits, tokens, mask),
        rltokens.token_logprobs(logits, tokens, mask),
        "a random batch comes out wrong",
    )
    same(
        token_logprobs(logits * np.nan, tokens, 0 * mask),
        np.zeros(mask.shape),
        "a batch without any real token gives zeros: no NaN, and no error",
    )


def leaves_its_input_alone(token_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    same(
        token_logprobs(logits, tokens, mask),
        rltokens.token_logprobs(logits, tokens, mask),
        "a random batch comes out wrong",
    )
    after = arguments_after(token_logprobs, logits, tokens, mask)
    for name, before, now in zip(("logits", "tokens", "mask"), (logits, tokens, mask), after, strict=True):
        same(now, before, f"your function changed {name}, which it was given: write to a new array")


def skips_holes(token_logprobs, rng):
    logits, tokens, _ = draw_batch(rng, rows=2, empty_row=False)
    mask = np.ones(tokens.shape, dtype=bool)
    mask[0, 1] = mask[1, 0] = False  # a tool's output inside a response, and one at its start
    same(
        token_logprobs(logits, tokens, mask),
        rltokens.token_logprobs(logits, tokens, mask),
        "a mask may have holes and may be boolean: decide at each position, not by the row's length",
    )


def agrees_on_any_batch(token_logprobs, rng):
    for rows, kind in ((1, int), (3, float), (6, bool)):
        logits, tokens, mask = draw_batch(rng, rows=rows)
        same(
            token_logprobs(logits, tokens, mask.astype(kind)),
            rltokens.token_logprobs(logits, tokens, mask),
            f"a random ragged batch of {rows} rows, its mask of type {kind.__name__}, comes out wrong",
        )
    logits, tokens, mask = np.full((1, 2, 1), 5.0), np.zeros((1, 2), dtype=int), np.array([[1, 0]])
    message = "with a single word in the vocabulary every token is certain"
    same(must_not_raise("IndexError", message, token_logprobs, logits, tokens, mask), [[0.0, 0.0]], message)


VISIBLE = [reads_off_the_drawn_token, is_zero_at_padding, normalizes_the_logits]
HIDDEN = [
    padding_is_inert,
    padded_ids_are_not_looked_up,
    a_forbidden_token_has_minus_inf,
    is_as_stable_as_log_softmax,
    nothing_real_is_all_zeros,
    leaves_its_input_alone,
    skips_holes,
    agrees_on_any_batch,
]


def gathered(values, tokens):
    return np.take_along_axis(values, np.asarray(tokens)[..., None], axis=-1)[..., 0]


def mask_ignored(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, np.ones_like(mask))


def probabilities(logits, tokens, mask):
    return np.where(mask == 1, np.exp(rltokens.token_logprobs(logits, tokens, mask)), 0)


def takes_the_most_likely(logits, tokens, mask):
    return np.where(mask == 1, rltokens.log_softmax(logits).max(axis=-1), 0)


def shifted_by_one(logits, tokens, mask):
    return rltokens.token_logprobs(np.roll(logits, -1, axis=1), tokens, mask)


def no_log_softmax(logits, tokens, mask):
    real = mask == 1
    return np.where(real, gathered(logits, np.where(real, tokens, 0)), 0.0)


def multiplies_by_the_mask(logits, tokens, mask):
    with np.errstate(invalid="ignore"):
        return gathered(rltokens.log_softmax(logits), np.where(mask == 1, tokens, 0)) * mask


def looks_up_padded_ids(logits, tokens, mask):
    logits = np.where((mask == 1)[..., None], logits, 0.0)
    return np.where(mask == 1, gathered(rltokens.log_softmax(logits), tokens), 0.0)


def clips_the_probability(logits, tokens, mask):
    return np.maximum(rltokens.token_logprobs(logits, tokens, mask), math.log(1e-8))


def naive_exp(logits, tokens, mask):
    real = mask == 1
    z = np.where(real[..., None], logits, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        logp = gathered(z, np.where(real, tokens, 0)) - np.log(np.exp(z).sum(axis=-1))
    return np.where(real, logp, 0.0)


def divides_by_the_count(logits, tokens, mask):
    with np.errstate(invalid="ignore"):
        return rltokens.token_logprobs(logits, tokens, mask) / mask.sum() * mask.sum()


def cleans_in_place(logits, tokens, mask):
    logits[mask == 0] = 0.0
    tokens[mask == 0] = 0
    return rltokens.token_logprobs(logits, tokens, mask)


def prefix_of_the_row(logits, tokens, mask):
    lengths = np.asarray(mask).sum(axis=1, keepdims=True)
    return rltokens.token_logprobs(logits, tokens, np.arange(mask.shape[1]) < lengths)


def inverted_mask(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, 1 - np.asarray(mask, dtype=int))


WRONG = {
    mask_ignored: is_zero_at_padding,
    inverted_mask: is_zero_at_padding,
    probabilities: reads_off_the_drawn_token,
    takes_the_most_likely: reads_off_the_drawn_token,
    shifted_by_one: reads_off_the_drawn_token,
    no_log_softmax: normalizes_the_logits,
    multiplies_by_the_mask: padding_is_inert,
    looks_up_padded_ids: padded_ids_are_not_looked_up,
    clips_the_probability: a_forbidden_token_has_minus_inf,
    naive_exp: is_as_stable_as_log_softmax,
    divides_by_the_count: nothing_real_is_all_zeros,
    cleans_in_place: leaves_its_input_alone,
    prefix_of_the_row: skips_holes,
}


def loop_over_tokens(logits, tokens, mask):
    rows = []
    for row_logits, row_tokens, row_mask in zip(logits, tokens, mask, strict=True):
        row = []
        for z, token, real in zip(row_logits, row_tokens, row_mask, strict=True):
            row.append(float(rltokens.log_softmax(z)[token]) if real else 0)
        rows.append(row)
    return rows


def picks_the_real_ones(logits, tokens, mask):
    result = np.zeros(tokens.shape, dtype=np.float32)
    b, t = np.nonzero(mask)
    result[b, t] = rltokens.log_softmax(logits[b, t])[np.arange(len(b)), tokens[b, t].astype(int)]
    return result


def through_torch(logits, tokens, mask):
    import torch

    real = torch.as_tensor(np.asarray(mask) == 1)
    z = torch.where(real[..., None], torch.as_tensor(logits), 0.0)
    ids = torch.where(real, torch.as_tensor(tokens), 0)
    return torch.log_softmax(z, dim=-1).gather(-1, ids[..., None])[..., 0].where(real, 0.0)


RIGHT = [loop_over_tokens, picks_the_real_ones, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "z = np.where(True, logits, 0.0)": "padding is left out again further down",
    "z = np.where(real[..., None], logits, 1.0)": "padding is left out again further down",
}
