"""How long REINFORCE on the toy takes, and what its two ways to save time save.

    python benchmarks/reinforce.py

Seconds are CPU time, the median of the repetitions. What is compared runs in turn, and ratios are medians of
the repetitions' ratios: other work on the machine slows both alike.
"""

import statistics
import time

import numpy as np

import rltokens
from rltokens import reinforce, toy

REPETITIONS = 7


def seconds(*functions, repetitions=REPETITIONS):
    """CPU seconds of each function, (repetitions,) each."""
    taken = [[] for _ in functions]
    for _ in range(repetitions):
        for function, times in zip(functions, taken, strict=True):
            begun = time.process_time()
            function()
            times.append(time.process_time() - begun)
    return taken


def ratio(slow, fast):
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def default_runs():
    print("| estimator | seconds a run | microseconds a step | KL to the optimum |\n|---|---|---|---|")
    for estimator in reinforce.ESTIMATORS:
        history = reinforce.train(estimator=estimator, progress=False).history
        (times,) = seconds(lambda estimator=estimator: reinforce.train(estimator=estimator, progress=False))
        taken, steps, kl = statistics.median(times), history["steps"][-1], history["kl_optimum"][-1]
        print(f"| {estimator} | {taken:.2f} | {1e6 * taken / steps:.0f} | {kl:.0e} |")


def batch_as_counts(batch_size=2000):
    """A step's gradient, from the different responses and their counts, and from the batch written out."""
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    counts = toy.sample_counts(task.reference, batch_size, np.random.default_rng(0))
    drawn = np.flatnonzero(counts)
    written_out, once = np.repeat(drawn, counts[drawn]), np.ones(batch_size, dtype=np.int64)

    def gradients(drawn, counts):
        for _ in range(100):
            reinforce._sampled_gradient(
                task.reference, task, "reward", "leave-one-out", 0.5, drawn, counts, course
            )

    fast, slow = seconds(lambda: gradients(drawn, counts[drawn]), lambda: gradients(written_out, once))
    print(f"A gradient from counts takes 1/{ratio(slow, fast):.1f} of one from the batch written out.")


def large_toy(vocab_size=8, length=6):
    """The exact gradient through the tree of prefixes, and summed over all responses."""
    reference = toy.reference_logits(vocab_size, length)
    policy = toy.reference_logits(vocab_size, length, seed=1)

    def from_scratch():
        rewards = toy.two_zeros(rltokens.enumerate_responses(vocab_size, length))
        toy.exact_measures(policy, rewards, reference, 0.5)
        toy.exact_gradients(policy, rewards, reference, 0.5)

    (times,) = seconds(from_scratch)
    print(
        f"{vocab_size**length:,} responses, listed, scored, all measures and all their gradients: "
        f"{statistics.median(times):.2f} s."
    )
    responses = rltokens.enumerate_responses(vocab_size, length)
    rewards = toy.two_zeros(responses)

    def through_the_tree():
        toy.expected_gradient(policy, toy.prefix_values(policy, rewards).action_value)

    def over_all_responses():
        rows = toy.prefix_rows(responses, vocab_size)
        weights = np.exp(rltokens.sequence_distribution(policy, vocab_size, length)) * rewards
        weights = np.broadcast_to(weights[:, None], responses.shape)
        per_token = rltokens.policy_gradient_logits(policy[rows], responses, weights, np.ones_like(responses))
        np.add.at(np.zeros_like(policy), rows, per_token)

    fast, slow = seconds(through_the_tree, over_all_responses, repetitions=3)
    print(f"The gradient of the reward takes 1/{ratio(slow, fast):.0f} of the sum over all responses.")


if __name__ == "__main__":
    default_runs()
    print()
    batch_as_counts()
    large_toy()
