"""Exercise: the log-probability of a whole response."""

import math

import numpy as np

import rltokens
from rltokens.checking import draw_batch, has_shape, must_not_raise, same
from rltokens.mdp import enumerate_responses
from rltokens.toy import reference_logits, response_logits

TITLE = "The log-probability of a whole response"
DIFFICULTY = "easy"
MINUTES = 5
POINTS = 2

STATEMENT = """
The chain rule says that a response is as likely as all its tokens in turn; in logarithms the product
becomes a sum. Write that sum for every row of the batch, over its real tokens and nothing else. Every
method that trains a language model on whole responses starts from this number.
"""

HINTS = [
    "You have written the hard part already: which function gives the log-probability of each token?",
    "`token_logprobs` is 0 at padding, so a plain sum is safe. Along which axis do a response's tokens lie?",
]


def multiplies_the_steps(sequence_logprobs, rng):
    steps = np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]])
    got = sequence_logprobs(np.log(steps), np.array([[0, 1, 2]]), np.array([[1, 1, 1]]))
    has_shape(got, (1,), "one response must give one number")
    same(
        got,
        [math.log(0.5 * 0.8 * 0.6)],
        "three tokens of probability 0.5, 0.8 and 0.6 make a response of probability 0.24: "
        "your result is not log(0.24), the *sum* of the three logarithms",
    )


def counts_only_real_tokens(sequence_logprobs, rng):
    logits = np.log(np.full((2, 3, 4), 0.25))
    mask = np.array([[1, 1, 1], [1, 0, 0]])
    got = sequence_logprobs(logits, np.zeros((2, 3), dtype=int), mask)
    has_shape(
        got, (2,), "two responses must give two numbers: sum over the tokens of a row, not over the rows"
    )
    same(got[0], 3 * math.log(0.25), "three tokens of probability 1/4 give 3 log(1/4)")
    same(
        got[1],
        math.log(0.25),
        "a single real token of probability 1/4 gives log(1/4): your sum includes positions where mask is 0",
    )


def all_responses_add_up_to_one(sequence_logprobs, rng):
    responses = enumerate_responses(4, 3)
    logits = response_logits(reference_logits(), responses)
    got = sequence_logprobs(logits, responses, np.ones((64, 3), dtype=int))
    has_shape(got, (64,), "64 responses must give 64 numbers")
    same(
        np.exp(got).sum(),
        1.0,
        "the toy has 64 responses, and the exponentials of their log-probabilities must add up to 1",
    )


