"""REINFORCE on the toy, with each choice that the course discusses as an argument.

    draw responses  ->  a weight for each token  ->  sum of weight * grad log pi  ->  a step of the logits

`kl_placement` says where the KL penalty goes, `estimator` what a token's weight is, `optimizer` how the
gradient becomes a step. Whatever a run reports of its policy is exact, by enumeration.

Where this departs from Williams (1992), and why:

- A step takes a batch of 2,000 responses. It is held as the different responses in it, 64 at most on the
  toy, and how often each was drawn: the gradient is linear in the weights, so that a response drawn n times
  is one with n times the weight, and a larger batch costs hardly more.
- Adam, at a rate that falls linearly to 0: at a constant rate the policy keeps trembling about its goal.
  With `estimator="exact"` nothing trembles, and the rate stays.
- An estimate of the KL in the loss is differentiated by central differences, not by autograd: whichever
  `kl_estimates` is handed in, it is that one.
- `prefix-value` takes off the exact value function: a critic that has learned all there is to learn.
- `natural` divides by the exact Fisher information, which only a table can afford.
"""

from inspect import unwrap
from typing import NamedTuple

import numpy as np

from rltokens.toy import (
    Measures,
    _has_a_reward_for_each_response,
    exact_measures,
    expected_gradient,
    log_policy,
    prefix_levels,
    prefix_probabilities,
    prefix_rows,
    prefix_values,
    reference_logits,
    sample_counts,
    two_zeros,
)
from rltokens.validation import above, numbers, validated, whole

KL_PLACEMENTS = ("reward", "k1_loss", "k2_loss", "k3_loss", "none")
ESTIMATORS = ("position-mean", "leave-one-out", "prefix-value", "none", "exact")
OPTIMIZERS = ("sgd", "adam", "natural")


class ReinforceRun(NamedTuple):
    """What `train` gives back."""

    history: dict  # responses, steps, reward, kl_reference, kl_optimum, objective: float arrays, equally long
    logits: np.ndarray  # (R, V), the policy at the end


def _enough_to_run(given):
    if given["estimator"] == "leave-one-out" and given["batch_size"] < 2:
        raise ValueError(
            f"batch_size: expected 2 or more, since each response is compared with the others, "
            f"got {given['batch_size']}"
        )
    if given["steps"] is None and given["responses"] < given["batch_size"]:
        raise ValueError(
            f"responses: expected a batch of {given['batch_size']} or more, got {given['responses']}"
        )


