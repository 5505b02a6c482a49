"""Chapter 4's functions: the toy's published figures, everything else by enumeration and identities."""

import itertools
import math

import numpy as np
import pytest

import rltokens
from rltokens import toy

pytestmark = pytest.mark.filterwarnings("error")

RESPONSES = rltokens.enumerate_responses(4, 3)
REWARDS = toy.two_zeros(RESPONSES)
LOGP_REF = rltokens.sequence_distribution(toy.reference_logits(), 4, 3)
P_REF = np.exp(LOGP_REF)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- kl_divergence -------------------------------------------------------------------------------


def test_kl_divergence_by_hand():
    # 3/4 log 3 - 1/4 log 3, and the other way round 1/4 log(1/3) + 3/4 log 3: the same by symmetry.
    assert rltokens.kl_divergence([0.75, 0.25], [0.25, 0.75]) == pytest.approx(0.5 * math.log(3), rel=1e-14)
    # p in the logarithm's numerator, and p as the weight: 1/2 log 2 + 1/2 log(2/3).
    assert rltokens.kl_divergence([0.5, 0.5], [0.25, 0.75]) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-14)
    assert rltokens.kl_divergence([0.25, 0.75], [0.5, 0.5]) == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-14
    )


def test_kl_divergence_where_something_has_probability_zero():
    with np.errstate(all="raise"):
        got = rltokens.kl_divergence(
            [[1, 0], [0.5, 0.5], [1, 0], [0, 1]], [[0.5, 0.5], [1, 0], [1, 0], [1, 0]]
        )
    np.testing.assert_array_equal(got, [math.log(2), np.inf, 0.0, np.inf])


def test_kl_divergence_sums_over_the_last_axis_only(rng):
    p, q = rng.dirichlet(np.ones(5), size=(2, 3)), rng.dirichlet(np.ones(5), size=(2, 3))
    expected = [
        [sum(a * math.log(a / b) for a, b in zip(p[i, j], q[i, j], strict=True)) for j in range(3)]
        for i in range(2)
    ]
    np.testing.assert_allclose(rltokens.kl_divergence(p, q), expected, rtol=1e-12)
    assert (rltokens.kl_divergence(p, q) > 0).all()
    np.testing.assert_array_equal(rltokens.kl_divergence(p, p), 0.0)


# --- regularized_objective and optimal_policy ----------------------------------------------------


def test_the_toys_published_figures():
    logp, log_z = rltokens.optimal_policy(LOGP_REF, REWARDS, beta=0.5)
    p = np.exp(logp)
    assert p @ REWARDS == pytest.approx(0.402388, abs=5e-7)
    assert rltokens.kl_divergence(p, P_REF) == pytest.approx(0.377172, abs=5e-7)
    assert log_z == pytest.approx(0.427604, abs=5e-7)
    assert rltokens.regularized_objective(P_REF, P_REF, REWARDS, beta=0.5) == pytest.approx(
        0.083515, abs=5e-7
    )
    assert rltokens.regularized_objective(p, P_REF, REWARDS, beta=0.5) == pytest.approx(
        0.402388 - 0.5 * 0.377172, abs=1e-6
    )


def test_regularized_objective_by_hand():
    # E[r] = 3/4 * 2 + 1/4 * 4 = 2.5, KL = 1/2 log 3.
    arguments = [0.75, 0.25], [0.25, 0.75], [2, 4]
    for beta in (0, 0.5, 3):
        assert rltokens.regularized_objective(*arguments, beta) == pytest.approx(
            2.5 - beta * 0.5 * math.log(3), rel=1e-14
        )


def test_leaving_what_the_reference_can_write_costs_everything_unless_it_is_free():
    with np.errstate(all="raise"):
        assert rltokens.regularized_objective([0.5, 0.5], [1.0, 0.0], [1.0, 3.0], beta=1e-9) == -np.inf
        assert rltokens.regularized_objective([0.5, 0.5], [1.0, 0.0], [1.0, 3.0], beta=0) == 2.0
        # And the reward of what is never written is not read.
        assert rltokens.regularized_objective([1.0, 0.0], [0.5, 0.5], [1.0, -np.inf], beta=0) == 1.0
        assert rltokens.regularized_objective([1.0, 0.0], [1.0, 0.0], [1.0, np.nan], beta=2) == 1.0


