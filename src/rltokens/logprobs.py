"""Chapter 2: the probability of a response factorizes over its tokens, so its logarithm is a sum."""

import numpy as np

from rltokens.validation import mask_of, numbers, token_ids, validated, whole


@validated(logits=numbers("... V"))
def log_softmax(logits):
    r"""Log-probabilities from logits, stable for logits of any size.

        log_softmax(z)_v = z_v - m - log sum_w exp(z_w - m),   m = max_w z_w

    Taking the maximum m off first changes nothing in exact arithmetic,
    since it cancels; in floating point it keeps every exponent at or
    below 0, so that nothing overflows, and one term at exp(0) = 1, so
    that the sum is never 0.

    Parameters
    ----------
    logits : (..., V) real numbers; ``-inf`` forbids a token

    Returns
    -------
    (..., V) float64, in nats; ``-inf`` where the logit is ``-inf`` (also
    for a row of nothing else).

    Raises
    ------
    ValueError if `logits` has no axis, or an empty last one.

    Source: Blanchard, Higham and Higham (2021).

    Examples
    --------
    >>> np.exp(log_softmax([0.0, 0.0, np.log(2.0)])).round(6)
    array([0.25, 0.25, 0.5 ])
    >>> log_softmax([1000.0, 1000.0]).round(4)
    array([-0.6931, -0.6931])
    """
    z = np.asarray(logits, dtype=np.float64)
    peak = z.max(axis=-1, keepdims=True)
    shifted = z - np.where(np.isneginf(peak), 0.0, peak)
    total = np.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - np.log(np.where(total > 0, total, 1.0))


@validated(logits=numbers("B L V"), prompt_length=whole(1, "L"))
def next_token_logits(logits, prompt_length):
    """The logits that predict the response, cut out of those of all tokens.

    A language model reads P prompt tokens and T response tokens and
    returns a row for each of them. The row at index i is the distribution
    of the token at index i + 1: the first response token, at index P, was
    drawn from row P - 1, and the last row predicts a token that was never
    drawn.

        index       0     ...   P-1    P     ...  P+T-2  P+T-1
        token       x_1   ...   x_P    y_1   ...  y_T-1  y_T
        predicts    x_2   ...   y_1    y_2   ...  y_T    (nothing)
        returned                ^^^^^^^^^^^^^^^^^^^^^^^

    Parameters
    ----------
    logits : (B, P+T, V), a row of logits for every token read
    prompt_length : int, P, the same for the whole batch, from 1 to P+T

    Returns
    -------
    (B, T, V) float64; entry [b, t] is what token t of response b was
    drawn from.

    Raises
    ------
    ValueError for P = 0 (nothing was read that could predict the first
    token) or P above the length.

    Examples
    --------
    >>> logits = np.arange(4.0).reshape(1, 4, 1)  # row i holds the number i
    >>> next_token_logits(logits, prompt_length=2)[0, :, 0]
    array([1., 2.])
    """
    return np.asarray(logits, dtype=np.float64)[:, prompt_length - 1 : -1]


@validated(logits=numbers("B T V"), tokens=token_ids("B T", below="V"), mask=mask_of("B T"))
def token_logprobs(logits, tokens, mask):
    """The log-probability of each drawn token, given its prompt and prefix.

        logp[b, t] = log_softmax(logits[b, t])[tokens[b, t]]

    where mask[b, t] is 1, and 0 elsewhere.

    Parameters
    ----------
    logits : (B, T, V), entry [b, t] the logits that tokens[b, t] was
        drawn from (already shifted)
    tokens : (B, T) ids in 0..V-1; anything where mask is 0
    mask : (B, T) of 1 for a token of the response (its first EOS
        included) and 0 elsewhere

    Returns
    -------
    (B, T) float64, in nats, 0 at padding, ``-inf`` for a token of
    probability 0.

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, an id
    out of range at a real token.

    Examples
    --------
    >>> logits = np.log([[[0.5, 0.5], [0.2, 0.8]]])
    >>> token_logprobs(logits, [[0, 1]], [[1, 1]]).round(4)
    array([[-0.6931, -0.2231]])
    >>> token_logprobs(logits, [[0, 99]], [[1, 0]]).round(4)
    array([[-0.6931,  0.    ]])
    """
    real = np.asarray(mask) == 1
    z = np.where(real[..., None], logits, 0.0)  # (B, T, V)
    ids = np.where(real, tokens, 0).astype(np.int64)  # (B, T)
    logp = np.take_along_axis(log_softmax(z), ids[..., None], axis=-1)  # (B, T, 1)
    return np.where(real, logp[..., 0], 0.0)