@validated(
    _enough_to_run,
    beta=above(0),
    responses=whole(1),
    seed=whole(0),
    learning_rate=above(0),
    batch_size=whole(1),
    steps=whole(1),
    measurements=whole(1),
    reference=numbers("R V"),
    rewards=numbers("N"),
)
def train(
    kl_placement="reward",
    estimator="leave-one-out",
    beta=0.5,
    responses=500_000,
    seed=0,
    *,
    optimizer="adam",
    learning_rate=None,
    decay=None,
    batch_size=2000,
    steps=None,
    measurements=25,
    reference=None,
    rewards=None,
    progress=True,
    log_softmax=None,
    terminal_rewards=None,
    kl_penalized_rewards=None,
    returns_to_go=None,
    leave_one_out_advantages=None,
    kl_estimates=None,
    policy_gradient_logits=None,
):
    """Train a table of logits towards E[r] - beta KL(pi || pi_ref), from the reference on.

    Parameters
    ----------
    kl_placement : "reward", every token pays beta times its log-ratio; "k1_loss", "k2_loss",
        "k3_loss", that estimate of the KL, token by token, is differentiated as part of the loss;
        "none"
    estimator : a token's weight. "position-mean", its reward-to-go less the batch's mean at that
        position; "leave-one-out", the total of its response less the mean of the others';
        "prefix-value", its reward-to-go less the exact value of its prefix; "none", its
        reward-to-go as it is; "exact", no sampling: the average over all responses
    beta : the price of a nat, above 0
    responses : how many are drawn in all
    seed : of the draws; the same seed gives the same run
    optimizer : "sgd", "adam", or "natural", the gradient divided by the Fisher information
    learning_rate : None for the optimizer's usual one, see `usual_rate`
    decay : whether the rate falls linearly to 0; None for yes where responses are drawn
    batch_size : responses a step
    steps : None for as many as there are batches in `responses`
    measurements : how many times the policy is measured after the start
    reference, rewards : (R, V) logits and (V**T,) rewards of another toy; None for the course's
    progress : whether a bar is shown where there is a terminal
    log_softmax, terminal_rewards, kl_penalized_rewards, returns_to_go : other versions of the course's
        functions, for instance a student's; None for the package's
    leave_one_out_advantages, kl_estimates, policy_gradient_logits : likewise

    Returns
    -------
    ReinforceRun; its history counts steps and the responses drawn for them (0 where none are)

    Raises
    ------
    ValueError for an unknown name, or a number out of range; it names the argument.

    Source: Williams (1992); the placements are compared by Tang and Munos (2025).

    Examples
    --------
    >>> run = train(estimator="exact", optimizer="natural", steps=3, progress=False)
    >>> run.history["kl_optimum"].round(4)  # right from the last position to the first, a sweep each
    array([0.2606, 0.0272, 0.    , 0.    ])
    """
    _one_of(KL_PLACEMENTS, kl_placement=kl_placement)
    _one_of(ESTIMATORS, estimator=estimator)
    _one_of(OPTIMIZERS, optimizer=optimizer)
    course = _Course(
        log_softmax=log_softmax,
        terminal_rewards=terminal_rewards,
        kl_penalized_rewards=kl_penalized_rewards,
        returns_to_go=returns_to_go,
        leave_one_out_advantages=leave_one_out_advantages,
        kl_estimates=kl_estimates,
        policy_gradient_logits=policy_gradient_logits,
    )
    task = _lay_out(reference, rewards, course)
    sampled = estimator != "exact"
    if steps is None:
        steps = responses // batch_size
    if learning_rate is None:
        learning_rate = usual_rate(optimizer, estimator, kl_placement, beta)
    if decay is None:
        decay = sampled

    rng = np.random.default_rng(seed)
    direction = {"sgd": sgd, "adam": adam, "natural": natural}[optimizer]()
    measure_at = set(np.linspace(0, steps, min(measurements, steps) + 1).astype(int).tolist())
    measured = {0: exact_measures(task.reference, task.rewards, task.reference, beta)}
    logits = task.reference
    for step in _with_bar(range(1, steps + 1), progress):
        if sampled:
            counts = sample_counts(logits, batch_size, rng)
            drawn = np.flatnonzero(counts)
            gradient = _sampled_gradient(
                logits, task, kl_placement, estimator, beta, drawn, counts[drawn], course
            )
        else:
            gradient = _exact_gradient(logits, task, kl_placement, beta, course)
        rate = learning_rate * (1 - (step - 1) / steps) if decay else learning_rate
        logits = logits + rate * direction(gradient, logits)
        if step in measure_at:
            measured[step] = exact_measures(logits, task.rewards, task.reference, beta)

    at = np.array(list(measured), dtype=np.float64)
    history = {"responses": at * (batch_size if sampled else 0), "steps": at}
    history |= dict(zip(Measures._fields, np.array(list(measured.values())).T, strict=True))
    return ReinforceRun(history, logits)


# The gradient


def _sampled_gradient(logits, task, kl_placement, estimator, beta, drawn, counts, course):
    """The objective's gradient in the logits, (R, V), estimated from a batch.

    The batch holds response number drawn[d] counts[d] times, D different ones and B in all.
    """
    tokens, rows, score = task.tokens[drawn], task.rows[drawn], task.rewards[drawn]
    logp, logp_ref = course.log_softmax(logits)[rows, tokens], task.logp_ref[drawn]  # (D, T)
    mask = np.ones_like(tokens)
    batch_size = counts.sum()

    if kl_placement == "reward":
        rewards = course.kl_penalized_rewards(logp, logp_ref, score, mask, beta)
    else:
        rewards = course.terminal_rewards(score, mask)

    if estimator == "leave-one-out":
        group = np.repeat(rewards.sum(axis=1), counts)  # the whole batch, one after the other
        advantages = course.leave_one_out_advantages(group[None])[0]
        first = np.cumsum(counts) - counts  # where each different response begins in it
        weights = advantages[first][:, None] * mask
    else:
        weights = course.returns_to_go(rewards, mask)
        if estimator == "position-mean":
            weights = weights - counts @ weights / batch_size
        elif estimator == "prefix-value":
            weights = weights - _values(logits, task, kl_placement, beta).value[rows]

    if kl_placement.endswith("_loss"):
        weights = weights - beta * _derivative(kl_placement, logp, logp_ref, course)

    weights = weights * counts[:, None] / batch_size
    in_logits = course.policy_gradient_logits(logits[rows], tokens, weights, mask)  # (D, T, V)
    gradient = np.zeros_like(logits)
    np.add.at(gradient, rows, in_logits)
    return gradient


