"""Exercise: the penalty that a token answers for."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, same

TITLE = "The KL to go"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
A token decides which prefix the policy is in, so it answers for the penalties that follow it as well as
for its own. The weight that its score must have in the gradient of the KL of whole responses is the sum
of log-ratios, *policy minus reference*, from this token to the end of its row.

The result is 0 where the mask is 0, and whatever stands there must not matter. A mask may have holes.
"""

HINTS = [
    "You have written a sum from each token to the end before. What were the rewards then?",
    "`returns_to_go(logp - logp_ref, mask)` would do, if padding could not make a NaN of the "
    "difference: choose before you "
    "subtract.",
]


def adds_up_to_the_end(kl_to_go, rng):
    log_ratio = np.array([[0.5, -0.2, 1.0, 0.0]])
    got = kl_to_go(log_ratio - 2.0, np.full((1, 4), -2.0), np.ones((1, 4), dtype=int))
    has_shape(got, (1, 4), "each token has its own sum: the result has the shape of logp")
    message = (
        "log-ratios of 0.5, -0.2, 1 and 0 add up from behind to 1.3, 0.8, 1 and 0: a token's own one counts"
    )
    same(got, [[1.3, 0.8, 1.0, 0.0]], message)


def the_first_is_the_whole_response(kl_to_go, rng):
    logp, logp_ref = -rng.random((2, 3, 5))
    got = np.asarray(kl_to_go(logp, logp_ref, np.ones((3, 5), dtype=int)))
    has_shape(got, (3, 5), "each token has its own sum: the result has the shape of logp")
    message = "the first token's sum is the log-ratio of its whole response, row by row"
    same(got[:, 0], (logp - logp_ref).sum(axis=1), message)
    same(got[:, -1], (logp - logp_ref)[:, -1], "the last token's sum is its own log-ratio")


def padding_is_inert(kl_to_go, rng):
    mask = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    right = [[2.0, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 0.0], [0.0] * 4]
    for junk in (7.0, np.nan, np.inf, -np.inf):
        logp, logp_ref = (np.where(mask == 1, value, junk) for value in (-1.0, -2.0))
        message = f"{junk} where mask is 0 reached a sum, or stands there itself: it must be 0"
        same(kl_to_go(logp, logp_ref, mask), right, message)


def whole_numbers_and_any_mask(kl_to_go, rng):
    for kind in (bool, float):
        got = kl_to_go(np.array([[-1.5, -2]]), np.array([[-2, -1]]), np.ones((1, 2)).astype(kind))
        message = f"a mask of {kind.__name__}: log-ratios of 0.5 and -1 add up to -0.5 and -1"
        same(got, [[-0.5, -1.0]], message)


def leaves_its_arguments_alone(kl_to_go, rng):
    arguments = np.array([[-1.0, 9.0]]), np.array([[-2.0, 9.0]]), np.array([[1, 0]])
    same(kl_to_go(*arguments), [[1.0, 0.0]], "one token with a log-ratio of 1")
    for name, before, after in zip(
        ("logp", "logp_ref", "mask"), arguments, arguments_after(kl_to_go, *arguments), strict=True
    ):
        same(after, before, f"your function changed `{name}`: work on a copy")


def agrees_on_any_batch(kl_to_go, rng):
    for rows in (1, 5):
        mask = draw_batch(rng, rows=rows).mask
        logp, logp_ref = -rng.exponential(size=(2, *mask.shape))
        message = f"a random ragged batch of {rows} rows comes out wrong"
        same(kl_to_go(logp, logp_ref, mask), rltokens.kl_to_go(logp, logp_ref, mask), message)


VISIBLE = [adds_up_to_the_end, the_first_is_the_whole_response]
HIDDEN = [padding_is_inert, whole_numbers_and_any_mask, leaves_its_arguments_alone, agrees_on_any_batch]


