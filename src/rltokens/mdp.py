"""Chapter 1: the token-level Markov decision process."""

import numpy as np

from rltokens.validation import validated, whole


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