def _exact_gradient(logits, task, kl_placement, beta, course):
    """What `_sampled_gradient` is on average, (R, V)."""
    weights = _values(logits, task, kl_placement, beta).action_value
    if kl_placement.endswith("_loss"):
        logp, logp_ref = log_policy(logits), log_policy(task.reference)
        possible = logp > -np.inf  # what is never drawn has no part in an average
        logp, logp_ref = np.where(possible, logp, 0.0), np.where(possible, logp_ref, 0.0)
        weights = weights - beta * _derivative(kl_placement, logp, logp_ref, course)
    return expected_gradient(logits, weights)


def _values(logits, task, kl_placement, beta):
    """Exact values: of the penalized reward where the penalty is part of it, else of the bare one."""
    return prefix_values(logits, task.rewards, task.reference, beta if kl_placement == "reward" else 0.0)


def _derivative(kl_placement, logp, logp_ref, course, h=1e-5):
    """dk / dlogp of an estimate of the KL: what grad log pi is multiplied by when k is in the loss."""
    k = int(kl_placement[1]) - 1
    higher, lower = course.kl_estimates(logp + h, logp_ref)[k], course.kl_estimates(logp - h, logp_ref)[k]
    return (higher - lower) / (2 * h)


# The step


def sgd():
    """Along the gradient as it is.

    >>> sgd()(np.array([[2.0, -2.0]]), logits=np.zeros((1, 2)))
    array([[ 2., -2.]])
    """
    return lambda gradient, logits: gradient


def adam(decay_mean=0.9, decay_square=0.999, eps=1e-8):
    """Along the mean of past gradients, each entry in units of its own root mean square.

    Source: Kingma and Ba (2015), algorithm 1.

    >>> adam()(np.array([[2.0, -0.5]]), logits=np.zeros((1, 2))).round(6)  # at first nothing but the sign
    array([[ 1., -1.]])
    """
    mean = square = steps = 0

    def direction(gradient, logits):
        nonlocal mean, square, steps
        steps += 1
        mean = decay_mean * mean + (1 - decay_mean) * gradient
        square = decay_square * square + (1 - decay_square) * gradient**2
        unbiased_mean = mean / (1 - decay_mean**steps)
        unbiased_square = square / (1 - decay_square**steps)
        return unbiased_mean / (np.sqrt(unbiased_square) + eps)

    return direction


def natural():
    """The direction that raises the objective most for a given KL between old and new policy.

        F x = gradient,   F = d(s) (diag(pi) - pi pi^T)  for row s,   solved by
        x(s, a) = gradient(s, a) / (d(s) pi(a | s))

    since the gradient of each row adds up to 0. For the exact gradient x is the advantage.

    Source: Kakade (2001).

    >>> natural()(np.array([[0.1, -0.1]]), logits=np.log([[0.5, 0.5]])).round(6)
    array([[ 0.2, -0.2]])
    """

    def direction(gradient, logits):
        fisher = prefix_probabilities(logits)[:, None] * np.exp(log_policy(logits))
        return np.divide(gradient, fisher, out=np.zeros_like(gradient), where=fisher > 0)

    return direction


def usual_rate(optimizer, estimator, kl_placement, beta):
    """The learning rate that `train` uses where none is given.

    For the exact natural gradient it is 1 / beta: a step that sets the last position right at once, the
    one before it in the next sweep, and so on, T sweeps in all. Noise asks for less, and so does k3 in
    the loss, whose pull exp(-l) is anything but proportional to the log-ratio l.

    >>> usual_rate("natural", "exact", "reward", beta=0.5)
    2.0
    """
    if optimizer == "adam":
        return 0.08
    if optimizer == "sgd":
        return min(10.0, 5.0 / beta)  # the penalty's curvature grows with beta
    in_one_sweep = estimator == "exact" and kl_placement != "k3_loss"
    return 1 / beta if in_one_sweep else min(0.2, 0.5 / beta)


# Where each placement would come to rest


