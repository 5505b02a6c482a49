"""Chapter 5's functions: each gradient from its definition, by enumeration, differences and autograd."""

import itertools
import math

import numpy as np
import pytest

import rltokens
from rltokens import toy

pytestmark = pytest.mark.filterwarnings("error")

# Vocabulary and length; (4, 3) is the course's toy.
SIZES = [(1, 2), (2, 3), (3, 2), (4, 1), (4, 3)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- kl_estimates --------------------------------------------------------------------------------


def test_kl_estimates_by_hand():
    # Ratios pi / pi_ref of 2 and 1/2: k3 = ref / pi - 1 + log(pi / ref).
    k1, k2, k3 = rltokens.kl_estimates(np.log([0.5, 0.25]), np.log([0.25, 0.5]))
    log2 = math.log(2)
    np.testing.assert_allclose(k1, [log2, -log2], rtol=1e-15)
    np.testing.assert_allclose(k2, [log2**2 / 2, log2**2 / 2], rtol=1e-15)
    np.testing.assert_allclose(k3, [0.5 - 1 + log2, 2 - 1 - log2], rtol=1e-14)


@pytest.mark.parametrize("size", [1.0, 1e-1, 1e-2])
def test_k1_and_k3_have_the_right_mean_and_k2_is_off_in_third_order(size):
    p = np.array([0.8, 0.15, 0.05])
    q = np.exp(rltokens.log_softmax(np.log(p) + size * np.array([0.0, 0.5, 1.0])))
    k1, k2, k3 = rltokens.kl_estimates(np.log(p), np.log(q))
    kl = rltokens.kl_divergence(p, q)
    assert p @ k1 == pytest.approx(kl, rel=1e-10)
    assert p @ k3 == pytest.approx(kl, rel=1e-10)
    # The series of k3 begins l^2/2 - l^3/6.
    assert p @ k2 - kl == pytest.approx(p @ k1**3 / 6, rel=size)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("sign", [1, -1])
def test_k3_keeps_its_digits_where_the_policies_hardly_differ(size, sign):
    # exp(-l) - 1 + l would lose them all to rounding; here the series l^2/2 - l^3/6 stands beside it.
    log_ratio = sign * size
    k3 = rltokens.kl_estimates(log_ratio, 0.0)[2]
    assert k3 == pytest.approx(log_ratio**2 / 2 - log_ratio**3 / 6, rel=1e-6)
    assert k3 > 0


def test_k3_is_never_negative(rng):
    log_ratio = rng.normal(size=1000) * 10.0 ** rng.integers(-8, 3, size=1000)
    assert (rltokens.kl_estimates(log_ratio, np.zeros(1000))[2] >= 0).all()


def test_what_the_reference_never_writes_and_what_overflows_is_infinite():
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        got = rltokens.kl_estimates([-1.0, -1e5], [-np.inf, -1.0])
    np.testing.assert_array_equal(got[0], [np.inf, 1 - 1e5])
    np.testing.assert_array_equal(got[1], [np.inf, (1e5 - 1) ** 2 / 2])
    np.testing.assert_array_equal(got[2], [np.inf, np.inf])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.longdouble, np.int8])
