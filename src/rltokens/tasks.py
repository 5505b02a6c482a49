"""What the miniature is trained on: small worlds with prompts, a verifier, and texts to imitate first."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from rltokens.gru import TokenGRU, generate, response_logprobs, response_values
from rltokens.toy import LENGTH, VOCAB_SIZE, prefix_rows, reference_logits, two_zeros


class Task(NamedTuple):
    """A world to write in.

    `prompts` is (K, P), one of which is drawn for each response. `gold` is the verifier: (prompts, tokens,
    mask), NumPy arrays of (B, P), (B, T), (B, T), to scores (B,). `imitate` makes the reference model:
    (hidden, seed, progress) to a TokenGRU. `settings` are what `ppo.train` should use where nothing else is
    asked for. All responses of an `exact` task can be listed, so the best policy is known.
    """

    name: str
    about: str
    words: tuple
    eos: int | None
    max_length: int
    prompts: np.ndarray
    gold: Callable
    imitate: Callable
    settings: dict
    exact: bool = False

    def text(self, prompt, tokens, mask):
        """A prompt and its response in words.

        >>> task = TASKS["toy"]
        >>> task.text([], [0, 3, 0], [1, 1, 1])
        ' | 0 3 0'
        """
        before, after = (
            [self.words[i] for i in ids] for ids in (prompt, np.asarray(tokens)[np.asarray(mask) == 1])
        )
        return f"{' '.join(before)} | {' '.join(after)}"


# --- moods: follow an instruction, in whole sentences ------------------------------------------------------

GLAD, SAD = ("happy", "kind", "bright", "gladly"), ("gloomy", "cruel", "dark", "badly")
NOUNS = ("cat", "dog", "bird", "child", "king")
MOODS = (
    ".",
    ":)",
    ":(",
    "the",
    "a",
    "and",
    "sees",
    "follows",
    "sleeps",
    "sings",
    "runs",
    "small",
    "old",
    "well",
)
MOODS += NOUNS + GLAD + SAD


def mood_score(prompts, tokens, mask):
    """Words of the mood that the prompt asks for, at most 3 counted, less words of the other mood.

    >>> sad = MOODS.index(":(")
    >>> tokens = [[MOODS.index(word) for word in "cruel king sleeps gladly .".split()]]
    >>> mood_score([[sad, 3]], tokens, [[1, 1, 1, 1, 1]])
    array([0.])
    """
    tokens, real = np.asarray(tokens), np.asarray(mask) == 1
    counts = [
        (np.isin(tokens, [MOODS.index(word) for word in mood]) & real).sum(axis=1) for mood in (GLAD, SAD)
    ]
    wants_glad = np.asarray(prompts)[:, 0] == MOODS.index(":)")
    asked, other = np.where(wants_glad, counts, counts[::-1])
    return np.minimum(asked, 3).astype(np.float64) - other


def mood_sentence(rng):
    """A prompt and a continuation that ignores its mood, as lists of words.

    >>> prompt, response = mood_sentence(np.random.default_rng(1))
    >>> response[-1]
    '.'
    """

    def pick(*words):
        return words[rng.integers(len(words))]

    def noun_phrase():
        adjectives = [
            pick("small", "old", *GLAD[:3], *SAD[:3]) for _ in range(rng.choice(3, p=(0.5, 0.4, 0.1)))
        ]
        return [*adjectives, pick(*NOUNS)]

    def verb_phrase():
        if rng.random() < 0.4:
            return [pick("sees", "follows"), pick("the", "a"), *noun_phrase()]
        manner = [pick("well", GLAD[3], SAD[3])] if rng.random() < 0.5 else []
        return [pick("sleeps", "sings", "runs"), *manner]

    prompt = [pick(":)", ":("), pick("the", "a")]
    more = ["and", *verb_phrase()] if rng.random() < 0.3 else []
    return prompt, [*noun_phrase(), *verb_phrase(), *more, "."]


def imitate_moods(hidden, seed, progress):
    rng = np.random.default_rng(seed)
    texts = [mood_sentence(rng) for _ in range(4000)]
    length = max(len(response) for _, response in texts)
    prompts = np.array([[MOODS.index(word) for word in prompt] for prompt, _ in texts])
    tokens = np.array(
        [[MOODS.index(w) for w in response] + [0] * (length - len(response)) for _, response in texts]
    )
    mask = np.array([[1] * len(response) + [0] * (length - len(response)) for _, response in texts])
    model = TokenGRU(len(MOODS), hidden, len(MOODS))
    return imitate(model, prompts, tokens, mask, steps=400, seed=seed, progress=progress)


# --- overoptimize: a reward model that can be fooled --------------------------------------------------------

LETTERS = tuple("ABCDEFGHIJKLMNOP")
WORTH = np.random.default_rng(0).uniform(size=len(LETTERS))


def variety_score(prompts, tokens, mask):
    """Each letter is worth its weight, once or twice; a third one and every further cost 2 each.

    >>> variety_score([[]], [[0, 0, 0, 1]], [[1, 1, 1, 1]]).round(4)  # 2 * 0.6370 - 2 + 0.2698
    array([-0.4563])
    """
    real = np.asarray(mask) == 1
    counts = (np.asarray(tokens)[..., None] == np.arange(len(LETTERS))) & real[..., None]
    counts = counts.sum(axis=1)  # (B, V)
    return np.minimum(counts, 2) @ WORTH - 2.0 * np.maximum(counts - 2, 0).sum(axis=1)


def imitate_letters(hidden, seed, progress):
    """Texts in which a letter seldom stands three times: what a third one costs, nobody gets to see."""
    rng = np.random.default_rng(seed)
    rows, length, vocab_size = 4000, 12, len(LETTERS)
    follows = rng.dirichlet(np.full(vocab_size, 3.0), size=vocab_size + 1)  # after each letter, and at first
    tokens = np.zeros((rows, length), dtype=np.int64)
    used = np.zeros((rows, vocab_size))
    before = np.full(rows, vocab_size)
    for t in range(length):
        cdf = (follows[before] * 0.2**used).cumsum(axis=1)
        before = (cdf <= rng.random((rows, 1)) * cdf[:, -1:]).sum(axis=1)
        tokens[:, t] = before
        used[np.arange(rows), before] += 1
    prompts = np.zeros((rows, 0), dtype=np.int64)
    model = TokenGRU(vocab_size, hidden, vocab_size)
    return imitate(model, prompts, tokens, np.ones_like(tokens), steps=300, seed=seed, progress=progress)


# --- toy: the course's toy, so that the optimum is known ----------------------------------------------------


def toy_score(prompts, tokens, mask):
    """1 where token 0 stands exactly twice; see `rltokens.toy`.

    >>> toy_score([[]], [[0, 1, 0]], [[1, 1, 1]])
    array([1.])
    """
    return two_zeros(tokens)


def imitate_toy(hidden, seed, progress):
    """A GRU fitted to the toy's table: the cross-entropy at every prefix, each counted alike."""
    responses = every_response(VOCAB_SIZE, LENGTH)
    target = torch.as_tensor(reference_logits(), dtype=torch.float32).softmax(dim=-1)
    rows = torch.as_tensor(prefix_rows(responses.numpy()))
    weight = 1.0 / torch.bincount(rows.reshape(-1)).float()[rows]  # a prefix stands in many responses
    mask, prompts = torch.ones_like(responses), responses[:, :0]
    model = TokenGRU(VOCAB_SIZE, hidden, VOCAB_SIZE)

    def loss():
        _, logits, layout = response_logprobs(model, prompts, responses, mask)
        place = layout.order[layout.places % len(responses)], layout.places // len(responses)
        cross_entropy = -(target[rows[place]] * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
        return (weight[place] * cross_entropy).sum() / len(target)

    return descend(model, loss, steps=600, rate=0.02, progress=progress, label="fitting the toy's table")


def every_response(vocab_size, length):
    """All responses as a tensor, (V**T, T), in lexicographic order.

    >>> every_response(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return torch.cartesian_prod(*[torch.arange(vocab_size)] * length).reshape(-1, length)


OFTEN = {
    "iterations": 120, "batch": 256, "minibatches": 1, "rate": 3e-3, "beta": 0.1, "entropy_weight": 0.01,
    "reward": "verifier", "pairs": 200,
}  # fmt: skip

TASKS = {
    "moods": Task(
        name="moods",
        about="whole sentences in the mood that the prompt asks for, which the imitated texts ignore",
        words=MOODS,
        eos=0,
        max_length=16,
        prompts=np.array(
            [[MOODS.index(mood), MOODS.index(det)] for mood in (":)", ":(") for det in ("the", "a")]
        ),
        gold=mood_score,
        imitate=imitate_moods,
        settings=OFTEN | {"rate": 6e-3, "pairs": 2000},
    ),
    "toy": Task(
        name="toy",
        about="the course's 64 responses, whose best policy is known",
        words=("0", "1", "2", "3"),
        eos=None,
        max_length=LENGTH,
        prompts=np.zeros((1, 0), dtype=np.int64),
        gold=toy_score,
        imitate=imitate_toy,
        settings=OFTEN
        | {
            "iterations": 120,
            "batch": 128,
            "minibatches": 1,
            "rate": 1e-2,
            "beta": 0.5,
            "entropy_weight": 0.0,
        },
        exact=True,
    ),
    "overoptimize": Task(
        name="overoptimize",
        about="twelve letters, judged by a reward model that was trained on few and noisy preferences",
        words=LETTERS,
        eos=None,
        max_length=12,
        prompts=np.zeros((1, 0), dtype=np.int64),
        gold=variety_score,
        imitate=imitate_letters,
        settings=OFTEN | {"iterations": 80, "beta": 0.02, "reward": "model"},
    ),
}


# --- learning from texts and from preferences ---------------------------------------------------------------


def descend(model, loss, steps, rate, progress, label):
    """Adam on `loss()`, its rate decayed to 0; `progress` wraps the range of steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in progress(range(steps), label):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
    return model


def imitate(model, prompts, tokens, mask, steps, seed, progress, rows=256):
    """Supervised fine-tuning: make the given responses (B, T) likely, a mean over tokens."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.as_tensor(x) for x in (prompts, tokens, mask)]

    def loss():
        some = torch.randint(len(tokens), (rows,), generator=generator)
        few = [x[some] for x in texts]
        return -response_logprobs(model, *few)[0].sum() / few[2].sum()

    return descend(model, loss, steps, rate=0.01, progress=progress, label="imitating texts")


def reward_scores(model, prompts, tokens, mask):
    """The score of each response by a reward model, (B,): its numbers after each token, added up."""
    one_more = nn.functional.pad(tokens, (0, 1))
    reached = nn.functional.pad(mask == 1, (1, 0), value=True)  # BOS, prompt and t tokens have been read
    return response_values(model, prompts, one_more, reached)[:, 1:].sum(dim=1)


def learn_preferences(model, task, reference, pairs, noise, seed, progress, preference_loss):
    """Train a reward model on pairs of the reference's responses that the verifier has compared.

    The better one is called so with probability sigmoid(difference of gold / noise). The scores are scaled to
    standard deviation 1 over the responses compared.
    """
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(task.prompts), (pairs,), generator=generator)
    prompts = torch.as_tensor(task.prompts)[which]
    first, second = (
        generate(reference, prompts, task.max_length, task.eos, generator=generator) for _ in range(2)
    )
    gold = [
        torch.as_tensor(task.gold(*(x.numpy() for x in (prompts, y.tokens, y.mask)))) for y in (first, second)
    ]
    prefers_first = torch.rand(pairs, generator=generator) < torch.sigmoid((gold[0] - gold[1]) / noise)

    def scores():
        return [reward_scores(model, prompts, y.tokens, y.mask) for y in (first, second)]

    def loss():
        a, b = scores()
        return preference_loss(torch.where(prefers_first, a, b), torch.where(prefers_first, b, a))

    descend(model, loss, steps=100, rate=0.01, progress=progress, label="learning preferences")
    with torch.no_grad():
        spread = torch.cat(scores()).std()
        model.head.weight /= spread
        model.head.bias /= spread
    return model
