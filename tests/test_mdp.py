"""Chapter 1's functions: every short episode, every short row of tokens, every piece of the unit interval."""

import bisect
import itertools
import math

import numpy as np
import pytest

import rltokens

pytestmark = pytest.mark.filterwarnings("error")

ALMOST_ONE = np.nextafter(1.0, 0.0)
LEAST_ABOVE_ZERO = np.nextafter(0.0, 1.0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- transition ----------------------------------------------------------------------------------


def every_unfinished_response(vocab_size, eos, max_length):
    others = [token for token in range(vocab_size) if token != eos]
    for length in range(max_length):
        yield from itertools.product(others, repeat=length)


@pytest.mark.parametrize("eos", [0, 2])
@pytest.mark.parametrize("max_length", [1, 2, 3])
@pytest.mark.parametrize("prompt", [(), (1,), (2, 0, 2)])
def test_transition_of_every_state_and_action(prompt, max_length, eos):
    # The prompt holds either EOS id, and is longer than the cap: neither may end an episode.
    for response in every_unfinished_response(3, eos, max_length):
        for action in range(3):
            written = [*response, action]
            ended = written[-1] == eos
            full = len(written) == max_length
            got = rltokens.transition((prompt, response), action, eos, max_length)
            assert got == ((prompt, tuple(written)), ended, full and not ended)


def test_an_eos_that_fills_the_response_terminates_it_and_does_not_truncate_it():
    assert rltokens.transition(((), (1,)), action=0, eos=0, max_length=2) == (((), (1, 0)), True, False)


def test_the_state_that_one_step_gives_is_the_state_that_the_next_step_takes():
    state, flags = ((7,), ()), []
    for action in (1, 2, 9):
        state, terminated, truncated = rltokens.transition(state, action, eos=9, max_length=5)
        flags.append((terminated, truncated))
    assert state == ((7,), (1, 2, 9))
    assert flags == [(False, False), (False, False), (True, False)]


@pytest.mark.parametrize("response", [(0,), (1, 0), (0, 1)])
def test_no_token_follows_eos(response):
    with pytest.raises(ValueError, match=r"state: the response has ended with EOS 0"):
        rltokens.transition(((), response), action=1, eos=0, max_length=5)


@pytest.mark.parametrize("response", [(1, 1), (1, 1, 1)])
def test_no_token_follows_the_last_one_allowed(response):
    with pytest.raises(ValueError, match=r"state: the response has all of its 2 tokens"):
        rltokens.transition(((), response), action=1, eos=0, max_length=2)


@pytest.mark.parametrize("state", [((1,), [2]), ([1], (2,)), ((1,),), ((), (), ()), [(), ()], (1, 2), None])
def test_a_state_is_two_tuples(state):
    with pytest.raises(ValueError, match=r"state: expected two tuples, \(prompt, response\), got"):
        rltokens.transition(state, action=1, eos=0, max_length=3)


# --- sample_token --------------------------------------------------------------------------------


def inverse_cdf(p, u):
    """The smallest k whose cumulative probability exceeds u, from probabilities in a list."""
    return bisect.bisect_right(list(itertools.accumulate(p)), u)


def test_sample_token_on_a_grid_that_holds_every_boundary():
    # Halves and quarters are exact, so at u = 0.5 and u = 0.75 the next token must come.
    quarters = [0, 0, 1, 2]
    for i in range(64):
        token, logp = rltokens.sample_token(np.log([0.5, 0.25, 0.25]), u=i / 64)
        assert token == quarters[i // 16]
        assert logp == pytest.approx(math.log([0.5, 0.25, 0.25][token]), abs=1e-15)


@pytest.mark.parametrize(("u", "token"), [(0.5, 1), (0.75, 2)])
def test_just_below_a_boundary_still_gets_the_token_before_it(u, token):
    logits = np.log([0.5, 0.25, 0.25])
    assert rltokens.sample_token(logits, np.nextafter(u, 0))[0] == token - 1
    assert rltokens.sample_token(logits, u)[0] == token


def test_sample_token_inverts_the_cdf_of_random_rows(rng):
    logits, u = 2 * rng.normal(size=(50, 40, 7)), rng.random((50, 40))
    token, logp = rltokens.sample_token(logits, u)
    for i in np.ndindex(50, 40):
        weights = [math.exp(z) for z in logits[i]]
        p = [w / sum(weights) for w in weights]
        assert token[i] == inverse_cdf(p, u[i])
        assert logp[i] == pytest.approx(math.log(p[token[i]]), rel=1e-12)


def test_tokens_come_as_often_as_their_pieces_are_long(rng):
    logits, count = rng.normal(size=6), 100_000
    u = (np.arange(count) + 0.5) / count
    token, _ = rltokens.sample_token(np.broadcast_to(logits, (count, 6)), u)
    assert (np.diff(token) >= 0).all()  # the pieces lie in the order of the ids
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(token, minlength=6) / count, p, atol=1.0 / count)


@pytest.mark.parametrize("forbidden", [(0,), (0, 1), (3,), (2, 3), (0, 3), (1,), (1, 2), (0, 1, 3)])
def test_a_token_of_probability_zero_is_never_drawn(forbidden):
    logits = np.zeros(4)
    logits[list(forbidden)] = -np.inf
    allowed = [token for token in range(4) if token not in forbidden]
    share = 1 / len(allowed)
    edges = [0.0, LEAST_ABOVE_ZERO, *np.arange(1, len(allowed)) * share, ALMOST_ONE]
    for u in [*edges, *np.linspace(0, 1, 97)[:-1]]:
        token, logp = rltokens.sample_token(logits, u)
        assert token in allowed
        assert logp == pytest.approx(math.log(share), abs=1e-15)
    assert rltokens.sample_token(logits, 0.0)[0] == allowed[0]
    assert rltokens.sample_token(logits, ALMOST_ONE)[0] == allowed[-1]


def test_a_token_that_underflows_to_probability_zero_is_not_drawn_either():
    assert rltokens.sample_token([-800.0, 0.0, -800.0], 0.0)[0] == 1
    assert rltokens.sample_token([-800.0, 0.0, -800.0], ALMOST_ONE)[0] == 1


def test_where_rounding_leaves_the_cdf_short_the_last_possible_token_comes():
    short = 0
    for size in range(2, 200):
        logits = np.array([0.0] * size + [-np.inf, -np.inf])
        token, logp = rltokens.sample_token(logits, ALMOST_ONE)
        assert token == size - 1
        assert logp == pytest.approx(-math.log(size))
        short += np.cumsum(np.full(size, math.exp(-math.log(size))))[-1] <= ALMOST_ONE
    assert short > 20  # so the rows above did put the question


def test_temperature_two_is_the_root_of_the_odds_by_hand():
    # p = (16, 4, 1) / 21 becomes (4, 2, 1) / 7, and at temperature 1/2 (256, 16, 1) / 273.
    logits = np.log([16.0, 4.0, 1.0])
    for temperature, weights in ((2.0, [4, 2, 1]), (1, [16, 4, 1]), (0.5, [256, 16, 1])):
        total, below = sum(weights), 0
        for k, weight in enumerate(weights):
            token, logp = rltokens.sample_token(logits, (below + weight / 2) / total, temperature)
            assert token == k
            assert logp == pytest.approx(math.log(weight / total), rel=1e-12)
            below += weight


def test_temperature_zero_is_greedy_and_certain():
    logits = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-np.inf, -np.inf, 0.0], [-5.0, -1.0, -9.0]])
    token, logp = rltokens.sample_token(logits, [0.0, 0.9, 0.0, ALMOST_ONE], temperature=0)
    np.testing.assert_array_equal(token, [1, 0, 2, 1])
    np.testing.assert_array_equal(logp, np.zeros(4))
    assert (token.dtype, logp.dtype) == (np.int64, np.float64)


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_without_overflow(temperature):
    token, logp = rltokens.sample_token([1e4, 1e4 - 1, -1e4, -np.inf], ALMOST_ONE, temperature)
    assert (token, logp) == (0, 0.0)
    token, logp = rltokens.sample_token([1e4, 0.0, 1e4], ALMOST_ONE, temperature)
    assert token == 2
    assert logp == pytest.approx(-math.log(2))


