"""Chapter 2's functions: hand-made numbers, identities, and what padding must not do."""

import itertools
import math

import numpy as np
import pytest

import rltokens
from rltokens import toy
from rltokens.checking import draw_batch

# One response of three tokens over a vocabulary of three, as probabilities that can be multiplied by hand.
STEPS = np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]])
TOKENS = np.array([[0, 1, 2]])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_log_softmax_by_hand():
    expected = [math.log(1 / 4), math.log(1 / 4), math.log(1 / 2)]
    np.testing.assert_allclose(rltokens.log_softmax([0, 0, math.log(2)]), expected, rtol=1e-15)


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e3, 1e15])
def test_log_softmax_ignores_a_shift_of_the_row(shift):
    # Small whole numbers, so that adding the shift is exact.
    np.testing.assert_array_equal(
        rltokens.log_softmax(np.array([1.0, 2.0, 4.0]) + shift), rltokens.log_softmax([1, 2, 4])
    )


def test_log_softmax_keeps_rare_tokens_and_forbidden_ones():
    np.testing.assert_array_equal(rltokens.log_softmax([0.0, -900.0]), [0.0, -900.0])
    np.testing.assert_array_equal(rltokens.log_softmax([0.0, -np.inf]), [0.0, -np.inf])
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(rltokens.log_softmax([[-np.inf, -np.inf]]), [[-np.inf, -np.inf]])


def test_log_softmax_gradient_is_one_hot_minus_softmax(rng):
    # d log pi_a / d z = one_hot(a) - pi, by finite differences of our own function.
    z, step = rng.normal(size=5), 1e-6
    numeric = np.array(
        [
            (rltokens.log_softmax(z + step * e) - rltokens.log_softmax(z - step * e)) / (2 * step)
            for e in np.eye(5)
        ]
    )  # [w, v]: d log pi_v / d z_w
    np.testing.assert_allclose(numeric.T, np.eye(5) - np.exp(rltokens.log_softmax(z)), atol=1e-9)


def test_next_token_logits_is_the_slice_that_predicts_the_response():
    logits = np.arange(2 * 5 * 3.0).reshape(2, 5, 3)
    np.testing.assert_array_equal(rltokens.next_token_logits(logits, 2), logits[:, 1:4])
    np.testing.assert_array_equal(rltokens.next_token_logits(logits, 1), logits[:, 0:4])
    assert rltokens.next_token_logits(logits, 5).shape == (2, 0, 3)


@pytest.mark.parametrize("prompt_length", [0, -1, 6, 1.5, True])
def test_next_token_logits_rejects_a_prompt_it_cannot_have_read(prompt_length):
    with pytest.raises(ValueError, match=r"prompt_length: expected a whole number from 1 to 5"):
        rltokens.next_token_logits(np.zeros((2, 5, 3)), prompt_length)


def test_token_logprobs_by_hand():
    got = rltokens.token_logprobs(np.log(STEPS), TOKENS, [[1, 1, 0]])
    np.testing.assert_allclose(got, [[math.log(0.5), math.log(0.8), 0.0]], rtol=1e-14)


def test_a_drawn_token_of_probability_zero_has_minus_infinity():
    logits = np.array([[[0.0, -np.inf], [0.0, 0.0]]])
    np.testing.assert_array_equal(rltokens.sequence_logprobs(logits, [[1, 0]], [[1, 1]]), [-np.inf])


def test_sequence_logprobs_multiplies_the_steps():
    got = rltokens.sequence_logprobs(np.log(STEPS), TOKENS, [[1, 1, 1]])
    np.testing.assert_allclose(np.exp(got), [0.5 * 0.8 * 0.6], rtol=1e-14)


def test_sequence_logprobs_sums_over_tokens_and_not_over_the_batch():
    logits, ones = np.log(np.repeat(STEPS, 2, axis=0)), np.ones((2, 3))
    got = rltokens.sequence_logprobs(logits, [[0, 1, 2], [0, 0, 0]], ones)
    np.testing.assert_allclose(np.exp(got), [0.5 * 0.8 * 0.6, 0.5 * 0.1 * 0.2], rtol=1e-14)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("id_junk", [99, -1])