def test_optimal_policy_by_hand():
    # Odds 1 : 3 tilted by exp(r / beta) = 1 : 9 become 1 : 27, and Z = 1/4 + 3/4 * 9 = 7.
    logp, log_z = rltokens.optimal_policy(np.log([0.25, 0.75]), [0.0, 2 * np.log(9)], beta=2)
    np.testing.assert_allclose(np.exp(logp), [1 / 28, 27 / 28], rtol=1e-14)
    assert log_z == pytest.approx(math.log(7), rel=1e-14)


@pytest.mark.parametrize("beta", [0.05, 0.5, 4])
def test_the_optimum_attains_beta_log_z_and_every_other_policy_falls_short_by_its_kl(beta, rng):
    """J(p) = beta log Z - beta KL(p || pi*): proves the optimum, and that it is the only one."""
    rewards = rng.normal(size=64)
    logp, log_z = rltokens.optimal_policy(LOGP_REF, rewards, beta)
    best = rltokens.regularized_objective(np.exp(logp), P_REF, rewards, beta)
    assert best == pytest.approx(beta * log_z, rel=1e-12)
    for scale in (1e-3, 0.1, 1.0, 10.0):
        other = np.exp(rltokens.log_softmax(logp + scale * rng.normal(size=64)))
        got = rltokens.regularized_objective(other, P_REF, rewards, beta)
        assert got < best
        assert got == pytest.approx(best - beta * rltokens.kl_divergence(other, np.exp(logp)), rel=1e-9)


@pytest.mark.parametrize("beta", [1e-4, 0.3, 1e4])
def test_reward_minus_price_is_the_same_for_every_response_at_the_optimum(beta, rng):
    rewards = rng.normal(size=64)
    logp, log_z = rltokens.optimal_policy(LOGP_REF, rewards, beta)
    account = rewards - beta * (logp - LOGP_REF)
    np.testing.assert_allclose(account, beta * log_z, atol=1e-14 * max(beta, 100))


def test_a_constant_reward_changes_log_z_alone(rng):
    rewards = rng.integers(-4, 5, size=64).astype(float)
    logp, log_z = rltokens.optimal_policy(LOGP_REF, rewards, beta=0.25)
    shifted, shifted_log_z = rltokens.optimal_policy(LOGP_REF, rewards + 1024.0, beta=0.25)
    np.testing.assert_array_equal(shifted, logp)
    assert shifted_log_z == pytest.approx(log_z + 4096.0, rel=1e-15)
    np.testing.assert_allclose(rltokens.optimal_policy(LOGP_REF, 0 * rewards, 1.0)[0], LOGP_REF, rtol=1e-13)


@pytest.mark.parametrize("beta", [1e-4, 0.5])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e300, -1e6, -1e300])
def test_rewards_of_any_size_and_a_tiny_beta_make_no_nan(size, beta):
    # Two best responses share what the reference gives them, 1 : 3.
    logp_ref = np.log([0.1, 0.3, 0.6])
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        logp, log_z = rltokens.optimal_policy(logp_ref, [size, size, size - 1e3 * abs(size)], beta)
    np.testing.assert_allclose(np.exp(logp), [0.25, 0.75, 0.0], atol=1e-15)
    assert np.exp(logp).sum() == pytest.approx(1.0, abs=1e-15)
    assert beta * log_z == pytest.approx(size + beta * math.log(0.4), rel=1e-14)


def test_the_largest_rewards_that_there_are():
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        logp, log_z = rltokens.optimal_policy(np.log([0.5, 0.5]), [1.7e308, -1.7e308], beta=1e-4)
    np.testing.assert_array_equal(logp, [0.0, -np.inf])
    assert log_z == np.inf  # 1.7e312 is no float64