def test_adding_a_constant_to_the_logits_changes_nothing(rng):
    logits, u = rng.integers(-3, 4, size=(200, 5)).astype(float), rng.random(200)
    for shift in (1e6, -1e6):
        for got, expected in zip(
            rltokens.sample_token(logits + shift, u, 0.7), rltokens.sample_token(logits, u, 0.7), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("temperature", [0, 0.5])
def test_results_have_the_shape_and_types_of_the_leading_axes(leading, temperature):
    token, logp = rltokens.sample_token(np.zeros((*leading, 4)), np.full(leading, 0.3), temperature)
    assert np.shape(token) == np.shape(logp) == leading
    assert (token.dtype, logp.dtype) == (np.int64, np.float64)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int8])
def test_any_real_type_is_widened_before_arithmetic(kind, rng):
    logits = rng.normal(scale=3, size=(100, 5)).astype(kind)
    u = rng.random(100).astype(np.float32)
    u = np.minimum(u, np.float32(0.999))
    token, logp = rltokens.sample_token(logits, u, np.float32(0.7))
    wide, wide_logp = rltokens.sample_token(
        logits.astype(np.float64), u.astype(np.float64), float(np.float32(0.7))
    )
    np.testing.assert_array_equal(token, wide)
    np.testing.assert_array_equal(logp, wide_logp)
    assert logp.dtype == np.float64


