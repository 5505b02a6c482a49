"""Chapter 1: the token-level Markov decision process."""

import numpy as np

from rltokens.validation import counts, numbers, real, validated, whole


def _is_unfinished(given):
    state, eos, max_length = given["state"], given["eos"], given["max_length"]
    pair = isinstance(state, tuple) and len(state) == 2 and all(isinstance(part, tuple) for part in state)
    if not pair:
        raise ValueError(f"state: expected two tuples, (prompt, response), got {state!r}")
    response = state[1]
    if eos in response:
        raise ValueError(f"state: the response has ended with EOS {eos}: no token can follow, got {state!r}")
    if len(response) >= max_length:
        raise ValueError(f"state: the response has all of its {max_length} tokens, got {state!r}")


@validated(_is_unfinished, action=whole(0), eos=whole(0), max_length=whole(1))
def transition(state, action, eos, max_length):
    """One step of the environment: the chosen token is appended.

        s_{t+1} = (x, y_<t + (y_t,))

    The next state follows from state and action with certainty; all
    chance in writing a text lies in the policy.

    Parameters
    ----------
    state : (prompt, response), two tuples of token ids
    action : int, the token to append
    eos : int, the token that ends a response; in the prompt it means
        nothing
    max_length : int, the most tokens that a response may have, at least 1

    Returns
    -------
    (next_state, terminated, truncated): `terminated` where the action is
    EOS, `truncated` where the response now has `max_length` tokens and
    the last is not EOS.

    Raises
    ------
    ValueError from a state whose response has ended already.

    Source: Sutton and Barto (2018), section 3.1; `terminated` and
    `truncated` as in Gymnasium (Towers et al. 2024).

    Examples
    --------
    >>> transition(((5, 9), (2,)), action=3, eos=9, max_length=3)
    (((5, 9), (2, 3)), False, False)
    >>> transition(((5, 9), (2, 3)), action=9, eos=9, max_length=3)
    (((5, 9), (2, 3, 9)), True, False)
    >>> transition(((5, 9), (2, 3)), action=3, eos=9, max_length=3)
    (((5, 9), (2, 3, 3)), False, True)
    """
    prompt, response = state
    response = (*response, action)
    terminated = action == eos
    truncated = len(response) == max_length and not terminated
    return (prompt, response), terminated, truncated


def _allows_a_token(given):
    if np.isneginf(np.max(given["logits"], axis=-1)).any():
        raise ValueError("logits: expected a token of positive probability in every row, got only -inf")


@validated(_allows_a_token, logits=numbers("... V"), u=numbers("...", low=0, below=1), temperature=real(0))
def sample_token(logits, u, temperature=1.0):
    """Turn a uniform number into a token, and say how likely it was.

        k    = min { k : p_0 + ... + p_k > u },
        p    = softmax(logits / temperature)
        logp = log p_k

    The interval [0, 1) is cut into pieces of lengths p_0, p_1, ...; the
    token is the piece in which u lies. A token of probability 0 has an
    empty piece.

        u    0        0.5     0.75     1
        p    [   0    )[   1   )[  2   )      p = (0.5, 0.25, 0.25)

    Parameters
    ----------
    logits : (..., V); ``-inf`` forbids a token
    u : (...), of the shape of the leading axes, in [0, 1)
    temperature : divides the logits; 0 takes the most likely token, the
        lowest id among equals

    Returns
    -------
    (token, logp), int64 and float64, each (...). `logp` is that of the
    distribution sampled from, in nats: with temperature 2 not the
    model's own, and 0 where the choice is greedy.

    Raises
    ------
    ValueError for u outside [0, 1), a negative temperature, a row that
    forbids every token.

    Source: inverse transform sampling, Devroye (1986), chapter III.2.

    Examples
    --------
    >>> token, logp = sample_token(np.log([0.5, 0.25, 0.25]), u=0.6)
    >>> int(token), float(np.exp(logp).round(6))
    (1, 0.25)
    >>> token, logp = sample_token([1.0, 3.0, 3.0], u=0.9, temperature=0)
    >>> int(token), float(logp)
    (1, 0.0)
    """
    z = np.asarray(logits, dtype=np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    if temperature == 0:
        token = np.argmax(z, axis=-1)
        return token, np.zeros(token.shape)
    with np.errstate(over="ignore"):  # a tiny temperature takes unlikely tokens to -inf, as it should
        z = z / temperature
    p = np.exp(z)
    logp = z - np.log(p.sum(axis=-1, keepdims=True))
    cdf = np.cumsum(np.exp(logp), axis=-1)
    token = (cdf <= np.asarray(u, dtype=np.float64)[..., None]).sum(axis=-1)
    # Rounding can leave the last sum below u; the piece of the last possible token reaches up to 1.
    last_possible = z.shape[-1] - 1 - np.argmax(p[..., ::-1] > 0, axis=-1)
    token = np.minimum(token, last_possible)
    return token, np.take_along_axis(logp, token[..., None], axis=-1)[..., 0]


@validated(tokens=numbers("B T"), eos=whole(0), lengths=counts("B", up_to="T"))
def response_mask(tokens, eos, lengths=None):
    """1 for the tokens of each response, its first EOS included.

        mask[b, t] = 1  if t < lengths[b] and no tokens[b, s] = eos, s < t

        tokens   7  4  EOS  EOS  EOS         (EOS also pads)
        mask     1  1   1    0    0

    Parameters
    ----------
    tokens : (B, T) ids; the pad id may be that of EOS
    eos : int, the token that ends a response
    lengths : (B,) whole numbers in 0..T, the tokens that were sampled in
        each row; what stands behind them is padding, EOS or not. Without
        it a row with no EOS is a response of T tokens.

    Returns
    -------
    (B, T) int64

    Raises
    ------
    ValueError for an `eos` that is not an id, lengths outside 0..T.

    Examples
    --------
    >>> response_mask([[7, 4, 0, 0], [7, 4, 3, 5]], eos=0)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    >>> response_mask([[7, 4, 0, 0]], eos=0, lengths=[2])
    array([[1, 1, 0, 0]])
    """
    ids = np.asarray(tokens)
    is_eos = ids == eos
    ended_before = np.cumsum(is_eos, axis=1) - is_eos > 0
    rows, length = ids.shape
    sampled = np.full(rows, length) if lengths is None else np.asarray(lengths)
    return (~ended_before & (np.arange(length) < sampled[:, None])).astype(np.int64)


@validated(vocab_size=whole(1), length=whole(1))
def enumerate_responses(vocab_size, length):
    """All responses of `length` tokens, in lexicographic order.

    Parameters
    ----------
    vocab_size : int, V, at least 1
    length : int, T, at least 1

    Returns
    -------
    (V**T, T) int64 array; row i is i written in base V, so the last token changes fastest.

    Raises
    ------
    ValueError if either argument is not a whole number of at least 1.

    Examples
    --------
    >>> enumerate_responses(2, 2)
    array([[0, 0],
           [0, 1],
           [1, 0],
           [1, 1]])
    """
    place_values = vocab_size ** np.arange(length)[::-1]
    return np.arange(vocab_size**length)[:, None] // place_values % vocab_size