def test_where_the_reference_hardly_writes_the_best_responses():
    # log Z = log(e^-2000 + e^(-1/beta) (1 - ...)): the largest exponent is that of the second response.
    logp, log_z = rltokens.optimal_policy([-2000.0, 0.0], [1.0, 0.0], beta=1e-3)
    np.testing.assert_allclose(logp, [-1000.0, 0.0])
    assert log_z == pytest.approx(0.0, abs=1e-12)
    logp, log_z = rltokens.optimal_policy([-2000.0, 0.0], [1.0, 0.0], beta=1e-4)
    np.testing.assert_allclose(logp, [0.0, -8000.0])
    assert log_z == pytest.approx(8000.0)


@pytest.mark.parametrize("reward", [1e6, 1e308, -1e308, np.inf, -np.inf, np.nan])
def test_a_forbidden_response_stays_forbidden_and_its_reward_is_not_read(reward):
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        logp, log_z = rltokens.optimal_policy(
            [math.log(0.5), math.log(0.5), -np.inf], [0.0, 1e-4, reward], beta=1e-4
        )
    np.testing.assert_allclose(logp, [-math.log(1 + math.e), 1 - math.log(1 + math.e), -np.inf], rtol=1e-12)
    assert log_z == pytest.approx(math.log((1 + math.e) / 2), rel=1e-12)


def test_the_best_reward_is_sought_among_what_is_allowed():
    # Rewards that differ in their last digits only: taking off anything but the best would lose these.
    rewards = np.array([-(2.0**40), -(2.0**40) + 2.0**-12, 0.0])
    logp, _ = rltokens.optimal_policy([math.log(0.5), math.log(0.5), -np.inf], rewards, beta=1e-4)
    assert logp[1] - logp[0] == pytest.approx(2.0**-12 / 1e-4, rel=1e-12)


# --- kl_penalized_rewards ------------------------------------------------------------------------

MASK = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
REAL = MASK == 1


def test_kl_penalized_rewards_by_hand():
    logp, logp_ref = [[-1.0, -2.0, 9.0, -4.0, 9.0]], [[-2.0, -1.0, 9.0, -1.0, 9.0]]
    got = rltokens.kl_penalized_rewards(logp, logp_ref, [10.0], [[1, 1, 0, 1, 0]], beta=0.5)
    np.testing.assert_array_equal(got, [[-0.5, 0.5, 0.0, 11.5, 0.0]])


def test_penalized_rewards_add_up_to_score_minus_beta_log_ratio(rng):
    logp, logp_ref, score = rng.normal(size=(4, 5)), rng.normal(size=(4, 5)), rng.normal(size=4)
    got = rltokens.kl_penalized_rewards(logp, logp_ref, score, MASK, beta=0.3)
    log_ratio = np.where(REAL, logp - logp_ref, 0.0).sum(axis=1)
    np.testing.assert_allclose(got.sum(axis=1), score * REAL.any(axis=1) - 0.3 * log_ratio, rtol=1e-13)
    np.testing.assert_array_equal(got[~REAL], 0.0)


def test_averaged_over_the_policys_responses_they_are_the_objective():
    table, reference = toy.reference_logits(seed=1), toy.reference_logits()
    ones = np.ones_like(RESPONSES)
    logp, logp_ref = (
        rltokens.token_logprobs(toy.response_logits(t, RESPONSES), RESPONSES, ones)
        for t in (table, reference)
    )
    totals = rltokens.kl_penalized_rewards(logp, logp_ref, REWARDS, ones, beta=0.5).sum(axis=1)
    p = np.exp(rltokens.sequence_distribution(table, 4, 3))
    assert p @ totals == pytest.approx(rltokens.regularized_objective(p, P_REF, REWARDS, 0.5), rel=1e-12)


@pytest.mark.parametrize("beta", [0, 0.3])
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_padding_and_the_scores_of_empty_rows_are_inert(beta, junk, rng):
    logp, logp_ref, score = rng.normal(size=(4, 5)), rng.normal(size=(4, 5)), rng.normal(size=4)
    clean = rltokens.kl_penalized_rewards(logp, logp_ref, score, MASK, beta)
    with np.errstate(all="raise"):
        got = rltokens.kl_penalized_rewards(
            np.where(REAL, logp, junk),
            np.where(REAL, logp_ref, junk),
            np.where(REAL.any(axis=1), score, junk),
            MASK,
            beta,
        )
        empty = rltokens.kl_penalized_rewards(0 * logp + junk, logp_ref, score * junk, 0 * MASK, beta)
    np.testing.assert_array_equal(got, clean)
    np.testing.assert_array_equal(empty, np.zeros((4, 5)))