# --- response_mask -------------------------------------------------------------------------------


def mask_by_reading(row, eos, length):
    mask = []
    for t in range(len(row)):
        ended = eos in list(row[:t])
        mask.append(int(t < length and not ended))
    return mask


@pytest.mark.parametrize("eos", [0, 1, 2, 5])
def test_response_mask_of_every_row_and_every_length(eos):
    rows = np.array(list(itertools.product(range(3), repeat=4)))
    got = rltokens.response_mask(rows, eos)
    np.testing.assert_array_equal(got, [mask_by_reading(row, eos, 4) for row in rows])
    assert got.dtype == np.int64
    for length in range(5):
        got = rltokens.response_mask(rows, eos, lengths=[length] * len(rows))
        np.testing.assert_array_equal(got, [mask_by_reading(row, eos, length) for row in rows])
        assert got.dtype == np.int64


def test_each_row_has_its_own_length():
    tokens = [[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 1]]
    got = rltokens.response_mask(tokens, eos=0, lengths=[2, 3, 2, 0])
    np.testing.assert_array_equal(got, [[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0]])


def test_padding_that_looks_like_eos_does_not_lengthen_a_response_that_was_cut_off():
    # Three tokens were sampled and the cap cut them off; the pad id is that of EOS.
    np.testing.assert_array_equal(rltokens.response_mask([[4, 4, 4, 9]], 9, lengths=[3]), [[1, 1, 1, 0]])
    # Without lengths the same row cannot be told from one that ended by itself.
    np.testing.assert_array_equal(rltokens.response_mask([[4, 4, 4, 9]], 9), [[1, 1, 1, 1]])


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, -1.0, 1e300])
def test_whatever_stands_behind_a_response_is_not_read(junk):
    tokens = np.array([[3.0, 9.0, junk, junk], [3.0, 4.0, junk, 9.0]])
    np.testing.assert_array_equal(
        rltokens.response_mask(tokens, 9, lengths=[4, 2]), [[1, 1, 0, 0], [1, 1, 0, 0]]
    )


def test_response_mask_takes_lists_and_empty_batches_and_changes_nothing():
    tokens, lengths = np.array([[0, 1], [1, 0]]), np.array([2.0, 1.0])
    copies = tokens.copy(), lengths.copy()
    rltokens.response_mask(tokens, 0, lengths)
    np.testing.assert_array_equal(tokens, copies[0])
    np.testing.assert_array_equal(lengths, copies[1])
    assert rltokens.response_mask(np.zeros((0, 3)), 0).shape == (0, 3)
    assert rltokens.response_mask(np.zeros((2, 0)), 0, [0, 0]).shape == (2, 0)


