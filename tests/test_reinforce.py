"""REINFORCE on the toy: each gradient by enumeration, and where runs end over ten seeds."""

import itertools
import math
import sys

import numpy as np
import pytest

import rltokens
from rltokens import reinforce, toy
from rltokens.course import notebooks
from rltokens.reinforce import ESTIMATORS, KL_PLACEMENTS, OPTIMIZERS, fixed_point, train

BETA = 0.5
SAMPLED = [estimator for estimator in ESTIMATORS if estimator != "exact"]
TEN_SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.fixture(scope="module")
def reference():
    return toy.reference_logits()


@pytest.fixture(scope="module")
def rewards():
    return toy.two_zeros(rltokens.enumerate_responses(4, 3))


def distance(logits, other, rewards):
    """KL between two policies, nats a response."""
    return toy.exact_measures(logits, rewards, other, BETA).kl_reference


def small_task(seed=0):
    """A policy away from the reference on a toy of 4 responses, small enough to list all batches."""
    rng = np.random.default_rng(seed)
    course = reinforce._Course()
    task = reinforce._lay_out(toy.reference_logits(2, 2), rng.normal(size=4), course)
    return rng.normal(size=(3, 2)), task, course


def batch_gradient(logits, task, kl_placement, estimator, batch, course):
    """The gradient of a batch that is listed response by response."""
    drawn, counts = np.unique(batch, return_counts=True)
    return reinforce._sampled_gradient(logits, task, kl_placement, estimator, BETA, drawn, counts, course)


# The gradient


@pytest.mark.parametrize("kl_placement", KL_PLACEMENTS)
@pytest.mark.parametrize("estimator", SAMPLED)
def test_the_mean_over_all_batches_is_the_exact_gradient(estimator, kl_placement):
    """Batches of 3, all 64 of them: no estimator is off on average but the mean with one's own score."""
    logits, task, course = small_task()
    p = toy.response_probabilities(logits)
    mean = sum(
        p[list(batch)].prod() * batch_gradient(logits, task, kl_placement, estimator, batch, course)
        for batch in itertools.product(range(4), repeat=3)
    )
    exact = reinforce._exact_gradient(logits, task, kl_placement, BETA, course)
    if estimator == "position-mean":  # a third of the baseline is the response itself
        of_reward = "reward" if kl_placement == "reward" else "none"
        exact = exact - reinforce._exact_gradient(logits, task, of_reward, BETA, course) / 3
    np.testing.assert_allclose(mean, exact, rtol=0, atol=1e-9)
    assert abs(exact).max() > 0.01


@pytest.mark.parametrize(("kl_placement", "penalty"), [("k1_loss", None), ("k2_loss",) * 2, ("k3_loss",) * 2])
def test_a_kl_in_the_loss_has_the_gradient_of_the_audit(kl_placement, penalty, reference, rewards):
    logits = reference + np.random.default_rng(1).normal(size=reference.shape)
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    expected = toy.exact_gradients(logits, rewards, reference, BETA).reward
    if penalty is not None:
        expected = expected - BETA * rltokens.sequence_kl_gradient_audit(logits, reference, 4, 3)[penalty]
    gradient = reinforce._exact_gradient(logits, task, kl_placement, BETA, course)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-9)


def test_a_kl_in_the_reward_has_the_gradient_of_the_objective(reference, rewards):
    logits = reference + np.random.default_rng(1).normal(size=reference.shape)
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    exact = toy.exact_gradients(logits, rewards, reference, BETA)
    for kl_placement, expected in (("reward", exact.objective), ("none", exact.reward)):
        gradient = reinforce._exact_gradient(logits, task, kl_placement, BETA, course)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kl_placement", KL_PLACEMENTS)