def padding_is_inert(sequence_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    expected = rltokens.sequence_logprobs(logits, tokens, mask)
    same(
        sequence_logprobs(logits, tokens, mask),
        expected,
        "a random batch comes out wrong, before anything strange stands in its padding",
    )
    for junk in (np.nan, np.inf, -np.inf):
        same(
            sequence_logprobs(np.where((mask == 1)[..., None], logits, junk), tokens, mask),
            expected,
            f"padding changed the result: {junk} where mask is 0 must not reach the sum, and 0 * nan is nan",
        )


def padded_ids_are_not_looked_up(sequence_logprobs, rng):
    logits, tokens, mask = draw_batch(rng)
    expected = rltokens.sequence_logprobs(logits, tokens, mask)
    same(sequence_logprobs(logits, tokens, mask), expected, "a random batch comes out wrong")
    message = "a padded id of 99 is no token: it must not be looked up"
    dirty = np.where(mask == 1, tokens, 99)
    same(must_not_raise("IndexError", message, sequence_logprobs, logits, dirty, mask), expected, message)


def an_impossible_response_has_minus_inf(sequence_logprobs, rng):
    logits = np.array([[[0.0, -np.inf, 0.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, -np.inf], [0.0, -900.0, 0.0]]])
    same(
        sequence_logprobs(logits, np.array([[1, 1], [0, 1]]), np.ones((2, 2), dtype=int)),
        [-math.inf, -900 - 2 * math.log(2)],
        "a response with a token of probability 0 has log-probability -inf, and a very rare one keeps its "
        "own: neither is clipped, and nothing is added inside a logarithm",
    )


def an_empty_response_adds_nothing(sequence_logprobs, rng):
    logits, tokens, mask = draw_batch(rng, rows=4)  # row 1 has no real token
    same(
        sequence_logprobs(logits, tokens, mask),
        rltokens.sequence_logprobs(logits, tokens, mask),
        "a row whose mask is all 0 is a response that is certain: its log-probability is 0, and others stay",
    )


def survives_a_long_response(sequence_logprobs, rng):
    logits = np.zeros((1, 2000, 4))
    same(
        sequence_logprobs(logits, np.ones((1, 2000), dtype=int), np.ones((1, 2000), dtype=int)),
        [2000 * math.log(0.25)],
        "2,000 tokens of probability 1/4: their product is too small for a float, "
        "so add logarithms and never multiply probabilities",
    )


def agrees_on_any_batch(sequence_logprobs, rng):
    for rows in (1, 3, 6):
        logits, tokens, mask = draw_batch(rng, rows=rows)
        mask[0, 0] = 0  # a hole at the start
        message = f"a random ragged batch of {rows} rows, one with its first position masked, comes out wrong"
        same(
            sequence_logprobs(logits, tokens, mask), rltokens.sequence_logprobs(logits, tokens, mask), message
        )


VISIBLE = [multiplies_the_steps, counts_only_real_tokens, all_responses_add_up_to_one]
HIDDEN = [
    padding_is_inert,
    padded_ids_are_not_looked_up,
    an_impossible_response_has_minus_inf,
    an_empty_response_adds_nothing,
    survives_a_long_response,
    agrees_on_any_batch,
]


def mean_for_sum(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)


def first_token_dropped(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, mask)[:, 1:].sum(axis=1)


def last_token_only(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, mask)[:, -1]


def returns_the_probability(logits, tokens, mask):
    return np.exp(rltokens.sequence_logprobs(logits, tokens, mask))


def mask_ignored(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, np.ones_like(mask)).sum(axis=1)


def sums_the_batch(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, mask).sum(axis=0)


def one_number_for_all(logits, tokens, mask):
    return rltokens.token_logprobs(logits, tokens, mask).sum()


def keeps_the_tokens(logits, tokens, mask):
    return np.cumsum(rltokens.token_logprobs(logits, tokens, mask), axis=1)


def sums_logits(logits, tokens, mask):
    real = mask == 1
    picked = np.take_along_axis(logits, np.where(real, tokens, 0)[..., None], axis=-1)[..., 0]
    return np.where(real, picked, 0.0).sum(axis=1)


def multiplies_by_the_mask(logits, tokens, mask):
    logp = np.take_along_axis(rltokens.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return (logp * mask).sum(axis=1)


def looks_up_padded_ids(logits, tokens, mask):
    logits = np.where((mask == 1)[..., None], logits, 0.0)
    logp = np.take_along_axis(rltokens.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return np.where(mask == 1, logp, 0.0).sum(axis=1)


def skips_impossible_tokens(logits, tokens, mask):
    logp = rltokens.token_logprobs(logits, tokens, mask)
    return np.where(np.isinf(logp), 0.0, logp).sum(axis=1)


def clips_the_total(logits, tokens, mask):
    return np.maximum(rltokens.sequence_logprobs(logits, tokens, mask), -1e4)


def epsilon_in_the_logarithm(logits, tokens, mask):
    logp = rltokens.token_logprobs(logits, tokens, mask)
    return np.where(mask == 1, np.log(np.exp(logp) + 1e-9), 0.0).sum(axis=1)


def nan_for_an_empty_row(logits, tokens, mask):
    count = mask.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return rltokens.sequence_logprobs(logits, tokens, mask) / count * count


def logarithm_of_the_product(logits, tokens, mask):
    with np.errstate(divide="ignore"):
        return np.log(np.exp(rltokens.token_logprobs(logits, tokens, mask)).prod(axis=1))


WRONG = {
    mean_for_sum: multiplies_the_steps,
    first_token_dropped: multiplies_the_steps,
    last_token_only: multiplies_the_steps,
    returns_the_probability: multiplies_the_steps,
    keeps_the_tokens: multiplies_the_steps,
    one_number_for_all: multiplies_the_steps,
    mask_ignored: counts_only_real_tokens,
    sums_the_batch: counts_only_real_tokens,
    sums_logits: all_responses_add_up_to_one,
    multiplies_by_the_mask: padding_is_inert,
    looks_up_padded_ids: padded_ids_are_not_looked_up,
    skips_impossible_tokens: an_impossible_response_has_minus_inf,
    clips_the_total: an_impossible_response_has_minus_inf,
    epsilon_in_the_logarithm: an_impossible_response_has_minus_inf,
    nan_for_an_empty_row: an_empty_response_adds_nothing,
    logarithm_of_the_product: survives_a_long_response,
}


def loop_over_rows(logits, tokens, mask):
    results = []
    for z, row, real in zip(logits, tokens, mask, strict=True):
        total = 0.0
        for t in range(len(row)):
            if real[t]:
                total += rltokens.log_softmax(z[t])[row[t]]
        results.append(float(total))
    return results


def by_matrix_product(logits, tokens, mask):
    logp = rltokens.token_logprobs(logits, tokens, mask)
    return (logp @ np.ones(logp.shape[1])).astype(np.float32)


def through_torch(logits, tokens, mask):
    import torch

    real = torch.as_tensor(mask) == 1
    z = torch.as_tensor(logits).masked_fill(~real[..., None], 0.0)
    logp = torch.distributions.Categorical(logits=z).log_prob(torch.as_tensor(tokens) * real)
    return logp.masked_fill(~real, 0.0).sum(dim=1)


RIGHT = [loop_over_rows, by_matrix_product, through_torch]
