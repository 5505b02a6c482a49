"""Chapter 3's functions: numbers made by hand, sums written as loops, and what padding must not do."""

import math

import numpy as np
import pytest

import rltokens
from rltokens import toy

pytestmark = pytest.mark.filterwarnings("error")

# Holes at the start and inside, nothing real, a hole, nothing masked, the last token alone, padding.
MASK = np.array(
    [
        [0, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 1],
        [1, 1, 1, 0, 0, 0],
    ]
)
REAL = MASK == 1
SHAPE = MASK.shape


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng):
    """Arguments of every masked function for MASK."""
    return {
        "score": rng.normal(size=SHAPE[0]),
        "rewards": rng.normal(size=SHAPE),
        "values": rng.normal(size=SHAPE),
        "weights": rng.normal(size=SHAPE),
        "bootstrap": rng.normal(size=SHAPE[0]),
        "logits": rng.normal(size=(*SHAPE, 4)),
        "tokens": rng.integers(4, size=SHAPE),
    }


MASKED = {
    "terminal_rewards": lambda a, mask: rltokens.terminal_rewards(a["score"], mask),
    "returns_to_go": lambda a, mask: rltokens.returns_to_go(a["rewards"], mask, gamma=0.9),
    "policy_gradient_logits": lambda a, mask: rltokens.policy_gradient_logits(
        a["logits"], a["tokens"], a["weights"], mask
    ),
    "gae": lambda a, mask: np.stack(
        rltokens.gae(a["rewards"], a["values"], mask, 0.9, 0.8, a["bootstrap"]), axis=-1
    ),
    # 0 times infinity is NaN: a discount of 0 does not silence what should not have been read.
    "gae of one step": lambda a, mask: np.stack(
        rltokens.gae(a["rewards"], a["values"], mask, 0, 0, a["bootstrap"]), axis=-1
    ),
    "masked_mean": lambda a, mask: rltokens.masked_mean(a["rewards"], mask),
    "masked_whiten": lambda a, mask: rltokens.masked_whiten(a["rewards"], mask),
    "masked_whiten without shift": lambda a, mask: rltokens.masked_whiten(a["rewards"], mask, False),
}
masked = pytest.mark.parametrize("name", MASKED)


def soil(arguments, mask, junk, junk_id):
    """Put junk wherever mask is 0, and into what belongs to an empty row."""
    empty = ~(mask == 1).any(axis=1)
    soiled = {}
    for key, x in arguments.items():
        if x.ndim == 1:
            soiled[key] = np.where(empty, junk, x)
        else:
            real = (mask == 1).reshape(mask.shape + (1,) * (x.ndim - 2))
            soiled[key] = np.where(real, x, junk_id if key == "tokens" else junk)
    return soiled


# --- What holds for all of them ------------------------------------------------------------------


@masked
@pytest.mark.parametrize(("junk", "junk_id"), [(np.nan, 99), (np.inf, -1), (-np.inf, np.nan)])
def test_padding_and_the_scores_of_empty_rows_are_inert(name, junk, junk_id, rng):
    arguments, f = draw(rng), MASKED[name]
    with np.errstate(all="raise"):
        got = f(soil(arguments, MASK, junk, junk_id), MASK)
    np.testing.assert_array_equal(got, f(arguments, MASK))
    assert np.isfinite(got).all()


@masked
def test_results_are_zero_at_padding(name, rng):
    got = MASKED[name](draw(rng), MASK)
    if got.ndim:
        np.testing.assert_array_equal(got[~REAL], 0.0)


@masked
def test_a_masked_position_is_skipped_as_if_it_were_not_there(name, rng):
    """Rows whose real tokens are moved together give the same, also where the hole stood at the start."""
    arguments, f = draw(rng), MASKED[name]
    whole = f(arguments, MASK)
    order = np.argsort(~REAL, axis=1, kind="stable")  # real tokens first, in their order
    moved = {
        key: x if x.ndim == 1 else np.take_along_axis(x, order.reshape(SHAPE + (1,) * (x.ndim - 2)), 1)
        for key, x in arguments.items()
    }
    together = f(moved, np.take_along_axis(MASK, order, 1))
    if whole.ndim:
        whole = np.take_along_axis(whole, order.reshape(SHAPE + (1,) * (whole.ndim - 2)), 1)
    np.testing.assert_allclose(together, whole, rtol=1e-13, atol=1e-15)