def test_a_token_that_the_reference_never_writes_costs_infinitely_much_unless_it_is_free():
    with np.errstate(all="raise"):
        got = rltokens.kl_penalized_rewards([[-1.0, -1.0]], [[-np.inf, -1.0]], [2.0], [[1, 1]], beta=0.1)
        free = rltokens.kl_penalized_rewards([[-1.0, -1.0]], [[-np.inf, -1.0]], [2.0], [[1, 1]], beta=0)
    np.testing.assert_array_equal(got, [[-np.inf, 2.0]])
    np.testing.assert_array_equal(free, [[0.0, 2.0]])


# --- per_token_kl --------------------------------------------------------------------------------


def per_token_kl_by_enumeration(table, reference, vocab_size, length):
    expected = np.zeros(length)
    for t in range(length):
        for prefix in itertools.product(range(vocab_size), repeat=t):
            row, reached = 0, 1.0
            for token in prefix:
                reached *= math.exp(table[row, token])
                row = vocab_size * row + 1 + token
            for token in range(vocab_size):
                log_ratio = table[row, token] - reference[row, token]
                expected[t] += reached * math.exp(table[row, token]) * log_ratio
    return expected


@pytest.mark.parametrize(("vocab_size", "length"), [(1, 3), (2, 1), (2, 4), (3, 3), (4, 3)])
def test_per_token_kl_adds_up_to_the_kl_of_the_whole_responses(vocab_size, length):
    z, z_ref = (toy.reference_logits(vocab_size, length, seed=seed) for seed in (1, 2))
    table, reference = rltokens.log_softmax(z), rltokens.log_softmax(z_ref)
    got = rltokens.per_token_kl(table, reference)
    expected = per_token_kl_by_enumeration(table, reference, vocab_size, length)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-15)
    whole = rltokens.kl_divergence(
        *(np.exp(rltokens.sequence_distribution(logits, vocab_size, length)) for logits in (z, z_ref))
    )
    assert got.sum() == pytest.approx(whole, rel=1e-11, abs=1e-15)
    assert got.shape == (length,)


def test_prefixes_are_drawn_from_the_policy_and_not_from_the_reference():
    # The policy writes 0 first with 3/4, the reference with 1/4; after 0 they differ by log 2, after 1 not.
    policy = np.log([[0.75, 0.25], [1.0, 1e-300], [0.5, 0.5]])
    reference = np.log([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]])
    got = rltokens.per_token_kl(policy, reference)
    np.testing.assert_allclose(got, [0.5 * math.log(3), 0.75 * math.log(2)], rtol=1e-13)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_a_prefix_that_is_never_reached_adds_nothing(junk):
    half = math.log(0.5)
    policy = np.full((7, 2), half)
    policy[0] = [0.0, -np.inf]  # so rows 2, 5 and 6 are never reached
    reference = np.full((7, 2), half)
    reference[2], policy[2] = [-np.inf, 0.0], [0.0, -np.inf]  # an infinite KL, if it were reached
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        np.testing.assert_allclose(rltokens.per_token_kl(policy, reference), [math.log(2), 0, 0], atol=1e-15)
        for table in (policy, reference):
            table[[2, 5, 6]] = -np.inf if junk == np.inf else junk
        np.testing.assert_allclose(rltokens.per_token_kl(policy, reference), [math.log(2), 0, 0], atol=1e-15)


def test_a_prefix_that_the_reference_never_goes_on_from_costs_infinitely_much():
    half = math.log(0.5)
    reference = [[half, half], [0.0, -np.inf], [half, half]]
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        np.testing.assert_array_equal(rltokens.per_token_kl(np.full((3, 2), half), reference), [0.0, np.inf])