def test_padding_is_inert(rng, junk, id_junk):
    logits, tokens, mask = draw_batch(rng)
    mask[2, 0] = 0  # a hole at the start of a row
    real = mask == 1
    dirty_logits, dirty_tokens = np.where(real[..., None], logits, junk), np.where(real, tokens, id_junk)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(
            rltokens.token_logprobs(dirty_logits, dirty_tokens, mask),
            rltokens.token_logprobs(logits, tokens, mask),
        )
        np.testing.assert_array_equal(
            rltokens.sequence_logprobs(dirty_logits, dirty_tokens, mask),
            rltokens.sequence_logprobs(logits, tokens, mask),
        )
        dirty = np.where(real, -1.0, junk)
        np.testing.assert_array_equal(
            rltokens.importance_ratios(dirty, dirty - real, mask), np.exp(real * 1.0)
        )


def test_more_padding_and_another_split_change_nothing(rng):
    logits, tokens, mask = draw_batch(rng, rows=5)
    whole = rltokens.sequence_logprobs(logits, tokens, mask)
    halves = [rltokens.sequence_logprobs(logits[i], tokens[i], mask[i]) for i in (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-14)
    padded = rltokens.sequence_logprobs(
        np.pad(logits, ((0, 0), (0, 3), (0, 0))),
        np.pad(tokens, ((0, 0), (0, 3))),
        np.pad(mask, ((0, 0), (0, 3))),
    )
    np.testing.assert_allclose(padded, whole, rtol=1e-14)


def test_an_empty_row_is_certain_and_an_empty_batch_has_no_rows():
    zeros = np.zeros((2, 3), dtype=int)
    np.testing.assert_array_equal(rltokens.sequence_logprobs(np.zeros((2, 3, 4)), zeros, zeros), [0.0, 0.0])
    assert rltokens.sequence_logprobs(np.zeros((0, 3, 4)), zeros[:0], zeros[:0]).shape == (0,)


def test_importance_ratios_by_hand():
    got = rltokens.importance_ratios(np.log([[0.6, 0.1, 0.7]]), np.log([[0.3, 0.2, 0.1]]), [[1, 1, 0]])
    np.testing.assert_allclose(got, [[2.0, 0.5, 1.0]], rtol=1e-14)


def test_importance_weights_have_mean_one_and_carry_over_expectations():
    """E_old[w f] = E_new[f], summed over all responses of the toy."""
    old, new = toy.reference_logits(), toy.reference_logits(seed=1)
    responses = rltokens.enumerate_responses(4, 3)
    ones = np.ones_like(responses)
    ratios = rltokens.importance_ratios(
        rltokens.token_logprobs(toy.response_logits(new, responses), responses, ones),
        rltokens.token_logprobs(toy.response_logits(old, responses), responses, ones),
        ones,
    )
    weights = ratios.prod(axis=1)
    logp_old, logp_new = (rltokens.sequence_distribution(table, 4, 3) for table in (old, new))
    rewards = toy.two_zeros(responses)
    assert toy.expected_reward(logp_old, weights) == pytest.approx(1.0, abs=1e-12)
    assert toy.expected_reward(logp_old, weights * rewards) == pytest.approx(
        toy.expected_reward(logp_new, rewards), abs=1e-12
    )


@pytest.mark.parametrize(("vocab_size", "length"), [(1, 3), (2, 1), (2, 5), (3, 4), (4, 3)])
def test_sequence_distribution_is_what_scoring_each_response_gives(vocab_size, length):
    table = toy.reference_logits(vocab_size, length, seed=2)
    row_of = {}
    for size in range(length):
        for prefix in itertools.product(range(vocab_size), repeat=size):
            row_of[prefix] = len(row_of)
    logp = rltokens.log_softmax(table)
    expected = [
        sum(logp[row_of[y[:t]], y[t]] for t in range(length))
        for y in itertools.product(range(vocab_size), repeat=length)
    ]
    got = rltokens.sequence_distribution(table, vocab_size, length)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
    assert np.exp(got).sum() == pytest.approx(1.0, abs=1e-12)

    responses = rltokens.enumerate_responses(vocab_size, length)
    scored = rltokens.sequence_logprobs(
        toy.response_logits(table, responses), responses, np.ones_like(responses)
    )
    np.testing.assert_allclose(scored, got, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [list, np.float32, np.float16])
def test_any_real_type_comes_back_as_float64(kind):
    logits = np.log(STEPS)
    given = logits.tolist() if kind is list else logits.astype(kind)
    for result in (
        rltokens.log_softmax(given),
        rltokens.next_token_logits(given, 1),
        rltokens.token_logprobs(given, TOKENS, [[True, False, True]]),
        rltokens.sequence_logprobs(given, TOKENS.tolist(), np.array([[1.0, 0.0, 1.0]])),
        rltokens.importance_ratios(given[0], given[0], np.ones((3, 3))),
    ):
        assert result.dtype == np.float64


def test_float32_is_widened_before_any_arithmetic():
    logits = np.float32([[[0.1, 0.7, 0.3]]])
    wide = rltokens.token_logprobs(logits.astype(np.float64), [[1]], [[1]])
    np.testing.assert_array_equal(rltokens.token_logprobs(logits, [[1]], [[1]]), wide)
    now, old = np.float32([[-0.1]]), np.float32([[-0.7]])
    np.testing.assert_array_equal(
        rltokens.importance_ratios(now, old, [[1]]),
        rltokens.importance_ratios(now.astype(np.float64), old.astype(np.float64), [[1]]),
    )


def test_inputs_are_never_changed(rng):
    logits, tokens, mask = draw_batch(rng)
    copies = [array.copy() for array in (logits, tokens, mask)]
    rltokens.log_softmax(logits)
    rltokens.token_logprobs(logits, tokens, mask)
    rltokens.sequence_logprobs(logits, tokens, mask)
    for array, copy in zip((logits, tokens, mask), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


Z, IDS, ONES = np.zeros((2, 3, 5)), np.zeros((2, 3), dtype=int), np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.log_softmax(1.0), r"logits: expected shape \(\.\.\., V\), got \(\)"),
        (lambda: rltokens.log_softmax(np.zeros((2, 0))), r"logits: expected shape .* got \(2, 0\)"),
        (lambda: rltokens.log_softmax(["a"]), "logits: expected real numbers"),
        (lambda: rltokens.log_softmax([[1.0], [1.0, 2.0]]), "logits: expected rows of equal length"),
        (
            lambda: rltokens.token_logprobs(Z[:, :2], IDS, ONES),
            r"logits: expected shape \(2, 3, V\), got \(2, 2, 5\)",
        ),
        (lambda: rltokens.token_logprobs(Z, IDS, ONES[:1]), r"mask: expected shape \(2, 3\), got \(1, 3\)"),
        (lambda: rltokens.token_logprobs(Z, IDS[0], ONES), r"tokens: expected shape \(B, T\), got \(3,\)"),
        (
            lambda: rltokens.token_logprobs(Z, IDS + 5, ONES),
            "tokens: expected whole ids from 0 to 4 .*, got 5",
        ),
        (
            lambda: rltokens.token_logprobs(Z, IDS - 1, ONES),
            "tokens: expected whole ids from 0 to 4 .*, got -1",
        ),
        (lambda: rltokens.token_logprobs(Z, IDS + 0.5, ONES), "tokens: expected whole ids"),
        (lambda: rltokens.sequence_logprobs(Z, IDS, ONES / 2), "mask: expected only 0 and 1, got 0.5"),
        (lambda: rltokens.sequence_logprobs(Z, IDS, ONES * np.nan), "mask: expected only 0 and 1, got nan"),
        (lambda: rltokens.importance_ratios(ONES, ONES[:, :2], ONES), r"logp_old: expected shape \(2, 3\)"),
        (
            lambda: rltokens.sequence_distribution(np.zeros((20, 4)), 4, 3),
            r"logit_table: expected shape \(21, 4\)",
        ),
        (
            lambda: rltokens.sequence_distribution(np.zeros((21, 4)), 0, 3),
            "vocab_size: expected a whole number",
        ),
        (lambda: rltokens.enumerate_responses(4, 0), "length: expected a whole number at least 1, got 0"),
        (
            lambda: rltokens.enumerate_responses(2.5, 3),
            "vocab_size: expected a whole number at least 1, got 2.5",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
