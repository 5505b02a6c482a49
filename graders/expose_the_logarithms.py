"""Exercise: find inputs on which two plausible versions of log_softmax are wrong."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, Wrong

TITLE = "Break two versions of log-softmax"
DIFFICULTY = "medium"
MINUTES = 10
POINTS = 3

STATEMENT = """
Two versions of `log_softmax` stand above, and both are found in real code. They take off the maximum, so
neither overflows. Both take the logarithm of a probability, and that is their mistake. The second adds a
little number, so that the logarithm is never one of 0.

Find rows of logits that give them away: finite numbers of at most 1,000 in size, at least two in a row.
Give back two such rows in a tuple.

- On the **first row**, `log_of_softmax` is right to within 1e-6, while `log_with_epsilon` is more than 10
  nats off somewhere.
- On the **second row**, both are more than 10 nats off somewhere. An infinity in place of a number is off.
"""

HINTS = [
    "Take two tokens and let the gap between them grow. At which gap does 1e-12 become larger than the "
    "probability that it is added to?",
    "log(1e-12) is -27.6: below that, `log_with_epsilon` cannot go. The smallest positive float is about "
    "e^-745: what is the logarithm of a probability that rounds to 0?",
]


def log_of_softmax(z):
    weights = np.exp(z - np.max(z))
    with np.errstate(divide="ignore"):
        return np.log(weights / weights.sum())


def log_with_epsilon(z):
    weights = np.exp(z - np.max(z))
    return np.log(weights / weights.sum() + 1e-12)


GIVEN = [log_of_softmax, log_with_epsilon]


def expose_the_logarithms():
    """Two rows of logits that give wrong versions of `log_softmax` away.

    Returns
    -------
    (first, second): on the first row only `log_with_epsilon` is wrong, on
    the second both are; each (V,), finite, at most 1000 in size

    Examples
    --------
    >>> first, second = expose_the_logarithms()
    >>> float(log_with_epsilon(np.array(first)).min().round(1))
    -27.6
    """
    return [0.0, 100.0], [0.0, 900.0]


def true_log_softmax(z):
    """Straight from the definition, which is safe for the two of them: the best logit is taken off."""
    shifted = z - z.max()
    return shifted - np.log(np.exp(shifted).sum())


def read_row(rows, which):
    """One of the learner's two rows as an array, if it keeps to the rules."""
    if not isinstance(rows, (tuple, list)) or len(rows) != 2:
        raise BadForm("expected a tuple of two rows")
    try:
        row = np.asarray(rows[which], dtype=np.float64)
    except (TypeError, ValueError):
        raise BadForm("expected rows of numbers") from None
    if row.ndim != 1 or row.size < 2:
        raise BadForm(f"expected a row of at least two logits, got an array of shape {row.shape}")
    if not np.isfinite(row).all() or np.abs(row).max() > 1000:
        raise Wrong("logits must be finite and at most 1,000 in size: with others anything breaks")
    return row


def error_of(version, row):
    """How far off in nats, at the worst token; an infinity is infinitely far off."""
    return np.abs(version(row) - true_log_softmax(row)).max()


def epsilon_is_given_away(expose_the_logarithms, rng):
    error = error_of(log_with_epsilon, read_row(expose_the_logarithms(), 0))
    if not error > 10:
        raise Wrong(f"on your first row log_with_epsilon is {error:.2g} nats off: more than 10 are asked for")


def the_other_is_still_right(expose_the_logarithms, rng):
    row = read_row(expose_the_logarithms(), 0)
    if not error_of(log_with_epsilon, row) > 10:
        raise Wrong("your first row gives log_with_epsilon not away")
    error = error_of(log_of_softmax, row)
    if not error < 1e-6:
        raise Wrong(
            f"on your first row log_of_softmax is wrong too, by {error:.2g} nats: it should be right there"
        )


def both_are_given_away(expose_the_logarithms, rng):
    row = read_row(expose_the_logarithms(), 1)
    for version in (log_of_softmax, log_with_epsilon):
        error = error_of(version, row)
        if not error > 10:
            raise Wrong(
                f"on your second row {version.__name__} is {error:.2g} nats off: more than 10 are asked for"
            )


def works_beside_the_reference(expose_the_logarithms, rng):
    for which in (0, 1):
        row = read_row(expose_the_logarithms(), which)
        if not np.abs(log_with_epsilon(row) - rltokens.log_softmax(row)).max() > 10:
            raise Wrong("log_with_epsilon must be more than 10 nats off on both rows")


VISIBLE = [epsilon_is_given_away, both_are_given_away]
HIDDEN = [the_other_is_still_right, works_beside_the_reference]


def a_gap_too_small():
    return [0.0, 30.0], [0.0, 900.0]


def one_row_for_both():
    return [0.0, 900.0], [0.0, 900.0]


def two_rows_for_epsilon():
    return [0.0, 100.0], [0.0, 500.0]


def infinite_logits():
    return [0.0, -np.inf], [0.0, -np.inf]


def huge_logits_without_a_gap():
    return [1000.0, 1000.0], [1000.0, 1000.0]


def only_the_second():
    return [0.0, 1.0], [0.0, 900.0]


WRONG = {
    a_gap_too_small: epsilon_is_given_away,
    only_the_second: epsilon_is_given_away,
    infinite_logits: epsilon_is_given_away,
    two_rows_for_epsilon: both_are_given_away,
    huge_logits_without_a_gap: both_are_given_away,
    one_row_for_both: the_other_is_still_right,
}


def many_tokens():
    row = np.linspace(-50.0, 50.0, 11)
    return row, 10 * row - 400


def negative_logits():
    return (-300, 0, -1), (-1000, -1000.0, 0)


RIGHT = [many_tokens, negative_logits]
