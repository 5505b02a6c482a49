"""The miniature's worlds: verifiers by hand, the texts that are imitated, and learning from preferences."""

import inspect

import numpy as np
import pytest
import torch
from miniature import learn_briefly, read_alone

import rltokens
from rltokens import ppo, tasks, toy
from rltokens.gru import TokenGRU, generate, response_logprobs
from rltokens.tasks import (
    LETTERS,
    MOODS,
    TASKS,
    WORTH,
    learn_preferences,
    mood_score,
    mood_sentence,
    reward_scores,
)

by_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def no_progress(steps, label):
    return steps


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


# --- what every task must be --------------------------------------------------------------------------------


@by_task
def test_a_task_is_made_of_its_own_words(task):
    assert TASKS[task.name] is task and task.about
    assert len(set(task.words)) == len(task.words)
    assert task.prompts.ndim == 2 and task.prompts.dtype == np.int64
    assert np.isin(task.prompts, range(len(task.words))).all()
    assert len({tuple(prompt) for prompt in task.prompts}) == len(task.prompts)
    assert task.eos is None or task.words[task.eos]
    assert not np.isin(task.prompts, [task.eos]).any()


@by_task
def test_settings_are_options_of_the_trainer(task):
    options = inspect.signature(ppo.train).parameters
    assert set(task.settings) == {
        "iterations", "batch", "minibatches", "rate", "beta", "entropy_weight", "reward", "pairs",
    }  # fmt: skip
    assert all(options[name].default is None for name in task.settings)
    ppo.train.check(task.name, **task.settings)


@by_task
def test_a_verifier_gives_a_float_a_row_and_does_not_look_at_padding(task):
    rng = np.random.default_rng(0)
    prompts = task.prompts[rng.integers(len(task.prompts), size=50)]
    tokens = rng.integers(len(task.words), size=(50, task.max_length))
    lengths = rng.integers(1, task.max_length + 1, size=50)
    mask = (np.arange(task.max_length) < lengths[:, None]).astype(int)
    if task.exact:
        mask[:] = 1  # all of its responses have the same length
    score = task.gold(prompts, tokens, mask)
    assert score.shape == (50,) and score.dtype == np.float64
    for fill in (0, len(task.words) - 1):
        np.testing.assert_array_equal(task.gold(prompts, np.where(mask == 1, tokens, fill), mask), score)
    one_by_one = [
        task.gold(p[None], y[None, :n], m[None, :n])[0]
        for p, y, m, n in zip(prompts, tokens, mask, mask.sum(axis=1), strict=True)
    ]
    np.testing.assert_allclose(score, one_by_one)


def test_a_text_is_shown_in_words_without_its_padding():
    task = TASKS["moods"]
    ids = [MOODS.index(word) for word in ("king", "sings", ".", "king", "king")]
    assert task.text(task.prompts[0], ids, [1, 1, 1, 0, 0]) == ":) the | king sings ."


# --- verifiers by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "glad", "sad"),
    [
        ("cat sleeps .", 0, 0),
        ("happy cat sleeps .", 1, -1),
        ("happy kind cat sings gladly .", 3, -3),
        ("happy kind bright cat sings gladly .", 3, -4),  # at most 3 are counted, but all of the other mood
        ("happy cat sees the gloomy king .", 0, 0),
        ("gloomy cruel dark king runs badly and sings gladly .", 1 - 4, 3 - 1),
        ("happy happy happy happy happy .", 3, -5),
    ],
)
def test_the_mood_is_scored_by_counting_words(response, glad, sad):
    tokens = [[MOODS.index(word) for word in response.split()]] * 2
    prompts = [[MOODS.index(":)"), MOODS.index("a")], [MOODS.index(":("), MOODS.index("the")]]
    assert mood_score(prompts, tokens, np.ones_like(tokens)).tolist() == [glad, sad]


def test_the_prompt_itself_earns_nothing():
    glad_words = [[MOODS.index("happy"), MOODS.index("happy")]]
    assert mood_score(glad_words, [[MOODS.index(".")]], [[1]]).tolist() == [0]


def test_letters_are_worth_their_weight_twice_and_cost_2_from_the_third_on():
    score = TASKS["overoptimize"].gold
    a, b = WORTH[0], WORTH[1]
    for tokens, worth in (
        ([0], a),
        ([0, 0], 2 * a),
        ([0, 0, 0], 2 * a - 2),
        ([0, 0, 0, 0], 2 * a - 4),
        ([0, 1, 0, 1], 2 * a + 2 * b),
        ([0, 1, 1, 1, 1], a + 2 * b - 4),
    ):
        assert score([[]], [tokens], [[1] * len(tokens)])[0] == pytest.approx(worth)
    assert score([[]], [[0, 0, 0]], [[1, 1, 0]])[0] == pytest.approx(2 * a)
    assert len(WORTH) == len(LETTERS) and ((WORTH > 0) & (WORTH < 1)).all()


