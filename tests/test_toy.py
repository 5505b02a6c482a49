"""The toy language model, by its published figures and by enumeration."""

import itertools
import math

import numpy as np
import pytest

import rltokens
from rltokens import toy


def test_the_reference_earns_what_is_published():
    logp = rltokens.sequence_distribution(toy.reference_logits(), 4, 3)
    rewards = toy.two_zeros(rltokens.enumerate_responses(4, 3))
    assert rewards.sum() == 9  # 3 places for the other token, 3 tokens for it
    assert toy.expected_reward(logp, rewards) == pytest.approx(0.083515, abs=5e-7)


def test_the_table_is_pinned():
    np.testing.assert_array_equal(toy.reference_logits(), np.random.default_rng(0).normal(size=(21, 4)))


@pytest.mark.parametrize(("vocab_size", "length"), [(2, 2), (3, 4), (4, 3)])
def test_responses_are_all_there_in_lexicographic_order(vocab_size, length):
    expected = list(itertools.product(range(vocab_size), repeat=length))
    np.testing.assert_array_equal(rltokens.enumerate_responses(vocab_size, length), expected)
    assert rltokens.enumerate_responses(vocab_size, length).dtype == np.int64


def test_rows_follow_the_prefixes():
    for y in itertools.product(range(4), repeat=3):
        assert toy.prefix_rows([y]).tolist() == [[0, 1 + y[0], 5 + 4 * y[0] + y[1]]]


def test_a_large_toy_needs_no_loop_over_responses():
    responses = rltokens.enumerate_responses(8, 6)
    assert responses.shape == (262_144, 6)
    logp = rltokens.sequence_distribution(toy.reference_logits(8, 6), 8, 6)
    assert np.exp(logp).sum() == pytest.approx(1.0, abs=1e-9)


def test_samples_come_as_often_as_they_should():
    table, count = toy.reference_logits(), 200_000
    drawn = toy.sample_responses(table, 3, count, np.random.default_rng(0))
    counts = np.bincount(drawn @ [16, 4, 1], minlength=64)
    expected = count * np.exp(rltokens.sequence_distribution(table, 4, 3))
    # Chi-squared with 63 degrees of freedom: mean 63, standard deviation 11.
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 4 * np.sqrt(2 * 63)


def test_a_forbidden_token_is_never_sampled():
    table = toy.reference_logits()
    table[:, 2] = -np.inf
    assert not (toy.sample_responses(table, 3, 1000, np.random.default_rng(0)) == 2).any()


# What can be known exactly. Each is compared with a sum over all responses, or with the course's functions.

BETA = 0.5
SHAPES = [(4, 3), (2, 4), (3, 2), (5, 1)]


def a_task(vocab_size, length, seed=1):
    """(policy, rewards, reference, responses), the tables as logits that no row of which is normalised."""
    rng = np.random.default_rng(seed)
    policy = toy.reference_logits(vocab_size, length, seed=seed) + rng.normal(
        size=(toy.prefix_count(vocab_size, length), 1)
    )
    rewards = rng.normal(size=vocab_size**length)
    reference = toy.reference_logits(vocab_size, length, seed=2)
    return policy, rewards, reference, rltokens.enumerate_responses(vocab_size, length)


def distribution(table):
    vocab_size = table.shape[1]
    return rltokens.sequence_distribution(table, vocab_size, len(toy.prefix_levels(table)))


def test_the_optimum_is_the_published_one():
    reference = toy.reference_logits()
    rewards = toy.two_zeros(rltokens.enumerate_responses(4, 3))
    at_optimum = toy.exact_measures(toy.optimal_table(reference, rewards, BETA), rewards, reference, BETA)
    assert at_optimum.reward == pytest.approx(0.402388, abs=5e-7)
    assert at_optimum.kl_reference == pytest.approx(0.377172, abs=5e-7)
    assert at_optimum.objective / BETA == pytest.approx(0.427604, abs=5e-7)
    assert at_optimum.kl_optimum < 1e-14
    at_reference = toy.exact_measures(reference, rewards, reference, BETA)
    assert at_reference.reward == pytest.approx(0.083515, abs=5e-7)
    assert at_reference.kl_reference == 0


