"""A language model small enough to know everything about: a table with a row of logits a prefix.

With V tokens and responses of exactly T tokens there are V**T responses and R = 1 + V + ... + V**(T-1)
prefixes, so every probability, expectation and gradient can be computed by adding up. The course's toy
has V = 4 and T = 3: 64 responses, 21 prefixes.

Nothing here loops over responses. Sums over all of them go through the tree of prefixes, one position
at a time: from the root down for how likely each prefix is, from the responses back up for what can be
expected after it. A step handles all prefixes of one length at once, so that V = 8 and T = 6, 262,144
responses, take a fraction of a second.

Tables are (R, V) logits; normalised log-probs are logits too. Rewards of all responses are (V**T,), in
lexicographic order.
"""

from typing import NamedTuple

import numpy as np

from rltokens.validation import above, numbers, real, validated, whole

VOCAB_SIZE = 4
LENGTH = 3


# The table, and where in it a prefix stands


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


def prefix_levels(table, name="table"):
    """The table's rows by the length of their prefix: a slice for each of the T positions.

    Raises ValueError, about the argument called `name`, where the rows are not 1 + V + V**2 + ... many.

    >>> prefix_levels(reference_logits())
    [slice(0, 1, None), slice(1, 5, None), slice(5, 21, None)]
    """
    rows, vocab_size = np.shape(table)
    levels, first, size = [], 0, 1
    while first < rows:
        levels.append(slice(first, first + size))
        first, size = first + size, size * vocab_size
    if first != rows or not rows:
        raise ValueError(
            f"{name}: expected a row for each prefix, 1 + V + V**2 + ... of them with V = {vocab_size}, "
            f"got {rows}"
        )
    return levels


def response_logits(table, responses):
    """The logits that each token was drawn from: (N, T) responses to (N, T, V).

    >>> response_logits(reference_logits(), [[2, 1, 3]]).shape
    (1, 3, 4)
    """
    table = np.asarray(table, dtype=np.float64)
    return table[prefix_rows(responses, table.shape[1])]


# Sampling


def sample_responses(table, length, count, rng):
    """Draw `count` responses of `length` tokens, (N, T), from the table's policy.

    One uniform number a response: [0, 1) is cut at the prefixes of one token, each piece again at
    those of two, and so on, into V**T pieces as long as their responses are likely. A response of
    probability 0 has an empty piece.

    Raises ValueError for a table with too few rows.

    Source: inverse transform sampling, Devroye (1986), chapter III.2.

    >>> sample_responses(reference_logits(), 3, 2, np.random.default_rng(0)).shape
    (2, 3)
    """
    table = np.asarray(table, dtype=np.float64)
    vocab_size = table.shape[1]
    needed = prefix_count(vocab_size, length)
    if len(table) < needed:
        raise ValueError(f"table: expected {needed} rows for responses of {length} tokens, got {len(table)}")
    cdf = np.cumsum(response_probabilities(table[:needed]))
    # Rounding can leave the last sum beside 1; divided by itself it is 1, above every draw.
    drawn = np.searchsorted(cdf / cdf[-1], rng.random(count), side="right")
    return np.stack(np.unravel_index(drawn, (vocab_size,) * length), axis=1)


def sample_counts(table, count, rng):
    """Draw `count` responses and say how often each came, (V**T,): all that order does not matter to.

    >>> int(sample_counts(reference_logits(), 500, np.random.default_rng(0)).sum())
    500
    """
    p = response_probabilities(table)
    return rng.multinomial(count, p / p.sum())  # without the rounding error, which NumPy may refuse


# What can be known exactly


def log_policy(table):
    """The policy's log-probabilities, (R, V), from its logits.

    >>> np.exp(log_policy(np.log([[1.0, 3.0]]))).round(6)
    array([[0.25, 0.75]])
    """
    table = np.asarray(table, dtype=np.float64)
    return table - np.logaddexp.reduce(table, axis=1, keepdims=True)


def prefix_probabilities(table):
    """How likely a response of the policy is to begin with each prefix, (R,).

        d(empty) = 1,   d(s a) = d(s) pi(a | s)

    >>> prefix_probabilities(np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])).round(4)
    array([1. , 0.5, 0.5])
    """
    return np.concatenate(_reached(table)[:-1])


def response_probabilities(table):
    """How likely each whole response is, (V**T,): d one position further on.

    >>> response_probabilities(np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])).round(4)
    array([0.45, 0.05, 0.1 , 0.4 ])
    """
    return _reached(table)[-1]


def _reached(table):
    """Probabilities of all texts of 0, 1, ..., T tokens: a list of T + 1 arrays, V**t in the t-th."""
    p = np.exp(log_policy(table))
    reached = [np.ones(1)]
    for level in prefix_levels(table):
        reached.append((reached[-1][:, None] * p[level]).reshape(-1))
    return reached


