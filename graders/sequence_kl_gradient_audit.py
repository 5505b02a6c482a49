"""Exercise: what each estimate's gradient is over whole responses."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, same
from rltokens.mdp import enumerate_responses
from rltokens.toy import prefix_rows, response_probabilities

TITLE = "Audit of a whole response"
DIFFICULTY = "hard"
MINUTES = 35
POINTS = 5

STATEMENT = """
The same audit for responses of several tokens: tables of logits, a row for each prefix, and six exact
gradients in `z_table`, each of the table's shape, in a dictionary.

- `reverse_kl`: of the KL of whole responses.
- `k1_loss`, `k2_loss`, `k3_loss`: the estimate at each position is differentiated through *that
  position's own* log-probability, and all are added; the prefixes are as the policy draws them and are
  not differentiated. This is what a loss over tokens does.
- `k1_reward`: each token's score times the KL to go.
- `sequence_k2_loss`: k2 of the log-ratio of the *whole* response, differentiated.

Compute each by its own definition, by adding up over all responses. Tokens that the policy never draws
have no part in any of them.
"""

HINTS = [
    "List all responses, their rows (`prefix_rows`) and probabilities. With a weight for each token "
    "of each response, the mean "
    "gradient is the same sum every time. Which weights does each entry have?",
    "Weights: 1, l and 1 - exp(-l) for the three losses; `kl_to_go` for k1_reward; the whole "
    "response's log-ratio, for "
    "every token, in sequence_k2_loss.",
    "`policy_gradient_logits(logits[rows], tokens, weights, ones)` gives (N, T, V). Multiply the "
    "weights by the responses' "
    "probabilities before, and collect with `np.add.at(gradient, rows, ...)`. reverse_kl: the KL to "
    "go is one way; or by "
    "the chain rule, from the last position back.",
]

ENTRIES = ("reverse_kl", "k1_loss", "k2_loss", "k3_loss", "k1_reward", "sequence_k2_loss")


def sequence_audit_of(result, shape):
    """The table, if the answer has the form that was asked for."""
    if not isinstance(result, dict) or set(result) != set(ENTRIES):
        raise BadForm(f"expected a dictionary with the keys {', '.join(ENTRIES)}")
    for name, gradient in result.items():
        if np.shape(gradient) != shape:
            raise BadForm(f"{name}: expected the table's shape {shape}, got {np.shape(gradient)}")
    return result


def kl_of_responses(z, z_ref):
    p, q = response_probabilities(z), response_probabilities(z_ref)
    return p @ np.log(p / q)


def the_kl_by_nudging(sequence_kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 7, 2))
    got = sequence_audit_of(sequence_kl_gradient_audit(z, z_ref, 2, 3), (7, 2))
    numeric = np.zeros_like(z)
    for index in np.ndindex(7, 2):
        nudge = np.zeros_like(z)
        nudge[index] = 1e-5
        numeric[index] = (kl_of_responses(z + nudge, z_ref) - kl_of_responses(z - nudge, z_ref)) / 2e-5
    for name in ("reverse_kl", "k1_reward", "sequence_k2_loss"):
        message = f"{name}: nudging each logit gives another gradient of the KL of whole responses"
        same(got[name], numeric, message)


def a_tree_of_two_tokens(sequence_kl_gradient_audit, rng):
    z = np.array([[0.0, 0.0], [0.0, 0.0], [2.0, -2.0]])
    got = sequence_audit_of(sequence_kl_gradient_audit(z, np.zeros((3, 2)), 2, 2), (3, 2))
    message = (
        "policy and reference differ after token 1 alone; position by position, the first row is not "
        "charged for that"
    )
    same(got["k2_loss"][0], [0.0, 0.0], message)
    p = 1 / (1 + np.exp(-4))
    cost = p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p))
    message = (
        "the true gradient makes token 1 rarer, since it leads to a costly place: a quarter of the KL there"
    )
    same(got["reverse_kl"][0], [-cost / 4, cost / 4], message)
    last = 0.5 * p * (1 - p) * 4
    message = "at the last position k2 in the loss is right: 1/2 p (1 - p) 4 in row 2"
    same(got["k2_loss"][2], [last, -last], message)
    message = "k3 in the loss is pi - ref in row 2, half the time"
    same(got["k3_loss"][2], [0.5 * (p - 0.5), -0.5 * (p - 0.5)], message)


def the_first_estimate_does_nothing(sequence_kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 21, 4))
    got = sequence_audit_of(sequence_kl_gradient_audit(z, z_ref, 4, 3), (21, 4))
    same(got["k1_loss"], np.zeros((21, 4)), "k1 in the loss: the expected score is 0 in every row")
    right = rltokens.sequence_kl_gradient_audit(z, z_ref, 4, 3)
    message = "k3 in the loss: 1 - ref / pi times the score, prefixes as the policy draws them"
    same(got["k3_loss"], right["k3_loss"], message)


def the_last_position_is_right(sequence_kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 21, 4))
    got = sequence_audit_of(sequence_kl_gradient_audit(z, z_ref, 4, 3), (21, 4))
    tokens, p = enumerate_responses(4, 3), response_probabilities(z)
    logp, logp_ref = (v - np.log(np.exp(v).sum(axis=1, keepdims=True)) for v in (z, z_ref))
    right = np.zeros((21, 4))
    for n, (row, token) in enumerate(zip(prefix_rows(tokens)[:, 2], tokens[:, 2], strict=True)):
        right[row] += p[n] * (logp - logp_ref)[row, token] * (np.eye(4)[token] - np.exp(logp[row]))
    message = "k2 in the loss, last position: l times the score, over all responses"
    same(np.asarray(got["k2_loss"])[5:], right[5:], message)
    message = "at the last position nothing is to come: reverse_kl is the same there"
    same(np.asarray(got["reverse_kl"])[5:], right[5:], message)


def never_drawn_never_counted(sequence_kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 7, 2))
    z[0, 1] = z_ref[0, 1] = -np.inf  # the reference agrees
    z_ref[6, 0] = -np.inf  # in a place where the policy never comes
    got = sequence_audit_of(sequence_kl_gradient_audit(z, z_ref, 2, 3), (7, 2))
    right = rltokens.sequence_kl_gradient_audit(z, z_ref, 2, 3)
    for name in ENTRIES:
        message = f"{name}: a token that is never drawn, and all behind it, have no part in it"
        same(got[name], right[name], message)


def agrees_on_other_sizes(sequence_kl_gradient_audit, rng):
    for vocab_size, length in ((2, 1), (5, 2), (2, 4)):
        rows = sum(vocab_size**t for t in range(length))
        z, z_ref = rng.normal(size=(2, rows, vocab_size))
        got = sequence_audit_of(sequence_kl_gradient_audit(z, z_ref, vocab_size, length), (rows, vocab_size))
        right = rltokens.sequence_kl_gradient_audit(z, z_ref, vocab_size, length)
        for name in ENTRIES:
            message = f"{name} comes out wrong for {vocab_size} tokens and {length} positions"
            same(got[name], right[name], message)


VISIBLE = [the_kl_by_nudging, a_tree_of_two_tokens]
HIDDEN = [
    the_first_estimate_does_nothing,
    the_last_position_is_right,
    never_drawn_never_counted,
    agrees_on_other_sizes,
]


def spoiled(arguments, **entries):
    """The right table with some entries taken from another or scaled."""
    table = rltokens.sequence_kl_gradient_audit(*arguments)
    return {**table, **{name: change(table) for name, change in entries.items()}}


def token_by_token_kl(*arguments):
    return spoiled(arguments, reverse_kl=lambda table: table["k2_loss"])


def reward_without_what_follows(*arguments):
    return spoiled(arguments, k1_reward=lambda table: table["k2_loss"])


def sequence_k2_by_position(*arguments):
    return spoiled(arguments, sequence_k2_loss=lambda table: table["k2_loss"])


def sequence_k2_without_the_half(*arguments):
    return spoiled(arguments, sequence_k2_loss=lambda table: 2 * table["sequence_k2_loss"])


def k2_charged_for_what_follows(*arguments):
    return spoiled(arguments, k2_loss=lambda table: table["reverse_kl"])


def signs_turned(*arguments):
    return {name: -gradient for name, gradient in rltokens.sequence_kl_gradient_audit(*arguments).items()}


def score_not_centred(*arguments):
    policy = np.exp(rltokens.log_softmax(arguments[0]))
    return spoiled(arguments, k1_loss=lambda table: policy)


def k3_of_the_reverse(*arguments):
    return spoiled(arguments, k3_loss=lambda table: table["k2_loss"])


def each_prefix_alike(z_table, z_ref_table, vocab_size, length):
    table = rltokens.sequence_kl_gradient_audit(z_table, z_ref_table, vocab_size, length)
    logp, logp_ref = rltokens.log_softmax(z_table), rltokens.log_softmax(z_ref_table)
    p = np.exp(logp)
    with np.errstate(invalid="ignore"):
        weights = np.where(p > 0, logp - logp_ref, 0.0)
    return {**table, "k2_loss": p * (weights - (p * weights).sum(axis=1, keepdims=True))}


def not_a_number(*arguments):
    bad = 0.0 if np.isfinite(arguments[0]).all() else np.nan
    return {
        name: gradient + bad for name, gradient in rltokens.sequence_kl_gradient_audit(*arguments).items()
    }


WRONG = {
    token_by_token_kl: the_kl_by_nudging,
    reward_without_what_follows: the_kl_by_nudging,
    sequence_k2_by_position: the_kl_by_nudging,
    sequence_k2_without_the_half: the_kl_by_nudging,
    signs_turned: the_kl_by_nudging,
    k2_charged_for_what_follows: a_tree_of_two_tokens,
    k3_of_the_reverse: a_tree_of_two_tokens,
    score_not_centred: the_first_estimate_does_nothing,
    each_prefix_alike: the_last_position_is_right,
    not_a_number: never_drawn_never_counted,
}


def response_by_response(z_table, z_ref_table, vocab_size, length):
    logp, logp_ref = rltokens.log_softmax(z_table), rltokens.log_softmax(z_ref_table)
    pi, table = np.exp(logp), {name: np.zeros(np.shape(z_table)) for name in ENTRIES}
    for response in rltokens.enumerate_responses(vocab_size, length):
        rows = prefix_rows(response[None], vocab_size)[0]
        if not (pi[rows, response] > 0).all():
            continue
        probability = pi[rows, response].prod()
        l = logp[rows, response] - logp_ref[rows, response]  # noqa: E741
        for t, (row, token) in enumerate(zip(rows, response, strict=True)):
            score = probability * (np.eye(vocab_size)[token] - pi[row])
            weights = (l[t:].sum(), 1.0, l[t], 1 - np.exp(-l[t]), l[t:].sum(), l.sum())
            for name, weight in zip(ENTRIES, weights, strict=True):
                table[name][row] += weight * score
    return table


def through_torch(z_table, z_ref_table, vocab_size, length):
    import torch

    z = torch.tensor(np.asarray(z_table, dtype=float), requires_grad=True)
    logp = torch.log_softmax(z, dim=1)
    ref = torch.log_softmax(torch.tensor(np.asarray(z_ref_table, dtype=float)), dim=1)
    tokens = rltokens.enumerate_responses(vocab_size, length)
    rows = prefix_rows(tokens, vocab_size)
    drawn = torch.isfinite(logp.detach())[rows, tokens].all(dim=1).numpy()
    tokens, rows = tokens[drawn], rows[drawn]
    own, l = logp[rows, tokens], logp[rows, tokens] - ref[rows, tokens]  # noqa: E741
    p = own.sum(dim=1).exp()
    weight = p.detach()[:, None]
    to_go = l.detach().flip(1).cumsum(1).flip(1)
    losses = {
        "reverse_kl": (p * l.sum(dim=1)).sum(), "k1_loss": (weight * l).sum(),
        "k2_loss": (weight * l**2 / 2).sum(), "k3_loss": (weight * (torch.expm1(-l) + l)).sum(),
        "k1_reward": (weight * to_go * own).sum(),
        "sequence_k2_loss": (weight[:, 0] * l.sum(dim=1) ** 2 / 2).sum(),
    }  # fmt: skip
    return {name: torch.autograd.grad(loss, z, retain_graph=True)[0] for name, loss in losses.items()}


RIGHT = [response_by_response, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "reached[levels[t + 1]] = (reached[levels[t]] * pi[levels[t]]).reshape(-2, 1)": "-2 means what -1 does",
    "possible = (logp_table >= -700) & (reached > 0)": "e^-700 times anything of this size is 0",
    "possible = (logp_table > -701) & (reached > 0)": "e^-700 times anything of this size is 0",
    "np.where(possible, logp_table, 1.0) - np.where(possible, logp_ref_table, 0.0)": (
        "what is not possible is weighted with 0"
    ),
    "np.where(possible, logp_table, 0.0) - np.where(possible, logp_ref_table, 1.0)": (
        "what is not possible is weighted with 0"
    ),
    "to_go = kl_to_go(log_ratio, np.ones_like(log_ratio), ones)": (
        "the same number for all tokens at a place is a baseline"
    ),
    "reverse_kl = np.ones_like(pi)": "every entry is written",
    "to_come = np.ones(vocab_size ** length)": "the same number for all tokens at a place is a baseline",
    "penalty = ratio_table[level] + to_come.reshape(-2, vocab_size)": "-2 means what -1 does",
    "average(to_go[:, :1] / ones)": "1 divided and 1 multiplied are one thing",
}