# --- enumerate_responses, and errors -------------------------------------------------------------


def test_the_last_token_of_the_responses_changes_fastest():
    np.testing.assert_array_equal(rltokens.enumerate_responses(2, 2), [[0, 0], [0, 1], [1, 0], [1, 1]])


def test_one_token_writes_one_response():
    np.testing.assert_array_equal(rltokens.enumerate_responses(1, 3), [[0, 0, 0]])
    np.testing.assert_array_equal(rltokens.enumerate_responses(3, 1), [[0], [1], [2]])


STATE, ROW, TOKENS = ((), ()), np.zeros(3), np.zeros((2, 3), dtype=int)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.transition(STATE, -1, 0, 3), "action: expected a whole number at least 0, got -1"),
        (lambda: rltokens.transition(STATE, 1.5, 0, 3), "action: expected a whole number .* got 1.5"),
        (lambda: rltokens.transition(STATE, 1, True, 3), "eos: expected a whole number at least 0, got True"),
        (lambda: rltokens.transition(STATE, 1, 2.0, 3), "eos: expected a whole number at least 0, got 2.0"),
        (lambda: rltokens.transition(STATE, 1, -2, 3), "eos: expected a whole number at least 0, got -2"),
        (lambda: rltokens.transition(STATE, 1, 0, 0), "max_length: expected a whole number at least 1"),
        (lambda: rltokens.sample_token(ROW, 1.0), r"u: expected numbers in \[0, 1\), got 1.0"),
        (lambda: rltokens.sample_token(ROW, -1e-9), r"u: expected numbers in \[0, 1\), got -1e-09"),
        (lambda: rltokens.sample_token(ROW, np.nan), r"u: expected numbers in \[0, 1\), got nan"),
        (lambda: rltokens.sample_token(ROW, [0.5]), r"u: expected shape \(\), got \(1,\)"),
        (lambda: rltokens.sample_token(np.zeros((2, 3)), 0.5), r"u: expected shape \(2\), got \(\)"),
        (
            lambda: rltokens.sample_token(np.zeros((2, 3)), [[0.5], [0.5]]),
            r"u: expected shape \(2\), got \(2, 1\)",
        ),
        (lambda: rltokens.sample_token(1.0, 0.5), r"logits: expected shape \(\.\.\., V\), got \(\)"),
        (lambda: rltokens.sample_token([], 0.5), r"logits: expected shape \(\.\.\., V\), got \(0,\)"),
        (
            lambda: rltokens.sample_token(ROW, 0.5, -0.1),
            "temperature: expected a number at least 0, got -0.1",
        ),
        (lambda: rltokens.sample_token(ROW, 0.5, np.nan), "temperature: expected a number at least 0"),
        (
            lambda: rltokens.sample_token([[0.0, 0.0], [-np.inf, -np.inf]], [0.5, 0.5]),
            "logits: expected a token of positive probability in every row, got only -inf",
        ),
        (lambda: rltokens.response_mask(TOKENS[0], 0), r"tokens: expected shape \(B, T\), got \(3,\)"),
        (lambda: rltokens.response_mask(TOKENS, True), "eos: expected a whole number at least 0, got True"),
        (lambda: rltokens.response_mask(TOKENS, 1.0), "eos: expected a whole number at least 0, got 1.0"),
        (lambda: rltokens.response_mask(TOKENS, -1), "eos: expected a whole number at least 0, got -1"),
        (lambda: rltokens.response_mask(TOKENS, None), "eos: expected a whole number at least 0, got None"),
        (
            lambda: rltokens.response_mask(TOKENS, 0, [3, 4]),
            "lengths: expected whole numbers from 0 to 3, got 4",
        ),
        (
            lambda: rltokens.response_mask(TOKENS, 0, [-1, 3]),
            "lengths: expected whole numbers from 0 to 3, got -1",
        ),
        (lambda: rltokens.response_mask(TOKENS, 0, [1.5, 3]), "lengths: expected whole numbers from 0 to 3"),
        (lambda: rltokens.response_mask(TOKENS, 0, [3]), r"lengths: expected shape \(2\), got \(1,\)"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
