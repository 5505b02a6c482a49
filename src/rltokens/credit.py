"""Chapter 3: one reward at the end, and how each token gets its share of it."""

import numpy as np

from rltokens.logprobs import log_softmax
from rltokens.validation import mask_of, numbers, real, token_ids, validated


@validated(score=numbers("B"), mask=mask_of("B T"))
def terminal_rewards(score, mask):
    """The reward of every token: the score on the last one, else 0.

        r[b, t] = score[b]  where t is the last t with mask[b, t] = 1

    Parameters
    ----------
    score : (B,), of the whole response; that of an empty row is not read
    mask : (B, T) of 1 for a token of the response and 0 elsewhere

    Returns
    -------
    (B, T) float64, 0 at padding. The last token counts whether it is EOS
    or the response was cut off there.

    Raises
    ------
    ValueError for shapes that disagree or a mask other than 0 and 1.

    Source: Ouyang et al. (2022), section 3.5.

    Examples
    --------
    >>> terminal_rewards([5.0, 7.0], [[1, 1, 0], [1, 1, 1]])
    array([[0., 5., 0.],
           [0., 0., 7.]])
    """
    real_token = np.asarray(mask) == 1
    behind = real_token[:, ::-1].cumsum(axis=1)[:, ::-1]  # real tokens from t on
    is_last = real_token & (behind == 1)
    return np.where(is_last, np.asarray(score)[:, None], 0.0).astype(np.float64)


@validated(rewards=numbers("B T"), mask=mask_of("B T"), gamma=real(0, 1))
def returns_to_go(rewards, mask, gamma=1.0):
    """What is still to come, from each token on.

        G_t = r_t + gamma G_{t+1},   G = 0 after the last token

    where t + 1 is the next real token: a masked position is skipped as if
    it were not there.

        rewards   0   0   0   1        mask all 1, gamma = 0.5
        returns  1/8 1/4 1/2  1

    Parameters
    ----------
    rewards : (B, T), paid for each token; anything where mask is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    gamma : the discount, in [0, 1]

    Returns
    -------
    (B, T) float64, 0 at padding

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, gamma
    outside [0, 1].

    Source: Sutton and Barto (2018), equation 3.9.

    Examples
    --------
    >>> returns_to_go([[0.0, 0.0, 0.0, 1.0]], [[1, 1, 1, 1]], gamma=0.5)
    array([[0.125, 0.25 , 0.5  , 1.   ]])
    """
    real_token = np.asarray(mask) == 1
    r = np.where(real_token, rewards, 0.0).astype(np.float64)
    returns = np.zeros_like(r)
    to_come = np.zeros(len(r))
    for t in reversed(range(r.shape[1])):
        to_come = np.where(real_token[:, t], r[:, t] + gamma * to_come, to_come)
        returns[:, t] = np.where(real_token[:, t], to_come, 0.0)
    return returns


@validated(
    logits=numbers("B T V"), tokens=token_ids("B T", below="V"), weights=numbers("B T"), mask=mask_of("B T")
)
def policy_gradient_logits(logits, tokens, weights, mask):
    """The policy gradient, in the logits that the tokens were drawn from.

        d/dz  sum_bt w[b, t] log pi(y[b, t]),   pi = softmax(z)
            = w[b, t] (one_hot(y[b, t]) - pi[b, t])

    A step along it makes tokens of positive weight more likely. Each row
    adds up to 0: what one token gains, the others lose.

    Parameters
    ----------
    logits : (B, T, V), entry [b, t] what tokens[b, t] was drawn from
    tokens : (B, T) ids in 0..V-1; anything where mask is 0
    weights : (B, T), returns or advantages; anything where mask is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere

    Returns
    -------
    (B, T, V) float64, the gradient of a sum, to ascend; 0 at padding

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, an id
    out of range at a real token.

    Source: Williams (1992), section 5.

    Examples
    --------
    >>> logits = np.log([[[0.5, 0.25, 0.25]]])
    >>> policy_gradient_logits(logits, [[1]], [[2.0]], [[1]]).round(6)
    array([[[-1. ,  1.5, -0.5]]])
    """
    real_token = np.asarray(mask) == 1
    z = np.where(real_token[..., None], logits, 0.0)
    ids = np.where(real_token, tokens, 0).astype(np.int64)
    w = np.where(real_token, weights, 0.0).astype(np.float64)
    drawn = np.arange(z.shape[-1]) == ids[..., None]  # (B, T, V), one-hot
    return w[..., None] * (drawn - np.exp(log_softmax(z)))