def test_the_toys_verifier_is_the_courses():
    responses = rltokens.enumerate_responses(4, 3)
    expected = [sum(token == 0 for token in y) == 2 for y in responses]
    score = TASKS["toy"].gold(np.zeros((64, 0)), responses, np.ones_like(responses))
    np.testing.assert_array_equal(score, expected)


def test_every_response_is_listed_in_lexicographic_order():
    np.testing.assert_array_equal(tasks.every_response(4, 3), rltokens.enumerate_responses(4, 3))
    assert tasks.every_response(3, 1).tolist() == [[0], [1], [2]]


# --- texts to imitate ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences():
    rng = np.random.default_rng(7)
    return [mood_sentence(rng) for _ in range(5000)]


def test_sentences_end_once_and_fit_into_a_response(sentences):
    task = TASKS["moods"]
    assert task.words[task.eos] == "."
    for prompt, response in sentences:
        assert [MOODS.index(word) for word in prompt] in task.prompts.tolist()
        assert set(response) <= set(MOODS) - {":)", ":("}
        assert response.index(".") == len(response) - 1
        assert 3 <= len(response) <= task.max_length
    used = {word for prompt, response in sentences for word in (*prompt, *response)}
    assert used == set(MOODS), "a word that no text holds can never be learned"


def test_sentences_are_grammatical(sentences):
    adjectives = {"small", "old", "happy", "kind", "bright", "gloomy", "cruel", "dark"}
    verbs, manner = {"sleeps", "sings", "runs"}, {"well", "gladly", "badly"}

    def noun_phrase(words):
        while words[0] in adjectives:
            words.pop(0)
        return words.pop(0) in tasks.NOUNS

    def verb_phrase(words):
        if words[0] in {"sees", "follows"}:
            return words.pop(0) and words.pop(0) in {"the", "a"} and noun_phrase(words)
        if words.pop(0) not in verbs:
            return False
        if words[0] in manner:
            words.pop(0)
        return True

    for _, response in sentences:
        words = list(response)
        assert noun_phrase(words) and verb_phrase(words)
        if words[0] == "and":
            words.pop(0)
            assert verb_phrase(words)
        assert words == ["."]


def test_the_mood_of_the_texts_has_nothing_to_do_with_the_prompt(sentences):
    """So that the reference scores 0 and following the instruction is left to learn."""
    length = max(len(response) for _, response in sentences)
    tokens = [[MOODS.index(w) for w in r] + [0] * (length - len(r)) for _, r in sentences]
    mask = [[1] * len(r) + [0] * (length - len(r)) for _, r in sentences]
    prompts = np.array([[MOODS.index(w) for w in prompt] for prompt, _ in sentences])
    score = mood_score(prompts, tokens, mask)
    error = score.std() / np.sqrt(len(score))
    assert abs(score.mean()) < 4 * error
    glad = prompts[:, 0] == MOODS.index(":)")
    assert abs(score[glad].mean() + score[~glad].mean()) < 8 * error
    assert 0.4 < glad.mean() < 0.6 and score.std() > 0.5


def test_imitating_makes_the_given_texts_likely_and_no_token_behind_them():
    prompts = np.array([[0], [1]])
    tokens = np.array([[2, 3, 0], [3, 0, 9]])
    mask = np.array([[1, 1, 1], [1, 1, 0]])
    seen = []

    def progress(steps, label):
        seen.append((label, len(steps)))
        return steps

    torch.manual_seed(0)
    model = TokenGRU(10, 8, 10)
    again = tasks.imitate(model, prompts, tokens, mask, steps=300, seed=0, progress=progress, rows=16)
    assert again is model and seen == [("imitating texts", 300)]
    text = [torch.as_tensor(x) for x in (prompts, tokens, mask)]
    logp, _, _ = response_logprobs(model, *text)
    assert (logp[text[2] == 1].exp() > 0.95).all()
    # After the second text's EOS nothing was taught, not even the 9 that stands in its padding.
    assert torch.softmax(read_alone(model, [1, 3, 0])[-1], dim=0)[9] < 0.5