def test_kl_estimates_of_any_shape_and_type(shape, kind, rng):
    logp, logp_ref = (np.array(3 * rng.normal(size=shape)) for _ in range(2))
    if kind is not list:
        logp, logp_ref = logp.astype(kind), logp_ref.astype(kind)
    copy = logp.copy()
    wide = rltokens.kl_estimates(logp.astype(np.float64), logp_ref.astype(np.float64))
    given = (logp.tolist(), logp_ref.tolist()) if kind is list else (logp, logp_ref)
    for got, expected in zip(rltokens.kl_estimates(*given), wide, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert (got.dtype, np.shape(got)) == (np.float64, shape)
    np.testing.assert_array_equal(logp, copy)


# --- kl_gradient_audit ---------------------------------------------------------------------------


def log_probability(z, a):
    peak = max(z)
    return z[a] - peak - math.log(sum(math.exp(x - peak) for x in z))


def gradient(f, z, step=1e-5):
    """Central differences of a function of the logits, good to about 1e-10."""
    moved = step * np.eye(len(z))
    return np.array([(f(z + e) - f(z - e)) / (2 * step) for e in moved])


ESTIMATES = {
    "k1": lambda log_ratio: log_ratio,
    "k2": lambda log_ratio: log_ratio**2 / 2,
    "k3": lambda log_ratio: math.exp(-log_ratio) - 1 + log_ratio,
}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_one_step_from_the_definitions(size, rng):
    z, z_ref = rng.normal(size=size), rng.normal(size=size)
    pi = [math.exp(log_probability(z, a)) for a in range(size)]
    ref = [math.exp(log_probability(z_ref, a)) for a in range(size)]

    def reverse(x):
        p = [math.exp(log_probability(x, a)) for a in range(size)]
        return sum(p[a] * math.log(p[a] / ref[a]) for a in range(size))

    def forward(x):
        return sum(ref[a] * (math.log(ref[a]) - log_probability(x, a)) for a in range(size))

    expected = {"reverse_kl": gradient(reverse, z), "forward_kl": gradient(forward, z)}
    for name, k in ESTIMATES.items():
        loss, reward = np.zeros(size), np.zeros(size)
        for a in range(size):
            loss += pi[a] * gradient(lambda x, k=k, a=a: k(log_probability(x, a) - math.log(ref[a])), z)
            reward += pi[a] * k(math.log(pi[a] / ref[a])) * gradient(lambda x, a=a: log_probability(x, a), z)
        expected[f"{name}_loss"], expected[f"{name}_reward"] = loss, reward
    got = rltokens.kl_gradient_audit(z, z_ref)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-8, err_msg=name)


def test_one_step_by_hand():
    # pi = (1/2, 1/2), ref = (1/4, 3/4): l = (log 2, log 2/3), KL = log(4/3) / 2.
    audit = rltokens.kl_gradient_audit([0.0, 0.0], [0.0, math.log(3)])
    up = np.array([1.0, -1.0])
    np.testing.assert_allclose(audit["reverse_kl"], up * math.log(3) / 4, rtol=1e-14)
    np.testing.assert_allclose(audit["forward_kl"], up * 0.25, rtol=1e-14)
    np.testing.assert_allclose(
        audit["k2_reward"], up * (math.log(2) ** 2 - math.log(1.5) ** 2) / 8, rtol=1e-14
    )


def test_one_step_what_must_come_out(rng):
    for _ in range(20):
        size = rng.integers(2, 9)
        audit = rltokens.kl_gradient_audit(3 * rng.normal(size=size), 3 * rng.normal(size=size))
        exact = {"rtol": 1e-10, "atol": 1e-13}
        np.testing.assert_allclose(audit["k1_loss"], 0.0, atol=1e-15)
        np.testing.assert_allclose(audit["k1_reward"], audit["reverse_kl"], **exact)
        np.testing.assert_allclose(audit["k2_loss"], audit["reverse_kl"], **exact)
        np.testing.assert_allclose(audit["k3_loss"], audit["forward_kl"], **exact)
        np.testing.assert_allclose(audit["k3_reward"], audit["reverse_kl"] - audit["forward_kl"], **exact)
        # And what does not: these are different gradients.
        for wrong in ("k1_loss", "k3_loss", "k2_reward", "k3_reward"):
            assert np.abs(audit[wrong] - audit["reverse_kl"]).max() > 1e-3
        for value in audit.values():
            assert value.sum() == pytest.approx(0.0, abs=1e-12)


def test_one_step_ignores_constants_and_moves_with_the_tokens(rng):
    z, z_ref, order = rng.normal(size=5), rng.normal(size=5), rng.permutation(5)
    audit = rltokens.kl_gradient_audit(z, z_ref)
    shifted = rltokens.kl_gradient_audit(z + 100.0, z_ref - 100.0)
    permuted = rltokens.kl_gradient_audit(z[order], z_ref[order])
    same = rltokens.kl_gradient_audit(z, z + 7.0)
    for name, value in audit.items():
        np.testing.assert_allclose(shifted[name], value, atol=1e-13)
        np.testing.assert_allclose(permuted[name], value[order], atol=1e-14)
        np.testing.assert_allclose(same[name], 0.0, atol=1e-15)