@validated(_has_a_reward_for_each_response, rewards=numbers("N"), reference=numbers("R V"), beta=above(0))
def fixed_point(kl_placement, rewards, reference, beta):
    """The policy at which the expected gradient of a placement is 0.

    At every prefix the weight of each token must be the same, w(s, a) = c(s). Position by position from
    the last, with Q(s, a) = V(s a) what is known to come after a:

        reward   w = Q - beta l              pi ~ pi_ref exp(Q / beta)         V = E[Q - beta l]
        k2_loss  w = Q - beta l              pi ~ pi_ref exp(Q / beta)         V = E[Q]
        k3_loss  w = Q - beta (1 - exp(-l))  pi = beta pi_ref / (c - Q)        V = E[Q]

    where l = log pi - log pi_ref and c is such that pi adds up to 1. `reward` ends at the optimum.
    k2_loss has the right form, but hands no price back: a token does not answer for the penalty of
    those that follow. k3_loss is drawn to the reference by the forward KL, whose tilt is not
    exponential.

    Parameters
    ----------
    kl_placement : "reward", "k2_loss" or "k3_loss"; the others have no penalty on average, so that
        nothing stops them but the best reward there is
    rewards : (V**T,), r of all responses
    reference : (R, V) logits of the reference
    beta : the price of a nat, above 0

    Returns
    -------
    (R, V) normalised log-probs

    Raises
    ------
    ValueError for another placement, shapes that disagree, a beta that is not above 0

    Source: Grill et al. (2020), whose policy for Monte Carlo tree search is that of k3_loss.

    Examples
    --------
    >>> reference = np.log([[0.5, 0.5]])
    >>> np.exp(fixed_point("reward", [0.0, np.log(3.0)], reference, beta=1.0)).round(4)
    array([[0.25, 0.75]])
    >>> np.exp(fixed_point("k3_loss", [0.0, 4 / 3], reference, beta=1.0)).round(4)
    array([[0.25, 0.75]])
    """
    _one_of(("reward", "k2_loss", "k3_loss"), kl_placement=kl_placement)
    logp_ref = log_policy(reference)
    logp = np.zeros_like(logp_ref)
    to_come = np.asarray(rewards, dtype=np.float64)
    for level in reversed(prefix_levels(reference)):
        q = to_come.reshape(-1, logp.shape[1])
        if kl_placement == "k3_loss":
            logp[level] = _tilted_by_forward_kl(logp_ref[level], q, beta)
        else:
            logp[level] = log_policy(logp_ref[level] + q / beta)
        p, possible = np.exp(logp[level]), logp[level] > -np.inf
        ratio = np.where(possible, logp[level], 0.0) - np.where(possible, logp_ref[level], 0.0)
        to_come = (p * (q - beta * ratio if kl_placement == "reward" else q)).sum(axis=1)
    return logp


def _tilted_by_forward_kl(logp_ref, q, beta):
    """log of pi = beta pi_ref / (c - q), rows that add up to 1.

    Their sum is convex and falls in c, and is 1 or more while c - q = beta pi_ref for some token: from
    the largest such c on, Newton's method never steps too far.
    """
    scaled = beta * np.exp(logp_ref)
    possible = scaled > 0
    gap = np.max(q, axis=1, keepdims=True, where=possible, initial=-np.inf) - q  # to the best, for precision
    c = np.max(scaled - gap, axis=1, keepdims=True, where=possible, initial=-np.inf)
    for _ in range(100):
        distance = np.where(possible, c + gap, 1.0)
        p = scaled / distance
        excess = p.sum(axis=1, keepdims=True) - 1
        if np.all(excess < 1e-15):
            break
        c = c + excess / (p / distance).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):  # log 0 = -inf is meant
        return np.log(p / p.sum(axis=1, keepdims=True))


# Around it


class _Task(NamedTuple):
    """A toy laid out, response by response in lexicographic order."""

    reference: np.ndarray  # (R, V) logits
    rewards: np.ndarray  # (N,)
    tokens: np.ndarray  # (N, T)
    rows: np.ndarray  # (N, T), the table's row for each token
    logp_ref: np.ndarray  # (N, T)


def _lay_out(reference, rewards, course):
    reference = np.asarray(reference_logits() if reference is None else reference, dtype=np.float64)
    length, vocab_size = len(prefix_levels(reference, "reference")), reference.shape[1]
    tokens = course.enumerate_responses(vocab_size, length)
    rewards = np.asarray(two_zeros(tokens) if rewards is None else rewards, dtype=np.float64)
    rows = prefix_rows(tokens, vocab_size)
    return _Task(reference, rewards, tokens, rows, log_policy(reference)[rows, tokens])


class _Course:
    """The course's functions by name: those that were handed in, else our own, fetched when first used."""

    def __init__(self, **functions):
        self.__dict__.update({name: f for name, f in functions.items() if f is not None})

    def __getattr__(self, name):
        function = globals().get(name)  # beside this one, in a notebook's given.py
        if function is None:
            try:
                import rltokens
            except ImportError:
                raise ValueError(f"{name}: expected a function of your own, got none") from None
            # What it is given here is right by construction, and checking that takes as long as computing.
            function = unwrap(getattr(rltokens, name))
        setattr(self, name, function)
        return function


def _one_of(choices, **argument):
    ((name, value),) = argument.items()
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def _with_bar(steps, progress):
    try:
        from tqdm import tqdm
    except ImportError:
        return steps
    return tqdm(steps, disable=None if progress else True)  # None: not where there is no terminal
