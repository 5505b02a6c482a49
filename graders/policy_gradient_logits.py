"""Exercise: the policy gradient itself, in the logits."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, draw_batch, has_shape, must_not_raise, same

TITLE = "The policy gradient, by hand"
DIFFICULTY = "medium"
MINUTES = 15
POINTS = 4

STATEMENT = """
Every policy gradient method of this course ends in one expression: the gradient of `sum_bt weights[b, t]
* log pi(tokens[b, t])` in the logits that the tokens were drawn from. An autograd package would give it
to you. Write it by hand instead, from the score that chapter 2 derives; it is two lines.

It is the gradient of a *sum*, to go up along: nothing is divided by the number of tokens, and no sign is
turned. The result is 0 at padding, whatever stands there: NaN in logits or weights, or ids that are no
tokens. Logits of `-inf` forbid tokens and make no NaN.
"""

HINTS = [
    "For one token: the derivative of log pi(a) in the logit z_v is 1 or 0 for the drawn token, less "
    "pi(v). What does "
    "the weight do?",
    "Blank first what stands in the padding. One-hot: `np.arange(V) == ids[..., None]`. Then "
    "`weights[..., None] * (one_hot - np.exp(log_softmax(logits)))`.",
]


def one_hot_minus_probabilities(policy_gradient_logits, rng):
    logits = np.log(np.array([[[0.5, 0.25, 0.25]]]))
    one = np.ones((1, 1), dtype=int)
    got = policy_gradient_logits(logits, np.array([[1]]), np.array([[2.0]]), one)
    has_shape(got, (1, 1, 3), "each logit has a derivative: the result has the shape of the logits")
    message = (
        "token 1 was drawn, with weight 2, from probabilities 1/2, 1/4, 1/4: the gradient is 2 times "
        "(0 - 1/2, 1 - 1/4, 0 - 1/4)"
    )
    same(got, [[[-1.0, 1.5, -0.5]]], message)


def finite_differences_agree(policy_gradient_logits, rng):
    logits, tokens, mask = draw_batch(rng, rows=2, empty_row=False)
    weights = rng.normal(size=mask.shape)

    def objective(z):
        top = z.max(axis=-1, keepdims=True)
        logp = z - top - np.log(np.exp(z - top).sum(axis=-1, keepdims=True))
        drawn = np.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0]
        return (mask * weights * drawn).sum()

    numeric = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        nudge = np.zeros_like(logits)
        nudge[index] = 1e-5
        numeric[index] = (objective(logits + nudge) - objective(logits - nudge)) / 2e-5
    message = (
        "nudging each logit a little gives another gradient of the *sum* of weights times log-probabilities"
    )
    same(policy_gradient_logits(logits, tokens, weights, mask), numeric, message)


def what_one_gains_the_others_lose(policy_gradient_logits, rng):
    logits, tokens, weights = rng.normal(size=(1, 3, 5)), np.array([[4, 0, 2]]), np.array([[1.0, -2.0, 3.0]])
    got = np.asarray(policy_gradient_logits(logits, tokens, weights, np.ones((1, 3), dtype=int)))
    has_shape(got, (1, 3, 5), "each logit has a derivative: the result has the shape of the logits")
    same(
        got.sum(axis=-1),
        np.zeros((1, 3)),
        "a constant added to all logits changes nothing: each row adds up to 0",
    )
    drawn = [[got[0, 0, 4] > 0, got[0, 1, 0] < 0, got[0, 2, 2] > 0]]
    same(drawn, [[1.0, 1.0, 1.0]], "a positive weight pushes the drawn token's logit up, a negative one down")


def padding_is_inert(policy_gradient_logits, rng):
    logits, tokens, mask = draw_batch(rng)
    weights = rng.normal(size=mask.shape)
    right = rltokens.policy_gradient_logits(logits, tokens, weights, mask)
    message = "a random batch comes out wrong, or is not 0 at padding"
    same(policy_gradient_logits(logits, tokens, weights, mask), right, message)
    real = mask == 1
    for junk in (np.nan, np.inf):
        message = f"{junk} in padded logits or weights reached the result"
        dirty = np.where(real[..., None], logits, junk), tokens, np.where(real, weights, junk), mask
        same(policy_gradient_logits(*dirty), right, message)


def padded_ids_are_not_looked_up(policy_gradient_logits, rng):
    logits, tokens, mask = draw_batch(rng)
    weights = rng.normal(size=mask.shape)
    right = rltokens.policy_gradient_logits(logits, tokens, weights, mask)
    for junk in (99, -1):
        message = f"a padded id of {junk} is no token: it must not be looked up"
        dirty = logits, np.where(mask == 1, tokens, junk), weights, mask
        same(must_not_raise("IndexError", message, policy_gradient_logits, *dirty), right, message)


def large_and_forbidden_logits(policy_gradient_logits, rng):
    logits = np.array([[[1000.0, 1000.0, -np.inf], [-1000.0, -np.inf, -1000.0]]])
    got = policy_gradient_logits(
        logits, np.array([[0, 2]]), np.array([[2.0, -2.0]]), np.ones((1, 2), dtype=int)
    )
    message = (
        "two tokens of probability 1/2 and a forbidden one: large logits must not overflow, -inf must "
        "make no NaN"
    )
    same(got, [[[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]], message)


def leaves_its_arguments_alone(policy_gradient_logits, rng):
    arguments = np.zeros((1, 2, 2)), np.array([[1, 0]]), np.array([[2.0, 5.0]]), np.array([[1, 0]])
    right = [[[-1.0, 1.0], [0.0, 0.0]]]
    same(
        policy_gradient_logits(*arguments),
        right,
        "of two equal logits, weight 2 moves one up by 1 and one down by 1",
    )
    names = ("logits", "tokens", "weights", "mask")
    now = arguments_after(policy_gradient_logits, *arguments)
    for name, before, after in zip(names, arguments, now, strict=True):
        same(after, before, f"your function changed `{name}`: work on a copy")


def works_with_whole_weights(policy_gradient_logits, rng):
    got = policy_gradient_logits(np.zeros((1, 1, 4)), np.array([[3]]), np.array([[1]]), np.array([[True]]))
    same(got, [[[-0.25, -0.25, -0.25, 0.75]]], "a whole weight of 1 gives fractions")


VISIBLE = [one_hot_minus_probabilities, finite_differences_agree, what_one_gains_the_others_lose]
HIDDEN = [
    padding_is_inert,
    padded_ids_are_not_looked_up,
    large_and_forbidden_logits,
    leaves_its_arguments_alone,
    works_with_whole_weights,
]


def scores_of(logits, tokens, mask):
    """(real, one-hot minus probabilities), padding blanked."""
    real = np.asarray(mask) == 1
    z, ids = np.where(real[..., None], logits, 0.0), np.where(real, tokens, 0)
    return real, np.eye(z.shape[-1])[ids] - np.exp(rltokens.log_softmax(z))


def to_descend(logits, tokens, weights, mask):
    return -rltokens.policy_gradient_logits(logits, tokens, weights, mask)


def probabilities_forgotten(logits, tokens, weights, mask):
    real, _ = scores_of(logits, tokens, mask)
    w = np.where(real, weights, 0.0)[..., None]
    return w * np.eye(logits.shape[-1])[np.where(real, tokens, 0)]


def gradient_of_the_probability(logits, tokens, weights, mask):
    real, scores = scores_of(logits, tokens, mask)
    p = np.where(real, np.exp(rltokens.token_logprobs(logits, tokens, mask)), 0.0)
    return (p * np.where(real, weights, 0.0))[..., None] * scores


def weights_forgotten(logits, tokens, weights, mask):
    real, scores = scores_of(logits, tokens, mask)
    return np.where(real[..., None], scores, 0.0)


def mean_for_sum(logits, tokens, weights, mask):
    return rltokens.policy_gradient_logits(logits, tokens, weights, mask) / max(np.sum(mask), 1)


def log_for_probabilities(logits, tokens, weights, mask):
    real, _ = scores_of(logits, tokens, mask)
    z = np.where(real[..., None], logits, 0.0)
    one_hot = np.eye(z.shape[-1])[np.where(real, tokens, 0)]
    return np.where(real, weights, 0.0)[..., None] * (one_hot - rltokens.log_softmax(z))


def only_the_drawn_logit(logits, tokens, weights, mask):
    gradient = rltokens.policy_gradient_logits(logits, tokens, weights, mask)
    one_hot = np.eye(logits.shape[-1])[np.where(np.asarray(mask) == 1, tokens, 0)]
    return gradient * one_hot


def weights_without_their_sign(logits, tokens, weights, mask):
    return rltokens.policy_gradient_logits(logits, tokens, np.abs(weights), mask)


def multiplies_by_the_mask(logits, tokens, weights, mask):
    with np.errstate(invalid="ignore"):
        scores = np.eye(logits.shape[-1])[tokens] - np.exp(rltokens.log_softmax(logits))
        return (weights * mask)[..., None] * scores


def looks_up_padded_ids(logits, tokens, weights, mask):
    real = np.asarray(mask) == 1
    one_hot = np.eye(logits.shape[-1])[tokens]
    z = np.where(real[..., None], logits, 0.0)
    return np.where(real, weights, 0.0)[..., None] * (one_hot - np.exp(rltokens.log_softmax(z)))


def overflowing_softmax(logits, tokens, weights, mask):
    real = np.asarray(mask) == 1
    z, ids = np.where(real[..., None], logits, 0.0), np.where(real, tokens, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        pi = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    return np.where(real, weights, 0.0)[..., None] * (np.eye(z.shape[-1])[ids] - pi)


def blanks_in_place(logits, tokens, weights, mask):
    weights[np.asarray(mask) != 1] = 0.0
    return rltokens.policy_gradient_logits(logits, tokens, weights, mask)


WRONG = {
    to_descend: one_hot_minus_probabilities,
    probabilities_forgotten: one_hot_minus_probabilities,
    gradient_of_the_probability: one_hot_minus_probabilities,
    weights_forgotten: one_hot_minus_probabilities,
    log_for_probabilities: one_hot_minus_probabilities,
    mean_for_sum: finite_differences_agree,
    only_the_drawn_logit: what_one_gains_the_others_lose,
    weights_without_their_sign: what_one_gains_the_others_lose,
    multiplies_by_the_mask: padding_is_inert,
    looks_up_padded_ids: padded_ids_are_not_looked_up,
    overflowing_softmax: large_and_forbidden_logits,
    blanks_in_place: leaves_its_arguments_alone,
}


def token_by_token(logits, tokens, weights, mask):
    result = np.zeros(np.shape(logits), dtype=np.float32)
    for b, t in zip(*np.nonzero(np.asarray(mask) == 1), strict=True):
        row = -float(weights[b][t]) * np.exp(rltokens.log_softmax(logits[b][t]))
        row[tokens[b][t]] += weights[b][t]
        result[b, t] = row
    return result


def through_torch(logits, tokens, weights, mask):
    import torch

    real = torch.as_tensor(np.asarray(mask) == 1)
    z = torch.as_tensor(logits, dtype=torch.float64).masked_fill(~real[..., None], 0.0).requires_grad_()
    ids = torch.as_tensor(tokens).masked_fill(~real, 0)
    w = torch.as_tensor(weights, dtype=torch.float64).masked_fill(~real, 0.0)
    logp = torch.log_softmax(z, dim=-1).gather(-1, ids[..., None])[..., 0]
    (w * logp).sum().backward()
    return z.grad


RIGHT = [token_by_token, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "z = np.where(real_token[..., None], logits, 1.0)": "padding has weight 0",
    "ids = np.where(True, tokens, 0).astype(np.int64)": "ids are compared and not looked up",
    "ids = np.where(real_token, tokens, 1).astype(np.int64)": "padding has weight 0",
}
