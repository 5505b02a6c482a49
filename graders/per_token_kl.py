"""Exercise: the KL of responses, position by position."""

import numpy as np

import rltokens
from rltokens.checking import has_shape, same
from rltokens.toy import reference_logits, response_probabilities

TITLE = "The chain rule of the KL"
DIFFICULTY = "hard"
MINUTES = 20
POINTS = 4

STATEMENT = """
How is the KL of whole responses spread over their positions? Entry t is the expected KL between the two
next-token distributions at position t, over the prefixes that *the policy* writes. The entries add up to
the KL of the responses.

Both tables have a row of normalized log-probabilities for each prefix, ordered by length and then
lexicographically, as ever; the number of columns is V, and from it and the number of rows follows T. A
prefix that the policy never reaches adds 0, and so does a token that it never draws, whatever the
reference says there.
"""

HINTS = [
    "For each level of the tree you need two things: how likely each of its prefixes is, and the KL "
    "of its row. How does "
    "the first follow from the level before?",
    "Begin with `reached = np.ones(1)`. The level's rows are the next `len(reached)` ones. After it, "
    "`reached = (reached[:, None] * np.exp(logp[level])).reshape(-1)`.",
    "`p * (logp - logp_ref)` is NaN where p is 0 and a logarithm -inf: choose `np.where(p > 0, ...)` "
    "before, also by "
    "whether the prefix is reached at all.",
]


def normalized(logits):
    logits = np.asarray(logits, dtype=float)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def one_position(per_token_kl, rng):
    got = per_token_kl(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]]))
    has_shape(got, (1,), "a table of one row has one position")
    same(got, [0.143841], "one position: the KL of a fair coin and one of 1/4, 0.1438")