@pytest.mark.parametrize("estimator", SAMPLED)
def test_a_batch_held_as_counts_has_the_gradient_of_the_batch_written_out(estimator, kl_placement):
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    logits = task.reference + np.random.default_rng(1).normal(size=(21, 4))
    counts = toy.sample_counts(logits, 500, np.random.default_rng(2))
    drawn = np.flatnonzero(counts)
    assert len(drawn) < 64 < counts.sum()

    def gradient(drawn, counts):
        return reinforce._sampled_gradient(logits, task, kl_placement, estimator, BETA, drawn, counts, course)

    written_out = np.random.default_rng(3).permutation(np.repeat(drawn, counts[drawn]))
    np.testing.assert_allclose(
        gradient(drawn, counts[drawn]), gradient(written_out, np.ones(500, dtype=np.int64)), atol=1e-13
    )


def test_at_the_optimum_two_estimators_have_no_noise_left_and_one_has(reference, rewards):
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    optimum = toy.optimal_table(reference, rewards, BETA)
    rng = np.random.default_rng(0)
    for estimator, quiet in (("leave-one-out", True), ("prefix-value", True), ("position-mean", False)):
        batch = rng.choice(64, size=50, p=toy.response_probabilities(optimum))
        gradient = batch_gradient(optimum, task, "reward", estimator, batch, course)
        assert (abs(gradient).max() < 1e-14) == quiet, estimator


# The step


def test_the_natural_direction_solves_the_fisher_system(reference):
    logits = reference + np.random.default_rng(1).normal(size=reference.shape)
    responses = rltokens.enumerate_responses(4, 3)
    rows, p = toy.prefix_rows(responses), toy.response_probabilities(logits)
    scores = np.zeros((64, *logits.shape))  # grad log pi(y) of every response
    for y in range(64):
        np.add.at(
            scores[y],
            rows[y],
            rltokens.policy_gradient_logits(
                logits[rows[[y]]], responses[[y]], np.ones((1, 3)), np.ones((1, 3))
            )[0],
        )
    scores = scores.reshape(64, -1)
    fisher = scores.T @ (p[:, None] * scores)
    gradient = toy.expected_gradient(logits, np.random.default_rng(2).normal(size=logits.shape))
    direction = reinforce.natural()(gradient, logits)
    np.testing.assert_allclose(fisher @ direction.reshape(-1), gradient.reshape(-1), atol=1e-14)


def test_adam_takes_the_steps_that_can_be_done_by_hand():
    """Two gradients, 1 and 3. Both means are unbiased: of the first 1 and 1, of the second
    (0.09 + 0.3) / 0.19 and (0.000999 + 0.009) / 0.001999."""
    direction = reinforce.adam()
    assert direction(np.array([1.0]), None) == pytest.approx([1.0])
    second = (0.39 / 0.19) / math.sqrt(0.009999 / 0.001999)
    assert direction(np.array([3.0]), None) == pytest.approx([second])


@pytest.mark.parametrize(("decay", "rates"), [(True, (1.0, 0.5)), (False, (1.0, 1.0)), (None, (1.0, 1.0))])
def test_the_rate_falls_to_nothing_or_stays(decay, rates, reference, rewards):
    run = train(estimator="exact", optimizer="sgd", learning_rate=1.0, steps=2, decay=decay)
    logits = reference
    for rate in rates:
        logits = logits + rate * toy.exact_gradients(logits, rewards, reference, BETA).objective
    np.testing.assert_allclose(run.logits, logits, atol=1e-13)


# Where runs end


@pytest.mark.parametrize("seed", TEN_SEEDS)
def test_with_a_whole_response_baseline_the_optimum_is_met(seed):
    run = train(seed=seed)
    assert run.history["responses"][-1] == 500_000
    assert run.history["kl_optimum"][-1] <= 1e-10


@pytest.mark.parametrize("seed", TEN_SEEDS)
def test_with_a_baseline_for_each_prefix_the_optimum_is_met(seed):
    assert train(estimator="prefix-value", seed=seed).history["kl_optimum"][-1] <= 1e-10


