"""Exercise: fill in which gradient each estimate has."""

import numpy as np

import rltokens
from rltokens.checking import BadForm, Wrong

TITLE = "Fill in the table"
DIFFICULTY = "medium"
MINUTES = 10
POINTS = 3

STATEMENT = """
Now read your audit. For one softmax step, which gradient has each estimate on average, in the loss and in
the reward? Give back a dictionary with the six keys `k1_loss`, `k1_reward`, `k2_loss`, `k2_reward`,
`k3_loss`, `k3_reward`. Each entry is one of these words:

- `"nothing"`: its mean is zero, there is no penalty;
- `"reverse"`: the gradient of `KL(pi || ref)`, which is meant;
- `"forward"`: the gradient of `KL(ref || pi)`;
- `"difference"`: reverse minus forward;
- `"neither"`: none of these.
"""

HINTS = [
    "Run your audit on a few random logits and compare the rows. Three of the six equal another row exactly.",
    "The product rule says that loss plus reward is the gradient of the estimate's mean, and the "
    "means of k1 and k3 are "
    "the KL. So k3's reward entry follows from its loss entry.",
]

WORDS = ("nothing", "reverse", "forward", "difference", "neither")


def fill_the_table():
    """Which gradient each estimate has, in the loss and in the reward.

    Returns
    -------
    dict from `k1_loss`, `k1_reward`, ..., `k3_reward` to "nothing",
    "reverse", "forward", "difference" or "neither"

    Examples
    --------
    >>> sorted(fill_the_table())
    ['k1_loss', 'k1_reward', 'k2_loss', 'k2_reward', 'k3_loss', 'k3_reward']
    """
    return {
        "k1_loss": "nothing",
        "k1_reward": "reverse",
        "k2_loss": "reverse",
        "k2_reward": "neither",
        "k3_loss": "forward",
        "k3_reward": "difference",
    }


solution = fill_the_table  # by this name the answers below reach it, whatever a notebook calls fill_the_table


def read_table(table):
    names = {f"{k}_{place}" for k in ("k1", "k2", "k3") for place in ("loss", "reward")}
    if not isinstance(table, dict) or set(table) != names:
        raise BadForm(f"expected a dictionary with the keys {', '.join(sorted(names))}")
    for name, word in table.items():
        if word not in WORDS:
            raise BadForm(f"{name}: expected one of {', '.join(WORDS)}, got {word!r}")
    return table


def word_must_be(table, name, word, message):
    if read_table(table)[name] != word:
        raise Wrong(message)


def what_the_first_does(fill_the_table, rng):
    table = fill_the_table()
    message = "k1 in the reward: the score times the log-ratio; compare with reverse_kl"
    word_must_be(table, "k1_reward", "reverse", message)
    message = "k1 in the loss: the mean of the score itself. What is the expected score?"
    word_must_be(table, "k1_loss", "nothing", message)


def what_the_second_does(fill_the_table, rng):
    table = fill_the_table()
    message = "k2 in the loss: the derivative of half a square. What multiplies the score?"
    word_must_be(table, "k2_loss", "reverse", message)
    message = (
        "k2 in the reward: its value is biased, so its mean is not the KL, and half the square is no "
        "log-ratio"
    )
    word_must_be(table, "k2_reward", "neither", message)


def what_the_third_does(fill_the_table, rng):
    table = fill_the_table()
    message = "k3 in the loss: (1 - ref / pi) times the score. Who draws in sum ref * score?"
    word_must_be(table, "k3_loss", "forward", message)
    message = "k3 in the reward: the gradient of its mean, less its loss entry"
    word_must_be(table, "k3_reward", "difference", message)


def agrees_with_the_audit(fill_the_table, rng):
    table = read_table(fill_the_table())
    audit = rltokens.kl_gradient_audit(*rng.normal(size=(2, 6)))
    named = {
        "nothing": np.zeros(6),
        "reverse": audit["reverse_kl"],
        "forward": audit["forward_kl"],
        "difference": audit["reverse_kl"] - audit["forward_kl"],
    }
    for name, word in table.items():
        matches = [w for w, gradient in named.items() if np.allclose(audit[name], gradient)]
        if (matches or ["neither"]) != [word]:
            raise Wrong(f"{name}: on six random logits it is not {word}")


VISIBLE = [what_the_first_does, what_the_second_does]
HIDDEN = [what_the_third_does, agrees_with_the_audit]


def all_right_in_the_reward():
    return {**solution(), "k2_reward": "reverse", "k3_reward": "reverse"}


def all_the_same():
    return dict.fromkeys(solution(), "reverse")


def loss_and_reward_exchanged():
    table = solution()
    return {name: table[name[:3] + ("reward" if name.endswith("loss") else "loss")] for name in table}


def unbiased_means_right():
    return {**solution(), "k3_loss": "reverse", "k3_reward": "reverse"}


def biased_means_wrong():
    return {**solution(), "k2_loss": "neither"}


def a_little_penalty():
    return {**solution(), "k1_loss": "reverse"}


def forward_in_both():
    return {**solution(), "k3_reward": "forward"}


WRONG = {
    all_the_same: what_the_first_does,
    a_little_penalty: what_the_first_does,
    loss_and_reward_exchanged: what_the_first_does,
    all_right_in_the_reward: what_the_second_does,
    biased_means_wrong: what_the_second_does,
    unbiased_means_right: what_the_third_does,
    forward_in_both: what_the_third_does,
}


def from_the_audit():
    audit = rltokens.kl_gradient_audit([0.1, -0.7, 1.2, 0.4], [1.0, 0.2, -0.3, 0.6])
    reverse, forward = audit["reverse_kl"], audit["forward_kl"]
    named = (
        ("nothing", 0 * reverse),
        ("reverse", reverse),
        ("forward", forward),
        ("difference", reverse - forward),
    )
    return {
        name: next((word for word, gradient in named if np.allclose(audit[name], gradient)), "neither")
        for name in solution()
    }


def in_another_order():
    return dict(sorted(solution().items(), reverse=True))


RIGHT = [from_the_audit, in_another_order]