def sequence_logprobs(logits, tokens, mask):
    """The log-probability of each whole response, by the chain rule.

        log pi(y | x) = sum_t log pi(y_t | x, y_<t)   over the real tokens t

    Parameters
    ----------
    logits : (B, T, V), entry [b, t] the logits that tokens[b, t] was
        drawn from (already shifted)
    tokens : (B, T) ids in 0..V-1; anything where mask is 0
    mask : (B, T) of 1 for a token of the response (its first EOS
        included) and 0 elsewhere

    Returns
    -------
    (B,) float64, in nats; 0 for a row without real tokens, ``-inf`` where
    a token has probability 0.

    Raises
    ------
    ValueError as `token_logprobs`.

    Examples
    --------
    >>> logits = np.log([[[0.5, 0.5], [0.2, 0.8]]])
    >>> logp = sequence_logprobs(logits, [[0, 1]], [[1, 1]])
    >>> np.exp(logp).round(4)  # 0.5 * 0.8
    array([0.4])
    """
    return token_logprobs(logits, tokens, mask).sum(axis=1)


@validated(logp=numbers("B T"), logp_old=numbers("B T"), mask=mask_of("B T"))
def importance_ratios(logp, logp_old, mask):
    """How much more likely each token is now than when it was drawn.

        rho[b, t] = pi(y_t | x, y_<t) / pi_old(y_t | x, y_<t)
                  = exp(logp[b, t] - logp_old[b, t])

    Parameters
    ----------
    logp, logp_old : (B, T), nats, of the current policy and of the one
        that drew the tokens
    mask : (B, T) of 1 for a token of the response and 0 elsewhere

    Returns
    -------
    (B, T) float64; 1 at padding, so that a product over the row is the
    ratio of the whole response.

    Raises
    ------
    ValueError for shapes that disagree or a mask other than 0 and 1.

    Source: Schulman et al. (2017), section 3, where the ratio is called
    r_t(theta).

    Examples
    --------
    >>> now, old = np.log([[0.6, 0.1]]), np.log([[0.3, 0.2]])
    >>> importance_ratios(now, old, [[1, 1]]).round(6)
    array([[2. , 0.5]])
    """
    real = np.asarray(mask) == 1
    now = np.where(real, logp, 0.0).astype(np.float64)
    old = np.where(real, logp_old, 0.0).astype(np.float64)
    return np.exp(now - old)


def _has_a_row_for_each_prefix(given):
    vocab_size, length = given["vocab_size"], given["length"]
    expected = (sum(vocab_size**t for t in range(length)), vocab_size)
    if np.shape(given["logit_table"]) != expected:
        raise ValueError(
            f"logit_table: expected shape {expected}, a row for each prefix of fewer than {length} tokens, "
            f"got {np.shape(given['logit_table'])}"
        )


@validated(_has_a_row_for_each_prefix, logit_table=numbers("R V"), vocab_size=whole(1), length=whole(1))
def sequence_distribution(logit_table, vocab_size, length):
    """Log-probabilities of *all* responses of a model that is a table.

    The table has a row of logits for each prefix: row 0 for the empty
    one, the next V rows for the prefixes of one token, then V**2 for
    those of two, each group in lexicographic order. Going through the
    positions, every prefix of t tokens splits into V prefixes of t + 1:

        log pi(y_1..y_t+1) = log pi(y_1..y_t)
                             + log_softmax(row of y_1..y_t)[y_t+1]

    Parameters
    ----------
    logit_table : (1 + V + ... + V**(T-1), V) logits
    vocab_size, length : int, V and T, both at least 1

    Returns
    -------
    (V**T,) float64, nats, in the order of `enumerate_responses`; the
    exponentials add up to 1.

    Raises
    ------
    ValueError for a table of another shape.

    Examples
    --------
    >>> table = np.log([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    >>> np.exp(sequence_distribution(table, vocab_size=2, length=2)).round(4)
    array([0.45, 0.05, 0.1 , 0.4 ])
    """
    logp = log_softmax(logit_table)  # (prefixes, V)
    total = np.zeros(1)  # the empty prefix is certain
    first_row = 0
    for t in range(length):
        rows = vocab_size**t  # the prefixes of t tokens
        total = (total[:, None] + logp[first_row : first_row + rows]).reshape(-1)
        first_row += rows
    return total
