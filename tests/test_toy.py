"""The toy language model, by its published figures and by enumeration."""

import itertools

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