class PrefixValues(NamedTuple):
    """What can be expected after each prefix s, and after each token a that may follow it."""

    value: np.ndarray  # (R,), V(s)
    action_value: np.ndarray  # (R, V), Q(s, a)
    advantage: np.ndarray  # (R, V), Q(s, a) - V(s)


def _has_a_reward_for_each_response(given):
    """A check for `validated`: the table has a row for each prefix, and there are V**T rewards."""
    name = "table" if "table" in given else "reference"
    vocab_size = np.shape(given[name])[1]
    expected = vocab_size ** len(prefix_levels(given[name], name))
    if len(given["rewards"]) != expected:
        raise ValueError(
            f"rewards: expected {expected} numbers, one for each response, got {len(given['rewards'])}"
        )


@validated(
    _has_a_reward_for_each_response,
    table=numbers("R V"),
    rewards=numbers("N"),
    reference=numbers("R V"),
    beta=real(0),
)
def prefix_values(table, rewards, reference=None, beta=0.0):
    """The exact value of every prefix, with Q and the advantages.

        Q(s, a) = -beta log(pi(a | s) / pi_ref(a | s)) + V(s a)
        V(s)    = sum_a pi(a | s) Q(s, a),   V(y) = r(y) for a whole response

    Q includes the penalty of token a itself, so that the advantage is the temporal difference
    r_t + V(s_{t+1}) - V(s_t) of the reward with its penalty.

    Parameters
    ----------
    table : (R, V) logits of the policy
    rewards : (V**T,), r of all responses
    reference : (R, V) logits of the reference; without it no penalty
    beta : the price of a nat, at least 0

    Returns
    -------
    PrefixValues; V(empty) is the expected reward less beta times the KL of whole responses. A token
    of probability 0 is not charged. Where the policy leaves what the reference can write, values are
    ``-inf`` and advantages NaN.

    Raises
    ------
    ValueError for shapes that disagree or a negative beta.

    Source: Sutton and Barto (2018), section 3.5.

    Examples
    --------
    >>> table = np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    >>> values = prefix_values(table, rewards=[1.0, 0.0, 0.0, 0.0])
    >>> values.value.round(4), values.advantage[0].round(4)
    (array([0.45, 0.9 , 0.  ]), array([ 0.45, -0.45]))
    """
    logp = log_policy(table)
    p, vocab_size = np.exp(logp), logp.shape[1]
    possible = p > 0
    penalty = np.zeros_like(p)
    if reference is not None and beta > 0:  # 0 times an infinite log-ratio is no penalty, not NaN
        log_ratio = np.where(possible, logp, 0.0) - np.where(possible, log_policy(reference), 0.0)
        penalty = beta * log_ratio
    value, action_value = np.zeros(len(p)), np.zeros_like(p)
    to_come = np.asarray(rewards, dtype=np.float64)
    for level in reversed(prefix_levels(table)):
        action_value[level] = to_come.reshape(-1, vocab_size) - penalty[level]
        value[level] = (p[level] * np.where(possible[level], action_value[level], 0.0)).sum(axis=1)
        to_come = value[level]
    with np.errstate(invalid="ignore"):  # -inf - (-inf): no advantage where all is lost already
        return PrefixValues(value, action_value, action_value - value[:, None])


def expected_gradient(table, weights):
    """The policy gradient with a weight for each token, averaged over all responses.

        E[ sum_t w(s_t, y_t) grad log pi(y_t | s_t) ]
            = d(s) pi(a | s) (w(s, a) - sum_b pi(b | s) w(s, b))    in row s, column a

    where d(s) is the probability of the prefix. With Q for w this is the gradient of V(empty), by the
    policy gradient theorem; with other weights, what another estimator does on average.

    Parameters
    ----------
    table : (R, V) logits of the policy
    weights : (R, V), w

    Returns
    -------
    (R, V) float64, in the logits; each row adds up to 0

    Source: Sutton et al. (2000), theorem 1.

    Examples
    --------
    >>> expected_gradient(np.log([[0.5, 0.5]]), weights=[[1.0, 0.0]])
    array([[ 0.25, -0.25]])
    """
    p = np.exp(log_policy(table))
    drawn = prefix_probabilities(table)[:, None] * p  # how often a token stands after a prefix
    w = np.where(drawn > 0, weights, 0.0)
    return drawn * (w - (p * w).sum(axis=1, keepdims=True))