@masked
def test_where_all_rows_are_empty_everything_is_zero(name, rng):
    arguments = soil(draw(rng), 0 * MASK, np.nan, 99)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(MASKED[name](arguments, 0 * MASK), 0.0)


@masked
def test_more_padding_changes_nothing(name, rng):
    arguments, f = draw(rng), MASKED[name]
    wider = {
        key: x if x.ndim == 1 else np.pad(x, [(0, 0), (0, 3)] + [(0, 0)] * (x.ndim - 2))
        for key, x in arguments.items()
    }
    got, whole = f(wider, np.pad(MASK, [(0, 0), (0, 3)])), f(arguments, MASK)
    np.testing.assert_allclose(got[:, : SHAPE[1]] if got.ndim else got, whole, rtol=1e-13, atol=1e-15)


@masked
def test_rows_know_nothing_of_their_order(name, rng):
    arguments, f = draw(rng), MASKED[name]
    order = rng.permutation(SHAPE[0])
    got, whole = f({key: x[order] for key, x in arguments.items()}, MASK[order]), f(arguments, MASK)
    np.testing.assert_allclose(got, whole[order] if got.ndim else whole, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", [name for name in MASKED if not name.startswith("masked_")])
def test_rows_know_nothing_of_one_another_but_for_the_batch_statistics(name, rng):
    arguments, f = draw(rng), MASKED[name]
    whole = f(arguments, MASK)
    for b in range(SHAPE[0]):
        row = f({key: x[b : b + 1] for key, x in arguments.items()}, MASK[b : b + 1])
        np.testing.assert_array_equal(row[0], whole[b])


@masked
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int8, np.uint8, bool, list])
def test_any_real_type_is_widened_before_arithmetic(name, kind, rng):
    arguments, f = draw(rng), MASKED[name]
    given = {key: (3 * x).astype(np.float64 if kind is list else kind) for key, x in arguments.items()}
    given["tokens"] = arguments["tokens"].astype(np.int64 if kind in (list, bool) else kind)
    wide = {key: x.astype(np.float64) for key, x in given.items()}
    if kind is list:
        given = {key: x.tolist() for key, x in given.items()}
    got = f(given, MASK.tolist() if kind is list else MASK)
    np.testing.assert_array_equal(got, f(wide, MASK))
    assert got.dtype == np.float64


@masked
@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8, np.float16, np.float64])
def test_masks_may_be_of_any_type(name, kind, rng):
    arguments, f = draw(rng), MASKED[name]
    np.testing.assert_array_equal(f(arguments, MASK.astype(kind)), f(arguments, MASK))


@masked
def test_inputs_are_never_changed(name, rng):
    arguments, mask = draw(rng), MASK.copy()
    copies = {key: x.copy() for key, x in arguments.items()}
    MASKED[name](arguments, mask)
    np.testing.assert_array_equal(mask, MASK)
    for key, x in arguments.items():
        np.testing.assert_array_equal(x, copies[key])


@masked
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_batch_without_rows_or_without_tokens(name, shape, rng):
    arguments = {key: np.resize(x, shape[: x.ndim] + x.shape[2:]) for key, x in draw(rng).items()}
    with np.errstate(all="raise"):
        got = MASKED[name](arguments, np.zeros(shape))
    assert got.shape[:2] == shape if got.ndim else got == 0.0


# --- terminal_rewards ----------------------------------------------------------------------------


