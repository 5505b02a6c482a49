"""Exercise: the mean over the real tokens of a batch."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "A mean over real tokens"
DIFFICULTY = "easy"
MINUTES = 5
POINTS = 2

STATEMENT = """
Losses, advantages and log-ratios come in padded arrays, and sooner or later somebody takes their mean.
Take it over all real tokens of the batch at once: every token counts alike, whichever row it stands in.
What stands in the padding, NaN included, must not matter, and where no token is real the mean is 0.
`mask` may hold booleans, integers or floats.
"""

HINTS = [
    "Two sums and a quotient: of what is real, and of how many are real. Which of the two may be 0?",
    "Choose before you add: `np.where(mask == 1, x, 0.0).sum()`. Divide by the number of real tokens,"
    " but by 1 where "
    "there is none.",
]


def divides_by_the_real_tokens(masked_mean, rng):
    got = masked_mean(np.array([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0]]), np.array([[1, 1, 0], [1, 0, 0]]))
    has_shape(got, (), "a batch must give one number")
    same(
        got, 3.0, "the real tokens are 1, 2 and 6, and their mean is 3: padding is neither added nor counted"
    )


def counts_tokens_and_not_rows(masked_mean, rng):
    got = masked_mean(np.array([[4.0, 4.0, 4.0], [8.0, 0.0, 0.0]]), np.array([[1, 1, 1], [1, 0, 0]]))
    same(got, 5.0, "three tokens of 4 and one of 8 have the mean 5; 6 is the mean of the rows' means")


def padding_is_inert(masked_mean, rng):
    x, mask = np.array([[1.0, 2.0], [6.0, 0.0]]), np.array([[1, 1], [1, 0]])
    same(masked_mean(x, mask), 3.0, "the real tokens are 1, 2 and 6, and their mean is 3")
    for junk in (np.nan, np.inf, -np.inf):
        dirty = np.where(mask == 1, x, junk)
        same(masked_mean(dirty, mask), 3.0, f"{junk} where mask is 0 reached the sum: choose before you add")


def no_token_gives_zero(masked_mean, rng):
    x = np.array([[5.0, np.nan], [7.0, 7.0]])
    same(masked_mean(x[:, :1], np.array([[1], [0]])), 5.0, "a single real token is its own mean")
    same(masked_mean(x, np.zeros((2, 2), dtype=int)), 0.0, "where no token is real the mean is 0, not NaN")


def takes_any_kind_of_mask(masked_mean, rng):
    x, mask = np.array([[-1, 2, 7], [-8, 7, 7]]), np.array([[1, 1, 0], [1, 0, 0]])
    for kind in (bool, float, np.int64):
        message = f"a mask of {kind.__name__} must give the same: the mean of -1, 2 and -8 is -2.333"
        same(masked_mean(x, mask.astype(kind)), -7 / 3, message)


def leaves_its_arguments_alone(masked_mean, rng):
    x, mask = np.array([[1.0, 2.0, 9.0]]), np.array([[1, 1, 0]])
    same(masked_mean(x, mask), 1.5, "the mean of 1 and 2 is 1.5")
    after_x, after_mask = arguments_after(masked_mean, x, mask)
    same(after_x, x, "your function changed `x`: work on a copy")
    same(after_mask, mask, "your function changed `mask`: work on a copy")


def agrees_on_any_batch(masked_mean, rng):
    for rows in (1, 3, 5):
        batch = draw_batch(rng, rows=rows)
        x = rng.normal(size=batch.mask.shape) + 3
        message = f"a random ragged batch of {rows} rows comes out wrong"
        same(masked_mean(x, batch.mask), rltokens.masked_mean(x, batch.mask), message)


VISIBLE = [divides_by_the_real_tokens, counts_tokens_and_not_rows]
HIDDEN = [
    padding_is_inert,
    no_token_gives_zero,
    takes_any_kind_of_mask,
    leaves_its_arguments_alone,
    agrees_on_any_batch,
]


def divides_by_everything(x, mask):
    return (x * mask).sum() / x.size


def mask_ignored(x, mask):
    return x.mean()


def one_mean_a_row(x, mask):
    return (x * mask).sum(axis=1) / mask.sum(axis=1)


def mean_of_row_means(x, mask):
    return ((x * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)).mean()


def sum_for_mean(x, mask):
    return (x * mask).sum()


def multiplies_by_the_mask(x, mask):
    return (x * mask).sum() / max(mask.sum(), 1)


def nan_for_no_token(x, mask):
    with np.errstate(invalid="ignore"):
        return np.where(mask == 1, x, 0.0).sum() / np.float64(mask.sum())


def whole_numbers_stay_whole(x, mask):
    total, count = np.where(mask == 1, x, 0).sum(), int((mask == 1).sum())
    return total // max(count, 1) if x.dtype.kind == "i" else total / max(count, 1)


def blanks_in_place(x, mask):
    x[mask == 0] = 0.0
    return x.sum() / max((mask == 1).sum(), 1)


WRONG = {
    divides_by_everything: divides_by_the_real_tokens,
    mask_ignored: divides_by_the_real_tokens,
    sum_for_mean: divides_by_the_real_tokens,
    one_mean_a_row: divides_by_the_real_tokens,
    mean_of_row_means: counts_tokens_and_not_rows,
    multiplies_by_the_mask: padding_is_inert,
    nan_for_no_token: no_token_gives_zero,
    whole_numbers_stay_whole: takes_any_kind_of_mask,
    blanks_in_place: leaves_its_arguments_alone,
}


def loop_over_tokens(x, mask):
    total, count = 0.0, 0
    for row, real in zip(x, mask, strict=True):
        for value, counts in zip(row, real, strict=True):
            if counts:
                total, count = total + float(value), count + 1
    return total / count if count else 0.0


def by_average(x, mask):
    real = np.asarray(mask) == 1
    return np.average(np.where(real, x, 0), weights=real) if real.any() else np.float32(0)


def through_torch(x, mask):
    import torch

    kept = torch.as_tensor(x, dtype=torch.float64)[torch.as_tensor(mask) == 1]
    return kept.mean() if kept.numel() else torch.zeros(())


RIGHT = [loop_over_tokens, by_average, through_torch]