def test_rare_is_not_never():
    # A log-prob of -800 is a probability of 0 in float64, and yet its KL is finite: log 1/2 + 400.
    reference = rltokens.log_softmax([[0.0, -800.0]])
    got = rltokens.per_token_kl(np.log([[0.5, 0.5]]), reference)
    np.testing.assert_allclose(got, [400.0 - math.log(2)], rtol=1e-14)
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        np.testing.assert_allclose(rltokens.per_token_kl(reference, np.log([[0.5, 0.5]])), [math.log(2)])


# --- adapt_beta ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observed", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1 + 0.1 * 0.05),  # 10 % too far
        (5.4, 1 - 0.1 * 0.05),
        (7.2, 1 + 0.2 * 0.05),  # the clip begins
        (60.0, 1 + 0.2 * 0.05),
        (0.0, 1 - 0.2 * 0.05),
        (-3.0, 1 - 0.2 * 0.05),  # an estimate may come out negative
    ],
)
def test_adapt_beta_by_hand(observed, factor):
    got = rltokens.adapt_beta(0.1, observed, target_kl=6.0, batch_size=500)
    assert got == pytest.approx(0.1 * factor, rel=1e-14)
    assert rltokens.adapt_beta(0.3, observed, 6.0, batch_size=10, horizon=200) == pytest.approx(
        0.3 * factor, rel=1e-14
    )


def test_adapt_beta_leaves_a_price_of_nothing_and_an_empty_batch_alone():
    assert rltokens.adapt_beta(0, 9.0, 6.0, 500) == 0.0
    assert rltokens.adapt_beta(0.1, 9.0, 6.0, 0) == 0.1


def test_adapt_beta_computes_in_float64_and_gives_a_plain_float():
    given = [np.float32(0.1), np.float32(6.3), np.float32(6.1), np.int64(500), np.float32(7e3)]
    got = rltokens.adapt_beta(*given)
    assert type(got) is float
    assert got == rltokens.adapt_beta(*map(float, given[:3]), 500, 7e3)
    assert type(rltokens.adapt_beta(1, 1, 1, 1)) is float


# --- Types, inputs, errors -----------------------------------------------------------------------

P3, L3 = np.array([0.25, 0.5, 0.25]), np.array([-1.5, -0.5, -1.5])
CALLS = {
    "kl_divergence": (rltokens.kl_divergence, [P3, P3[::-1] * 0.5]),
    "regularized_objective": (rltokens.regularized_objective, [P3, P3 * 0.5, np.array([1, 2, 4]), 0.5]),
    "optimal_policy": (rltokens.optimal_policy, [L3, np.array([1, 2, 4]), 0.5]),
    "kl_penalized_rewards": (
        rltokens.kl_penalized_rewards,
        [L3[None], 2 * L3[None], np.array([3.0]), np.array([[1, 0, 1]]), 0.1],
    ),
    "per_token_kl": (rltokens.per_token_kl, [np.stack([L3] * 4), np.stack([2 * L3] * 4)]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.longdouble])