def log_ratios(logp, logp_ref, mask):
    real = np.asarray(mask) == 1
    return np.where(real, np.where(real, logp, 0.0) - np.where(real, logp_ref, 0.0), 0.0)


def reference_minus_policy(logp, logp_ref, mask):
    return rltokens.kl_to_go(logp_ref, logp, mask)


def only_its_own(logp, logp_ref, mask):
    return log_ratios(logp, logp_ref, mask)


def without_its_own(logp, logp_ref, mask):
    return rltokens.kl_to_go(logp, logp_ref, mask) - log_ratios(logp, logp_ref, mask)


def so_far(logp, logp_ref, mask):
    return np.where(np.asarray(mask) == 1, log_ratios(logp, logp_ref, mask).cumsum(axis=1), 0.0)


def the_whole_for_all(logp, logp_ref, mask):
    total = log_ratios(logp, logp_ref, mask).sum(axis=1, keepdims=True)
    return np.where(np.asarray(mask) == 1, total, 0.0)


def never_negative(logp, logp_ref, mask):
    return rltokens.kl_to_go(np.maximum(logp, logp_ref), logp_ref, mask)


def rows_added(logp, logp_ref, mask):
    result = rltokens.kl_to_go(logp, logp_ref, mask)
    return np.broadcast_to(result.mean(axis=0), result.shape)


def multiplies_by_the_mask(logp, logp_ref, mask):
    with np.errstate(invalid="ignore"):
        masked = (logp - logp_ref) * mask
    return masked[:, ::-1].cumsum(axis=1)[:, ::-1] * mask


def sums_in_the_holes(logp, logp_ref, mask):
    return log_ratios(logp, logp_ref, mask)[:, ::-1].cumsum(axis=1)[:, ::-1]


def whole_numbers(logp, logp_ref, mask):
    return (
        rltokens.kl_to_go(np.trunc(logp), np.trunc(logp_ref), mask)
        if mask.dtype == bool
        else rltokens.kl_to_go(logp, logp_ref, mask)
    )


def blanks_in_place(logp, logp_ref, mask):
    logp[mask == 0] = 0.0
    return rltokens.kl_to_go(logp, logp_ref, mask)


WRONG = {
    reference_minus_policy: adds_up_to_the_end,
    only_its_own: adds_up_to_the_end,
    without_its_own: adds_up_to_the_end,
    so_far: adds_up_to_the_end,
    the_whole_for_all: adds_up_to_the_end,
    never_negative: adds_up_to_the_end,
    rows_added: the_first_is_the_whole_response,
    multiplies_by_the_mask: padding_is_inert,
    sums_in_the_holes: padding_is_inert,
    whole_numbers: whole_numbers_and_any_mask,
    blanks_in_place: leaves_its_arguments_alone,
}


def row_by_row(logp, logp_ref, mask):
    result = [[0.0] * len(row) for row in mask]
    for b, row in enumerate(np.asarray(mask)):
        total = 0.0
        for t in np.flatnonzero(row)[::-1]:
            total += float(logp[b][t]) - float(logp_ref[b][t])
            result[b][t] = total
    return result


def by_a_triangle(logp, logp_ref, mask):
    log_ratio = log_ratios(logp, logp_ref, mask)
    later = np.tril(np.ones((log_ratio.shape[1],) * 2))
    return np.where(np.asarray(mask) == 1, log_ratio @ later, 0.0).astype(np.float32)


RIGHT = [row_by_row, by_a_triangle]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "now = np.where(True, logp, 0.0).astype(np.float64)": "returns_to_go leaves padding out",
    "now = np.where(real_token, logp, 1.0).astype(np.float64)": "returns_to_go leaves padding out",
    "ref = np.where(True, logp_ref, 0.0).astype(np.float64)": "returns_to_go leaves padding out",
    "ref = np.where(real_token, logp_ref, 1.0).astype(np.float64)": "returns_to_go leaves padding out",
}