def test_the_rate_of_imitation_falls_to_zero_in_a_straight_line(monkeypatch):
    rates = []
    step = torch.optim.Adam.step

    def watched(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    model = torch.nn.Linear(1, 1)
    tasks.descend(model, lambda: model(torch.ones(1)).sum() ** 2, 4, 0.1, no_progress, "")
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_the_toys_reference_is_the_courses_table():
    """Measured over three seeds: at most 3e-8 nats apart, which is float32's own error."""
    model = tasks.imitate_toy(64, 0, no_progress)
    table = rltokens.log_softmax(toy.reference_logits())
    logp_table = rltokens.sequence_distribution(toy.reference_logits(), 4, 3)
    responses = tasks.every_response(4, 3)
    logp, _, _ = response_logprobs(model, responses[:, :0], responses, torch.ones_like(responses))
    logp = logp.sum(dim=1).double().detach().numpy()
    np.testing.assert_allclose(logp, logp_table, atol=1e-4)
    assert abs(rltokens.kl_divergence(np.exp(logp), np.exp(logp_table))) < 1e-6
    for y in ([0, 3], [3, 3], [2, 1]):
        for t, row in enumerate((0, 1 + y[0], 5 + 4 * y[0] + y[1])):
            fitted = torch.softmax(read_alone(model, y)[t].double(), dim=0)
            np.testing.assert_allclose(fitted, np.exp(table[row]), atol=1e-4)


@pytest.mark.slow
def test_the_reference_of_the_moods_writes_whole_sentences_of_no_mood():
    """Measured: 1.67 nats a token of held-out sentences, log 27 = 3.3 before; all samples end and score 0."""
    task = TASKS["moods"]
    model = task.imitate(64, 0, no_progress)
    rng = np.random.default_rng(99)
    held_out = [mood_sentence(rng) for _ in range(500)]
    logp, count = 0.0, 0
    for prompt, response in held_out:
        text = [torch.tensor([[MOODS.index(w) for w in words]]) for words in (prompt, response)]
        logp += response_logprobs(model, *text, torch.ones_like(text[1]))[0].sum().item()
        count += len(response)
    assert logp / count > -1.8
    prompts = torch.as_tensor(task.prompts).repeat(250, 1)
    written = generate(model, prompts, task.max_length, task.eos, generator=torch.Generator().manual_seed(0))
    ends = ((written.tokens == task.eos) & (written.mask == 1)).any(dim=1)
    assert ends.float().mean() > 0.99
    score = task.gold(prompts.numpy(), written.tokens.numpy(), written.mask.numpy())
    assert abs(score.mean()) < 0.15


@pytest.mark.slow
def test_the_reference_of_the_letters_seldom_writes_one_three_times():
    """Measured: 0.02 letters of twelve are a third one or a further; of twelve at random 0.64."""
    task = TASKS["overoptimize"]
    model = task.imitate(64, 0, no_progress)
    written = generate(model, torch.zeros(2000, 0).long(), 12, generator=torch.Generator().manual_seed(0))

    def surplus(tokens):
        counts = (np.asarray(tokens)[..., None] == np.arange(16)).sum(axis=1)
        return np.maximum(counts - 2, 0).sum(axis=1).mean()

    by_chance = surplus(np.random.default_rng(0).integers(16, size=(2000, 12)))
    assert surplus(written.tokens) < by_chance / 10


# --- learning from preferences ------------------------------------------------------------------------------


def test_a_reward_model_adds_up_its_numbers_after_each_token():
    model = TokenGRU(5, 7, 1).double()
    prompts = torch.tensor([[1, 4], [0, 2], [3, 3]])
    tokens = torch.tensor([[2, 0, 0, 0], [1, 1, 3, 4], [4, 2, 0, 0]])
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]])
    score = reward_scores(model, prompts, tokens, mask)
    assert score.shape == (3,)
    for b in range(3):
        text = [*prompts[b], *tokens[b, : mask[b].sum()]]
        after = read_alone(model, text)[3:, 0]  # not after BOS and the prompt
        assert score[b].item() == pytest.approx(after.sum().item(), abs=1e-12)
    other = torch.where(mask == 1, tokens, 4)
    assert torch.equal(reward_scores(model, prompts, other, mask), score)


def letters(hidden=16):
    task = TASKS["overoptimize"]
    return task, TokenGRU(16, hidden, 16), TokenGRU(16, hidden, 1)