@pytest.mark.parametrize("seed", TEN_SEEDS)
def test_with_a_baseline_for_each_position_the_noise_of_the_last_steps_remains(seed):
    assert 1e-6 < train(estimator="position-mean", seed=seed).history["kl_optimum"][-1] <= 3e-4


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_exact_gradient_meets_the_optimum(optimizer):
    run = train(
        estimator="exact", optimizer=optimizer, steps={"sgd": 3000, "adam": None, "natural": 3}[optimizer]
    )
    assert run.history["kl_optimum"][-1] <= (1e-12 if optimizer == "natural" else 1e-10)


@pytest.mark.parametrize(("vocab_size", "length"), [(4, 3), (3, 4), (5, 2)])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_the_exact_natural_gradient_needs_as_many_sweeps_as_there_are_positions(vocab_size, length, beta):
    run = train(
        estimator="exact",
        optimizer="natural",
        steps=length,
        beta=beta,
        reference=toy.reference_logits(vocab_size, length),
        rewards=toy.in_order(rltokens.enumerate_responses(vocab_size, length)),
    )
    np.testing.assert_array_equal(run.history["steps"], range(length + 1))
    assert run.history["kl_optimum"][-1] < 1e-12 < 1e-11 < run.history["kl_optimum"][-2]


@pytest.mark.parametrize("seed", TEN_SEEDS)
@pytest.mark.parametrize("kl_placement", ["k1_loss", "none"])
def test_k1_in_the_loss_restrains_no_more_than_no_penalty(kl_placement, seed):
    """Batches of 2,000, Adam at 0.08 falling to 0, 250 steps: elsewhere they would be somewhere else."""
    run = train(
        kl_placement, seed=seed, batch_size=2000, optimizer="adam", learning_rate=0.08, steps=250, decay=True
    )
    assert run.history["reward"][-1] > 0.99
    assert run.history["kl_reference"][-1] > 3
    assert 1.5 < run.history["kl_optimum"][-1] < 2.3


def test_k1_in_the_loss_is_on_average_no_penalty_at_all():
    ends = [train(placement, "exact", optimizer="sgd", steps=300).logits for placement in ("k1_loss", "none")]
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kl_placement", "reward", "kl_reference", "kl_optimum"),
    [
        ("reward", 0.402388, 0.377172, 0.0),
        ("k2_loss", 0.449219, 0.490093, 0.019260),
        ("k3_loss", 0.481764, 0.627430, 0.091507),
    ],
)
def test_the_fixed_points_stand_still_where_they_are_said_to(
    kl_placement, reward, kl_reference, kl_optimum, reference, rewards
):
    rest = fixed_point(kl_placement, rewards, reference, BETA)
    measures = toy.exact_measures(rest, rewards, reference, BETA)
    expected = (reward, kl_reference, kl_optimum)
    assert measures[:3] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(np.exp(rest).sum(axis=1), 1, rtol=1e-12)
    course = reinforce._Course()
    task = reinforce._lay_out(None, None, course)
    gradient = reinforce._exact_gradient(rest, task, kl_placement, BETA, course)
    np.testing.assert_allclose(gradient, 0, atol=1e-10)


@pytest.mark.parametrize("kl_placement", ["reward", "k2_loss", "k3_loss"])
@pytest.mark.parametrize("optimizer", ["adam", "natural"])
def test_the_exact_gradient_comes_to_rest_at_the_fixed_point(kl_placement, optimizer, reference, rewards):
    rest = fixed_point(kl_placement, rewards, reference, BETA)
    run = train(kl_placement, "exact", optimizer=optimizer, steps=500)
    assert distance(run.logits, rest, rewards) < 1e-12


