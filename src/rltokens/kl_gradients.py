"""Chapter 5: three estimates of the KL, and what becomes of each when it is differentiated."""

import numpy as np

from rltokens.credit import policy_gradient_logits, returns_to_go
from rltokens.logprobs import log_softmax, sequence_distribution
from rltokens.mdp import enumerate_responses
from rltokens.toy import prefix_rows, response_logits
from rltokens.validation import mask_of, numbers, validated, whole


@validated(logp=numbers("..."), logp_ref=numbers("..."))
def kl_estimates(logp, logp_ref):
    """Three estimates of KL(pi || pi_ref) from one draw of pi.

        l  = log pi(y) - log pi_ref(y)
        k1 = l
        k2 = l^2 / 2
        k3 = exp(-l) - 1 + l

    k1 and k3 have the right mean; k3 is never negative. k2 is off by terms
    of third order. This concerns their values; what their gradients do is
    another matter, see `kl_gradient_audit`.

    Parameters
    ----------
    logp, logp_ref : (...), nats, of the same shape: log-probs of what was
        drawn, under the policy that drew it and under the reference

    Returns
    -------
    (k1, k2, k3), (...) float64 each, nats

    Raises
    ------
    ValueError for shapes that disagree.

    Source: Schulman (2020).

    Examples
    --------
    >>> k1, k2, k3 = kl_estimates(np.log([0.5, 0.5]), np.log([0.25, 0.75]))
    >>> k1.round(4), k2.round(4), k3.round(4)
    (array([ 0.6931, -0.4055]), array([0.2402, 0.0822]), array([0.1931, 0.0945]))
    >>> float((0.5 * k1).sum().round(4)), float((0.5 * k3).sum().round(4))
    (0.1438, 0.1438)
    """
    log_ratio = np.asarray(logp, dtype=np.float64) - np.asarray(logp_ref, dtype=np.float64)
    with np.errstate(over="ignore"):  # a ratio beyond floating point is inf, as it should be
        k3 = np.expm1(-log_ratio) + log_ratio
    return log_ratio, log_ratio**2 / 2, k3


@validated(z=numbers("V"), z_ref=numbers("V"))
def kl_gradient_audit(z, z_ref):
    """What each estimate of the KL does to a softmax, exactly.

        pi = softmax(z),   grad log pi(a) = one_hot(a) - pi
        <k>_loss   = E[grad k]         an estimate is differentiated
        <k>_reward = E[k grad log pi]  an estimate is part of the reward

    Expectations are over a drawn from pi, by summation. For the first,
    grad k1 = grad log pi, grad k2 = l grad log pi and
    grad k3 = (1 - exp(-l)) grad log pi.

    Parameters
    ----------
    z, z_ref : (V,), logits of the policy and of the reference

    Returns
    -------
    dict of (V,) float64: `reverse_kl`, the gradient of KL(pi || pi_ref);
    `forward_kl`, that of KL(pi_ref || pi); `k1_loss`, `k2_loss`,
    `k3_loss`, `k1_reward`, `k2_reward`, `k3_reward`

    Raises
    ------
    ValueError for shapes that disagree.

    Source: Tang and Munos (2025); Liu et al. (2025).

    Examples
    --------
    >>> audit = kl_gradient_audit(np.log([0.5, 0.5]), np.log([0.25, 0.75]))
    >>> audit["reverse_kl"].round(4), audit["k1_loss"]
    (array([ 0.2747, -0.2747]), array([0., 0.]))
    >>> audit["k3_loss"].round(4), audit["forward_kl"].round(4)
    (array([ 0.25, -0.25]), array([ 0.25, -0.25]))
    """
    logp, logp_ref = log_softmax(z), log_softmax(z_ref)
    pi, pi_ref = np.exp(logp), np.exp(logp_ref)
    # What is never drawn has no part in an average over draws; near e^-745 the inverse of p overflows too.
    possible = logp > -700
    k1, k2, k3 = kl_estimates(np.where(possible, logp, 0.0), np.where(possible, logp_ref, 0.0))

    def average(weights):
        """E[w(a) grad log pi(a)] = sum_a pi(a) w(a) (one_hot(a) - pi)."""
        weighted = np.where(possible, pi * weights, 0.0)
        return weighted - pi * weighted.sum()

    kl = np.where(possible, pi * k1, 0.0).sum()
    return {
        "reverse_kl": np.where(possible, pi * (k1 - kl), 0.0),
        "forward_kl": pi - pi_ref,
        "k1_loss": average(np.ones_like(pi)),
        "k2_loss": average(k1),
        "k3_loss": average(-np.expm1(-k1)),
        "k1_reward": average(k1),
        "k2_reward": average(k2),
        "k3_reward": average(k3),
    }


@validated(logp=numbers("B T"), logp_ref=numbers("B T"), mask=mask_of("B T"))
def kl_to_go(logp, logp_ref, mask):
    """The log-ratio of what is still to come, from each token on.

        sum_{s >= t} (log pi(y_s | x, y_<s) - log pi_ref(y_s | x, y_<s))

    over the real tokens s. A token changes the prefix of all that follow,
    so it answers for their penalty too.

    Parameters
    ----------
    logp, logp_ref : (B, T), nats, of the drawn tokens; anything where mask
        is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere

    Returns
    -------
    (B, T) float64, nats, 0 at padding

    Raises
    ------
    ValueError for shapes that disagree or a mask other than 0 and 1.

    Source: Tang and Munos (2025).

    Examples
    --------
    >>> kl_to_go([[-1.0, -1.2, -1.0]], [[-1.5, -1.0, -2.0]], [[1, 1, 1]]).round(6)
    array([[1.3, 0.8, 1. ]])
    """
    real_token = np.asarray(mask) == 1
    now = np.where(real_token, logp, 0.0).astype(np.float64)
    ref = np.where(real_token, logp_ref, 0.0).astype(np.float64)
    return returns_to_go(now - ref, mask)