def seen_by_the_loss(monkeypatch, noise, pairs=100):
    """Scores chosen, scores rejected in the first step; gold and first scores of both texts."""
    learn_briefly(monkeypatch)
    task, reference, model = letters()
    gold, scores, losses = [], [], []

    def spied_gold(*text):
        gold.append(task.gold(*text))
        scores.append(reward_scores(model, *map(torch.as_tensor, text)).detach())
        return gold[-1]

    def loss(chosen, rejected):
        losses.append((chosen.detach(), rejected.detach()))
        return rltokens.preference_loss(chosen, rejected)

    learn_preferences(model, task._replace(gold=spied_gold), reference, pairs, noise, 0, no_progress, loss)
    return *losses[0], gold, scores


def test_without_noise_the_better_response_is_always_chosen(monkeypatch):
    chosen, rejected, gold, scores = seen_by_the_loss(monkeypatch, noise=0.0)
    first_wins = torch.as_tensor(gold[0] > gold[1])
    assert 20 < first_wins.sum() < 80
    torch.testing.assert_close(chosen, torch.where(first_wins, *scores))
    torch.testing.assert_close(rejected, torch.where(first_wins, *scores[::-1]))


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_with_noise_the_better_one_wins_as_often_as_the_sigmoid_says(monkeypatch, noise):
    chosen, _, gold, scores = seen_by_the_loss(monkeypatch, noise, pairs=4000)
    is_first = torch.isclose(chosen, scores[0]).double().numpy()
    expected = 1 / (1 + np.exp(-(gold[0] - gold[1]) / noise))
    off = (is_first - expected).sum() / np.sqrt((expected * (1 - expected)).sum())
    assert abs(off) < 4
    better = gold[0] > gold[1]  # and not only on the whole
    assert (
        (is_first[better].mean() - expected[better].mean())
        < 0.05
        > expected[~better].mean() - is_first[~better].mean()
    )


def test_pairs_are_two_different_responses_to_one_prompt(monkeypatch):
    learn_briefly(monkeypatch)
    task = TASKS["moods"]
    seen = []

    def gold(*text):
        seen.append(text)
        return task.gold(*text)

    model, reference = TokenGRU(len(MOODS), 8, 1), TokenGRU(len(MOODS), 8, len(MOODS))
    learn_preferences(
        model, task._replace(gold=gold), reference, 50, 1.0, 0, no_progress, rltokens.preference_loss
    )
    (prompts, first, _), (same, second, _) = seen
    np.testing.assert_array_equal(prompts, same)
    assert len({tuple(p) for p in prompts}) == 4
    assert (first != second).any(axis=1).sum() > 45


def share_in_order(task, reference, model, pairs=2000):
    """The share of new pairs that the model puts in the right order, and its scores' deviation."""
    generator = torch.Generator().manual_seed(123)
    prompts = torch.as_tensor(task.prompts)[torch.randint(len(task.prompts), (pairs,), generator=generator)]
    pair = [generate(reference, prompts, task.max_length, task.eos, generator=generator) for _ in range(2)]
    gold = [task.gold(*(x.numpy() for x in (prompts, y.tokens, y.mask))) for y in pair]
    with torch.no_grad():
        score = [reward_scores(model, prompts, y.tokens, y.mask) for y in pair]
    right = torch.as_tensor(gold[0] > gold[1]) == (score[0] > score[1])
    return right.double().numpy()[gold[0] != gold[1]].mean(), torch.cat(score).std().item()


def test_a_reward_model_learns_to_order_pairs_that_it_has_not_seen():
    """A verifier that counts a letter; measured 0.81 of held-out pairs in the right order."""
    task, reference, model = letters()
    task = task._replace(gold=lambda prompts, tokens, mask: (tokens == 0).sum(axis=1).astype(float))
    assert share_in_order(task, reference, model)[0] < 0.6
    labels = []

    def progress(steps, label):
        labels.append((label, len(steps)))
        return steps

    given = model, task, reference, 200, 0.5, 0, progress, rltokens.preference_loss
    assert learn_preferences(*given) is model
    assert labels == [("learning preferences", 100)]
    share, deviation = share_in_order(task, reference, model)
    assert share > 0.7
    assert deviation == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("moods", 0.95), ("overoptimize", 0.57)])
def test_the_reward_models_of_the_tasks_learn_something_and_one_of_them_not_enough(name, least):
    """Measured over two seeds: 0.98 and 0.97 of held-out pairs; 0.63 and 0.65 with overoptimize."""
    task = TASKS[name]
    reference, model = task.imitate(64, 0, no_progress), TokenGRU(len(task.words), 64, 1)
    assert share_in_order(task, reference, model)[0] < 0.55
    learn_preferences(
        model, task, reference, task.settings["pairs"], 1.0, 0, no_progress, rltokens.preference_loss
    )
    assert least < share_in_order(task, reference, model)[0] < least + 0.15