@pytest.mark.parametrize(("vocab_size", "length"), [*SHAPES, (8, 6)])
def test_measures_are_the_sums_over_all_responses(vocab_size, length):
    policy, rewards, reference, _ = a_task(vocab_size, length)
    logp, logp_ref = distribution(policy), distribution(reference)
    p, p_ref = np.exp(logp), np.exp(logp_ref)
    optimum, log_z = rltokens.optimal_policy(logp_ref, rewards, BETA)
    measures = toy.exact_measures(policy, rewards, reference, BETA)
    assert measures.reward == pytest.approx(toy.expected_reward(logp, rewards), rel=1e-9)
    assert measures.kl_reference == pytest.approx(rltokens.kl_divergence(p, p_ref), rel=1e-9)
    assert measures.kl_optimum == pytest.approx(rltokens.kl_divergence(p, np.exp(optimum)), rel=1e-9)
    objective = rltokens.regularized_objective(p, p_ref, rewards, BETA)
    assert measures.objective == pytest.approx(objective, rel=1e-9)
    # What the optimum earns more is beta times the distance to it.
    assert measures.objective == pytest.approx(BETA * (log_z - measures.kl_optimum), rel=1e-9)
    table = toy.optimal_table(reference, rewards, BETA)
    np.testing.assert_allclose(distribution(table), optimum, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1, rtol=1e-12)


def test_the_optimum_is_stable_for_a_tiny_beta_and_large_rewards():
    _, rewards, reference, _ = a_task(4, 3)
    for beta, scale in ((1e-4, 1.0), (0.5, 1e6)):
        table = toy.optimal_table(reference, scale * rewards, beta)
        expected, _ = rltokens.optimal_policy(distribution(reference), scale * rewards, beta)
        assert np.isfinite(table).all()
        np.testing.assert_allclose(np.exp(distribution(table)), np.exp(expected), atol=1e-9)


@pytest.mark.parametrize(("vocab_size", "length"), SHAPES)
def test_gradients_are_the_slopes_of_the_measures(vocab_size, length):
    policy, rewards, reference, _ = a_task(vocab_size, length)
    gradients = toy.exact_gradients(policy, rewards, reference, BETA)
    h = 1e-5
    for place in np.ndindex(policy.shape):
        step = np.zeros_like(policy)
        step[place] = h
        above = np.array(toy.exact_measures(policy + step, rewards, reference, BETA))
        below = np.array(toy.exact_measures(policy - step, rewards, reference, BETA))
        slopes = (above - below) / (2 * h)
        np.testing.assert_allclose([g[place] for g in gradients], slopes, rtol=0, atol=1e-9)


def test_the_gradient_of_the_kl_is_that_of_the_audit():
    policy, rewards, reference, _ = a_task(4, 3)
    audit = rltokens.sequence_kl_gradient_audit(policy, reference, 4, 3)
    gradients = toy.exact_gradients(policy, rewards, reference, BETA)
    np.testing.assert_allclose(gradients.kl_reference, audit["reverse_kl"], atol=1e-14)


def test_no_direction_improves_the_optimum():
    _, rewards, reference, _ = a_task(4, 3)
    optimum = toy.optimal_table(reference, rewards, BETA)
    gradients = toy.exact_gradients(optimum, rewards, reference, BETA)
    np.testing.assert_allclose(gradients.objective, 0, atol=1e-14)
    np.testing.assert_allclose(gradients.kl_optimum, 0, atol=1e-14)
    assert abs(gradients.reward).max() > 0.01  # reward alone would pull on