def test_one_step_with_tokens_that_are_never_drawn():
    # As if the last token did not exist, where neither writes it.
    audit = rltokens.kl_gradient_audit([0.3, -0.7, -np.inf], [0.1, 0.4, -np.inf])
    without = rltokens.kl_gradient_audit([0.3, -0.7], [0.1, 0.4])
    for name, value in without.items():
        np.testing.assert_allclose(audit[name], [*value, 0.0], atol=1e-15, err_msg=name)


@pytest.mark.parametrize("gap", [50, 600, 690, 705, 720, 740, 800, 1e4, np.inf])
def test_one_step_with_a_token_that_the_policy_has_all_but_given_up(gap):
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        audit = rltokens.kl_gradient_audit([0.0, -gap], [0.0, 0.0])
    for name, value in audit.items():
        assert np.isfinite(value).all(), name
    np.testing.assert_allclose(audit["reverse_kl"], 0.0, atol=1e-19)
    np.testing.assert_array_equal(audit["forward_kl"], [0.5, -0.5])
    if gap < 700:  # beyond that, no average over draws has ever seen the token
        np.testing.assert_allclose(audit["k3_loss"], [0.5, -0.5], rtol=1e-12)


# --- kl_to_go ------------------------------------------------------------------------------------

MASK = np.array([[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
REAL = MASK == 1


def test_kl_to_go_by_hand():
    got = rltokens.kl_to_go([[-1.0, 9.0, -2.0, -3.0]], [[-2.0, 9.0, -1.0, -7.0]], [[1, 0, 1, 1]])
    np.testing.assert_array_equal(got, [[4.0, 0.0, 3.0, 4.0]])


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_kl_to_go_is_the_sum_over_the_real_tokens_from_here_on(junk, rng):
    logp, logp_ref = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    expected = np.zeros((4, 6))
    for b, t in zip(*np.nonzero(MASK), strict=True):
        expected[b, t] = sum(logp[b, s] - logp_ref[b, s] for s in range(t, 6) if MASK[b, s])
    with np.errstate(all="raise"):
        got = rltokens.kl_to_go(np.where(REAL, logp, junk), np.where(REAL, logp_ref, junk), MASK)
        empty = rltokens.kl_to_go(logp + junk, logp_ref + junk, 0 * MASK)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(got[~REAL], 0.0)
    np.testing.assert_array_equal(empty, np.zeros((4, 6)))


def test_the_first_kl_to_go_is_that_of_the_whole_response():
    responses = rltokens.enumerate_responses(4, 3)
    ones = np.ones_like(responses)
    tables = toy.reference_logits(seed=1), toy.reference_logits()
    logp, logp_ref = (
        rltokens.token_logprobs(toy.response_logits(table, responses), responses, ones) for table in tables
    )
    whole, whole_ref = (rltokens.sequence_distribution(table, 4, 3) for table in tables)
    np.testing.assert_allclose(rltokens.kl_to_go(logp, logp_ref, ones)[:, 0], whole - whole_ref, rtol=1e-11)


@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.longdouble, np.int8, bool])
def test_kl_to_go_of_any_type(kind, rng):
    logp, logp_ref = (np.array(3 * rng.normal(size=(4, 6))) for _ in range(2))
    mask = MASK.tolist() if kind is list else MASK.astype(kind)
    if kind is not list:
        logp, logp_ref = logp.astype(kind), logp_ref.astype(kind)
    copies = logp.copy(), logp_ref.copy()
    given = (logp.tolist(), logp_ref.tolist()) if kind is list else (logp, logp_ref)
    got = rltokens.kl_to_go(*given, mask)
    wide = rltokens.kl_to_go(logp.astype(np.float64), logp_ref.astype(np.float64), MASK)
    np.testing.assert_array_equal(got, wide)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(logp, copies[0])
    np.testing.assert_array_equal(logp_ref, copies[1])


# --- sequence_kl_gradient_audit ------------------------------------------------------------------


def tables(vocab_size, length):
    return [toy.reference_logits(vocab_size, length, seed=seed) for seed in (1, 2)]


def weighted_by_enumeration(z, z_ref, vocab_size, length, weight):
    """sum_y pi(y) sum_t w_t(l) (one_hot(y_t) - pi) in the row of y_<t, response by response."""
    total = np.zeros_like(z)
    for y in itertools.product(range(vocab_size), repeat=length):
        row, rows = 0, []
        for token in y:
            rows.append(row)
            row = vocab_size * row + 1 + token
        log_ratios = [
            log_probability(z[r], a) - log_probability(z_ref[r], a) for r, a in zip(rows, y, strict=True)
        ]
        probability = math.exp(sum(log_probability(z[r], a) for r, a in zip(rows, y, strict=True)))
        for t, (r, a) in enumerate(zip(rows, y, strict=True)):
            pi = np.array([math.exp(log_probability(z[r], v)) for v in range(vocab_size)])
            total[r] += probability * weight(log_ratios, t) * (np.eye(vocab_size)[a] - pi)
    return total


WEIGHTS = {
    "k1_loss": lambda log_ratios, t: 1.0,
    "k2_loss": lambda log_ratios, t: log_ratios[t],
    "k3_loss": lambda log_ratios, t: 1 - math.exp(-log_ratios[t]),
    "k1_reward": lambda log_ratios, t: sum(log_ratios[t:]),
    "sequence_k2_loss": lambda log_ratios, t: sum(log_ratios),
}


@pytest.mark.parametrize(("vocab_size", "length"), SIZES)
def test_whole_responses_by_enumeration(vocab_size, length):
    z, z_ref = tables(vocab_size, length)
    got = rltokens.sequence_kl_gradient_audit(z, z_ref, vocab_size, length)
    assert got.keys() == {"reverse_kl", *WEIGHTS}
    for name, weight in WEIGHTS.items():
        expected = weighted_by_enumeration(z, z_ref, vocab_size, length, weight)
        np.testing.assert_allclose(got[name], expected, rtol=1e-10, atol=1e-14, err_msg=name)


@pytest.mark.parametrize(("vocab_size", "length"), [(2, 3), (3, 2), (4, 1)])
def test_reverse_kl_is_the_finite_difference_of_the_kl_of_whole_responses(vocab_size, length):
    z, z_ref = tables(vocab_size, length)
    logp_ref = rltokens.sequence_distribution(z_ref, vocab_size, length)

    def kl(flat):
        logp = rltokens.sequence_distribution(flat.reshape(z.shape), vocab_size, length)
        return (np.exp(logp) * (logp - logp_ref)).sum()

    got = rltokens.sequence_kl_gradient_audit(z, z_ref, vocab_size, length)["reverse_kl"]
    np.testing.assert_allclose(got, gradient(kl, z.reshape(-1)).reshape(z.shape), atol=1e-8)


def test_each_loss_is_what_autograd_makes_of_its_estimate():
    """The estimates are written down as losses, with the responses' probabilities detached as if drawn."""
    torch = pytest.importorskip("torch")
    z_table, z_ref_table = tables(4, 3)
    responses = rltokens.enumerate_responses(4, 3)
    rows = torch.tensor(toy.prefix_rows(responses))
    z = torch.tensor(z_table, requires_grad=True)
    logp = torch.log_softmax(z, dim=-1)[rows, torch.tensor(responses)]  # (64, 3)
    log_ratio = logp - torch.log_softmax(torch.tensor(z_ref_table), dim=-1)[rows, torch.tensor(responses)]
    probability = logp.sum(dim=1).exp()
    drawn = probability.detach()
    to_go = torch.stack([log_ratio[:, t:].sum(dim=1) for t in range(3)], dim=1).detach()
    scalars = {
        "reverse_kl": (probability * log_ratio.sum(dim=1)).sum(),
        "k1_loss": (drawn * log_ratio.sum(dim=1)).sum(),
        "k2_loss": (drawn * (log_ratio**2 / 2).sum(dim=1)).sum(),
        "k3_loss": (drawn * ((-log_ratio).exp() - 1 + log_ratio).sum(dim=1)).sum(),
        "k1_reward": (drawn * (to_go * logp).sum(dim=1)).sum(),
        "sequence_k2_loss": (drawn * log_ratio.sum(dim=1) ** 2 / 2).sum(),
    }
    got = rltokens.sequence_kl_gradient_audit(z_table, z_ref_table, 4, 3)
    for name, scalar in scalars.items():
        (expected,) = torch.autograd.grad(scalar, z, retain_graph=True)
        np.testing.assert_allclose(got[name], expected, rtol=1e-9, atol=1e-14, err_msg=name)


@pytest.mark.parametrize(("vocab_size", "length"), [(2, 3), (3, 2), (4, 3)])
def test_whole_responses_what_must_come_out(vocab_size, length):
    z, z_ref = tables(vocab_size, length)
    audit = rltokens.sequence_kl_gradient_audit(z, z_ref, vocab_size, length)
    last = toy.prefix_count(vocab_size, length - 1)  # the first row of the last position
    exact = {"rtol": 1e-10, "atol": 1e-14}
    np.testing.assert_allclose(audit["k1_loss"], 0.0, atol=1e-15)
    np.testing.assert_allclose(audit["k1_reward"], audit["reverse_kl"], **exact)
    np.testing.assert_allclose(audit["sequence_k2_loss"], audit["reverse_kl"], **exact)
    np.testing.assert_allclose(audit["k2_loss"][last:], audit["reverse_kl"][last:], **exact)
    # Every row before the last position is wrong, and for k3 (the forward KL) those of the last as well.
    assert (np.abs(audit["k2_loss"] - audit["reverse_kl"])[:last].max(axis=1) > 1e-4).all()
    assert (np.abs(audit["k3_loss"] - audit["reverse_kl"]).max(axis=1) > 1e-6).all()


def test_position_by_position_each_row_is_one_step_weighed_by_how_often_it_is_reached():
    z, z_ref = tables(4, 3)
    audit = rltokens.sequence_kl_gradient_audit(z, z_ref, 4, 3)
    reached = [1.0]
    for row in range(1, 21):
        parent, token = divmod(row - 1, 4)
        reached.append(reached[parent] * math.exp(log_probability(z[parent], token)))
    for row in range(21):
        step = rltokens.kl_gradient_audit(z[row], z_ref[row])
        np.testing.assert_allclose(audit["k2_loss"][row], reached[row] * step["reverse_kl"], atol=1e-14)
        np.testing.assert_allclose(audit["k3_loss"][row], reached[row] * step["forward_kl"], atol=1e-14)


def test_responses_of_one_token_are_one_step(rng):
    z, z_ref = rng.normal(size=5), rng.normal(size=5)
    audit = rltokens.sequence_kl_gradient_audit(z[None], z_ref[None], 5, 1)
    step = rltokens.kl_gradient_audit(z, z_ref)
    for name in ("reverse_kl", "k1_loss", "k2_loss", "k3_loss", "k1_reward"):
        np.testing.assert_allclose(audit[name], step[name][None], atol=1e-14, err_msg=name)


@pytest.mark.parametrize("gap", [705, 720, 800, np.inf])
def test_whole_responses_with_a_token_that_the_policy_has_given_up(gap):
    """The prefixes after it have no part in any gradient, whatever their rows say."""
    z, z_ref = tables(2, 3)
    z[0, 1] = z[0, 0] - gap
    if gap == np.inf:
        z_ref[0, 1] = -np.inf
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        audit = rltokens.sequence_kl_gradient_audit(z, z_ref, 2, 3)
    for name, value in audit.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(value[[2, 5, 6]], 0.0, atol=1e-200, err_msg=name)
    # Below the token that is always written, it is the toy of two tokens.
    rest = [1, 3, 4]
    below = rltokens.sequence_kl_gradient_audit(z[rest], z_ref[rest], 2, 2)
    for name in ("reverse_kl", "k1_loss", "k2_loss", "k3_loss", "k1_reward"):
        np.testing.assert_allclose(audit[name][rest], below[name], atol=1e-13, err_msg=name)


def test_what_follows_a_prefix_that_is_never_reached_is_not_read():
    """The reference forbids a token there that the policy would write: an infinite KL, never paid."""
    z, z_ref = tables(2, 3)
    z[0, 1] = -np.inf
    clean = rltokens.sequence_kl_gradient_audit(z, z_ref, 2, 3)
    z_ref[2, 0] = z_ref[5, 1] = -np.inf
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        audit = rltokens.sequence_kl_gradient_audit(z, z_ref, 2, 3)
    for name, value in audit.items():
        np.testing.assert_array_equal(value, clean[name], err_msg=name)


def test_a_prefix_that_neither_goes_on_from_makes_no_nan():
    z, z_ref = tables(2, 2)
    z[0, 1] = z_ref[0, 1] = -np.inf
    z[2] = z_ref[2] = -np.inf
    with np.errstate(all="raise"):
        audit = rltokens.sequence_kl_gradient_audit(z, z_ref, 2, 2)
    for value in audit.values():
        np.testing.assert_allclose(value[[0, 2]], 0.0, atol=1e-15)


# --- Types, inputs, errors -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.longdouble, np.int8])
def test_audits_take_any_real_type_and_change_nothing(kind):
    z, z_ref = (2 * table for table in tables(2, 2))
    if kind is not list:
        z, z_ref = z.astype(kind), z_ref.astype(kind)
    copies = z.copy(), z_ref.copy()
    for f, a, b, sizes in (
        (rltokens.kl_gradient_audit, z[0], z_ref[0], ()),
        (rltokens.sequence_kl_gradient_audit, z, z_ref, (2, 2)),
    ):
        got = f(*(x.tolist() if kind is list else x for x in (a, b)), *sizes)
        wide = f(a.astype(np.float64), b.astype(np.float64), *sizes)
        for name, value in got.items():
            np.testing.assert_array_equal(value, wide[name], err_msg=name)
            assert (value.dtype, value.shape) == (np.float64, a.shape)
    np.testing.assert_array_equal(z, copies[0])
    np.testing.assert_array_equal(z_ref, copies[1])


X, ONES, TABLE = np.zeros((2, 3)), np.ones((2, 3)), np.zeros((3, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.kl_estimates(X, X[:1]), r"logp_ref: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.kl_estimates(X, 0.0), r"logp_ref: expected shape \(2, 3\), got \(\)"),
        (lambda: rltokens.kl_estimates(["a"], [0.0]), "logp: expected real numbers"),
        (lambda: rltokens.kl_gradient_audit(X[0], X[0, :2]), r"z_ref: expected shape \(3\), got \(2,\)"),
        (lambda: rltokens.kl_gradient_audit(X, X), r"z: expected shape \(V\), got \(2, 3\)"),
        (lambda: rltokens.kl_gradient_audit([], []), r"z: expected shape \(V\), got \(0,\)"),
        (lambda: rltokens.kl_to_go(X, X[:, :2], ONES), r"logp_ref: expected shape \(2, 3\), got \(2, 2\)"),
        (lambda: rltokens.kl_to_go(X, X, ONES[:1]), r"mask: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.kl_to_go(X, X, ONES + 1), "mask: expected only 0 and 1, got 2.0"),
        (
            lambda: rltokens.sequence_kl_gradient_audit(TABLE, TABLE, 2, 3),
            r"z_table: expected shape \(7, 2\), a row for each prefix of fewer than 3 tokens, got \(3, 2\)",
        ),
        (
            lambda: rltokens.sequence_kl_gradient_audit(TABLE, TABLE, 3, 2),
            r"z_table: expected shape \(4, 3\)",
        ),
        (
            lambda: rltokens.sequence_kl_gradient_audit(TABLE, TABLE[:2], 2, 2),
            r"z_ref_table: expected shape \(3, 2\), got \(2, 2\)",
        ),
        (lambda: rltokens.sequence_kl_gradient_audit(TABLE, TABLE, 0, 2), "vocab_size: expected a whole"),
        (
            lambda: rltokens.sequence_kl_gradient_audit(TABLE, TABLE, 2, 1.5),
            "length: expected a whole number",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
