"""Exercise: advantages with mean 0 and variance 1."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "Whitening under a mask"
DIFFICULTY = "medium"
MINUTES = 10
POINTS = 3

STATEMENT = """
Many trainers *whiten* advantages before they use them: take off the mean, divide by the standard
deviation. Both are taken over all real tokens of the batch. The variance is that of the population,
divided by the number of tokens, and 1e-8 is added to it *under* the root.

With `shift_mean=False` only the scale changes: the mean is added back after the division. Rewards are
treated so, since taking off their mean would pay long responses for their length. The result is 0 at
padding, in either case, and what stands in the padding must not matter.
"""

HINTS = [
    "`masked_mean` gives the mean, and the variance is a mean too: of what?",
    "Centre first: `np.where(mask == 1, x, mean) - mean` is 0 at padding. The variance is the "
    "`masked_mean` of its "
    "square. At the end, one `np.where` for the padding, after the mean was added back.",
]


def two_numbers_become_minus_one_and_one(masked_whiten, rng):
    got = masked_whiten(np.array([[1.0, 3.0, 99.0]]), np.array([[1, 1, 0]]))
    has_shape(got, (1, 3), "each token keeps its place: the result has the shape of x")
    message = (
        "1 and 3 have mean 2 and standard deviation 1 (divide the squares by two tokens): whitened "
        "they are -1 and 1, and padding is 0"
    )
    same(got, [[-1.0, 1.0, 0.0]], message, tolerance=1e-6)


def the_scale_alone(masked_whiten, rng):
    got = masked_whiten(np.array([[1.0, 5.0, 99.0]]), np.array([[1, 1, 0]]), False)
    message = (
        "1 and 5 have mean 3 and standard deviation 2: with shift_mean=False they become 3 - 1 and 3 + 1"
    )
    same(got, [[2.0, 4.0, 0.0]], message, tolerance=1e-6)


def mean_and_variance_of_the_batch(masked_whiten, rng):
    x, mask = np.array([[1.0, 1.0], [5.0, 5.0]]), np.ones((2, 2), dtype=int)
    message = (
        "mean and variance are the whole batch's, not each row's: rows of 1, 1 and 5, 5 become -1, -1 and"
        " 1, 1"
    )
    same(masked_whiten(x, mask), [[-1.0, -1.0], [1.0, 1.0]], message, tolerance=1e-6)


def population_variance(masked_whiten, rng):
    got = masked_whiten(np.array([[0.0, 0.0, 3.0]]), np.ones((1, 3), dtype=int))
    message = "0, 0 and 3 have the variance 2, divided by three tokens and not by two"
    same(got, np.array([[-1.0, -1.0, 2.0]]) / 2**0.5, message, tolerance=1e-6)


def the_small_number_is_under_the_root(masked_whiten, rng):
    got = masked_whiten(np.array([[1.0, 1.0002]]), np.ones((1, 2), dtype=int))
    message = (
        "for a variance of 1e-8 the added 1e-8 matters: it stands under the root, and the result is 0.7071"
    )
    same(got, [[-(0.5**0.5), 0.5**0.5]], message)


def padding_is_inert(masked_whiten, rng):
    x, mask = np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), np.array([[1, 1, 0], [0, 0, 0]])
    for shift_mean, right in ((True, [-1.0, 1.0]), (False, [1.0, 3.0])):
        expected = [[*right, 0.0], [0.0, 0.0, 0.0]]
        for junk in (0.0, np.nan, np.inf):
            message = f"{junk} in the padding changed the result, or the result there is not 0"
            same(
                masked_whiten(np.where(mask == 1, x, junk), mask, shift_mean),
                expected,
                message,
                tolerance=1e-6,
            )


def equal_numbers_become_zero(masked_whiten, rng):
    x = np.full((2, 2), 4.0)
    one = np.array([[1, 1], [1, 0]])
    same(
        masked_whiten(x, one, False),
        [[4.0, 4.0], [4.0, 0.0]],
        "equal numbers keep their mean of 4 without the shift",
    )
    same(masked_whiten(x, one), np.zeros((2, 2)), "equal numbers have no variance: they become 0, not NaN")
    nothing = np.zeros((2, 2), dtype=int)
    same(masked_whiten(x * np.nan, nothing), np.zeros((2, 2)), "where no token is real the result is 0")


def leaves_its_arguments_alone(masked_whiten, rng):
    x, mask = np.array([[1.0, 3.0, 9.0]]), np.array([[True, True, False]])
    same(masked_whiten(x, mask), [[-1.0, 1.0, 0.0]], "1 and 3 become -1 and 1", tolerance=1e-6)
    after_x, after_mask = arguments_after(masked_whiten, x, mask)
    same(after_x, x, "your function changed `x`: work on a copy")
    same(after_mask, mask, "your function changed `mask`: work on a copy")


def agrees_on_any_batch(masked_whiten, rng):
    for rows in (1, 4):
        mask = draw_batch(rng, rows=rows).mask
        x = 3 * rng.normal(size=mask.shape) + 2
        for shift_mean in (True, False):
            message = f"a random ragged batch of {rows} rows comes out wrong with shift_mean={shift_mean}"
            same(masked_whiten(x, mask, shift_mean), rltokens.masked_whiten(x, mask, shift_mean), message)


VISIBLE = [two_numbers_become_minus_one_and_one, the_scale_alone]
HIDDEN = [
    mean_and_variance_of_the_batch,
    population_variance,
    the_small_number_is_under_the_root,
    padding_is_inert,
    equal_numbers_become_zero,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def statistics(x, mask, axis=None, ddof=0):
    """Mean and variance over real tokens, as plain as can be."""
    kept = np.where(mask == 1, x, 0.0)
    count = np.maximum((mask == 1).sum(axis=axis, keepdims=True), 1)
    mean = kept.sum(axis=axis, keepdims=True) / count
    squares = np.where(mask == 1, (kept - mean) ** 2, 0.0).sum(axis=axis, keepdims=True)
    return mean, squares / np.maximum(count - ddof, 1)


def whiten(x, mask, shift_mean, mean, deviation):
    whitened = (np.where(mask == 1, x, mean) - mean) / deviation
    return np.where(mask == 1, whitened + (0.0 if shift_mean else mean), 0.0)


def padding_counted(x, mask, shift_mean=True):
    return whiten(x, mask, shift_mean, x.mean(), np.sqrt(x.var() + 1e-8))


def divides_by_the_variance(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    return whiten(x, mask, shift_mean, mean, variance + 1e-8)


def only_shifts(x, mask, shift_mean=True):
    mean, _ = statistics(x, mask)
    return whiten(x, mask, shift_mean, mean, 1.0)


def never_adds_back(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    return whiten(x, mask, True, mean, np.sqrt(variance + 1e-8))


def never_takes_off(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    if shift_mean:
        return whiten(x, mask, True, mean, np.sqrt(variance + 1e-8))
    return np.where(mask == 1, x / np.sqrt(variance + 1e-8), 0.0)


def row_by_row(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask, axis=1)
    return whiten(x, mask, shift_mean, mean, np.sqrt(variance + 1e-8))


def unbiased_variance(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask, ddof=1)
    return whiten(x, mask, shift_mean, mean, np.sqrt(variance + 1e-8))


def added_to_the_deviation(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    return whiten(x, mask, shift_mean, mean, np.sqrt(variance) + 1e-8)


def mean_in_the_padding(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    whitened = (np.where(mask == 1, x, mean) - mean) / np.sqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + mean


def multiplies_by_the_mask(x, mask, shift_mean=True):
    return rltokens.masked_whiten(x, mask, shift_mean) * np.where(np.isnan(x), np.nan, 1.0)


def nan_for_equal_numbers(x, mask, shift_mean=True):
    mean, variance = statistics(x, mask)
    with np.errstate(invalid="ignore"):
        return whiten(x, mask, shift_mean, mean, np.sqrt(variance))


def blanks_in_place(x, mask, shift_mean=True):
    x[mask == 0] = 0.0
    return rltokens.masked_whiten(x, mask, shift_mean)


WRONG = {
    padding_counted: two_numbers_become_minus_one_and_one,
    divides_by_the_variance: the_scale_alone,
    only_shifts: the_scale_alone,
    never_adds_back: the_scale_alone,
    never_takes_off: the_scale_alone,
    row_by_row: mean_and_variance_of_the_batch,
    unbiased_variance: population_variance,
    added_to_the_deviation: the_small_number_is_under_the_root,
    mean_in_the_padding: padding_is_inert,
    multiplies_by_the_mask: padding_is_inert,
    nan_for_equal_numbers: equal_numbers_become_zero,
    blanks_in_place: leaves_its_arguments_alone,
}


def over_the_list_of_real_tokens(x, mask, shift_mean=True):
    real = np.asarray(mask) == 1
    result = np.zeros(real.shape)
    if real.any():
        kept = np.asarray(x, dtype=float)[real]
        result[real] = (kept - kept.mean()) / (kept.var() + 1e-8) ** 0.5 + (not shift_mean) * kept.mean()
    return result


def through_torch(x, mask, shift_mean=True):
    import torch

    real = torch.as_tensor(mask) == 1
    kept = torch.as_tensor(x, dtype=torch.float64)[real]
    result = torch.zeros(real.shape, dtype=torch.float64)
    if len(kept):
        result[real] = (kept - kept.mean()) * torch.rsqrt(kept.var(correction=0) + 1e-8)
        if not shift_mean:
            result[real] += kept.mean()
    return result


RIGHT = [over_the_list_of_real_tokens, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "centered = np.where(True, x, mean).astype(np.float64) - mean": "padding is left out again further down",
}
