"""Exercise: how much more likely each token is now than when it was drawn."""

import math

import numpy as np

import rltokens
from rltokens.checking import draw_batch, has_shape, same

TITLE = "The importance ratio of each token"
DIFFICULTY = "easy"
MINUTES = 5
POINTS = 2

STATEMENT = """
After one gradient step the policy is no longer the one that drew the batch. The importance ratio of a
token says how much more likely it has become; PPO clips this number. Compute it from the two
log-probabilities, token by token. At padding it is 1, so that the product over a row is the ratio of the
whole response.
"""

HINTS = [
    "A ratio of probabilities is the exponential of a difference of logarithms. Which one comes first?",
    "Put 0 in both log-probabilities wherever mask is 0, before you subtract: exp(0 - 0) is 1.",
]


def divides_new_by_old(importance_ratios, rng):
    same(
        importance_ratios(np.log([[0.6, 0.1]]), np.log([[0.3, 0.2]]), np.array([[1, 1]])),
        [[2.0, 0.5]],
        "a token that went from 0.3 to 0.6 has ratio 2, one that went from 0.2 to 0.1 has ratio 1/2: "
        "new over old, as a ratio and not as its logarithm",
    )


def is_one_at_padding(importance_ratios, rng):
    same(
        importance_ratios(np.log([[0.6, 0.5]]), np.log([[0.3, 0.1]]), np.array([[1, 0]])),
        [[2.0, 1.0]],
        "where mask is 0 the ratio is 1: a factor that changes no product",
    )


def each_token_has_its_own(importance_ratios, rng):
    now, old = np.log([[0.5, 0.5, 0.9]]), np.log([[0.25, 0.5, 0.3]])
    same(
        importance_ratios(now, old, np.array([[1, 1, 1]])),
        [[2.0, 1.0, 3.0]],
        "tokens with ratios 2, 1 and 3 must not share a number: no sum, product or average over the row",
    )


def nothing_is_clipped(importance_ratios, rng):
    now, old = np.array([[-1.0, -30.0, -np.inf]]), np.array([[-31.0, -1.0, -1.0]])
    got = importance_ratios(now, old, np.array([[1, 1, 1]]))
    has_shape(got, (1, 3), "three tokens must give three ratios")
    same(
        np.log(np.maximum(got, 1e-30)),
        [[30.0, -29.0, math.log(1e-30)]],
        "ratios of e^30 and e^-29, and 0 for a token that has become impossible, must come back as they are: "
        "clipping is for the loss to do",
    )


def skips_holes(importance_ratios, rng):
    now, old = np.log([[0.6, 0.5, 0.1], [0.5, 0.6, 0.1]]), np.log([[0.3, 0.1, 0.2], [0.1, 0.3, 0.2]])
    same(
        importance_ratios(now, old, np.array([[1, 0, 1], [0, 1, 1]])),
        [[2.0, 1.0, 0.5], [1.0, 2.0, 0.5]],
        "a mask may have holes, also at the start of a row: decide at each position, not by the row's length",
    )


def padding_is_inert(importance_ratios, rng):
    _, _, mask = draw_batch(rng)
    now, old = -rng.exponential(size=mask.shape), -rng.exponential(size=mask.shape)
    expected = rltokens.importance_ratios(now, old, mask)
    same(
        importance_ratios(now, old, mask),
        expected,
        "a random batch comes out wrong, before anything strange stands in its padding",
    )
    for junk in (np.nan, -np.inf, np.inf):
        same(
            importance_ratios(np.where(mask == 1, now, junk), np.where(mask == 1, old, junk), mask),
            expected,
            f"{junk} at padded positions changed the result: choose by mask before you subtract",
        )


def survives_rare_tokens(importance_ratios, rng):
    same(
        importance_ratios(np.array([[-800.0, -1.0]]), np.array([[-801.0, -2.0]]), np.array([[1, 1]])),
        [[math.e, math.e]],
        "exp(-800) rounds to 0, and 0 / 0 is NaN: subtract the logarithms first, then take one exponential",
    )


VISIBLE = [divides_new_by_old, is_one_at_padding]
HIDDEN = [each_token_has_its_own, nothing_is_clipped, skips_holes, padding_is_inert, survives_rare_tokens]


def old_over_new(logp, logp_old, mask):
    return rltokens.importance_ratios(logp_old, logp, mask)


def forgets_the_exponential(logp, logp_old, mask):
    return np.where(mask == 1, logp - logp_old, 1.0)


def linear_approximation(logp, logp_old, mask):
    return np.where(mask == 1, 1 + (logp - logp_old), 1.0)


def ratio_of_logarithms(logp, logp_old, mask):
    return np.where(mask == 1, logp / np.where(mask == 1, logp_old, 1), 1.0)


def zero_at_padding(logp, logp_old, mask):
    return rltokens.importance_ratios(logp, logp_old, mask) * mask


def mask_ignored(logp, logp_old, mask):
    with np.errstate(invalid="ignore"):
        return np.exp(logp - logp_old)


def whole_response(logp, logp_old, mask):
    ratios = rltokens.importance_ratios(logp, logp_old, mask)
    return np.where(mask == 1, ratios.prod(axis=1, keepdims=True), 1.0)


def clips(logp, logp_old, mask):
    return np.where(mask == 1, rltokens.importance_ratios(logp, logp_old, mask).clip(0, 100.0), 1.0)


def prefix_of_the_row(logp, logp_old, mask):
    lengths = np.asarray(mask).sum(axis=1, keepdims=True)
    return rltokens.importance_ratios(logp, logp_old, np.arange(mask.shape[1]) < lengths)


def multiplies_by_the_mask(logp, logp_old, mask):
    with np.errstate(invalid="ignore"):
        return np.exp((logp - logp_old) * mask)


def divides_probabilities(logp, logp_old, mask):
    real = mask == 1
    with np.errstate(invalid="ignore"):
        return np.exp(np.where(real, logp, 0)) / np.exp(np.where(real, logp_old, 0))


WRONG = {
    old_over_new: divides_new_by_old,
    forgets_the_exponential: divides_new_by_old,
    linear_approximation: divides_new_by_old,
    ratio_of_logarithms: divides_new_by_old,
    zero_at_padding: is_one_at_padding,
    mask_ignored: is_one_at_padding,
    whole_response: each_token_has_its_own,
    clips: nothing_is_clipped,
    prefix_of_the_row: skips_holes,
    multiplies_by_the_mask: padding_is_inert,
    divides_probabilities: survives_rare_tokens,
}


def loop_over_tokens(logp, logp_old, mask):
    return [
        [math.exp(new - old) if real else 1 for new, old, real in zip(*row, strict=True)]
        for row in zip(logp, logp_old, mask, strict=True)
    ]


def writes_where_real(logp, logp_old, mask):
    result = np.ones(logp.shape, dtype=np.float32)
    b, t = np.nonzero(mask)
    result[b, t] = np.exp(logp[b, t] - logp_old[b, t])
    return result


def through_torch(logp, logp_old, mask):
    import torch

    real = torch.as_tensor(np.asarray(mask) == 1)
    difference = torch.as_tensor(logp) - torch.as_tensor(logp_old)
    return torch.where(real, difference, torch.zeros(())).exp()


RIGHT = [loop_over_tokens, writes_where_real, through_torch]
