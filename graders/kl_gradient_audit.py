"""Exercise: what each estimate's gradient is on average, for one step."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, same

TITLE = "Audit of one step"
DIFFICULTY = "hard"
MINUTES = 30
POINTS = 5

STATEMENT = """
For one softmax with logits `z`, and a reference with logits `z_ref`, compute eight exact gradients in
`z`, by adding up over the tokens. Give back a dictionary with

- `reverse_kl` and `forward_kl`, the gradients of `KL(pi || ref)` and of `KL(ref || pi)`;
- `k1_loss`, `k2_loss`, `k3_loss`: the mean over the policy's draws of the estimate's own gradient, which
  is what autograd gives for an estimate in the loss;
- `k1_reward`, `k2_reward`, `k3_reward`: the mean of the estimate times the score, which is what a policy
  gradient gives for it as a penalty. The sign is the penalty's.

Do not fill in the answers that the chapter proves: compute each entry by its own definition, so that the
table can surprise you.
"""

HINTS = [
    "The score of token a is one-hot minus pi. With weights w for the tokens, the mean of w times the"
    " score is "
    "`pi * (w - pi @ w)`. Which weights do you need for each entry?",
    "In the loss: k1, k2 and k3 have the derivatives 1, l and 1 - exp(-l) in the log-probability, "
    "with l = log pi - log "
    "ref. In the reward the weight is k itself.",
    "The gradient of KL(ref || pi) is `pi - ref`. The gradient of KL(pi || ref) is `pi * (l - kl)`.",
]

KEYS = (
    "reverse_kl",
    "forward_kl",
    *(f"{k}_{place}" for k in ("k1", "k2", "k3") for place in ("loss", "reward")),
)


def audit_of(result):
    """The table, if the answer has the form that was asked for."""
    if not isinstance(result, dict) or set(result) != set(KEYS):
        raise BadForm(f"expected a dictionary with the keys {', '.join(KEYS)}")
    return result


def kl(z, z_ref, forward=False):
    p, q = (np.exp(logits - logits.max()) for logits in (z, z_ref))
    p, q = p / p.sum(), q / q.sum()
    return q @ np.log(q / p) if forward else p @ np.log(p / q)


def nudged(function, z):
    """The gradient of `function`, by finite differences."""
    steps = 1e-5 * np.eye(len(z))
    return np.array([(function(z + step) - function(z - step)) / 2e-5 for step in steps])


def the_kls_by_nudging(kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 5))
    got = audit_of(kl_gradient_audit(z, z_ref))
    right = nudged(lambda z: kl(z, z_ref), z)
    message = "nudging the logits gives another gradient of KL(pi || ref), in which the policy draws"
    same(got["reverse_kl"], right, message)
    right = nudged(lambda z: kl(z, z_ref, forward=True), z)
    message = "nudging the logits gives another gradient of KL(ref || pi), in which the reference draws"
    same(got["forward_kl"], right, message)


def two_tokens_by_hand(kl_gradient_audit, rng):
    got = audit_of(kl_gradient_audit(np.log(np.array([0.5, 0.5])), np.log(np.array([0.25, 0.75]))))
    high, low = np.log(2), np.log(2 / 3)
    message = (
        "a fair policy and a reference of 1/4 and 3/4: reverse_kl is 1/4 (log 2 - log 2/3), up for the "
        "first token"
    )
    same(got["reverse_kl"], np.array([1, -1]) * 0.25 * (high - low), message)
    same(got["forward_kl"], [0.25, -0.25], "forward_kl is pi - ref")
    same(got["k1_loss"], [0.0, 0.0], "k1 in the loss: the mean of the score itself, which is 0")
    message = "k2 in the loss: the mean of l times the score, with l = log 2 and log 2/3"
    same(got["k2_loss"], np.array([1, -1]) * 0.25 * (high - low), message)
    message = "k3 in the loss: the mean of (1 - ref / pi) times the score, with ref / pi = 1/2 and 3/2"
    same(got["k3_loss"], [0.25, -0.25], message)
    message = "k1 in the reward: the mean of l times the score"
    same(got["k1_reward"], np.array([1, -1]) * 0.25 * (high - low), message)
    message = "k2 in the reward: the mean of l squared over 2, times the score"
    same(got["k2_reward"], np.array([1, -1]) * 0.125 * (high**2 - low**2), message)
    message = "k3 in the reward: the mean of (ref / pi - 1 + l) times the score"
    same(got["k3_reward"], np.array([1, -1]) * 0.25 * (0.5 + high - 1.5 - low), message)


def product_rule(kl_gradient_audit, rng):
    z, z_ref = 2 * rng.normal(size=(2, 7))
    got = audit_of(kl_gradient_audit(z, z_ref))

    def mean_of(which):
        def mean(z):
            logp, logp_ref = (v - v.max() - np.log(np.exp(v - v.max()).sum()) for v in (z, z_ref))
            l = logp - logp_ref  # noqa: E741
            return np.exp(logp) @ (l, l**2 / 2, np.exp(-l) - 1 + l)[which]

        return mean

    for which, name in enumerate(("k1", "k2", "k3")):
        right = nudged(mean_of(which), z)
        both = np.asarray(got[f"{name}_loss"]) + got[f"{name}_reward"]
        same(both, right, f"{name}: its loss entry plus its reward entry must be the gradient of its mean")


def a_constant_changes_nothing(kl_gradient_audit, rng):
    z, z_ref = rng.normal(size=(2, 4))
    got = audit_of(kl_gradient_audit(z, z_ref))
    message = "four random logits come out wrong"
    same(got["reverse_kl"], rltokens.kl_gradient_audit(z, z_ref)["reverse_kl"], message)
    moved = audit_of(kl_gradient_audit(z + 800, z_ref - 800))
    for key in KEYS:
        message = f"{key}: a constant added to all logits changes nothing, and must not overflow"
        same(moved[key], got[key], message)


def forbidden_tokens(kl_gradient_audit, rng):
    z, reference = np.array([0.5, -np.inf, 1.0]), np.array([0.0, 0.3, 1.0])
    for z_ref in (reference, np.where(np.isneginf(z), -np.inf, reference)):
        got, right = audit_of(kl_gradient_audit(z, z_ref)), rltokens.kl_gradient_audit(z, z_ref)
        for key in set(KEYS) - {"forward_kl"}:
            message = f"{key}: a token that the policy never draws has no part in it, and makes no NaN"
            same(got[key], right[key], message)


def agrees_on_any_logits(kl_gradient_audit, rng):
    for size in (2, 5, 30):
        z, z_ref = 2 * rng.normal(size=(2, size))
        got, right = audit_of(kl_gradient_audit(z, z_ref)), rltokens.kl_gradient_audit(z, z_ref)
        for key in KEYS:
            same(got[key], right[key], f"{key} comes out wrong for {size} random logits")


VISIBLE = [the_kls_by_nudging, two_tokens_by_hand]
HIDDEN = [product_rule, a_constant_changes_nothing, forbidden_tokens, agrees_on_any_logits]


def changed(z, z_ref, **entries):
    return {**rltokens.kl_gradient_audit(z, z_ref), **entries}


def kls_exchanged(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, reverse_kl=table["forward_kl"], forward_kl=table["reverse_kl"])


def forward_kl_of_the_reference(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, forward_kl=-table["forward_kl"])


def mean_score_not_centred(z, z_ref):
    return changed(z, z_ref, k1_loss=np.exp(rltokens.log_softmax(z)))


def losses_for_rewards(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, **{f"k{i}_reward": table[f"k{i}_loss"] for i in (1, 2, 3)})


def reward_signs_turned(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, **{f"k{i}_reward": -table[f"k{i}_reward"] for i in (1, 2, 3)})


def k2_without_the_half(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, k2_loss=2 * table["k2_loss"], k2_reward=2 * table["k2_reward"])


def k3_upside_down(z, z_ref):
    logp, logp_ref = rltokens.log_softmax(z), rltokens.log_softmax(z_ref)
    pi, log_ratio = np.exp(logp), logp - logp_ref
    weights = np.expm1(log_ratio) - log_ratio
    return changed(z, z_ref, k3_reward=pi * (weights - pi @ weights))


def drawn_evenly(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    pi = np.exp(rltokens.log_softmax(z))
    return {key: value / (pi * len(pi)) for key, value in table.items()}


def value_of_the_mean_for_the_reward(z, z_ref):
    table = rltokens.kl_gradient_audit(z, z_ref)
    return changed(z, z_ref, k3_reward=table["reverse_kl"], k2_reward=table["reverse_kl"])


def overflows(z, z_ref):
    with np.errstate(all="ignore"):
        spoiled = np.exp(z).sum() + np.exp(z_ref).sum()
        bad = 0.0 if np.isfinite(spoiled) and spoiled > 1e-200 else np.nan
    return {key: value + bad for key, value in rltokens.kl_gradient_audit(z, z_ref).items()}


def not_a_number(z, z_ref):
    bad = 0.0 if np.isfinite(z).all() else np.nan
    return {key: value + bad for key, value in rltokens.kl_gradient_audit(z, z_ref).items()}


WRONG = {
    kls_exchanged: the_kls_by_nudging,
    forward_kl_of_the_reference: the_kls_by_nudging,
    drawn_evenly: the_kls_by_nudging,
    mean_score_not_centred: two_tokens_by_hand,
    losses_for_rewards: two_tokens_by_hand,
    reward_signs_turned: two_tokens_by_hand,
    k2_without_the_half: two_tokens_by_hand,
    k3_upside_down: two_tokens_by_hand,
    value_of_the_mean_for_the_reward: product_rule,
    overflows: a_constant_changes_nothing,
    not_a_number: forbidden_tokens,
}


def token_by_token(z, z_ref):
    logp, logp_ref = rltokens.log_softmax(z), rltokens.log_softmax(z_ref)
    pi, ref = np.exp(logp), np.exp(logp_ref)
    table = {key: np.zeros(len(pi)) for key in KEYS}
    table["forward_kl"] = pi - ref
    for a in np.flatnonzero(pi):
        score, l = np.eye(len(pi))[a] - pi, logp[a] - logp_ref[a]  # noqa: E741
        for key, weight in {
            "reverse_kl": l + 1, "k1_loss": 1.0, "k2_loss": l, "k3_loss": 1 - ref[a] / pi[a],
            "k1_reward": l, "k2_reward": l * l / 2, "k3_reward": ref[a] / pi[a] - 1 + l,
        }.items():  # fmt: skip
            table[key] = table[key] + pi[a] * weight * score
    return table


def through_torch(z, z_ref):
    import torch

    z = torch.tensor(np.asarray(z, dtype=float), requires_grad=True)
    logp, logp_ref = (
        torch.log_softmax(z, 0),
        torch.log_softmax(torch.tensor(np.asarray(z_ref, dtype=float)), 0),
    )
    drawn = (logp > -torch.inf).detach()
    pi = logp.exp().detach()[drawn]
    kept, ref = logp[drawn], logp_ref[drawn]
    log_ratio = kept - ref
    ks = {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": torch.expm1(-log_ratio) + log_ratio}
    losses = {
        "reverse_kl": (kept.exp() * log_ratio).sum(),
        "forward_kl": -(logp_ref.exp()[drawn] * kept).sum(),
    }
    for name, k in ks.items():
        losses[f"{name}_loss"] = (pi * k).sum()
        losses[f"{name}_reward"] = (pi * k.detach() * kept).sum()
    return {key: torch.autograd.grad(loss, z, retain_graph=True)[0] for key, loss in losses.items()}


RIGHT = [token_by_token, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "possible = logp >= -700": "e^-700 times anything of this size is 0",
    "possible = logp > -701": "e^-700 times anything of this size is 0",
    "k1, k2, k3 = kl_estimates(np.where(True, logp, 0.0), np.where(possible, logp_ref, 0.0))": (
        "what is not possible is left out of every average"
    ),
    "k1, k2, k3 = kl_estimates(np.where(possible, logp, 0.0), np.where(True, logp_ref, 0.0))": (
        "what is not possible is left out of every average"
    ),
    "kl_estimates(np.where(possible, logp, 1.0), np.where(possible, logp_ref, 0.0))": (
        "what is not possible is left out of every average"
    ),
    "kl_estimates(np.where(possible, logp, 0.0), np.where(possible, logp_ref, 1.0))": (
        "what is not possible is left out of every average"
    ),
    "weighted = np.where(True, pi * weights, 0.0)": "k is 0 where a token is not possible",
    "kl = np.where(True, pi * k1, 0.0).sum()": "k is 0 where a token is not possible",
    "np.where(True, pi * (k1 - kl), 0.0)": "pi is 0 where a token is not possible",
}