def test_the_score_sits_on_the_last_real_token():
    got = rltokens.terminal_rewards([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], MASK)
    expected = np.zeros(SHAPE)
    for row, last, score in ((0, 4, 1), (2, 3, 3), (3, 5, 4), (4, 5, 5), (5, 2, 6)):
        expected[row, last] = score
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("score", [np.inf, -np.inf, np.nan])
def test_a_score_that_is_no_number_stays_on_its_token(score):
    got = rltokens.terminal_rewards([score, 1.0], [[1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(got, [[0, score, 0], [1, 0, 0]])


# --- returns_to_go -------------------------------------------------------------------------------


def test_returns_to_go_by_hand():
    mask = [[1, 1, 1, 0], [0, 1, 0, 1]]
    rewards = [[1.0, 2.0, 4.0, 99.0], [99.0, 8.0, 99.0, 16.0]]
    np.testing.assert_array_equal(rltokens.returns_to_go(rewards, mask), [[7, 6, 4, 0], [0, 24, 0, 16]])
    np.testing.assert_array_equal(
        rltokens.returns_to_go(rewards, mask, gamma=0.5), [[3, 4, 4, 0], [0, 16, 0, 16]]
    )
    np.testing.assert_array_equal(
        rltokens.returns_to_go(rewards, mask, gamma=0), [[1, 2, 4, 0], [0, 8, 0, 16]]
    )


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_returns_to_go_is_the_discounted_sum_over_real_tokens(gamma, rng):
    rewards = rng.normal(size=SHAPE)
    expected = np.zeros(SHAPE)
    for b in range(SHAPE[0]):
        steps = np.flatnonzero(REAL[b])
        for i, t in enumerate(steps):
            expected[b, t] = sum(gamma**j * rewards[b, s] for j, s in enumerate(steps[i:]))
    np.testing.assert_allclose(rltokens.returns_to_go(rewards, MASK, gamma), expected, rtol=1e-13)


def test_with_a_terminal_reward_every_token_gets_the_score():
    score = np.arange(1.0, 7.0)
    got = rltokens.returns_to_go(rltokens.terminal_rewards(score, MASK), MASK)
    np.testing.assert_array_equal(got, MASK * score[:, None])


# --- policy_gradient_logits ----------------------------------------------------------------------


def objective(logits, tokens, weights):
    """sum_bt w log pi(y), from its definition, in one loop."""
    total = 0.0
    for i in np.ndindex(SHAPE):
        if REAL[i]:
            log_z = math.log(sum(math.exp(z) for z in logits[i]))
            total += weights[i] * (logits[i][tokens[i]] - log_z)
    return total


def test_policy_gradient_by_hand():
    # pi = (1/2, 1/4, 1/4): w (one_hot - pi) with w = 4 and w = -8.
    logits = np.log([[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]])
    got = rltokens.policy_gradient_logits(logits, [[0, 2, 1]], [[4.0, -8.0, 99.0]], [[1, 1, 0]])
    np.testing.assert_allclose(got, [[[2, -1, -1], [4, 2, -6], [0, 0, 0]]], atol=1e-14)


def test_policy_gradient_is_the_finite_difference_of_the_weighted_log_probability(rng):
    a, step = draw(rng), 1e-6
    got = rltokens.policy_gradient_logits(a["logits"], a["tokens"], a["weights"], MASK)
    for i in np.ndindex(got.shape):
        up, down = a["logits"].copy(), a["logits"].copy()
        up[i] += step
        down[i] -= step
        difference = objective(up, a["tokens"], a["weights"]) - objective(down, a["tokens"], a["weights"])
        assert got[i] == pytest.approx(difference / (2 * step), abs=1e-8)


def test_policy_gradient_is_that_of_torch(rng):
    torch = pytest.importorskip("torch")
    a = draw(rng)
    logits = torch.tensor(a["logits"], requires_grad=True)
    logp = torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(a["tokens"])[..., None])[..., 0]
    (logp * torch.tensor(a["weights"] * MASK)).sum().backward()
    got = rltokens.policy_gradient_logits(a["logits"], a["tokens"], a["weights"], MASK)
    np.testing.assert_allclose(got, logits.grad, rtol=1e-12, atol=1e-14)


def test_what_one_token_gains_the_others_lose(rng):
    a = draw(rng)
    got = rltokens.policy_gradient_logits(a["logits"], a["tokens"], a["weights"], MASK)
    np.testing.assert_allclose(got.sum(axis=-1), 0.0, atol=1e-14)
    shifted = rltokens.policy_gradient_logits(a["logits"] + 1e3, a["tokens"], a["weights"], MASK)
    np.testing.assert_allclose(shifted, got, atol=1e-12)


def test_a_forbidden_token_has_no_gradient_and_makes_no_nan():
    logits = np.array([[[0.0, -np.inf, 0.0]]])
    got = rltokens.policy_gradient_logits(logits, [[0]], [[2.0]], [[1]])
    np.testing.assert_allclose(got, [[[1.0, 0.0, -1.0]]], atol=1e-15)


def test_averaged_over_all_responses_it_is_the_gradient_of_the_expected_reward():
    """REINFORCE on the toy: E[R grad log pi] = grad E[R], and no baseline changes it."""
    table = toy.reference_logits()
    responses = rltokens.enumerate_responses(4, 3)
    rewards = toy.two_zeros(responses)
    rows = toy.prefix_rows(responses)

    def expected_reward(logits):
        return toy.expected_reward(rltokens.sequence_distribution(logits, 4, 3), rewards)

    probability = np.exp(rltokens.sequence_distribution(table, 4, 3))
    for baseline in (0.0, 0.7, -5.0):
        weights = (probability * (rewards - baseline))[:, None] * np.ones_like(responses)
        per_token = rltokens.policy_gradient_logits(
            toy.response_logits(table, responses), responses, weights, np.ones_like(responses)
        )
        gradient = np.zeros_like(table)
        np.add.at(gradient, rows, per_token)
        for i in ((0, 0), (0, 3), (1, 2), (4, 0), (5, 0), (8, 1), (20, 3)):
            step = np.zeros_like(table)
            step[i] = 1e-6
            numeric = (expected_reward(table + step) - expected_reward(table - step)) / 2e-6
            assert gradient[i] == pytest.approx(numeric, abs=1e-9)


# --- gae -----------------------------------------------------------------------------------------


def gae_as_a_double_sum(rewards, values, gamma, lam, bootstrap):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, written out for MASK."""
    advantages = np.zeros(SHAPE)
    for b in range(SHAPE[0]):
        steps = list(np.flatnonzero(REAL[b]))
        v = [*values[b, steps], bootstrap[b]]
        delta = [rewards[b, t] + gamma * v[i + 1] - v[i] for i, t in enumerate(steps)]
        for i, t in enumerate(steps):
            advantages[b, t] = sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(steps)))
    return advantages


def test_gae_by_hand():
    # deltas: 0 + 1/2 * 4 - 2 = 0, 8 + 1/2 * 8 - 4 = 8, 16 + 1/2 * 32 - 8 = 24; gamma lam = 1/4.
    advantages, returns = rltokens.gae(
        [[0.0, 8.0, 99.0, 16.0]], [[2.0, 4.0, 99.0, 8.0]], [[1, 1, 0, 1]], 0.5, 0.5, bootstrap_value=[32.0]
    )
    np.testing.assert_array_equal(advantages, [[3.5, 14.0, 0.0, 24.0]])
    np.testing.assert_array_equal(returns, [[5.5, 18.0, 0.0, 32.0]])


def test_gae_defaults_are_gamma_one_and_lambda_095():
    advantages, _ = rltokens.gae([[0.0, 1.0]], [[0.5, 0.75]], [[1, 1]])
    np.testing.assert_allclose(advantages, [[0.25 + 0.95 * 0.25, 0.25]], rtol=1e-15)


@pytest.mark.parametrize("gamma", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("bootstrapped", [True, False])
def test_gae_is_the_sum_of_later_deltas(gamma, lam, bootstrapped, rng):
    rewards, values, bootstrap = rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE[0])
    expected = gae_as_a_double_sum(rewards, values, gamma, lam, bootstrap if bootstrapped else 0 * bootstrap)
    advantages, returns = rltokens.gae(rewards, values, MASK, gamma, lam, bootstrap if bootstrapped else None)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(returns, np.where(REAL, advantages + values, 0.0))


def test_lambda_one_is_the_return_minus_the_value(rng):
    """The bootstrap value comes in as one more reward, discounted, after the last token."""
    rewards, values, bootstrap = rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE[0])
    advantages, returns = rltokens.gae(rewards, values, MASK, gamma=0.9, lam=1)
    to_go = rltokens.returns_to_go(rewards, MASK, gamma=0.9)
    np.testing.assert_allclose(advantages, np.where(REAL, to_go - values, 0.0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(returns, to_go, rtol=1e-12, atol=1e-14)
    advantages, returns = rltokens.gae(rewards, values, MASK, 0.9, 1, bootstrap)
    paid = rewards + 0.9 * rltokens.terminal_rewards(bootstrap, MASK)
    np.testing.assert_allclose(returns, rltokens.returns_to_go(paid, MASK, 0.9), rtol=1e-12, atol=1e-14)


def test_lambda_zero_trusts_the_next_value(rng):
    rewards, values, bootstrap = rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.normal(size=SHAPE[0])
    advantages, _ = rltokens.gae(rewards, values, MASK, 0.9, 0, bootstrap)
    for b in range(SHAPE[0]):
        steps = np.flatnonzero(REAL[b])
        following = [*values[b, steps[1:]], bootstrap[b]]
        for t, v in zip(steps, following, strict=False):
            assert advantages[b, t] == pytest.approx(rewards[b, t] + 0.9 * v - values[b, t], rel=1e-14)


def test_the_right_values_leave_nothing_to_explain():
    """With V(s) = E[return from s], E[A | s] = 0 for every lambda: here rewards are certain, so A = 0."""
    rewards = np.arange(36.0).reshape(SHAPE)
    values = rltokens.returns_to_go(rewards, MASK, gamma=0.8)
    for lam in (0.0, 0.5, 1.0):
        advantages, returns = rltokens.gae(rewards, values, MASK, 0.8, lam)
        np.testing.assert_allclose(advantages, 0.0, atol=1e-12)
        np.testing.assert_allclose(returns, values, rtol=1e-13)


def test_the_discounts_are_taken_as_float64_too():
    arguments = [[0.0, 0.0, 1.0]], [[0.1, 0.2, 0.3]], [[1, 1, 1]]
    gamma, lam = np.float32(0.9), np.float16(0.7)
    got = rltokens.gae(*arguments, gamma, lam)
    np.testing.assert_array_equal(got, rltokens.gae(*arguments, float(gamma), float(lam)))


# --- Groups --------------------------------------------------------------------------------------


def test_leave_one_out_by_hand():
    got = rltokens.leave_one_out_advantages([[1, 2, 6], [4, 4, 4]])
    np.testing.assert_allclose(got, [[1 - 4, 2 - 3.5, 6 - 1.5], [0, 0, 0]], atol=1e-14)
    np.testing.assert_allclose(rltokens.leave_one_out_advantages([[3.0, 5.0]]), [[-2.0, 2.0]])


def test_leave_one_out_is_each_minus_the_mean_of_the_others(rng):
    scores = rng.normal(size=(5, 7))
    expected = [[row[i] - np.mean([row[j] for j in range(7) if j != i]) for i in range(7)] for row in scores]
    np.testing.assert_allclose(rltokens.leave_one_out_advantages(scores), expected, rtol=1e-12, atol=1e-14)


def test_group_normalized_by_hand():
    # mean 3, squares 4 + 1 + 1 + 16 + 4 = 26 over 5: the population's variance, not 26 / 4.
    got = rltokens.group_normalized_advantages([[1.0, 2.0, 4.0, 7.0, 1.0]], eps=0)
    np.testing.assert_allclose(got, np.array([[-2, -1, 1, 4, -2]]) / math.sqrt(26 / 5), rtol=1e-14)


def test_eps_is_added_to_the_deviation_and_not_under_the_root():
    got = rltokens.group_normalized_advantages([[0.0, 2.0]], eps=0.5)
    np.testing.assert_allclose(got, [[-1 / 1.5, 1 / 1.5]], rtol=1e-15)
    np.testing.assert_allclose(
        rltokens.group_normalized_advantages([[0.0, 2.0]]), [[-1 / (1 + 1e-6), 1 / (1 + 1e-6)]], rtol=1e-15
    )


@pytest.mark.parametrize("eps", [0, 1e-6])
@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_equal_scores_give_zeros_exactly(eps, size):
    # The mean of ten times 0.1 is not 0.1 in floating point.
    scores = np.repeat([[0.1], [1 / 3], [-1e10 / 7], [0.0]], size, axis=1)
    with np.errstate(all="raise"):
        got = rltokens.group_normalized_advantages(scores, eps)
    np.testing.assert_array_equal(got, np.zeros((4, size)))


def test_a_group_of_equals_does_not_touch_its_neighbours():
    got = rltokens.group_normalized_advantages([[0.1, 0.1], [0.0, 2.0]], eps=0)
    np.testing.assert_array_equal(got, [[0, 0], [-1, 1]])


@pytest.mark.parametrize("name", ["leave_one_out_advantages", "group_normalized_advantages"])
def test_advantages_of_a_group_ignore_a_baseline_the_order_and_other_groups(name, rng):
    f, scores = getattr(rltokens, name), rng.normal(size=(4, 5))
    got = f(scores)
    np.testing.assert_allclose(got.sum(axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(f(scores + 100.0), got, atol=1e-11)
    order = rng.permutation(5)
    np.testing.assert_allclose(f(scores[:, order]), got[:, order], atol=1e-13)
    np.testing.assert_allclose(np.concatenate([f(scores[:1]), f(scores[1:])]), got, atol=1e-14)


@pytest.mark.parametrize("name", ["leave_one_out_advantages", "group_normalized_advantages"])
@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.longdouble, np.uint8, bool])
def test_scores_of_a_group_may_be_of_any_type(name, kind):
    f, scores = getattr(rltokens, name), np.array([[1, 0, 0], [1, 1, 0]])
    copy = scores.copy()
    got = f(scores.tolist() if kind is list else scores.astype(kind))
    np.testing.assert_array_equal(got, f(scores.astype(np.float64)))
    np.testing.assert_array_equal(scores, copy)
    assert got.dtype == np.float64
    assert f(np.zeros((0, 3))).shape == (0, 3)


# --- masked_mean and masked_whiten ---------------------------------------------------------------


def test_masked_mean_weighs_tokens_and_not_rows():
    # Four tokens of 1 and two of 4: the mean of tokens is 2, of rows 2.5.
    x, mask = [[1.0, 1.0, 1.0, 1.0], [4.0, 99.0, 4.0, 99.0]], [[1, 1, 1, 1], [1, 0, 1, 0]]
    assert rltokens.masked_mean(x, mask) == 2.0
    assert np.ndim(rltokens.masked_mean(x, mask)) == 0


def test_masked_mean_of_a_batch_is_that_of_its_parts_weighed_by_their_tokens(rng):
    x = rng.normal(size=SHAPE)
    parts = [(rltokens.masked_mean(x[i], MASK[i]), MASK[i].sum()) for i in (slice(0, 2), slice(2, None))]
    expected = sum(mean * tokens for mean, tokens in parts) / MASK.sum()
    assert rltokens.masked_mean(x, MASK) == pytest.approx(expected, rel=1e-14)


def test_masked_whiten_by_hand():
    # Real numbers 1, 1, 3, 3: mean 2, variance 1.
    x, mask = [[1.0, 99.0, 1.0], [3.0, 3.0, 99.0]], [[1, 0, 1], [1, 1, 0]]
    scale = 1 / math.sqrt(1 + 1e-8)
    np.testing.assert_allclose(
        rltokens.masked_whiten(x, mask), [[-scale, 0, -scale], [scale, scale, 0]], rtol=1e-15
    )
    np.testing.assert_allclose(
        rltokens.masked_whiten(x, mask, shift_mean=False),
        [[2 - scale, 0, 2 - scale], [2 + scale, 2 + scale, 0]],
        rtol=1e-15,
    )


def test_whitening_leaves_mean_zero_and_the_population_variance_one(rng):
    x = rng.normal(3.0, 5.0, size=SHAPE)
    got = rltokens.masked_whiten(x, MASK)[REAL]
    assert got.mean() == pytest.approx(0.0, abs=1e-14)
    assert (got**2).mean() == pytest.approx(1.0, abs=1e-8)
    unshifted = rltokens.masked_whiten(x, MASK, shift_mean=False)[REAL]
    assert unshifted.mean() == pytest.approx(x[REAL].mean(), rel=1e-13)
    assert unshifted.var() == pytest.approx(1.0, abs=1e-8)


def test_the_small_number_stands_under_the_root():
    # Variance 1e-8: the root is sqrt(2e-8), not 1e-4 + 1e-8 or sqrt(1e-8).
    got = rltokens.masked_whiten([[-1e-4, 1e-4]], [[1, 1]])
    np.testing.assert_allclose(got, [[-math.sqrt(0.5), math.sqrt(0.5)]], rtol=1e-12)


def test_numbers_that_do_not_vary_whiten_to_nothing():
    np.testing.assert_array_equal(rltokens.masked_whiten([[2.0, 2.0, np.nan]], [[1, 1, 0]]), [[0, 0, 0]])
    np.testing.assert_array_equal(
        rltokens.masked_whiten([[2.0, 2.0, np.nan]], [[1, 1, 0]], shift_mean=False), [[2, 2, 0]]
    )
    np.testing.assert_array_equal(rltokens.masked_whiten([[np.nan, 5.0]], [[0, 1]]), [[0, 0]])


# --- Errors --------------------------------------------------------------------------------------

Z, X, ONES, S = np.zeros((2, 3, 5)), np.zeros((2, 3)), np.ones((2, 3)), np.zeros(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.terminal_rewards(np.zeros(3), ONES), r"score: expected shape \(2\), got \(3,\)"),
        (
            lambda: rltokens.terminal_rewards(S[:, None], ONES),
            r"score: expected shape \(2\), got \(2, 1\)",
        ),
        (lambda: rltokens.terminal_rewards(S, ONES[0]), r"mask: expected shape \(B, T\), got \(3,\)"),
        (lambda: rltokens.terminal_rewards(S, 2 * ONES), "mask: expected only 0 and 1, got 2.0"),
        (lambda: rltokens.returns_to_go(X, ONES[:, :2]), r"mask: expected shape \(2, 3\), got \(2, 2\)"),
        (lambda: rltokens.returns_to_go(X, -ONES), "mask: expected only 0 and 1, got -1.0"),
        (lambda: rltokens.returns_to_go(X, ONES, 1.1), "gamma: expected a number from 0 to 1, got 1.1"),
        (lambda: rltokens.returns_to_go(X, ONES, -0.1), "gamma: expected a number from 0 to 1, got -0.1"),
        (lambda: rltokens.gae(X, X, ONES, gamma=1.01), "gamma: expected a number from 0 to 1, got 1.01"),
        (lambda: rltokens.gae(X, X, ONES, gamma=-1), "gamma: expected a number from 0 to 1, got -1"),
        (lambda: rltokens.gae(X, X, ONES, lam=1.01), "lam: expected a number from 0 to 1, got 1.01"),
        (lambda: rltokens.gae(X, X, ONES, lam=-0.5), "lam: expected a number from 0 to 1, got -0.5"),
        (lambda: rltokens.gae(X, X, ONES, lam=np.nan), "lam: expected a number from 0 to 1, got nan"),
        (lambda: rltokens.gae(X, X, ONES / 2), "mask: expected only 0 and 1, got 0.5"),
        (lambda: rltokens.gae(X, Z[:, :, 0].T, ONES), r"values: expected shape \(2, 3\), got \(3, 2\)"),
        (
            lambda: rltokens.gae(X, np.zeros((2, 4)), ONES),
            r"values: expected shape \(2, 3\), got \(2, 4\)",
        ),
        (
            lambda: rltokens.gae(X, X, ONES, bootstrap_value=0.0),
            r"bootstrap_value: expected shape \(2\), got \(\)",
        ),
        (
            lambda: rltokens.gae(X, X, ONES, bootstrap_value=[1.0]),
            r"bootstrap_value: expected shape \(2\), got \(1,\)",
        ),
        (
            lambda: rltokens.policy_gradient_logits(Z[:1], X, X, ONES),
            r"logits: expected shape \(2, 3, V\), got \(1, 3, 5\)",
        ),
        (
            lambda: rltokens.policy_gradient_logits(Z, X, X[:, :1], ONES),
            r"weights: expected shape \(2, 3\), got \(2, 1\)",
        ),
        (
            lambda: rltokens.policy_gradient_logits(Z, X + 5, X, ONES),
            "tokens: expected whole ids from 0 to 4 wherever mask is 1, got 5",
        ),
        (lambda: rltokens.policy_gradient_logits(Z, X - 1, X, ONES), "tokens: expected whole ids .* got -1"),
        (lambda: rltokens.policy_gradient_logits(Z, X, X, 3 * ONES), "mask: expected only 0 and 1, got 3"),
        (
            lambda: rltokens.leave_one_out_advantages([[1.0], [2.0]]),
            "scores: expected at least 2 responses in a group.*got 1",
        ),
        (lambda: rltokens.leave_one_out_advantages(S), r"scores: expected shape \(N, G\), got \(2,\)"),
        (lambda: rltokens.group_normalized_advantages(S), r"scores: expected shape \(N, G\), got \(2,\)"),
        (
            lambda: rltokens.group_normalized_advantages(X, -1e-6),
            "eps: expected a number at least 0, got -1e-06",
        ),
        (lambda: rltokens.masked_mean(X, ONES[:1]), r"mask: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.masked_mean(X, ONES * 0.5), "mask: expected only 0 and 1, got 0.5"),
        (lambda: rltokens.masked_whiten(X, ONES[:1]), r"mask: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.masked_whiten(X, ONES * 0.5), "mask: expected only 0 and 1, got 0.5"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
