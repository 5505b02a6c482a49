"""Exercise: the probabilities of all responses of a model that is a table."""

import itertools
import math

import numpy as np

import rltokens
from rltokens.checking import has_shape, same

TITLE = "Every response there is"
DIFFICULTY = "hard"
MINUTES = 25
POINTS = 4

STATEMENT = """
With 4 tokens and 3 positions there are 64 responses, so nothing has to be estimated: compute the
log-probability of every one. The policy is a table with a row of logits for each prefix, shortest
prefixes first, each group in lexicographic order. The result has the order of `enumerate_responses`, in
which the last token changes fastest. From this vector the course computes every exact number that it shows.
"""

HINTS = [
    "Go through the positions. Suppose you have the log-probabilities of all prefixes of t tokens, in order: "
    "each of them splits into V prefixes of t + 1 tokens.",
    "The rows for prefixes of t tokens start at row 1 + V + ... + V**(t-1), and there are V**t of them.",
    "A column (V**t, 1) plus rows (V**t, V) gives all extensions, and `reshape(-1)` keeps their order.",
]


def two_steps_by_hand(sequence_distribution, rng):
    table = np.log([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
    got = sequence_distribution(table, 2, 2)
    has_shape(got, (4,), "two tokens and two positions make four responses, so four numbers in one row")
    same(
        got,
        np.log([0.54, 0.06, 0.08, 0.32]),
        "responses 00, 01, 10, 11 have probabilities 0.6 * 0.9, 0.6 * 0.1, 0.4 * 0.2, 0.4 * 0.8: "
        "yours are not their logarithms in this order",
    )


def normalizes_each_step(sequence_distribution, rng):
    table = np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    expected = np.log([0.45, 0.05, 0.1, 0.4])
    same(sequence_distribution(table, 2, 2), expected, "probabilities 0.45, 0.05, 0.1, 0.4 come out wrong")
    same(
        sequence_distribution(table + np.array([[5.0], [2.0], [-3.0]]), 2, 2),
        expected,
        "adding a constant to one prefix's logits changed the distribution: "
        "each row is normalized by itself, not the responses at the end",
    )


def goes_on_to_the_last_position(sequence_distribution, rng):
    table = np.zeros((7, 2))  # every prefix is undecided but the empty one
    table[0] = np.log([0.6, 0.4])
    got = sequence_distribution(table, 2, 3)
    has_shape(got, (8,), "two tokens and three positions make eight responses, so eight numbers")
    same(
        got,
        np.log([0.15, 0.15, 0.15, 0.15, 0.1, 0.1, 0.1, 0.1]),
        "with three positions, 0.6 and 0.4 for the first token and even chances afterwards, "
        "responses that begin with 0 have 0.6 / 4 and the others 0.4 / 4",
    )


def the_last_token_changes_fastest(sequence_distribution, rng):
    table = np.zeros((4, 3))
    table[0] = np.log([0.5, 0.3, 0.2])
    got = sequence_distribution(table, 3, 2)
    has_shape(got, (9,), "three tokens and two positions make nine responses")
    same(
        np.exp(got),
        np.repeat([0.5, 0.3, 0.2], 3) / 3,
        "the first token has probabilities 0.5, 0.3, 0.2 and the second is uniform, so the first three "
        "responses, 00, 01, 02, share 0.5: yours stand in another order",
    )


def every_prefix_has_its_row(sequence_distribution, rng):
    table = rng.normal(size=(1 + 3 + 9 + 27, 3))
    first_row = {(): 0}
    for length in range(1, 4):
        for prefix in itertools.product(range(3), repeat=length):
            first_row[prefix] = len(first_row)
    logp = rltokens.log_softmax(table)
    expected = [
        math.fsum(logp[first_row[y[:t]], y[t]] for t in range(4))
        for y in itertools.product(range(3), repeat=4)
    ]
    same(
        sequence_distribution(table, 3, 4),
        expected,
        "with four positions some prefix reads another prefix's row: "
        "the rows for t tokens start at 1 + V + ... + V**(t-1)",
    )


def adds_logarithms(sequence_distribution, rng):
    table = np.zeros((7, 2))
    table[:, 1] = -400.0
    rare = -400.0 * np.array([0, 1, 1, 2, 1, 2, 2, 3])  # 400 nats for each token 1 among 000, 001, ..., 111
    same(
        sequence_distribution(table, 2, 3),
        rare,
        "three tokens of probability e^-400: their product is too small for a float, so add logarithms "
        "and never multiply probabilities",
    )


def one_token_or_one_position(sequence_distribution, rng):
    row = rng.normal(size=(1, 5))
    same(sequence_distribution(row, 5, 1), rltokens.log_softmax(row)[0], "one position: the table's only row")
    forbidden = np.array([[0.0, -np.inf], [0.0, math.log(3)], [0.0, 0.0]])
    same(
        sequence_distribution(forbidden, 2, 2),
        [math.log(1 / 4), math.log(3 / 4), -np.inf, -np.inf],
        "a first token that is forbidden makes every response that starts with it impossible: -inf, not NaN",
    )


VISIBLE = [two_steps_by_hand, normalizes_each_step, goes_on_to_the_last_position]
HIDDEN = [
    the_last_token_changes_fastest,
    every_prefix_has_its_row,
    adds_logarithms,
    one_token_or_one_position,
]


def level_by_level(logp, vocab_size, length, row_of):
    total = np.zeros(1)
    for t in range(length):
        rows = row_of(t) + np.arange(vocab_size**t)
        total = (total[:, None] + logp[rows % len(logp)]).reshape(-1)
    return total


def starts(vocab_size):
    return lambda t: sum(vocab_size**k for k in range(t))


def probabilities(logit_table, vocab_size, length):
    return np.exp(rltokens.sequence_distribution(logit_table, vocab_size, length))


def normalizes_at_the_end(logit_table, vocab_size, length):
    return rltokens.log_softmax(level_by_level(logit_table, vocab_size, length, starts(vocab_size)))


def never_normalizes(logit_table, vocab_size, length):
    return level_by_level(logit_table, vocab_size, length, starts(vocab_size))


def first_token_fastest(logit_table, vocab_size, length):
    result = rltokens.sequence_distribution(logit_table, vocab_size, length)
    return result.reshape((vocab_size,) * length).T.reshape(-1)


def ignores_the_prefix(logit_table, vocab_size, length):
    same_row = np.repeat(logit_table[:1], len(logit_table), axis=0)
    return rltokens.sequence_distribution(same_row, vocab_size, length)


def rows_start_one_late(logit_table, vocab_size, length):
    logp = rltokens.log_softmax(logit_table)
    return level_by_level(logp, vocab_size, length, lambda t: starts(vocab_size)(t) + (t > 0))


def rows_start_at_powers(logit_table, vocab_size, length):
    # Right for three positions and wrong from the fourth on.
    logp = rltokens.log_softmax(logit_table)
    return level_by_level(logp, vocab_size, length, lambda t: 1 + (t - 1) * vocab_size if t else 0)


def first_position_only(logit_table, vocab_size, length):
    logp = rltokens.log_softmax(logit_table)
    return np.repeat(logp[0], vocab_size ** (length - 1))


def adds_along_the_wrong_axis(logit_table, vocab_size, length):
    logp, first = rltokens.log_softmax(logit_table), rltokens.log_softmax(logit_table)[0]
    return (first + logp[1 : 1 + vocab_size]).reshape(-1)


def two_positions_only(logit_table, vocab_size, length):
    return rltokens.sequence_distribution(logit_table[: 1 + vocab_size], vocab_size, 2)


def logarithm_of_the_product(logit_table, vocab_size, length):
    with np.errstate(divide="ignore"):
        return np.log(np.exp(rltokens.sequence_distribution(logit_table, vocab_size, length)))


def clips_minus_inf(logit_table, vocab_size, length):
    return np.maximum(rltokens.sequence_distribution(logit_table, vocab_size, length), -50.0)


WRONG = {
    probabilities: two_steps_by_hand,
    ignores_the_prefix: two_steps_by_hand,
    first_position_only: two_steps_by_hand,
    rows_start_one_late: two_steps_by_hand,
    adds_along_the_wrong_axis: two_steps_by_hand,
    two_positions_only: goes_on_to_the_last_position,
    normalizes_at_the_end: normalizes_each_step,
    never_normalizes: normalizes_each_step,
    first_token_fastest: the_last_token_changes_fastest,
    rows_start_at_powers: every_prefix_has_its_row,
    logarithm_of_the_product: adds_logarithms,
    clips_minus_inf: one_token_or_one_position,
}


def loop_over_responses(logit_table, vocab_size, length):
    logp = rltokens.log_softmax(logit_table)
    results = []
    for response in itertools.product(range(vocab_size), repeat=length):
        row, total = 0, 0.0
        for token in response:
            total += logp[row, token]
            row = vocab_size * row + 1 + token
        results.append(float(total))
    return results


def by_scoring(logit_table, vocab_size, length):
    responses = rltokens.enumerate_responses(vocab_size, length)
    logits = rltokens.toy.response_logits(logit_table, responses)
    return rltokens.sequence_logprobs(logits, responses, np.ones_like(responses)).astype(np.float32)


def recursive(logit_table, vocab_size, length):
    logp = rltokens.log_softmax(logit_table)

    def below(row, depth):
        if depth == length:
            return [0.0]
        return [
            logp[row, token] + rest
            for token in range(vocab_size)
            for rest in below(vocab_size * row + 1 + token, depth + 1)
        ]

    return below(0, 0)


RIGHT = [loop_over_responses, by_scoring, recursive]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "total = (total[:, None] + logp[first_row:first_row + rows]).reshape(-2)": "-2 means what -1 does",
}