def _has_a_row_for_each_prefix(given):
    vocab_size, length = given["vocab_size"], given["length"]
    expected = (sum(vocab_size**t for t in range(length)), vocab_size)
    if np.shape(given["z_table"]) != expected:
        raise ValueError(
            f"z_table: expected shape {expected}, a row for each prefix of fewer than {length} tokens, "
            f"got {np.shape(given['z_table'])}"
        )


@validated(
    _has_a_row_for_each_prefix,
    z_table=numbers("R V"),
    z_ref_table=numbers("R V"),
    vocab_size=whole(1),
    length=whole(1),
)
def sequence_kl_gradient_audit(z_table, z_ref_table, vocab_size, length):
    """What each estimate of the KL does to whole responses, exactly.

    As `kl_gradient_audit`, for a model that is a table with a row for each
    prefix. Each entry is an average over all responses y drawn from pi,

        E[ sum_t w_t(y) grad log pi(y_t | y_<t) ],

    with l_t the log-ratio of token t and

        k1_loss            w_t = 1
        k2_loss            w_t = l_t
        k3_loss            w_t = 1 - exp(-l_t)
        k1_reward          w_t = l_t + l_{t+1} + ... + l_T
        sequence_k2_loss   w_t = l_1 + l_2 + ... + l_T

    and `reverse_kl` the gradient of KL(pi || pi_ref) itself, by recursion
    over the tree of prefixes s, which are reached with probability d(s):

        K(s)    = sum_a pi(a | s) (l(s, a) + K(s a)),   K = 0 at the end
        grad_s  = d(s) pi(a | s) (l(s, a) + K(s a) - K(s))

    Parameters
    ----------
    z_table, z_ref_table : (1 + V + ... + V**(T-1), V), logits, a row for
        each prefix: by length, then lexicographic
    vocab_size, length : int, V and T, both at least 1

    Returns
    -------
    dict of arrays of the table's shape, float64

    Raises
    ------
    ValueError for tables of another shape.

    Source: Tang and Munos (2025).

    Examples
    --------
    >>> z = np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    >>> z_ref = np.log([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    >>> audit = sequence_kl_gradient_audit(z, z_ref, vocab_size=2, length=2)
    >>> audit["reverse_kl"][0].round(4), audit["k1_reward"][0].round(4)
    (array([ 0.0438, -0.0438]), array([ 0.0438, -0.0438]))
    >>> audit["k2_loss"][0].round(4)  # blind to what comes after
    array([0., 0.])
    """
    logp_table, logp_ref_table = log_softmax(z_table), log_softmax(z_ref_table)
    pi = np.exp(logp_table)

    # The tree of prefixes, from the root to the leaves for d.
    starts = np.cumsum([0, *(vocab_size**t for t in range(length))])
    levels = [slice(starts[t], starts[t + 1]) for t in range(length)]
    reached = np.ones((len(pi), 1))  # d
    for t in range(length - 1):
        reached[levels[t + 1]] = (reached[levels[t]] * pi[levels[t]]).reshape(-1, 1)

    # What is never drawn has no part in an average over draws.
    possible = (logp_table > -700) & (reached > 0)
    ratio_table = np.where(possible, logp_table, 0.0) - np.where(possible, logp_ref_table, 0.0)

    responses = enumerate_responses(vocab_size, length)  # (N, T)
    rows = prefix_rows(responses, vocab_size)  # (N, T)
    logits = response_logits(z_table, responses)  # (N, T, V)
    probability = np.exp(sequence_distribution(z_table, vocab_size, length))[:, None]  # (N, 1)
    ones = np.ones_like(responses)
    log_ratio = ratio_table[rows, responses]  # (N, T)
    to_go = kl_to_go(log_ratio, np.zeros_like(log_ratio), ones)

    def average(weights):
        """E[sum_t w_t grad log pi(y_t | y_<t)], added up in the table's rows."""
        per_token = policy_gradient_logits(logits, responses, probability * weights, ones)
        gradient = np.zeros_like(pi)
        np.add.at(gradient, rows, per_token)
        return gradient

    # And from its leaves to the root for K.
    reverse_kl = np.zeros_like(pi)
    to_come = np.zeros(vocab_size**length)  # 0 after the last token
    for level in reversed(levels):
        penalty = ratio_table[level] + to_come.reshape(-1, vocab_size)
        to_come = (pi[level] * penalty).sum(axis=1)
        reverse_kl[level] = reached[level] * pi[level] * (penalty - to_come[:, None])

    return {
        "reverse_kl": reverse_kl,
        "k1_loss": average(ones),
        "k2_loss": average(log_ratio),
        "k3_loss": average(-np.expm1(-log_ratio)),
        "k1_reward": average(to_go),
        "sequence_k2_loss": average(to_go[:, :1] * ones),
    }