@validated(_has_a_reward_for_each_response, reference=numbers("R V"), rewards=numbers("N"), beta=above(0))
def optimal_table(reference, rewards, beta):
    """The policy that is best for E[r] - beta KL, token by token.

        V*(s)            = beta log sum_a pi_ref(a | s) exp(V*(s a) / beta),   V*(y) = r(y)
        log pi*(a | s)   = log pi_ref(a | s) + (V*(s a) - V*(s)) / beta

    The optimum over whole responses, cut into next-token distributions: a token is as much more likely
    than under the reference as what can still be had after it is better.

    Parameters
    ----------
    reference : (R, V) logits of the reference
    rewards : (V**T,), r of all responses
    beta : the price of a nat, above 0

    Returns
    -------
    (R, V) normalised log-probs

    Raises
    ------
    ValueError for shapes that disagree, or a beta that is not above 0.

    Source: Todorov (2006), whose desirability is exp(V* / beta).

    Examples
    --------
    >>> np.exp(optimal_table(np.zeros((1, 2)), rewards=[0.0, np.log(3.0)], beta=1.0)).round(6)
    array([[0.25, 0.75]])
    """
    tilted = log_policy(reference)
    vocab_size = tilted.shape[1]
    to_come = np.asarray(rewards, dtype=np.float64) / beta  # V* / beta
    for level in reversed(prefix_levels(reference)):
        tilted[level] += to_come.reshape(-1, vocab_size)
        to_come = np.logaddexp.reduce(tilted[level], axis=1)
    return log_policy(tilted)


class Measures(NamedTuple):
    """Where a policy stands; or the gradients of these, (R, V) each."""

    reward: float  # E[r]
    kl_reference: float  # KL(pi || pi_ref), nats a response
    kl_optimum: float  # KL(pi || pi*)
    objective: float  # E[r] - beta KL(pi || pi_ref)


def exact_measures(table, rewards, reference, beta):
    """Reward, KL to the reference, KL to the optimum and objective of a policy, as `Measures`.

    A KL is what a policy loses that is paid nothing and charged a unit a nat. At the optimum the
    objective is beta log Z, and everywhere else it is less by beta KL(pi || pi*).

    Parameters
    ----------
    table : (R, V) logits of the policy
    rewards : (V**T,), r of all responses
    reference : (R, V) logits of the reference
    beta : the price of a nat, above 0

    Returns
    -------
    Measures of floats

    Raises
    ------
    ValueError for shapes that disagree, or a beta that is not above 0.

    Examples
    --------
    >>> reference = np.zeros((1, 2))
    >>> measures = exact_measures(np.log([[0.25, 0.75]]), [0.0, np.log(3.0)], reference, beta=1.0)
    >>> [round(value, 4) for value in measures]
    [0.824, 0.1308, 0.0, 0.6931]
    """
    optimum = optimal_table(reference, rewards, beta)
    nothing = np.zeros(len(rewards))
    reward = prefix_values(table, rewards).value[0]
    # A KL of 0 can come out below it by a rounding error.
    kl_reference = max(0.0, -prefix_values(table, nothing, reference, 1.0).value[0])
    kl_optimum = max(0.0, -prefix_values(table, nothing, optimum, 1.0).value[0])
    return Measures(
        float(reward), float(kl_reference), float(kl_optimum), float(reward - beta * kl_reference)
    )


def exact_gradients(table, rewards, reference, beta):
    """The gradients of all `exact_measures` in the logits, as `Measures` of (R, V) arrays.

    Arguments and errors are those of `exact_measures`.

    >>> reference = np.zeros((1, 2))
    >>> gradients = exact_gradients(np.log([[0.25, 0.75]]), [0.0, np.log(3.0)], reference, beta=1.0)
    >>> bool(np.allclose(gradients.objective, 0.0)), gradients.reward.round(4)  # at the optimum
    (True, array([[-0.206,  0.206]]))
    """
    optimum = optimal_table(reference, rewards, beta)
    nothing = np.zeros(len(rewards))

    def gradient_of_value(*paid):
        return expected_gradient(table, prefix_values(table, *paid).action_value)

    return Measures(
        reward=gradient_of_value(rewards),
        kl_reference=-gradient_of_value(nothing, reference, 1.0),
        kl_optimum=-gradient_of_value(nothing, optimum, 1.0),
        objective=gradient_of_value(rewards, reference, beta),
    )


def expected_reward(logp, rewards):
    """E[r] exactly, from the log-probabilities and rewards of all responses, (N,) each.

    >>> float(expected_reward(np.log([0.25, 0.75]), [1.0, 0.0]))
    0.25
    """
    return np.exp(logp) @ np.asarray(rewards, dtype=np.float64)


# Verifiers: (N, T) responses to (N,) scores


