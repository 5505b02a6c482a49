"""The Gymnasium environment: Gymnasium's own checker, and the functions that it must agree with."""

import itertools
import warnings

import numpy as np
import pytest

import rltokens
from rltokens import toy

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


def play(env, actions, seed=0):
    """Rewards, flags and the final observation of one episode."""
    env.reset(seed=seed)
    steps = [env.step(action) for action in actions]
    return [step[1] for step in steps], [step[2:4] for step in steps], steps[-1][0]


@pytest.mark.parametrize(
    "make",
    [
        rltokens.TokenMDP,
        lambda: rltokens.TokenMDP(vocab_size=5, max_length=4, eos=0, prompts=((1, 0), (2,), ())),
        lambda: rltokens.TokenMDP(render_mode="ansi"),
    ],
)
def test_gymnasium_finds_nothing_to_say(make):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(make())
    # It cannot make a second instance of an environment that is not in its registry: no defect.
    assert [str(w.message) for w in said if "not having a spec" not in str(w.message)] == []


def test_without_arguments_it_is_the_toy_and_pays_what_the_verifier_pays():
    responses = rltokens.enumerate_responses(4, 3)
    env = rltokens.TokenMDP()
    rewards = np.array([play(env, response)[0] for response in responses])
    expected = rltokens.terminal_rewards(toy.two_zeros(responses), np.ones_like(responses))
    np.testing.assert_array_equal(rewards, expected)
    assert rewards.sum() == 9


def test_the_toy_has_no_eos_and_its_third_token_truncates():
    for response in rltokens.enumerate_responses(4, 3):
        assert play(rltokens.TokenMDP(), response)[1] == [(False, False), (False, False), (False, True)]


def test_episodes_with_eos_agree_with_transition_mask_and_terminal_rewards():
    seen = []

    def score(prompt, response):
        seen.append((prompt, response))
        return 10.0 * len(response) + response[-1]

    env = rltokens.TokenMDP(vocab_size=3, max_length=3, eos=0, prompts=((0, 2),), score=score)
    for tokens in itertools.product(range(3), repeat=3):
        (mask,) = rltokens.response_mask([tokens], eos=0)
        response = tuple(int(token) for token in np.array(tokens)[mask == 1])
        seen.clear()
        rewards, flags, _ = play(env, response)
        assert seen == [((0, 2), response)]  # once, and of the whole response
        np.testing.assert_array_equal(
            rewards, rltokens.terminal_rewards([score((), response)], [mask])[0, : len(response)]
        )
        state, expected = ((0, 2), ()), []
        for token in response:
            state, terminated, truncated = rltokens.transition(state, token, eos=0, max_length=3)
            expected.append((terminated, truncated))
        assert flags == expected


def test_the_observation_is_the_prompt_then_the_response_then_padding():
    env = rltokens.TokenMDP(vocab_size=5, max_length=3, eos=4, prompts=((1, 0, 2),))
    observation, info = env.reset(seed=0)
    np.testing.assert_array_equal(observation, [3, 1, 0, 2, 5, 5, 5])
    assert info == {}
    np.testing.assert_array_equal(env.step(3)[0], [3, 1, 0, 2, 3, 5, 5])
    np.testing.assert_array_equal(env.step(4)[0], [3, 1, 0, 2, 3, 4, 5])
    assert observation.dtype == np.int64


def test_prompts_of_different_length_are_told_apart():
    env = rltokens.TokenMDP(vocab_size=3, max_length=2, prompts=((1,), (1, 2)))
    seen = {tuple(env.reset(seed=seed)[0].tolist()) for seed in range(20)}
    assert seen == {(1, 1, 3, 3, 3), (2, 1, 2, 3, 3)}
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(observation, env.reset(seed=seed)[0])
        assert env.observation_space.contains(observation)
        assert env.observation_space.contains(env.step(2)[0])


def test_a_new_episode_forgets_the_last():
    env = rltokens.TokenMDP()
    assert play(env, (0, 0, 3))[0] == play(env, (0, 0, 3))[0] == [0.0, 0.0, 1.0]


def test_it_prints_prompt_and_response():
    env = rltokens.TokenMDP(vocab_size=5, prompts=((3, 1),), render_mode="ansi")
    env.reset(seed=0)
    env.step(4)
    env.step(2)
    assert env.render() == "3 1 | 4 2"


def started(**arguments):
    env = rltokens.TokenMDP(**arguments)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.TokenMDP(prompts=()), "prompts: expected at least one tuple of tokens, got none"),
        (lambda: rltokens.TokenMDP(prompts=((0, 4),)), "prompts: expected ids from 0 to 3, got 4"),
        (lambda: rltokens.TokenMDP(prompts=((-1,),)), "prompts: expected ids from 0 to 3, got -1"),
        (lambda: rltokens.TokenMDP(eos=4), "eos: expected an id from 0 to 3 or None, got 4"),
        (lambda: rltokens.TokenMDP(eos=-1), "eos: expected a whole number at least 0, got -1"),
        (lambda: rltokens.TokenMDP(eos=True), "eos: expected a whole number at least 0, got True"),
        (lambda: rltokens.TokenMDP(eos=1.0), "eos: expected a whole number at least 0, got 1.0"),
        (lambda: rltokens.TokenMDP(vocab_size=0), "vocab_size: expected a whole number at least 1, got 0"),
        (lambda: rltokens.TokenMDP(max_length=0), "max_length: expected a whole number at least 1, got 0"),
        (lambda: rltokens.TokenMDP().step(0), "state: call reset before the first step"),
        (lambda: started().step(-1), "action: expected an id from 0 to 3, got -1"),
        (lambda: started().step(1.5), "action: expected an id from 0 to 3, got 1.5"),
        # The id that pads, and that stands for the EOS which the toy has not.
        (lambda: started().step(4), "action: expected an id from 0 to 3, got 4"),
        (lambda: play(started(), (1, 1, 1, 1)), "state: the response has all of its 3 tokens"),
        (lambda: play(started(eos=0), (0, 1)), "state: the response has ended with EOS 0"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
