"""A language model small enough to know everything about: a table with a row of logits a prefix.

With V tokens and responses of exactly T tokens there are V**T responses and 1 + V + ... + V**(T-1)
prefixes, so every probability, expectation and gradient can be computed by adding up. The course's toy
has V = 4 and T = 3: 64 responses, 21 prefixes.
"""

import numpy as np

VOCAB_SIZE = 4
LENGTH = 3


def prefix_count(vocab_size=VOCAB_SIZE, length=LENGTH):
    """Rows of the table: the number of prefixes with fewer than `length` tokens.

    >>> prefix_count()
    21
    """
    return sum(vocab_size**t for t in range(length))


def reference_logits(vocab_size=VOCAB_SIZE, length=LENGTH, seed=0):
    """The reference model: independent standard normal logits, (prefixes, V).

    >>> reference_logits().shape
    (21, 4)
    """
    return np.random.default_rng(seed).normal(size=(prefix_count(vocab_size, length), vocab_size))


def prefix_rows(responses, vocab_size=VOCAB_SIZE):
    """The table's row for the prefix before each token: (N, T) ids to (N, T) row numbers.

    Prefixes stand by length, then in lexicographic order: row 0 the empty one, 1 + y_1 after one
    token, 1 + V + V y_1 + y_2 after two.

    >>> prefix_rows([[2, 1, 3]])
    array([[ 0,  3, 14]])
    """
    tokens = np.asarray(responses, dtype=np.int64)
    rows = np.zeros_like(tokens)
    for t in range(1, tokens.shape[1]):
        # The k-th of V children of row r is row V r + 1 + k, as in any V-ary heap.
        rows[:, t] = vocab_size * rows[:, t - 1] + 1 + tokens[:, t - 1]
    return rows


def response_logits(table, responses):
    """The logits that each token was drawn from: (N, T) responses to (N, T, V).

    >>> response_logits(reference_logits(), [[2, 1, 3]]).shape
    (1, 3, 4)
    """
    table = np.asarray(table, dtype=np.float64)
    return table[prefix_rows(responses, table.shape[1])]


def sample_responses(table, length, count, rng):
    """Draw `count` responses of `length` tokens, (N, T), token by token from the table's policy.

    The maximum of logits plus Gumbel noise is a draw from their softmax (Maddison, Tarlow and
    Minka 2014), so no probability has to be computed.

    >>> sample_responses(reference_logits(), 3, 2, np.random.default_rng(0)).shape
    (2, 3)
    """
    table = np.asarray(table, dtype=np.float64)
    vocab_size = table.shape[1]
    tokens = np.zeros((count, length), dtype=np.int64)
    rows = np.zeros(count, dtype=np.int64)
    for t in range(length):
        tokens[:, t] = np.argmax(table[rows] + rng.gumbel(size=(count, vocab_size)), axis=1)
        rows = vocab_size * rows + 1 + tokens[:, t]
    return tokens


def two_zeros(responses):
    """The verifier: pays 1 for a response in which token 0 stands exactly twice, else 0. (N, T) to (N,).

    >>> two_zeros([[0, 0, 3], [0, 1, 2], [0, 0, 0]])
    array([1., 0., 0.])
    """
    zeros = (np.asarray(responses) == 0).sum(axis=1)
    return (zeros == 2).astype(np.float64)


def expected_reward(logp, rewards):
    """E[r] exactly, from the log-probabilities and rewards of all responses, (N,) each.

    >>> float(expected_reward(np.log([0.25, 0.75]), [1.0, 0.0]))
    0.25
    """
    return np.exp(logp) @ np.asarray(rewards, dtype=np.float64)