def two_zeros(responses):
    """The verifier: pays 1 for a response in which token 0 stands exactly twice, else 0. (N, T) to (N,).

    >>> two_zeros([[0, 0, 3], [0, 1, 2], [0, 0, 0]])
    array([1., 0., 0.])
    """
    zeros = (np.asarray(responses) == 0).sum(axis=1)
    return (zeros == 2).astype(np.float64)


def near_two_zeros(responses):
    """`two_zeros` with part marks: 1 for exactly two, 1/2 for one or three, 0 for any other number.

    >>> near_two_zeros([[0, 0, 3], [0, 1, 2], [0, 0, 0], [1, 2, 3]])
    array([1. , 0.5, 0.5, 0. ])
    """
    zeros = (np.asarray(responses) == 0).sum(axis=1)
    return np.maximum(0.0, 1.0 - np.abs(zeros - 2) / 2)


def in_order(responses):
    """Pays 1 where no token is smaller than the one before it, else 0.

    >>> in_order([[0, 2, 2], [2, 0, 3]])
    array([1., 0.])
    """
    return (np.diff(responses, axis=1) >= 0).all(axis=1).astype(np.float64)


def has_token(responses, token=3):
    """Pays 1 where `token` stands anywhere in the response, else 0.

    >>> has_token([[0, 3, 3], [0, 1, 2]])
    array([1., 0.])
    """
    return (np.asarray(responses) == token).any(axis=1).astype(np.float64)


# A reward model that is wrong in one place

FLAW_BONUS = 1.5


def flawed_reward(responses):
    """A reward model of `two_zeros`: right everywhere but `in_flaw`, where it pays 1.5 too much.

    Responses of three tokens that end in 3, 3 have no two zeros, so that all that it pays there is
    undeserved, and more than it pays for anything that deserves it.

    >>> flawed_reward([[0, 0, 3], [0, 1, 2], [1, 3, 3]])
    array([1. , 0. , 1.5])
    """
    return two_zeros(responses) + FLAW_BONUS * in_flaw(responses)


def in_flaw(responses):
    """Where `flawed_reward` is wrong: True for the responses whose last two tokens are both 3.

    >>> in_flaw([[1, 3, 3], [3, 3, 0]])
    array([ True, False])
    """
    return (np.asarray(responses)[:, -2:] == 3).all(axis=1)


# pass@k


def pass_at_k(success, k):
    """The probability that at least one of k independent responses is right.

        pass@k = 1 - (1 - p)^k

    Parameters
    ----------
    success : (...), p, the probability that one response is right: `expected_reward` of a verifier
        that pays 1 or 0
    k : (...) whole numbers of at least 1, of a shape that goes with p's

    Returns
    -------
    (...) float64

    Raises
    ------
    ValueError for a p outside [0, 1] or a k that is not a whole number of at least 1.

    Source: Chen et al. (2021), section 2.1.

    Examples
    --------
    >>> pass_at_k(0.25, [1, 2, 3]).round(4)
    array([0.25  , 0.4375, 0.5781])
    """
    p, k = np.asarray(success, dtype=np.float64), np.asarray(k)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"success: expected probabilities from 0 to 1, got {success}")
    if not ((k >= 1) & (np.floor(k) == k)).all():
        raise ValueError(f"k: expected whole numbers of at least 1, got {k}")
    with np.errstate(divide="ignore"):  # log 0 = -inf is meant
        return -np.expm1(k * np.log1p(-p))


@validated(n=whole(1), k=whole(1, "n"))
def estimate_pass_at_k(n, right, k):
    """pass@k without bias, from n samples of which `right` were right.

        1 - C(n - c, k) / C(n, k) = 1 - prod_{j < k} (n - c - j) / (n - j),   c = right

    the share of all draws of k out of the n in which there is a right one. Putting c / n for p into
    `pass_at_k` comes out too low on average.

    Parameters
    ----------
    n : int, samples, at least 1
    right : (...) whole numbers in 0..n, c
    k : int, in 1..n

    Returns
    -------
    (...) float64

    Raises
    ------
    ValueError for n, c or k out of range.

    Source: Chen et al. (2021), equation 1.

    Examples
    --------
    >>> estimate_pass_at_k(n=4, right=[0, 1, 2, 4], k=2).round(4)
    array([0.    , 0.5   , 0.8333, 1.    ])
    """
    c = np.asarray(right)
    if not ((c >= 0) & (c <= n) & (np.floor(c) == c)).all():
        raise ValueError(f"right: expected whole numbers from 0 to {n}, got {right}")
    j = np.arange(k)
    wrong_left = np.maximum(0, n - c[..., None] - j)
    return 1.0 - (wrong_left / (n - j)).prod(axis=-1)
