"""Exercise: from a uniform number to a token and its log-probability."""

import math

import numpy as np

import rltokens
from rltokens.checking import BadForm, arguments_after, same

TITLE = "Draw a token, and say how likely it was"
DIFFICULTY = "hard"
MINUTES = 25
POINTS = 5

STATEMENT = """
All chance in an episode enters here. You are given the logits of the next token and a number `u` in [0,
1), drawn evenly by somebody else; so your function has no randomness of its own, and can be checked. Cut
[0, 1) into pieces as long as the tokens are likely, in the order of their ids; the token is the piece in
which `u` lies: the smallest k whose cumulative probability *exceeds* `u`. Give back the token and its
log-probability, for any number of leading axes.

- The temperature divides the logits. The log-probability is that of the distribution *sampled from*,
  temperature included. Temperature 0 takes the most likely token, the lowest id among equals, with
  log-probability 0.
- Large logits must not overflow, and a tiny temperature must make no NaN.
- A token of probability 0 (a logit of `-inf`, say) is never drawn: not for `u = 0`, and not where
  rounding leaves the cumulative sum short of `u`; then it is the last token of positive probability.
"""

HINTS = [
    "Take off the maximum, divide by the temperature, and you have logits that `np.exp` cannot "
    "overflow on. The cumulative "
    "sum of the probabilities is `np.cumsum(p, axis=-1)`.",
    "The smallest k with cdf[k] > u is the number of entries with cdf <= u: `(cdf <= u[..., "
    "None]).sum(axis=-1)`. Which "
    "entries does that skip when p is 0 at the front?",
    "Rounding: the count may reach V, or a token of probability 0 at the end. Find the last token "
    "with p > 0 and take the "
    "`np.minimum` with it. For the log-probability: `np.take_along_axis`.",
]