def weighted_by_the_policy(per_token_kl, rng):
    policy = np.log([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
    reference = np.log([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    got = per_token_kl(policy, reference)
    has_shape(got, (2,), "a table of three rows has two positions: one number each")
    message = (
        "after token 0, which the policy writes with probability 3/4, the second token costs 0.1438 "
        "nats, and after "
        "token 1 nothing: the second entry is 0.1079"
    )
    same(got, [0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0.75 * 0.143841036], message)


def the_sum_is_the_kl_of_responses(per_token_kl, rng):
    reference = reference_logits()
    policy = reference + rng.normal(size=(21, 4))
    p, q = response_probabilities(policy), response_probabilities(reference)
    got = per_token_kl(normalized(policy), normalized(reference))
    has_shape(got, (3,), "the toy has three positions")
    same(np.sum(got), p @ np.log(p / q), "the entries must add up to the KL of the 64 whole responses")


def never_reached_never_counted(per_token_kl, rng):
    with np.errstate(divide="ignore"):
        policy = np.log([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
        reference = np.log([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
        stranger = np.log([[0.0, 1.0], [1.0, 0.0], [0.25, 0.75]])
    message = (
        "after token 1, which the policy never writes, the reference would say what the policy cannot: it"
        " adds 0"
    )
    same(per_token_kl(policy, reference), [np.log(2), 0.143841036], message)
    message = "what the policy never draws adds 0, also where both say -inf"
    certain = np.where(np.isneginf(stranger), -np.inf, [[0, 0], [0, 0], [-np.log(2)] * 2])
    same(per_token_kl(certain, stranger), [0.0, np.log(2) * -1 - 0.5 * np.log(0.25 * 0.75)], message)
    with np.errstate(divide="ignore"):
        deep = np.log([[1.0, 0.0], *[[0.5, 0.5]] * 6])
        other = np.log([*[[0.5, 0.5]] * 2, [1.0, 0.0], *[[0.5, 0.5]] * 2, *[[0.25, 0.75]] * 2])
    message = "nothing below a prefix that is never reached is reached"
    same(per_token_kl(deep, other), [np.log(2), 0.0, 0.0], message)


def works_for_other_sizes(per_token_kl, rng):
    for vocab_size, length in ((2, 4), (5, 2), (3, 1)):
        rows = sum(vocab_size**t for t in range(length))
        tables = [normalized(rng.normal(size=(rows, vocab_size))) for _ in range(2)]
        message = (
            f"{vocab_size} tokens and {length} positions: V is the number of columns, T follows from the rows"
        )
        same(per_token_kl(*tables), rltokens.per_token_kl(*tables), message)


def works_where_the_reference_cannot_follow(per_token_kl, rng):
    with np.errstate(divide="ignore"):
        policy = np.log([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
        reference = np.log([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    message = (
        "where the policy draws what the reference cannot, that position is infinite, and the others are not"
    )
    same(per_token_kl(policy, reference), [0.143841036, np.inf], message)


VISIBLE = [one_position, weighted_by_the_policy, the_sum_is_the_kl_of_responses]
HIDDEN = [never_reached_never_counted, works_for_other_sizes, works_where_the_reference_cannot_follow]


def by_levels(logp_table, logp_ref_table, draws=None, row_kl=None, blank=True):
    """The right computation with its usual mistakes as options."""
    logp, logp_ref = (np.asarray(t, dtype=float) for t in (logp_table, logp_ref_table))
    draws = logp if draws is None else draws
    p, reached, first, result = np.exp(logp), np.ones(1), 0, []
    while first < len(logp):
        level = slice(first, first + len(reached))
        with np.errstate(all="ignore"):
            terms = p[level] * (logp[level] - logp_ref[level])
            if blank:
                terms = np.where((p[level] > 0) & (reached[:, None] > 0), terms, 0.0)
            kls = terms.sum(axis=1) if row_kl is None else row_kl(logp[level], logp_ref[level])
            result.append(reached @ kls)
        first += len(reached)
        reached = (reached[:, None] * np.exp(draws[level])).reshape(-1)
    return np.array(result)


def not_weighted(logp_table, logp_ref_table):
    uniform = np.full(np.shape(logp_table), -np.log(np.shape(logp_table)[1]))
    return by_levels(logp_table, logp_ref_table, draws=uniform)


def weighted_by_the_reference(logp_table, logp_ref_table):
    return by_levels(logp_table, logp_ref_table, draws=np.asarray(logp_ref_table))


def exchanged(logp_table, logp_ref_table):
    return by_levels(logp_ref_table, logp_table, draws=np.asarray(logp_table))


def sums_the_rows(logp_table, logp_ref_table):
    return by_levels(logp_table, logp_ref_table, draws=np.zeros(np.shape(logp_table)))


def one_sum_for_all(logp_table, logp_ref_table):
    return by_levels(logp_table, logp_ref_table).sum()


def a_number_a_row(logp_table, logp_ref_table):
    p = np.exp(logp_table)
    return (p * (np.asarray(logp_table) - logp_ref_table)).sum(axis=1)


def accumulated(logp_table, logp_ref_table):
    return by_levels(logp_table, logp_ref_table).cumsum()


def not_a_number(logp_table, logp_ref_table):
    return by_levels(logp_table, logp_ref_table, blank=False)


def skips_the_infinite(logp_table, logp_ref_table):
    return by_levels(logp_table, np.maximum(logp_ref_table, -700.0))


WRONG = {
    exchanged: one_position,
    not_weighted: weighted_by_the_policy,
    weighted_by_the_reference: weighted_by_the_policy,
    sums_the_rows: weighted_by_the_policy,
    accumulated: weighted_by_the_policy,
    one_sum_for_all: weighted_by_the_policy,
    a_number_a_row: the_sum_is_the_kl_of_responses,
    not_a_number: never_reached_never_counted,
    skips_the_infinite: works_where_the_reference_cannot_follow,
}


def response_by_response(logp_table, logp_ref_table):
    logp, logp_ref = np.asarray(logp_table, dtype=float), np.asarray(logp_ref_table, dtype=float)
    vocab_size, positions, rows = logp.shape[1], 0, 0
    while rows < len(logp):
        rows, positions = rows + vocab_size**positions, positions + 1
    result = [0.0] * positions
    for response in rltokens.enumerate_responses(vocab_size, positions):
        probability, row, terms = 1.0, 0, []
        for token in response:
            probability *= np.exp(logp[row, token])
            with np.errstate(invalid="ignore"):
                terms.append(logp[row, token] - logp_ref[row, token])
            row = vocab_size * row + 1 + token
        if probability > 0:
            result = [r + probability * term for r, term in zip(result, terms, strict=True)]
    return result


def by_recursion(logp_table, logp_ref_table):
    logp, logp_ref = np.asarray(logp_table, dtype=float), np.asarray(logp_ref_table, dtype=float)
    found = {}

    def visit(row, weight, depth):
        if row >= len(logp) or weight == 0:
            return
        possible = logp[row] > -np.inf
        p = np.exp(logp[row][possible])
        kl = (p * (logp[row][possible] - logp_ref[row][possible])).sum()
        found[depth] = found.get(depth, 0.0) + weight * kl
        for token in np.flatnonzero(possible):
            visit(logp.shape[1] * row + 1 + token, weight * np.exp(logp[row, token]), depth + 1)

    visit(0, 1.0, 0)
    return np.array([found[depth] for depth in sorted(found)])


RIGHT = [response_by_response, by_recursion]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "log_ratio = np.where(possible, logp, 1.0) - np.where(possible, logp_ref, 0.0)": "what is never "
    "drawn is left out in the other factor",
    "log_ratio = np.where(possible, logp, 0.0) - np.where(possible, logp_ref, 1.0)": "what is never "
    "drawn is left out in the other factor",
    "kl = (np.where(True, p, 0.0) * log_ratio).sum(axis=1)": "where p is 0 it is 0 anyway",
    "kl = (np.where(possible, p, 1.0) * log_ratio).sum(axis=1)": "the log-ratio is 0 there",
    "reached = np.where(True, reached[:, None] * p[rows], 0.0).reshape(-1)": "0 times a probability is 0",
    "reached = np.where(reached[:, None] > 0, reached[:, None] * p[rows], 0.0).reshape(-2)": "-2 "
    "means what -1 does",
    "reached = np.where(reached[:, None] >= 0, reached[:, None] * p[rows], 0.0).reshape(-1)": "the "
    "same as for True",
    "kl_by_position.append((reached * np.where(reached > 0, kl[rows], 1.0)).sum())": "reached is 0 there",
}
