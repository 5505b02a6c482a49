"""Chapter 4: the objective E[r] - beta KL(pi || pi_ref), its optimum, and its form per token."""

import numpy as np

from rltokens.credit import terminal_rewards
from rltokens.validation import above, mask_of, numbers, real, validated, whole


@validated(p=numbers("... V"), q=numbers("... V"))
def kl_divergence(p, q):
    """How far q is from p, as p sees it.

        KL(p || q) = sum_v p_v (log p_v - log q_v),   0 log 0 = 0

    Parameters
    ----------
    p, q : (..., V), probabilities, of the same shape

    Returns
    -------
    (...) float64, nats; ``inf`` where q gives probability 0 to something
    that p does not

    Raises
    ------
    ValueError for shapes that disagree.

    Source: Kullback and Leibler (1951).

    Examples
    --------
    >>> kl_divergence([[0.5, 0.5], [1.0, 0.0]], [[0.25, 0.75], [0.5, 0.5]]).round(4)
    array([0.1438, 0.6931])
    >>> float(kl_divergence([0.5, 0.5], [1.0, 0.0]))
    inf
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    possible = p > 0
    with np.errstate(divide="ignore"):  # log 0 = -inf is meant
        log_ratio = np.log(np.where(possible, p, 1.0)) - np.log(np.where(possible, q, 1.0))
    return (np.where(possible, p, 0.0) * log_ratio).sum(axis=-1)


@validated(p=numbers("N"), p_ref=numbers("N"), rewards=numbers("N"), beta=real(0))
def regularized_objective(p, p_ref, rewards, beta):
    """What is maximized: expected reward less the price of leaving.

        J(p) = E_p[r] - beta KL(p || p_ref)

    Parameters
    ----------
    p, p_ref : (N,), probabilities of all responses under the policy and
        under the reference
    rewards : (N,), of all responses; that of an impossible one is not read
    beta : the price of a nat, at least 0

    Returns
    -------
    float64; ``-inf`` where the policy leaves what the reference can write
    and beta is above 0

    Raises
    ------
    ValueError for shapes that disagree or a negative beta.

    Source: Ziegler et al. (2019), equation 2; Ouyang et al. (2022),
    equation 2.

    Examples
    --------
    >>> float(regularized_objective([1.0, 0.0], [0.5, 0.5], [1.0, 0.0], beta=0.5).round(4))
    0.6534
    """
    p = np.asarray(p, dtype=np.float64)
    expected = (p * np.where(p > 0, rewards, 0.0).astype(np.float64)).sum()
    return expected - beta * kl_divergence(p, p_ref) if beta > 0 else expected


def _can_be_solved(given):
    if given["beta"] == 0:
        raise ValueError(
            "beta: expected a number above 0, got 0: without a penalty every policy that writes only best "
            "responses is best, and log Z is infinite"
        )
    if np.isneginf(np.asarray(given["logp_ref"], dtype=np.float64)).all():
        raise ValueError("logp_ref: expected a response of positive probability, got none")


@validated(_can_be_solved, logp_ref=numbers("N"), rewards=numbers("N"), beta=real(0))
def optimal_policy(logp_ref, rewards, beta):
    """The policy that is best for reward minus penalty, in closed form.

        log pi*(y) = log pi_ref(y) + r(y) / beta - log Z
        log Z      = log sum_y pi_ref(y) exp(r(y) / beta)

    It multiplies the reference's odds between two responses by
    exp((r_1 - r_2) / beta), and attains the objective beta log Z. The best
    reward among allowed responses is taken off before the division: that
    cancels in pi*, and no exponent is above 0, however small beta is.

    Parameters
    ----------
    logp_ref : (N,), log-probabilities of all responses under the
        reference; ``-inf`` for one that it never writes
    rewards : (N,), of all responses
    beta : the price of a nat, above 0

    Returns
    -------
    (logp_star, log_z): (N,) float64, nats, ``-inf`` where logp_ref is;
    and a float64

    Raises
    ------
    ValueError for shapes that disagree, a negative beta, and beta = 0,
    where every policy that writes only best responses is best.

    Source: Korbak, Perez and Buckley (2022), section 3; Rafailov et al.
    (2023), equation 4.

    Examples
    --------
    >>> logp, log_z = optimal_policy(np.log([0.5, 0.5]), [0.0, np.log(3.0)], beta=1.0)
    >>> np.exp(logp).round(6), float(np.exp(log_z).round(6))
    (array([0.25, 0.75]), 2.0)
    """
    logp_ref = np.asarray(logp_ref, dtype=np.float64)
    allowed = ~np.isneginf(logp_ref)
    r = np.where(allowed, rewards, 0.0).astype(np.float64)
    best = r[allowed].max()
    with np.errstate(over="ignore"):  # a tiny beta takes all but the best to -inf, as it should
        tilted = logp_ref + np.where(allowed, r - best, 0.0) / beta
        peak = tilted.max()
        log_sum = peak + np.log(np.exp(tilted - peak).sum())
        return tilted - log_sum, best / beta + log_sum


@validated(
    logp=numbers("B T"), logp_ref=numbers("B T"), score=numbers("B"), mask=mask_of("B T"), beta=real(0)
)
def kl_penalized_rewards(logp, logp_ref, score, mask, beta):
    """The reward of every token when the KL penalty is part of it.

        r_t = 1[t last] score - beta (log pi(y_t | x, y_<t)
                                      - log pi_ref(y_t | x, y_<t))

    Their sum over a response is score - beta log(pi(y) / pi_ref(y)), whose
    expectation is the objective of `regularized_objective`.

    Parameters
    ----------
    logp, logp_ref : (B, T), nats, log-probs of the drawn tokens under the
        policy that drew them and under the reference
    score : (B,), of the whole response; that of an empty row is not read
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    beta : the price of a nat, at least 0

    Returns
    -------
    (B, T) float64, 0 at padding

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, a
    negative beta.

    Source: Ouyang et al. (2022), section 3.5; Ziegler et al. (2019),
    section 2.

    Examples
    --------
    >>> logp, logp_ref = [[-1.0, -1.2, -1.0]], [[-1.5, -1.0, -2.0]]
    >>> kl_penalized_rewards(logp, logp_ref, [1.0], [[1, 1, 1]], beta=0.1).round(6)
    array([[-0.05,  0.02,  0.9 ]])
    """
    rewards = terminal_rewards(score, mask)
    if beta == 0:  # 0 times an infinite log-ratio is no penalty, not NaN
        return rewards
    real_token = np.asarray(mask) == 1
    now = np.where(real_token, logp, 0.0).astype(np.float64)
    ref = np.where(real_token, logp_ref, 0.0).astype(np.float64)
    return rewards - beta * (now - ref)


def _has_a_row_for_each_prefix(given):
    rows, vocab_size = np.shape(given["logp_table"])
    length, expected = 0, 0
    while expected < rows:
        expected += vocab_size**length
        length += 1
    if expected != rows or rows == 0:
        raise ValueError(
            f"logp_table: expected a row for each prefix, 1 + V + V**2 + ... of them with V = {vocab_size}, "
            f"got {rows}"
        )


@validated(_has_a_row_for_each_prefix, logp_table=numbers("R V"), logp_ref_table=numbers("R V"))
def per_token_kl(logp_table, logp_ref_table):
    """Where along the response the policy leaves the reference.

        KL_t = sum_{y_<t} pi(y_<t)  KL(pi(. | y_<t) || pi_ref(. | y_<t))

    Chain rule: the entries add up to the KL of the whole responses.

    Parameters
    ----------
    logp_table, logp_ref_table : (1 + V + ... + V**(T-1), V), normalised
        log-probs, a row for each prefix: by length, then lexicographic

    Returns
    -------
    (T,) float64, nats; a prefix that the policy never reaches adds 0

    Raises
    ------
    ValueError for shapes that disagree, or with other than
    1 + V + ... + V**(T-1) rows.

    Source: Cover and Thomas (2006), theorem 2.5.3.

    Examples
    --------
    >>> policy = np.log([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    >>> reference = np.log([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    >>> per_token_kl(policy, reference).round(4)  # half of the time 0.1438
    array([0.    , 0.0719])
    """
    logp = np.asarray(logp_table, dtype=np.float64)  # (prefixes, V)
    logp_ref = np.asarray(logp_ref_table, dtype=np.float64)
    p = np.exp(logp)
    possible = p > 0
    # Not by way of probabilities: the reference's may be e^-800, which is 0, and the KL would be infinite.
    log_ratio = np.where(possible, logp, 0.0) - np.where(possible, logp_ref, 0.0)
    kl = (np.where(possible, p, 0.0) * log_ratio).sum(axis=1)  # (prefixes,)
    reached = np.ones(1)  # the probability of each prefix of t tokens
    kl_by_position = []
    first_row = 0
    while first_row < len(p):
        rows = slice(first_row, first_row + len(reached))
        kl_by_position.append((reached * np.where(reached > 0, kl[rows], 0.0)).sum())
        first_row = rows.stop
        reached = np.where(reached[:, None] > 0, reached[:, None] * p[rows], 0.0).reshape(-1)
    return np.array(kl_by_position)


@validated(beta=real(0), observed_kl=real(), target_kl=above(0), batch_size=whole(0), horizon=above(0))
def adapt_beta(beta, observed_kl, target_kl, batch_size, horizon=10_000):
    """The next beta, so that the KL settles at its target.

        error = clip(observed_kl / target_kl - 1, -0.2, 0.2)
        beta' = beta (1 + error batch_size / horizon)

    A controller in log space: the price rises while the policy is too far
    from the reference and falls while it is too near.

    Parameters
    ----------
    beta : the present price of a nat, at least 0
    observed_kl : nats per response, as just measured
    target_kl : nats per response, above 0
    batch_size : responses since the last change
    horizon : responses over which a full error would act once; above 0

    Returns
    -------
    float

    Raises
    ------
    ValueError for a target or horizon that is not above 0, a negative beta
    or batch.

    Source: Ziegler et al. (2019), section 2.2, with the code's `horizon`.

    Examples
    --------
    >>> round(adapt_beta(0.1, observed_kl=9.0, target_kl=6.0, batch_size=500), 6)
    0.101
    >>> round(adapt_beta(0.1, observed_kl=5.7, target_kl=6.0, batch_size=500), 6)
    0.09975
    """
    beta, observed_kl, target_kl, batch_size, horizon = map(
        float, (beta, observed_kl, target_kl, batch_size, horizon)
    )
    error = min(max(observed_kl / target_kl - 1, -0.2), 0.2)
    return beta * (1 + error * batch_size / horizon)