def both_of(result):
    """(token, logp), if the answer has the form that was asked for."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise BadForm("expected two things: `return token, logp`")
    return result


def must_draw(result, token, p, message):
    """The token, and the log of its probability."""
    got, logp = both_of(result)
    same(got, token, message)
    same(logp, np.log(p), f"{message}; the token is right, and its log-probability is not")


def pieces_of_the_interval(sample_token, rng):
    logits = np.log(np.array([0.5, 0.25, 0.25]))
    for u, token, p in ((0.6, 1, 0.25), (0.9, 2, 0.25), (0.3, 0, 0.5), (0.49, 0, 0.5)):
        message = (
            f"probabilities 1/2, 1/4, 1/4 cut [0, 1) at 0.5 and 0.75, and u = {u} lies in the piece of token "
            f"{token}"
        )
        must_draw(sample_token(logits, np.array(u)), token, p, message)


def a_number_on_the_border(sample_token, rng):
    logits = np.zeros(4)  # four pieces of exactly 1/4
    for u, token in ((0.25, 1), (0.5, 2), (0.75, 3), (0.0, 0)):
        message = (
            f"four equal pieces: u = {u} lies at the *beginning* of the piece of token {token}, not at an end"
        )
        must_draw(sample_token(logits, np.array(u)), token, 0.25, message)


def temperature_is_part_of_the_policy(sample_token, rng):
    logits = np.log(np.array([0.9, 0.1]))  # at temperature 1/2: 0.81 to 0.01
    message = (
        "at temperature 1/2, odds of 9 become odds of 81: u = 0.95 draws token 0, with probability 81/82"
    )
    must_draw(sample_token(logits, np.array(0.95), 0.5), 0, 81 / 82, message)
    message = "at temperature 2, odds of 9 become odds of 3: u = 0.8 draws token 1, with probability 1/4"
    must_draw(sample_token(logits, np.array(0.8), 2.0), 1, 0.25, message)


def greedy_at_zero(sample_token, rng):
    for logits, token in (([1.0, 3.0, 3.0], 1), ([0.0, -1.0, 2.0], 2)):
        for u in (0.0, 0.99):
            message = (
                f"temperature 0 takes the most likely of {logits}, the lowest id among equals, whatever u is"
            )
            must_draw(sample_token(np.array(logits), np.array(u), 0), token, 1.0, message)


def any_number_of_rows(sample_token, rng):
    logits, u = rng.normal(size=(3, 2, 5)), rng.random((3, 2))
    for temperature in (1.0, 0.7, 0.0):
        token, logp = both_of(sample_token(logits, u, temperature))
        right, right_logp = rltokens.sample_token(logits, u, temperature)
        message = (
            f"logits of shape (3, 2, 5) and u of shape (3, 2), at temperature {temperature}: one token a row"
        )
        same(token, right, message)
        same(logp, right_logp, message)


def the_forbidden_is_never_drawn(sample_token, rng):
    ninf = -np.inf
    for logits, u, token, p in (
        ([ninf, 0.0, 0.0], 0.0, 1, 0.5),
        ([0.0, ninf, 0.0], 0.5, 2, 0.5),
        ([0.0, 0.0, ninf], 1 - 2.0**-53, 1, 0.5),
        ([ninf, 5.0, ninf], 0.7, 1, 1.0),
    ):
        message = (
            f"logits {logits} with u = {u}: a token of probability 0 has an empty piece and is never drawn"
        )
        must_draw(sample_token(np.array(logits), np.array(u)), token, p, message)


def rounding_leaves_a_rest(sample_token, rng):
    u = np.array(1 - 2.0**-53)  # the largest number below 1
    for size in (
        10,
        49,
        98,
        103,
        107,
    ):  # some of these sums of equal parts stay below 1; forbidden ones follow
        logits = np.append(np.zeros(size), [-np.inf] * (1 + size % 2))
        message = f"{size} equal tokens, u just below 1: the last token that is possible is {size - 1}"
        must_draw(sample_token(logits, u), size - 1, 1 / size, message)


def large_logits_and_tiny_temperatures(sample_token, rng):
    must_draw(
        sample_token(np.array([1000.0, 1000.0]), np.array(0.7)),
        1,
        0.5,
        "two equal logits of 1000: no overflow",
    )
    must_draw(
        sample_token(np.array([-1000.0, -1000.0]), np.array(0.2)),
        0,
        0.5,
        "two equal logits of -1000: no log of 0",
    )
    message = "a temperature of 1e-300 is all but greedy, and no NaN"
    must_draw(sample_token(np.array([2.0, 1.0, 2.0]), np.array(0.6), 1e-300), 2, 0.5, message)
    token, logp = both_of(sample_token(np.array([0.0, -800.0]), np.array(0.5)))
    same(token, 0, "a token 800 nats behind is not drawn for u = 0.5")
    same(logp, 0.0, "beside a token 800 nats behind, the other one is certain")
    message = "the log-probability of a rare token is its own: no logarithm of a probability that rounds"
    got = both_of(sample_token(np.array([-40.0, 0.0]), np.array(1e-18)))
    same(got[0], 0, message)
    same(got[1], -40 - math.log1p(math.exp(-40)), message)


def leaves_its_arguments_alone(sample_token, rng):
    logits, u = np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([0.6, 0.1])
    token, _ = both_of(sample_token(logits, u))
    same(token, [1, 0], "two rows of equal logits: u = 0.6 draws token 1, u = 0.1 token 0")
    after = arguments_after(sample_token, logits, u)
    same(after[0], logits, "your function changed `logits`: work on a copy")
    same(after[1], u, "your function changed `u`: work on a copy")


VISIBLE = [pieces_of_the_interval, temperature_is_part_of_the_policy, greedy_at_zero]
HIDDEN = [
    a_number_on_the_border,
    any_number_of_rows,
    the_forbidden_is_never_drawn,
    rounding_leaves_a_rest,
    large_logits_and_tiny_temperatures,
    leaves_its_arguments_alone,
]


def draw(logits, u, temperature=1.0, logp_temperature=None, count=None, guarded=True):
    """The right function with its usual mistakes as options."""
    z, u = np.asarray(logits, dtype=float), np.asarray(u, dtype=float)
    if temperature == 0:
        token = z.argmax(axis=-1)
        return token, np.zeros(token.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = z - z.max(axis=-1, keepdims=True)
        logp = rltokens.log_softmax(shifted / temperature)
    cdf = np.cumsum(np.exp(logp), axis=-1)
    token = count(cdf, u) if count else (cdf <= u[..., None]).sum(axis=-1)
    if guarded:
        last = z.shape[-1] - 1 - np.argmax((logp > -np.inf)[..., ::-1], axis=-1)
        token = np.minimum(token, last)
    own = logp if logp_temperature is None else rltokens.log_softmax(z / logp_temperature)
    return token, np.take_along_axis(own, token[..., None], axis=-1)[..., 0]


def always_greedy(logits, u, temperature=1.0):
    return draw(logits, u, 0)


def counts_to_the_next(logits, u, temperature=1.0):
    token, logp = draw(logits, u, temperature)
    return token + 1, logp


def from_the_other_end(logits, u, temperature=1.0):
    return draw(logits, 1 - np.asarray(u) - 2.0**-53, temperature)


def probability_for_its_logarithm(logits, u, temperature=1.0):
    token, logp = draw(logits, u, temperature)
    return token, np.exp(logp)


def logp_of_the_model(logits, u, temperature=1.0):
    return draw(logits, u, temperature, logp_temperature=1.0 if temperature else None)


def temperature_multiplied(logits, u, temperature=1.0):
    return draw(logits, u, 1 / temperature if temperature else 0)


def temperature_forgotten(logits, u, temperature=1.0):
    return draw(logits, u, 1.0 if temperature else 0)


def last_among_equals(logits, u, temperature=1.0):
    if temperature:
        return draw(logits, u, temperature)
    z = np.asarray(logits, dtype=float)
    token = z.shape[-1] - 1 - z[..., ::-1].argmax(axis=-1)
    return token, np.zeros(token.shape)


def greedy_with_its_logp(logits, u, temperature=1.0):
    token, logp = draw(logits, u, temperature)
    if temperature == 0:
        logp = np.take_along_axis(rltokens.log_softmax(logits), token[..., None], axis=-1)[..., 0]
    return token, logp


def border_belongs_to_the_left(logits, u, temperature=1.0):
    return draw(logits, u, temperature, count=lambda cdf, u: (cdf < u[..., None]).sum(axis=-1))


def one_row_only(logits, u, temperature=1.0):
    z = np.asarray(logits, dtype=float)
    if z.ndim == 1:
        return draw(logits, u, temperature)
    token, logp = draw(z.reshape(-1, z.shape[-1]), np.resize(np.ravel(u)[0], z[..., 0].size), temperature)
    return token.reshape(z.shape[:-1]), logp.reshape(z.shape[:-1])


def first_in_the_front(logits, u, temperature=1.0):
    at_least = lambda cdf, u: np.where(u == 0, 0, (cdf <= u[..., None]).sum(axis=-1))  # noqa: E731
    return draw(logits, u, temperature, count=at_least)


def last_id_for_the_rest(logits, u, temperature=1.0):
    cap = lambda cdf, u: np.minimum((cdf <= u[..., None]).sum(axis=-1), cdf.shape[-1] - 1)  # noqa: E731
    return draw(logits, u, temperature, count=cap, guarded=False)


def overflowing_softmax(logits, u, temperature=1.0):
    if temperature == 0:
        return draw(logits, u, 0)
    with np.errstate(all="ignore"):
        weights = np.exp(np.asarray(logits, dtype=float) / temperature)
        p = weights / weights.sum(axis=-1, keepdims=True)
        token, _logp = draw(logits, u, temperature)
        return token, np.log(np.take_along_axis(p, token[..., None], axis=-1)[..., 0])


def logarithm_with_epsilon(logits, u, temperature=1.0):
    token, logp = draw(logits, u, temperature)
    return token, np.log(np.exp(logp) + 1e-12)


def shifts_in_place(logits, u, temperature=1.0):
    result = draw(logits, u, temperature)
    logits -= logits.max(axis=-1, keepdims=True)
    return result


WRONG = {
    always_greedy: pieces_of_the_interval,
    counts_to_the_next: pieces_of_the_interval,
    from_the_other_end: pieces_of_the_interval,
    probability_for_its_logarithm: pieces_of_the_interval,
    logp_of_the_model: temperature_is_part_of_the_policy,
    temperature_multiplied: temperature_is_part_of_the_policy,
    temperature_forgotten: temperature_is_part_of_the_policy,
    last_among_equals: greedy_at_zero,
    greedy_with_its_logp: greedy_at_zero,
    border_belongs_to_the_left: a_number_on_the_border,
    one_row_only: any_number_of_rows,
    first_in_the_front: the_forbidden_is_never_drawn,
    last_id_for_the_rest: rounding_leaves_a_rest,
    overflowing_softmax: large_logits_and_tiny_temperatures,
    logarithm_with_epsilon: large_logits_and_tiny_temperatures,
    shifts_in_place: leaves_its_arguments_alone,
}


def row_by_row(logits, u, temperature=1.0):
    z = np.asarray(logits, dtype=float)
    tokens, logps = np.zeros(z.shape[:-1], dtype=int), np.zeros(z.shape[:-1])
    for index in np.ndindex(*z.shape[:-1]):
        row = z[index] - z[index].max()
        if temperature == 0:
            tokens[index] = int(np.argmax(row))
            continue
        with np.errstate(over="ignore"):
            logp = rltokens.log_softmax(row / temperature)
        total = 0.0
        for k, step in enumerate(logp):
            if step > -math.inf:
                total, tokens[index], logps[index] = total + math.exp(step), k, step
            if total > np.asarray(u)[index]:
                break
    return tokens, logps


def by_searching(logits, u, temperature=1.0):
    z = np.atleast_2d(np.asarray(logits, dtype=float).reshape(-1, np.shape(logits)[-1]))
    shape, tokens, logps = np.shape(logits)[:-1], [], []
    for row, number in zip(z - z.max(axis=1, keepdims=True), np.ravel(u), strict=True):
        with np.errstate(over="ignore"):
            logp = np.where(np.arange(len(row)) == row.argmax(), 0.0, -np.inf)
            logp = rltokens.log_softmax(row / temperature) if temperature else logp
        possible = np.flatnonzero(logp > -np.inf)
        found = np.searchsorted(np.cumsum(np.exp(logp[possible])), number, side="right")
        tokens.append(possible[min(found, len(possible) - 1)])
        logps.append(logp[tokens[-1]])
    return np.reshape(tokens, shape), np.reshape(logps, shape)


RIGHT = [row_by_row, by_searching]