@pytest.mark.parametrize("seed", TEN_SEEDS)
@pytest.mark.parametrize("kl_placement", ["k2_loss", "k3_loss"])
def test_sampling_meets_the_wrong_fixed_point_and_not_the_optimum(kl_placement, seed, reference, rewards):
    run = train(kl_placement, seed=seed)
    wrong = fixed_point(kl_placement, rewards, reference, BETA)
    assert distance(run.logits, wrong, rewards) < 1e-3
    assert run.history["kl_optimum"][-1] > 0.015


@pytest.mark.parametrize("kl_placement", ["k2_loss", "k3_loss"])
def test_with_one_token_the_wrong_k2_is_right_and_k3_is_not(kl_placement):
    """Nothing follows a single token, so that only the kind of the penalty can be wrong."""
    rng = np.random.default_rng(0)
    reference, rewards = rng.normal(size=(1, 6)), rng.normal(size=6)
    off = distance(
        fixed_point(kl_placement, rewards, reference, BETA),
        toy.optimal_table(reference, rewards, BETA),
        rewards,
    )
    assert (off < 1e-14) == (kl_placement == "k2_loss")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("beta", [1e-4, 1e4])
def test_fixed_points_are_found_at_any_price(beta, reference, rewards):
    forbidden = reference.copy()
    forbidden[:, 1] = -np.inf
    for table, kl_placement in itertools.product((reference, forbidden), ("reward", "k2_loss", "k3_loss")):
        rest = fixed_point(kl_placement, rewards, table, beta)
        np.testing.assert_allclose(np.exp(rest).sum(axis=1), 1, rtol=1e-11)
        course = reinforce._Course()
        task = reinforce._lay_out(table, rewards, course)
        gradient = reinforce._exact_gradient(rest, task, kl_placement, beta, course)
        np.testing.assert_allclose(gradient, 0, atol=1e-9 * max(1, beta))
    assert np.isneginf(rest[:, 1]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_choice_runs_and_improves_on_the_reference(optimizer, reference):
    for kl_placement, estimator in itertools.product(KL_PLACEMENTS, ESTIMATORS):
        run = train(kl_placement, estimator, optimizer=optimizer, responses=60_000)
        assert np.isfinite(run.logits).all()
        assert run.history["reward"][-1] > run.history["reward"][0] + 0.1, (kl_placement, estimator)


@pytest.mark.filterwarnings("error")
def test_other_toys_and_forbidden_tokens():
    reference = toy.reference_logits(3, 2)
    reference[1:, 2] = -np.inf  # only the first token may be a 2
    rewards = toy.in_order(rltokens.enumerate_responses(3, 2))
    for estimator in ESTIMATORS:
        run = train(estimator=estimator, reference=reference, rewards=rewards)
        assert run.history["kl_optimum"][-1] < 1e-3
        assert np.isneginf(run.logits[1:, 2]).all()
    run = train("k2_loss", "exact", reference=reference, rewards=rewards, steps=10)
    assert np.isfinite(run.logits[1:, :2]).all()


# What a run reports


def test_a_history_is_exact_from_the_start_to_the_end(reference, rewards):
    run = train(responses=40_000, measurements=4)
    assert set(run.history) == {"responses", "steps", "reward", "kl_reference", "kl_optimum", "objective"}
    for values in run.history.values():
        assert values.dtype == np.float64
    assert run.history["responses"].tolist() == [0, 10_000, 20_000, 30_000, 40_000]
    assert run.history["steps"].tolist() == [0, 5, 10, 15, 20]
    for at, logits in ((0, reference), (-1, run.logits)):
        for name, value in toy.exact_measures(logits, rewards, reference, BETA)._asdict().items():
            assert run.history[name][at] == value
    objective = run.history["reward"] - BETA * run.history["kl_reference"]
    np.testing.assert_allclose(run.history["objective"], objective)
    assert train(estimator="exact", steps=3).history["responses"].tolist() == [0, 0, 0, 0]


def test_a_seed_gives_a_run_and_another_seed_another():
    first, again, other = (train(responses=20_000, seed=seed).logits for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert abs(first - other).max() > 0.01


def test_measuring_more_often_changes_no_run():
    few, many = (train(responses=20_000, measurements=m).logits for m in (1, 20))
    np.testing.assert_array_equal(few, many)


def test_the_reference_never_moves():
    reference = toy.reference_logits()
    train(responses=5000, reference=reference)
    np.testing.assert_array_equal(reference, toy.reference_logits())


def test_no_bar_where_there_is_no_terminal(capfd):
    train(responses=5000)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kl_placement": "k1"}, "kl_placement: expected one of 'reward', 'k1_loss', .* got 'k1'"),
        ({"estimator": "rloo"}, "estimator: expected one of 'position-mean', 'leave-one-out', .* got 'rloo'"),
        ({"optimizer": "lbfgs"}, "optimizer: expected one of 'sgd', 'adam', 'natural', got 'lbfgs'"),
        ({"beta": 0}, "beta: expected a number above 0"),
        ({"responses": 1999}, "responses: expected a batch of 2000 or more, got 1999"),
        ({"batch_size": 1}, "batch_size: expected 2 or more"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0"),
        ({"reference": np.zeros((20, 4))}, "reference: expected a row for each prefix"),
        ({"rewards": np.zeros(63)}, "rewards: expected 64 numbers"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)
    if "kl_placement" in arguments:
        with pytest.raises(ValueError, match="kl_placement: expected one of 'reward', 'k2_loss', 'k3_loss'"):
            fixed_point("k1_loss", np.zeros(64), toy.reference_logits(), BETA)


# Whose functions run it

CALLED = {
    "log_softmax": {},
    "terminal_rewards": {"kl_placement": "none"},
    "kl_penalized_rewards": {},
    "returns_to_go": {"estimator": "none"},
    "leave_one_out_advantages": {},
    "kl_estimates": {"kl_placement": "k3_loss"},
    "policy_gradient_logits": {},
}


@pytest.mark.parametrize("name", CALLED)
def test_a_function_that_is_handed_in_drives_the_run(name):
    """The same function gives the same run; one that is off by a factor gives another."""
    arguments = {"responses": 20_000, "optimizer": "sgd", **CALLED[name]}  # Adam would not see a factor

    def off(*args):
        result = getattr(rltokens, name)(*args)
        return tuple(1.5 * k for k in result) if isinstance(result, tuple) else 1.5 * result

    plain = train(**arguments).logits
    np.testing.assert_array_equal(train(**arguments, **{name: getattr(rltokens, name)}).logits, plain)
    assert abs(train(**arguments, **{name: off}).logits - plain).max() > 1e-3


def lifted(*modules):
    """The modules as one file that does not know the package, as in a notebook's given.py."""
    parts = [notebooks._standalone(f"rltokens.{module}") for module in modules]
    return "\n".join([*(line for imports, _ in parts for line in imports), *(body for _, body in parts)])


def test_lifted_into_a_notebook_it_runs_on_what_a_student_hands_in(monkeypatch):
    namespace = {"__name__": "given"}
    exec(compile(lifted("mdp", "logprobs", "toy", "reinforce"), "given.py", "exec"), namespace)
    expected = train(responses=20_000).logits
    monkeypatch.setitem(sys.modules, "rltokens", None)  # as if it were not installed
    mine = {
        name: getattr(sys.modules[f"rltokens.{home}"], name)
        for name, home in (
            ("kl_penalized_rewards", "objective"),
            ("leave_one_out_advantages", "credit"),
            ("policy_gradient_logits", "credit"),
        )
    }
    run = namespace["train"](responses=20_000, **mine)
    np.testing.assert_array_equal(run.logits, expected)
    with pytest.raises(ValueError, match="returns_to_go: expected a function of your own"):
        namespace["train"](estimator="none", **mine)
    with pytest.raises(ValueError, match="kl_placement: expected one of"):
        namespace["train"]("k1", **mine)
