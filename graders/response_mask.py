"""Exercise: which of the tokens belong to the response."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, has_shape, same

TITLE = "The mask of a response"
DIFFICULTY = "medium"
MINUTES = 12
POINTS = 3

STATEMENT = """
An engine gives back rows of equal length. The response is what stands up to its first EOS, *that EOS
included*: the policy chose it. All that follows is padding, whatever it is, and it may well be EOS again,
since many models pad with it. A row with no EOS is a response in full.

With `lengths`, the number of tokens that were sampled in each row is known, from 0 to T. It caps the row:
an EOS at or beyond that place was not chosen by anybody, and is padding. `lengths=None` caps nothing.
"""

HINTS = [
    "Do not ask whether a token is EOS. Ask how many EOS stood *before* it.",
    "`is_eos = tokens == eos`, and `np.cumsum(is_eos, axis=1) - is_eos` counts those before each "
    "position. A token is real "
    "where that is 0 and, with `lengths`, where its index is below the row's length.",
]


def the_first_eos_belongs_to_it(response_mask, rng):
    got = response_mask(np.array([[7, 4, 0, 5], [7, 4, 3, 5]]), 0)
    has_shape(got, (2, 4), "each token is in or out: the result has the shape of the tokens")
    message = (
        "with 0 as EOS, 7 4 0 is the first response and 5 is padding; the second has no EOS and is real "
        "in full"
    )
    same(got, [[1, 1, 1, 0], [1, 1, 1, 1]], message)


def eos_may_be_the_pad(response_mask, rng):
    got = response_mask(np.array([[7, 4, 0, 0, 0], [0, 0, 0, 0, 0]]), 0)
    message = "7 4 0 and then 0 as padding: the first EOS was chosen and counts, the others do not"
    same(got, [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], message)


def nothing_comes_back_to_life(response_mask, rng):
    got = response_mask(np.array([[1, 9, 2, 9, 3], [9, 4, 4, 4, 9]]), 9)
    message = "after the first EOS everything is padding, also tokens that look real, and a second EOS"
    same(got, [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], message)


def lengths_cap_a_row(response_mask, rng):
    tokens = np.array([[7, 4, 0, 0], [7, 4, 3, 5], [7, 0, 4, 4], [7, 4, 0, 0]])
    got = response_mask(tokens, 0, np.array([2, 3, 4, 3]))
    message = (
        "two tokens were sampled in the first row, so the 0 after them is padding and no EOS; the "
        "fourth row has three, "
        "and there the same 0 was chosen"
    )
    same(got, [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], message)


def nothing_and_everything_sampled(response_mask, rng):
    tokens = np.array([[5, 6, 7], [5, 6, 7], [0, 6, 7]])
    got = response_mask(tokens, 0, np.array([0, 3, 0]))
    same(
        got,
        [[0, 0, 0], [1, 1, 1], [0, 0, 0]],
        "a length of 0 is an empty response, a length of T the whole row",
    )


def ones_and_zeros(response_mask, rng):
    got = response_mask(np.array([[3, 3, 3]]), 3)
    same(got, [[1, 0, 0]], "a response may consist of EOS alone")
    same(
        np.sum(response_mask(np.array([[1, 1, 3, 3]]), 3), axis=1),
        [3],
        "the sum of a row is its number of tokens",
    )


def leaves_its_arguments_alone(response_mask, rng):
    tokens, lengths = np.array([[7, 0, 0], [7, 7, 7]]), np.array([3, 2])
    same(
        response_mask(tokens, 0, lengths),
        [[1, 1, 0], [1, 1, 0]],
        "an EOS in the first row, a cap of 2 in the second",
    )
    after = arguments_after(response_mask, tokens, 0, lengths)
    same(after[0], tokens, "your function changed `tokens`: work on a copy")
    same(after[2], lengths, "your function changed `lengths`: work on a copy")


def agrees_on_any_batch(response_mask, rng):
    for rows, length in ((1, 1), (5, 6), (8, 3)):
        tokens, lengths = rng.integers(4, size=(rows, length)), rng.integers(length + 1, size=rows)
        for cap in (None, lengths):
            right = rltokens.response_mask(tokens, 2, cap)
            same(
                response_mask(tokens, 2, cap), right, f"{rows} random rows of {length} tokens, lengths {cap}"
            )


VISIBLE = [the_first_eos_belongs_to_it, eos_may_be_the_pad, lengths_cap_a_row]
HIDDEN = [
    nothing_comes_back_to_life,
    nothing_and_everything_sampled,
    ones_and_zeros,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def before(tokens, eos):
    """How many EOS stand before each position."""
    is_eos = np.asarray(tokens) == eos
    return is_eos.cumsum(axis=1) - is_eos


def capped(mask, lengths):
    if lengths is None:
        return np.asarray(mask).astype(int)
    return (mask & (np.arange(mask.shape[1]) < np.asarray(lengths)[:, None])).astype(int)


def not_the_pad(tokens, eos, lengths=None):
    return capped(tokens != eos, lengths)


def eos_left_out(tokens, eos, lengths=None):
    return capped(before(tokens, eos) + (tokens == eos) == 0, lengths)


def every_eos_counts(tokens, eos, lengths=None):
    return capped((before(tokens, eos) == 0) | (tokens == eos), lengths)


def up_to_the_last_eos(tokens, eos, lengths=None):
    later = (tokens == eos)[:, ::-1].cumsum(axis=1)[:, ::-1] > 0
    return capped(np.where((tokens == eos).any(axis=1, keepdims=True), later, True), lengths)


def nothing_without_eos(tokens, eos, lengths=None):
    return capped((before(tokens, eos) == 0) & (tokens == eos).any(axis=1, keepdims=True), lengths)


def only_after_a_lone_eos(tokens, eos, lengths=None):
    real = np.ones(tokens.shape, dtype=bool)
    real[:, 1:] = (tokens[:, 1:] != eos) | (tokens[:, :-1] != eos)
    return capped(real & ((tokens != eos) | (before(tokens, eos) == 0)), lengths)


def lengths_forgotten(tokens, eos, lengths=None):
    return capped(before(tokens, eos) == 0, None)


def one_token_less(tokens, eos, lengths=None):
    return capped(before(tokens, eos) == 0, None if lengths is None else np.asarray(lengths) - 1)


def one_token_more(tokens, eos, lengths=None):
    return capped(before(tokens, eos) == 0, None if lengths is None else np.asarray(lengths) + 1)


def lengths_instead_of_eos(tokens, eos, lengths=None):
    return capped(before(tokens, eos) == 0 if lengths is None else np.ones(tokens.shape, dtype=bool), lengths)


def empty_means_unknown(tokens, eos, lengths=None):
    if lengths is not None:
        lengths = np.where(np.asarray(lengths) == 0, tokens.shape[1], lengths)
    return capped(before(tokens, eos) == 0, lengths)


def where_it_first_stands(tokens, eos, lengths=None):
    first = np.argmax(tokens == eos, axis=1)
    first = np.where(first > 0, first, tokens.shape[1])
    return capped(np.arange(tokens.shape[1]) <= first[:, None], lengths)


def caps_in_place(tokens, eos, lengths=None):
    result = rltokens.response_mask(tokens, eos, lengths)
    tokens[result == 0] = eos
    return result


WRONG = {
    not_the_pad: the_first_eos_belongs_to_it,
    eos_left_out: the_first_eos_belongs_to_it,
    nothing_without_eos: the_first_eos_belongs_to_it,
    every_eos_counts: eos_may_be_the_pad,
    up_to_the_last_eos: eos_may_be_the_pad,
    lengths_forgotten: lengths_cap_a_row,
    one_token_less: lengths_cap_a_row,
    one_token_more: lengths_cap_a_row,
    lengths_instead_of_eos: lengths_cap_a_row,
    only_after_a_lone_eos: nothing_comes_back_to_life,
    empty_means_unknown: nothing_and_everything_sampled,
    where_it_first_stands: ones_and_zeros,
    caps_in_place: leaves_its_arguments_alone,
}


def token_by_token(tokens, eos, lengths=None):
    mask = [[0] * len(row) for row in tokens]
    for b, row in enumerate(tokens):
        for t, token in enumerate(row):
            if lengths is not None and t >= lengths[b]:
                break
            mask[b][t] = 1
            if token == eos:
                break
    return mask


def by_the_first_place(tokens, eos, lengths=None):
    place = np.arange(np.shape(tokens)[1])
    first = np.where(np.asarray(tokens) == eos, place, len(place)).min(axis=1)
    last = first + 1 if lengths is None else np.minimum(first + 1, lengths)
    return (place < last[:, None]).astype(float)


def as_booleans(tokens, eos, lengths=None):
    return rltokens.response_mask(tokens, eos, lengths).astype(bool)


RIGHT = [token_by_token, by_the_first_place, as_booleans]
