"""Exercise: list everything that the toy can say."""

import numpy as np

import rltokens
from rltokens.checking import has_shape, same

TITLE = "Every response there is"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
On a small enough world, expectations are sums. For that one needs the list of all responses. Make it: a
row for each response of `length` tokens out of `vocab_size`, in lexicographic order, as in a dictionary,
so that the *last* token changes fastest.

Row i is then the number i written in base `vocab_size`, and each later chapter relies on it. Both
arguments are at least 1.
"""

HINTS = [
    "How many rows are there? Count from 0 to 99 and look at the two digits: which one changes with "
    "every step?",
    "`np.arange(V**T)[:, None] // V**k % V` is the digit that stands for `V**k`. Or take "
    "`itertools.product(range(V), repeat=T)`, which comes in this order.",
]


def two_tokens_of_two(enumerate_responses, rng):
    got = enumerate_responses(2, 2)
    has_shape(got, (4, 2), "two tokens out of two make four responses: one a row")
    same(
        got,
        [[0, 0], [0, 1], [1, 0], [1, 1]],
        "the order is that of a dictionary: the last token changes fastest",
    )


def three_tokens_of_two(enumerate_responses, rng):
    got = enumerate_responses(2, 3)
    has_shape(got, (8, 3), "V = 2 and T = 3 make 2**3 = 8 responses of three tokens; V**T, not T**V")
    same(got[3:5], [[0, 1, 1], [1, 0, 0]], "rows 3 and 4 are the numbers 3 and 4 in base 2: 011 and 100")


def the_toy(enumerate_responses, rng):
    got = np.asarray(enumerate_responses(4, 3), dtype=float)
    has_shape(got, (64, 3), "the toy has 64 responses of three tokens")
    same(got @ [16.0, 4.0, 1.0], np.arange(64), "row i of the toy is i in base 4: 16 y_1 + 4 y_2 + y_3 = i")
    same(
        got[[0, 63]],
        [[0, 0, 0], [3, 3, 3]],
        "the first response is 0 0 0 and the last 3 3 3: ids begin with 0",
    )


def one_token_and_one_word(enumerate_responses, rng):
    got = enumerate_responses(5, 1)
    has_shape(got, (5, 1), "responses of one token are rows of length 1")
    same(got, [[0], [1], [2], [3], [4]], "responses of one token out of five")
    same(enumerate_responses(1, 4), [[0, 0, 0, 0]], "with a single word there is a single response")
    same(enumerate_responses(3, 2)[5], [1, 2], "row 5 of V = 3, T = 2 is 12 in base 3")


def works_for_other_sizes(enumerate_responses, rng):
    for vocab_size, length in ((3, 4), (7, 2), (2, 10)):
        right = rltokens.enumerate_responses(vocab_size, length)
        same(enumerate_responses(vocab_size, length), right, f"{vocab_size} tokens, responses of {length}")


VISIBLE = [two_tokens_of_two, three_tokens_of_two]
HIDDEN = [the_toy, one_token_and_one_word, works_for_other_sizes]


def first_changes_fastest(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length)[:, ::-1]


def ids_from_one(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length) + 1


def one_a_column(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length).T


def arguments_exchanged(vocab_size, length):
    return rltokens.enumerate_responses(length, vocab_size)


def as_numbers(vocab_size, length):
    return np.arange(vocab_size**length)


def each_token_once(vocab_size, length):
    rows = rltokens.enumerate_responses(vocab_size, length)
    return rows[[len(set(row)) == len(row) for row in rows.tolist()]]


def order_does_not_matter(vocab_size, length):
    rows = rltokens.enumerate_responses(vocab_size, length)
    return np.unique(np.sort(rows, axis=1), axis=0)


def without_the_last(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length)[:-1]


def reversed_order(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length)[::-1]


def base_two_only(vocab_size, length):
    return np.arange(vocab_size**length)[:, None] >> np.arange(length)[::-1] & 1


def flat_for_one_token(vocab_size, length):
    return rltokens.enumerate_responses(vocab_size, length).squeeze()


WRONG = {
    first_changes_fastest: two_tokens_of_two,
    ids_from_one: two_tokens_of_two,
    reversed_order: two_tokens_of_two,
    each_token_once: two_tokens_of_two,
    order_does_not_matter: two_tokens_of_two,
    as_numbers: two_tokens_of_two,
    without_the_last: two_tokens_of_two,
    one_a_column: three_tokens_of_two,
    arguments_exchanged: three_tokens_of_two,
    base_two_only: the_toy,
    flat_for_one_token: one_token_and_one_word,
}


def by_product(vocab_size, length):
    import itertools

    return list(map(list, itertools.product(range(vocab_size), repeat=length)))


def by_unraveling(vocab_size, length):
    return np.stack(np.unravel_index(np.arange(vocab_size**length), (vocab_size,) * length), axis=1)


def by_growing(vocab_size, length):
    rows = np.zeros((1, 0))
    for _ in range(length):
        rows = np.hstack(
            [rows.repeat(vocab_size, axis=0), np.tile(np.arange(vocab_size), len(rows))[:, None]]
        )
    return rows


RIGHT = [by_product, by_unraveling, by_growing]
