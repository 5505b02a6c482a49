"""The token-level MDP as a Gymnasium environment."""

import gymnasium
import numpy as np

from rltokens.mdp import transition
from rltokens.toy import LENGTH, VOCAB_SIZE, two_zeros
from rltokens.validation import validated, whole


def _toy_score(prompt, response):
    return float(two_zeros([response])[0])


def _holds_only_its_tokens(given):
    vocab_size, eos, prompts = given["vocab_size"], given["eos"], given["prompts"]
    if eos is not None and eos >= vocab_size:
        raise ValueError(f"eos: expected an id from 0 to {vocab_size - 1} or None, got {eos}")
    if not prompts:
        raise ValueError("prompts: expected at least one tuple of tokens, got none")
    for prompt in prompts:
        for token in prompt:
            if token not in range(vocab_size):
                raise ValueError(f"prompts: expected ids from 0 to {vocab_size - 1}, got {token}")


class TokenMDP(gymnasium.Env):
    """Writing a response, one token a step. By default the course's toy.

    An action is a token. The observation holds the prompt and the response
    so far, padded to one length with the id V, which is no token; the first
    number says how long the prompt is. The score of the whole response is
    the reward of its last token, all others have reward 0.

    Parameters
    ----------
    vocab_size : int, V
    max_length : int, the most tokens in a response
    eos : int or None, the token that ends a response; None for the toy,
        whose responses all have `max_length` tokens
    prompts : tuples of token ids, one of which each episode begins with
    score : a function (prompt, response) -> float, of two tuples
    render_mode : "ansi", so that `render` gives a line of text, or None

    Raises
    ------
    ValueError for no prompts, an `eos`, a prompt's token or an action that
    is not in the vocabulary, a step before `reset` or after the end.

    Source: Towers et al. (2024).

    Examples
    --------
    >>> env = TokenMDP()
    >>> _ = env.reset(seed=0)
    >>> [env.step(token)[1:4] for token in (0, 3, 0)]
    [(0.0, False, False), (0.0, False, False), (1.0, False, True)]
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012, Gymnasium's interface

    @validated(_holds_only_its_tokens, vocab_size=whole(1), max_length=whole(1), eos=whole(0))
    def __init__(
        self,
        vocab_size=VOCAB_SIZE,
        max_length=LENGTH,
        eos=None,
        prompts=((),),
        score=_toy_score,
        render_mode=None,
    ):
        self.vocab_size, self.max_length, self.score = vocab_size, max_length, score
        self.prompts = tuple(tuple(prompt) for prompt in prompts)
        # Where there is no EOS, an id that is never drawn stands for it.
        self.eos = vocab_size if eos is None else eos
        self.render_mode = render_mode
        longest = max(map(len, self.prompts))
        self.action_space = gymnasium.spaces.Discrete(vocab_size)
        self.observation_space = gymnasium.spaces.MultiDiscrete(
            [longest + 1] + [vocab_size + 1] * (longest + max_length)
        )
        self.state = None

    def reset(self, *, seed=None, options=None):
        """Begin an episode with one of the prompts: (observation, info)."""
        super().reset(seed=seed)
        prompt = self.prompts[self.np_random.integers(len(self.prompts))]
        self.state = (prompt, ())
        return self._observation(), {}

    def step(self, action):
        """Append a token: (observation, reward, terminated, truncated, info)."""
        if self.state is None:
            raise ValueError("state: call reset before the first step")
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected an id from 0 to {self.vocab_size - 1}, got {action!r}")
        self.state, terminated, truncated = transition(self.state, int(action), self.eos, self.max_length)
        ended = terminated or truncated
        reward = float(self.score(*self.state)) if ended else 0.0
        return self._observation(), reward, terminated, truncated, {}

    def render(self):
        """Prompt and response so far, as a line of text."""
        prompt, response = (" ".join(map(str, part)) for part in self.state)
        return f"{prompt} | {response}"

    def _observation(self):
        prompt, response = self.state
        observation = np.full(self.observation_space.shape, self.vocab_size, dtype=np.int64)
        text = (*prompt, *response)
        observation[0] = len(prompt)
        observation[1 : 1 + len(text)] = text
        return observation