def test_any_real_type_is_widened_before_arithmetic(name, kind):
    f, arguments = CALLS[name]
    copies = [np.copy(x) for x in arguments]
    given = [
        x if np.ndim(x) == 0 else (0.9 * x).tolist() if kind is list else (0.9 * x).astype(kind)
        for x in arguments
    ]
    if name == "kl_penalized_rewards":
        given[3] = arguments[3].tolist() if kind is list else arguments[3].astype(kind)
    wide = [x if np.ndim(x) == 0 else np.asarray(x).astype(np.float64) for x in given]
    got, expected = f(*given), f(*wide)
    if name != "optimal_policy":
        got, expected = (got,), (expected,)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == np.float64
    f(*arguments)
    for x, copy in zip(arguments, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_rewards_may_be_whole_numbers_or_truth_values():
    for kind in (int, bool, np.uint8):
        rewards = REWARDS.astype(kind)
        np.testing.assert_array_equal(
            rltokens.optimal_policy(LOGP_REF, rewards, 1)[0], rltokens.optimal_policy(LOGP_REF, REWARDS, 1)[0]
        )
        assert rltokens.regularized_objective(P_REF, P_REF, rewards, 1) == pytest.approx(0.083515, abs=5e-7)


X, ONES, TABLE = np.zeros((2, 3)), np.ones((2, 3)), np.full((3, 2), math.log(0.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.kl_divergence(P3, P3[:2]), r"q: expected shape \(3\), got \(2,\)"),
        (lambda: rltokens.kl_divergence(X, X[:1]), r"q: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.kl_divergence(X, P3), r"q: expected shape \(2, 3\), got \(3,\)"),
        (lambda: rltokens.kl_divergence(1.0, 1.0), r"p: expected shape \(\.\.\., V\), got \(\)"),
        (
            lambda: rltokens.regularized_objective(P3, P3[:2], P3, 1),
            r"p_ref: expected shape \(3\), got \(2,\)",
        ),
        (lambda: rltokens.regularized_objective(P3, P3, P3[:1], 1), r"rewards: expected shape \(3\), got"),
        (lambda: rltokens.regularized_objective(X, X, X, 1), r"p: expected shape \(N\), got \(2, 3\)"),
        (lambda: rltokens.regularized_objective(P3, P3, P3, -0.1), "beta: expected a number at least 0"),
        (lambda: rltokens.optimal_policy(L3, P3[:2], 1), r"rewards: expected shape \(3\), got \(2,\)"),
        (lambda: rltokens.optimal_policy(L3, P3, -1), "beta: expected a number at least 0, got -1"),
        (lambda: rltokens.optimal_policy(L3, P3, np.nan), "beta: expected a number at least 0, got nan"),
        (lambda: rltokens.optimal_policy(L3, P3, 0), "beta: expected a number above 0, got 0: without a pen"),
        (
            lambda: rltokens.optimal_policy(L3, P3, 0.0),
            "every policy that writes only best responses is best",
        ),
        (lambda: rltokens.optimal_policy(L3 - np.inf, P3, 1), "logp_ref: expected a response of positive"),
        (lambda: rltokens.optimal_policy([], [], 1), "logp_ref: expected a response of positive"),
        (
            lambda: rltokens.kl_penalized_rewards(X, X[:, :2], [0, 0], ONES, 1),
            r"logp_ref: expected shape \(2, 3\), got \(2, 2\)",
        ),
        (
            lambda: rltokens.kl_penalized_rewards(X, X, [0, 0, 0], ONES, 1),
            r"score: expected shape \(2\), got \(3,\)",
        ),
        (
            lambda: rltokens.kl_penalized_rewards(X, X, [0, 0], ONES[:, :2], 1),
            r"mask: expected shape \(2, 3\)",
        ),
        (lambda: rltokens.kl_penalized_rewards(X, X, [0, 0], ONES * 2, 1), "mask: expected only 0 and 1"),
        (
            lambda: rltokens.kl_penalized_rewards(X, X, [0, 0], ONES, -0.5),
            "beta: expected a number at least 0",
        ),
        (
            lambda: rltokens.per_token_kl(TABLE, TABLE[:1]),
            r"logp_ref_table: expected shape \(3, 2\), got \(1, 2\)",
        ),
        (
            lambda: rltokens.per_token_kl(TABLE[:2], TABLE[:2]),
            r"logp_table: expected a row for each prefix, .* with V = 2, got 2",
        ),
        (lambda: rltokens.per_token_kl(TABLE[:0], TABLE[:0]), "logp_table: expected a row for each prefix"),
        (lambda: rltokens.per_token_kl(L3, L3), r"logp_table: expected shape \(R, V\), got \(3,\)"),
        (lambda: rltokens.adapt_beta(-0.1, 1.0, 1.0, 1), "beta: expected a number at least 0, got -0.1"),
        (lambda: rltokens.adapt_beta(0.1, 1.0, 0, 1), "target_kl: expected a number above 0, got 0"),
        (lambda: rltokens.adapt_beta(0.1, 1.0, -6.0, 1), "target_kl: expected a number above 0, got -6.0"),
        (lambda: rltokens.adapt_beta(0.1, np.nan, 6.0, 1), "observed_kl: expected a number, got nan"),
        (lambda: rltokens.adapt_beta(0.1, 1.0, 6.0, -1), "batch_size: expected a whole number at least 0"),
        (lambda: rltokens.adapt_beta(0.1, 1.0, 6.0, 1, 0), "horizon: expected a number above 0, got 0"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
