"""The miniature made small enough for tests: references that have imitated nothing, spies, plain reading."""

import copy
import inspect
from typing import NamedTuple

import torch
from torch import nn

import rltokens
from rltokens import ppo, tasks
from rltokens.gru import TokenGRU
from rltokens.tasks import TASKS

SMALL = {"hidden": 8, "batch": 16, "iterations": 2, "epochs": 2}


def untrained(task):
    """With short responses and a reference that has imitated nothing, which cuts off about half of them."""

    def imitate(hidden, seed, progress):
        model = TokenGRU(len(task.words), hidden, len(task.words))
        if task.eos is not None:
            with torch.no_grad():
                model.head.bias[task.eos] += 1.0
        return model

    return task._replace(max_length=min(task.max_length, 8), imitate=imitate)


def make_tasks_small(monkeypatch):
    """Put untrained tasks in the place of the real ones; a reward model learns for a few steps only."""
    for name, task in list(TASKS.items()):
        monkeypatch.setitem(TASKS, name, untrained(task))
    learn_briefly(monkeypatch)


def learn_briefly(monkeypatch):
    """Cut the steps of imitating and of learning preferences, their progress bars included."""
    descend = tasks.descend
    monkeypatch.setattr(
        tasks, "descend", lambda model, loss, steps, **options: descend(model, loss, min(steps, 3), **options)
    )


def read_alone(model, ids):
    """What the head gives after each token of one text, by PyTorch's own GRU: (1 + len(ids), outputs)."""
    text = torch.tensor([model.vocab_size, *map(int, ids)])
    one_hot = nn.functional.one_hot(text, model.vocab_size + 1).to(model.head.weight.dtype)
    with torch.no_grad():
        return model.head(model.gru(one_hot[:, None])[0][:, 0])


class Call(NamedTuple):
    given: dict
    result: object


class Run(NamedTuple):
    state: ppo.State
    history: list
    calls: dict  # of the course's functions, by name
    texts: list  # (prompts, tokens, mask, gold) of every call of the verifier
    start: list  # copies of the state's models as they were when each iteration began


def spies():
    """({name: [Call, ...]}, {name: function}): the course's functions, which write down what they get."""
    calls = {name: [] for name in ppo.COURSE_FUNCTIONS}

    def spy(name):
        function = getattr(rltokens, name)
        signature = inspect.signature(function)

        def call(*args, **kwargs):
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            before = {key: keep(value) for key, value in given.arguments.items()}
            result = function(*args, **kwargs)
            calls[name].append(Call(before, keep(result)))
            return result

        return call

    return calls, {name: spy(name) for name in ppo.COURSE_FUNCTIONS}


def keep(value):
    """A copy that later steps do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


def train_recorded(monkeypatch, task="moods", **options):
    """Train a little on an untrained task, and give back all that was seen on the way."""
    calls, functions = spies()
    texts, start = [], []
    plain = untrained(TASKS[task])

    def gold(*text):
        score = plain.gold(*text)
        texts.append((*text, score))
        return score

    monkeypatch.setitem(TASKS, task, plain._replace(gold=gold))
    learn_briefly(monkeypatch)

    def copies(state):
        return {name: copy.deepcopy(getattr(state, name)) for name in state.MODELS}

    def on_iteration(state, metrics):
        start.append(copies(state))

    # The models of the first iteration are not seen before it is over: the frozen ones are as they were.
    state, history = ppo.train(task, on_iteration=on_iteration, **(SMALL | functions | options))
    start.insert(
        0, {"policy": state.reference, "reference": state.reference, "reward_model": state.reward_model}
    )
    return Run(state, history, calls, texts, start)


def without_speed(history):
    return [{k: v for k, v in metrics.items() if k != "tokens_per_second"} for metrics in history]


def assert_same(a, b):
    """Equal bit for bit, all the way down."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    else:
        assert a == b