@validated(
    rewards=numbers("B T"),
    values=numbers("B T"),
    mask=mask_of("B T"),
    gamma=real(0, 1),
    lam=real(0, 1),
    bootstrap_value=numbers("B"),
)
def gae(rewards, values, mask, gamma=1.0, lam=0.95, bootstrap_value=None):
    """Generalized advantage estimation over the tokens of each response.

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1},   A = 0 after the last token

    where t + 1 is the next real token, and after the last one V is
    `bootstrap_value`. With lam = 1 the advantage is the return minus the
    value: no bias from the critic, much variance; with lam = 0 it is
    delta_t alone: the critic is trusted for everything after one token.

    Parameters
    ----------
    rewards : (B, T), paid for each token; anything where mask is 0
    values : (B, T), the critic's value *before* each token
    mask : (B, T) of 1 for a token of the response and 0 elsewhere; a
        masked position is skipped as if it were not there
    gamma, lam : discount and trace decay, each in [0, 1]
    bootstrap_value : (B,), the value after the last real token: 0 for a
        response that is finished, the critic's for one that goes on.
        None is 0 for all.

    Returns
    -------
    (advantages, returns), (B, T) float64 each, 0 at padding; returns are
    advantages + values, what the critic is trained towards

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, gamma
    or lam outside [0, 1].

    Source: Schulman et al. (2016), equations 11 and 16.

    Examples
    --------
    >>> rewards, values = [[0.0, 0.0, 1.0]], [[0.5, 0.25, 0.75]]
    >>> advantages, returns = gae(rewards, values, [[1, 1, 1]], lam=0.5)
    >>> advantages  # the deltas are -0.25, 0.5, 0.25
    array([[0.0625, 0.625 , 0.25  ]])
    >>> returns
    array([[0.5625, 0.875 , 1.    ]])
    """
    real_token = np.asarray(mask) == 1
    r = np.where(real_token, rewards, 0.0).astype(np.float64)
    v = np.where(real_token, values, 0.0).astype(np.float64)
    if bootstrap_value is None:
        bootstrap_value = np.zeros(len(r))
    next_value = np.where(real_token.any(axis=1), bootstrap_value, 0.0).astype(np.float64)
    next_advantage = np.zeros(len(r))
    advantages = np.zeros_like(r)
    for t in reversed(range(r.shape[1])):
        delta = r[:, t] + gamma * next_value - v[:, t]
        advantage = delta + gamma * (lam * next_advantage)
        next_advantage = np.where(real_token[:, t], advantage, next_advantage)
        next_value = np.where(real_token[:, t], v[:, t], next_value)
        advantages[:, t] = np.where(real_token[:, t], advantage, 0.0)
    return advantages, advantages + v


def _has_others(given):
    if np.shape(given["scores"])[1] < 2:
        raise ValueError(
            "scores: expected at least 2 responses in a group, since each is compared with the others, "
            f"got {np.shape(given['scores'])[1]}"
        )