@pytest.mark.parametrize(("vocab_size", "length"), SHAPES)
def test_the_value_of_a_prefix_is_what_its_responses_still_earn_on_average(vocab_size, length):
    policy, rewards, reference, responses = a_task(vocab_size, length)
    rows = toy.prefix_rows(responses, vocab_size)
    p = np.exp(distribution(policy))
    log_ratio = (toy.log_policy(policy) - toy.log_policy(reference))[rows, responses]  # (N, T)
    values = toy.prefix_values(policy, rewards, reference, BETA)
    reached = toy.prefix_probabilities(policy)
    for row in range(len(policy)):
        through, position = np.nonzero(rows == row)
        t = position[0]
        to_come = rewards[through] - BETA * log_ratio[through, t:].sum(axis=1)
        assert reached[row] == pytest.approx(p[through].sum())
        assert values.value[row] == pytest.approx((p[through] * to_come).sum() / p[through].sum())
        for token in range(vocab_size):
            after = responses[through, t] == token
            expected = (p[through][after] * to_come[after]).sum() / p[through][after].sum()
            assert values.action_value[row, token] == pytest.approx(expected)
    np.testing.assert_allclose(values.advantage, values.action_value - values.value[:, None])


def test_advantages_are_the_temporal_differences_of_the_penalized_rewards():
    policy, rewards, reference, responses = a_task(4, 3)
    rows, mask = toy.prefix_rows(responses), np.ones_like(responses)
    logp = toy.log_policy(policy)[rows, responses]
    logp_ref = toy.log_policy(reference)[rows, responses]
    values = toy.prefix_values(policy, rewards, reference, BETA)
    paid = rltokens.kl_penalized_rewards(logp, logp_ref, rewards, mask, BETA)
    deltas, _ = rltokens.gae(paid, values.value[rows], mask, lam=0.0)
    np.testing.assert_allclose(values.advantage[rows, responses], deltas, atol=1e-12)
    # At the optimum the total is the same for every response, and no token is better than another.
    optimum = toy.optimal_table(reference, rewards, BETA)
    np.testing.assert_allclose(toy.prefix_values(optimum, rewards, reference, BETA).advantage, 0, atol=1e-13)


def test_without_a_reference_the_value_is_of_the_reward_alone():
    policy, rewards, reference, _ = a_task(4, 3)
    bare = toy.prefix_values(policy, rewards)
    assert bare.value[0] == pytest.approx(toy.expected_reward(distribution(policy), rewards))
    for same in (toy.prefix_values(policy, rewards, reference), toy.prefix_values(policy, rewards, beta=9.0)):
        np.testing.assert_array_equal(same.action_value, bare.action_value)


@pytest.mark.parametrize(("vocab_size", "length"), SHAPES)
def test_the_expected_gradient_is_the_sum_over_all_responses(vocab_size, length):
    policy, _, _, responses = a_task(vocab_size, length)
    weights = np.random.default_rng(3).normal(size=policy.shape)
    rows = toy.prefix_rows(responses, vocab_size)
    p = np.exp(distribution(policy))[:, None]
    per_token = rltokens.policy_gradient_logits(
        policy[rows], responses, p * weights[rows, responses], np.ones_like(rows)
    )
    expected = np.zeros_like(policy)
    np.add.at(expected, rows, per_token)
    np.testing.assert_allclose(toy.expected_gradient(policy, weights), expected, atol=1e-14)


@pytest.mark.filterwarnings("error")
def test_forbidden_tokens_have_no_part_in_any_average():
    policy, rewards, reference, responses = a_task(4, 3)
    policy[1:5, 2] = reference[1:5, 2] = -np.inf
    allowed = responses[:, 1] != 2
    p, p_ref = np.exp(distribution(policy)), np.exp(distribution(reference))
    measures = toy.exact_measures(policy, rewards, reference, BETA)
    assert measures.kl_reference == pytest.approx(rltokens.kl_divergence(p[allowed], p_ref[allowed]))
    assert np.isfinite(measures).all()
    for gradient in toy.exact_gradients(policy, rewards, reference, BETA):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[1:5, 2], 0)
    assert np.isneginf(toy.optimal_table(reference, rewards, BETA)[1:5, 2]).all()


@pytest.mark.filterwarnings("error")
def test_only_a_prefix_that_the_policy_reaches_can_leave_the_reference():
    policy, rewards, reference, _ = a_task(4, 3)
    reference[1, 0] = -np.inf  # after token 0 the reference never writes another
    assert toy.exact_measures(policy, rewards, reference, BETA).kl_reference == np.inf
    assert toy.exact_measures(policy, rewards, reference, BETA).objective == -np.inf
    policy[0, 0] = -np.inf  # and this policy never begins with 0
    measures = toy.exact_measures(policy, rewards, reference, BETA)
    assert np.isfinite(measures).all()
    assert all(np.isfinite(g).all() for g in toy.exact_gradients(policy, rewards, reference, BETA))


def test_arguments_are_not_changed():
    policy, rewards, reference, _ = a_task(4, 3)
    before = policy.copy(), rewards.copy(), reference.copy()
    toy.exact_gradients(policy, rewards, reference, BETA)
    toy.sample_counts(policy, 10, np.random.default_rng(0))
    for now, then in zip((policy, rewards, reference), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_what_does_not_fit_together_is_refused_by_name():
    policy, rewards, reference, _ = a_task(4, 3)
    with pytest.raises(ValueError, match=r"table: expected a row for each prefix, .* V = 4, got 20"):
        toy.prefix_values(policy[:20], rewards)
    with pytest.raises(ValueError, match=r"rewards: expected 64 numbers, one for each response, got 63"):
        toy.prefix_values(policy, rewards[:63])
    with pytest.raises(ValueError, match=r"reference: expected shape \(21, 4\), got \(5, 4\)"):
        toy.prefix_values(policy, rewards, reference[:5], BETA)
    with pytest.raises(ValueError, match=r"beta: expected a number at least 0"):
        toy.prefix_values(policy, rewards, reference, -0.1)
    with pytest.raises(ValueError, match=r"beta: expected a number above 0"):
        toy.exact_measures(policy, rewards, reference, 0)
    with pytest.raises(ValueError, match=r"reference: expected a row for each prefix"):
        toy.optimal_table(reference[:20], rewards, BETA)
    with pytest.raises(ValueError, match=r"table: expected 85 rows for responses of 4 tokens, got 21"):
        toy.sample_responses(policy, 4, 10, np.random.default_rng(0))


# Sampling


def test_counts_come_as_often_as_they_should():
    table, count = toy.reference_logits(), 200_000
    counts = toy.sample_counts(table, count, np.random.default_rng(0))
    assert counts.sum() == count
    expected = count * np.exp(rltokens.sequence_distribution(table, 4, 3))
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 4 * np.sqrt(2 * 63)


def test_one_draw_says_nothing_of_the_next():
    drawn = toy.sample_responses(toy.reference_logits(), 3, 20_000, np.random.default_rng(0)) @ [16, 4, 1]
    # The correlation of independent draws is 0 with standard deviation 1 / sqrt(20,000) = 0.007.
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03


def test_a_table_for_longer_responses_gives_shorter_ones_too():
    table = toy.reference_logits()
    drawn = toy.sample_responses(table, 1, 100_000, np.random.default_rng(0))
    assert drawn.shape == (100_000, 1)
    share = np.bincount(drawn[:, 0], minlength=4) / len(drawn)
    np.testing.assert_allclose(share, np.exp(rltokens.log_softmax(table[0])), atol=0.01)


class Uniform:
    """A generator whose every draw is u."""

    def __init__(self, u):
        self.u = u

    def random(self, count):
        return np.full(count, self.u)


def test_the_ends_of_the_unit_interval_draw_what_is_possible():
    last_below_1 = 1 - 2.0**-53
    for seed in range(50):
        table = toy.reference_logits(seed=seed)
        table[:, [0, 3]] = -np.inf
        assert toy.sample_responses(table, 3, 1, Uniform(0.0)).tolist() == [[1, 1, 1]]
        assert toy.sample_responses(table, 3, 1, Uniform(last_below_1)).tolist() == [[2, 2, 2]]


# Verifiers, a reward model, pass@k


@pytest.mark.parametrize(
    ("verifier", "paid"),
    [
        (toy.two_zeros, {1.0: 9, 0.0: 55}),
        (toy.near_two_zeros, {1.0: 9, 0.5: 27 + 1, 0.0: 27}),  # one zero, or three, or none
        (toy.in_order, {1.0: 20, 0.0: 44}),  # as many as multisets of 3 out of 4
        (toy.has_token, {1.0: 64 - 27, 0.0: 27}),
    ],
)
def test_verifiers_pay_as_many_responses_as_can_be_counted(verifier, paid):
    values, counts = np.unique(verifier(rltokens.enumerate_responses(4, 3)), return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == paid


def test_the_reward_model_is_wrong_in_the_place_that_is_named_and_nowhere_else():
    responses = rltokens.enumerate_responses(4, 3)
    excess = toy.flawed_reward(responses) - toy.two_zeros(responses)
    flaw = toy.in_flaw(responses)
    assert responses[flaw].tolist() == [[y, 3, 3] for y in range(4)]
    np.testing.assert_array_equal(excess, np.where(flaw, toy.FLAW_BONUS, 0.0))
    assert not toy.two_zeros(responses)[flaw].any()
    assert toy.flawed_reward(responses)[flaw].min() > toy.flawed_reward(responses)[~flaw].max()


def test_a_cheap_kl_lets_the_policy_live_in_the_flaw():
    """Over-optimization, exactly: what is truly earned rises and falls while what is paid rises."""
    reference, responses = toy.reference_logits(), rltokens.enumerate_responses(4, 3)
    paid, earned = toy.flawed_reward(responses), toy.two_zeros(responses)
    optima = [toy.optimal_table(reference, paid, beta) for beta in (2.0, 0.5, 0.1)]
    by_paid = [toy.exact_measures(table, paid, reference, 1.0).reward for table in optima]
    by_earned = [toy.exact_measures(table, earned, reference, 1.0).reward for table in optima]
    assert by_paid[0] < by_paid[1] < by_paid[2]
    assert by_earned[0] < by_earned[1] > by_earned[2]
    assert by_earned[1] > 2 * 0.083515 > 0.083515 > 2 * by_earned[2]


def test_pass_at_k_is_the_share_of_k_tuples_with_a_right_one():
    p = np.exp(distribution(toy.reference_logits()))
    right = toy.two_zeros(rltokens.enumerate_responses(4, 3)) == 1
    some_right = right[:, None, None] | right[:, None] | right  # (64, 64, 64)
    expected = (p[:, None, None] * p[:, None] * p)[some_right].sum()
    assert toy.pass_at_k(p[right].sum(), 3) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
def test_pass_at_k_is_exact_where_success_is_rare_or_certain():
    np.testing.assert_array_equal(toy.pass_at_k([0.0, 1.0], 5), [0.0, 1.0])
    assert toy.pass_at_k(1e-20, 10) == pytest.approx(1e-19, abs=0)  # 1 - (1 - p)^k rounds to 0
    for success, k in ((1.5, 1), (-0.1, 1)):
        with pytest.raises(ValueError, match="success: expected probabilities"):
            toy.pass_at_k(success, k)
    for k in (0, 1.5):
        with pytest.raises(ValueError, match="k: expected whole numbers"):
            toy.pass_at_k(0.5, k)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_the_estimate_of_pass_at_k_is_right_on_average_and_the_naive_one_is_too_low(k):
    n, p = 7, 0.3
    right = np.arange(n + 1)
    chance = np.array([math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in right])
    assert chance @ toy.estimate_pass_at_k(n, right, k) == pytest.approx(toy.pass_at_k(p, k))
    naive = chance @ toy.pass_at_k(right / n, k)
    assert naive == pytest.approx(p) if k == 1 else naive < toy.pass_at_k(p, k) - 0.01


def test_the_estimate_of_pass_at_k_counts_draws_without_replacement():
    for n, c, k in itertools.product(range(1, 6), range(6), range(1, 6)):
        if c <= n and k <= n:
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            expected = np.mean([any(draw) for draw in draws])
            assert toy.estimate_pass_at_k(n, c, k) == pytest.approx(expected)
    with pytest.raises(ValueError, match="right: expected whole numbers from 0 to 4"):
        toy.estimate_pass_at_k(4, [5], 2)
    with pytest.raises(ValueError, match="k: expected a whole number from 1 to 4"):
        toy.estimate_pass_at_k(4, [2], 5)