@validated(_has_others, scores=numbers("N G"))
def leave_one_out_advantages(scores):
    """Each score minus the mean of the *other* scores of its group.

        A_i = s_i - 1 / (G - 1)  sum_{j != i} s_j
            = G / (G - 1) (s_i - mean(s))

    The others were drawn without knowledge of response i, so their mean is
    a baseline that leaves the expected gradient as it was; a mean with s_i
    in it would shrink it by (G - 1) / G.

    Parameters
    ----------
    scores : (N, G), a group of G responses to one prompt in each row,
        G at least 2

    Returns
    -------
    (N, G) float64; each row adds up to 0

    Raises
    ------
    ValueError for G = 1.

    Source: Kool, van Hoof and Welling (2019); for language models Ahmadian
    et al. (2024), section 3.

    Examples
    --------
    >>> leave_one_out_advantages([[1.0, 0.0, 0.0]])
    array([[ 1. , -0.5, -0.5]])
    """
    s = np.asarray(scores, dtype=np.float64)
    group_size = s.shape[1]
    return (s - s.mean(axis=1, keepdims=True)) * (group_size / (group_size - 1))


@validated(scores=numbers("N G"), eps=real(0))
def group_normalized_advantages(scores, eps=1e-6):
    """Each score in standard deviations from its group's mean.

        A_i = (s_i - mean(s)) / (std(s) + eps)

    with the population's standard deviation (over G, not G - 1).

    Parameters
    ----------
    scores : (N, G), a group of G responses to one prompt in each row
    eps : added to the standard deviation, at least 0

    Returns
    -------
    (N, G) float64; exactly 0 in a group whose scores are equal, a group of
    one among them

    Raises
    ------
    ValueError for scores that are no table, a negative eps.

    Source: Shao et al. (2024), section 4.1.2.

    Examples
    --------
    >>> group_normalized_advantages([[0.0, 2.0], [0.1, 0.1]], eps=0.0)
    array([[-1.,  1.],
           [ 0.,  0.]])
    """
    s = np.asarray(scores, dtype=np.float64)
    # The mean of equal numbers can miss them by a rounding error, and eps would not hide it.
    varies = s.min(axis=1, keepdims=True) < s.max(axis=1, keepdims=True)
    centered = np.where(varies, s - s.mean(axis=1, keepdims=True), 0.0)
    scale = s.std(axis=1, keepdims=True) + eps
    return centered / np.where(varies, scale, 1.0)


@validated(x=numbers("B T"), mask=mask_of("B T"))
def masked_mean(x, mask):
    """The mean over all real tokens of the batch.

        sum_bt mask[b, t] x[b, t] / sum_bt mask[b, t]

    A long response weighs more than a short one: this is not the mean of
    the rows' means.

    Parameters
    ----------
    x : (B, T); anything where mask is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere

    Returns
    -------
    float64; 0 where no token is real

    Raises
    ------
    ValueError for shapes that disagree or a mask other than 0 and 1.

    Examples
    --------
    >>> float(masked_mean([[1.0, 2.0], [6.0, 99.0]], [[1, 1], [1, 0]]))
    3.0
    """
    real_token = np.asarray(mask) == 1
    kept = np.where(real_token, x, 0.0).astype(np.float64)
    return kept.sum() / max(real_token.sum(), 1)


def masked_whiten(x, mask, shift_mean=True):
    """Shift and scale to mean 0 and variance 1 over all real tokens.

        (x - mean) / sqrt(var + 1e-8),   var = mean of (x - mean)^2

    Parameters
    ----------
    x : (B, T); anything where mask is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    shift_mean : with False the mean is added back after scaling, so that
        only the scale changes

    Returns
    -------
    (B, T) float64, 0 at padding

    Raises
    ------
    ValueError as `masked_mean`.

    Source: Ziegler et al. (2019), whose code whitens advantages with, and
    rewards without, the shift.

    Examples
    --------
    >>> masked_whiten([[1.0, 3.0, 99.0]], [[1, 1, 0]]).round(6)
    array([[-1.,  1.,  0.]])
    >>> masked_whiten([[1.0, 3.0]], [[1, 1]], shift_mean=False).round(6)
    array([[1., 3.]])
    """
    mean = masked_mean(x, mask)
    real_token = np.asarray(mask) == 1
    centered = np.where(real_token, x, mean).astype(np.float64) - mean
    variance = masked_mean(centered**2, mask)
    whitened = centered / np.sqrt(variance + 1e-8)
    return np.where(real_token, whitened if shift_mean else whitened + mean, 0.0)
