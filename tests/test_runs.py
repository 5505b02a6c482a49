"""The command `python -m rltokens.ppo`: what it writes, how it stops and goes on, and what it says else."""

import contextlib
import functools
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import ROOT
from miniature import SMALL, assert_same, make_tasks_small, without_speed

from rltokens import plots, ppo, runs
from rltokens.gru import generate
from rltokens.tasks import TASKS

pytestmark = pytest.mark.filterwarnings("error")

# The command line of a run that takes a moment.
TINY = ["--quiet", *(part for name, value in SMALL.items() for part in (f"--{name}", str(value)))]
KINDS = {
    "gae": [],
    "value head": ["--critic", "head"],
    "leave-one-out": ["--advantage", "leave-one-out"],
    "reward model": ["--reward", "model", "--pairs", "8"],
    "adaptive beta": ["--target-kl", "0.1", "--horizon", "100"],
    "toy": ["--task", "toy", "--beta", "0"],  # infinitely far from its optimum, which JSON cannot say
}
FILES = {"config.json", "metrics.jsonl", "checkpoint.pt", "dashboard.png"}


@pytest.fixture(autouse=True)
def small_world(monkeypatch, tmp_path):
    """Untrained tasks, in an empty folder, with one thread."""
    make_tasks_small(monkeypatch)
    monkeypatch.chdir(tmp_path)
    # Drawing takes longer than such a run.
    monkeypatch.setattr(plots, "dashboard", lambda history: plt.figure(figsize=(1, 1)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    assert plt.get_fignums() == [], "a figure was left open"


def command(*argv):
    """Run the command in this process: None where all went well, else what it says as it ends."""
    try:
        runs.main([*map(str, argv)])
    except SystemExit as stop:
        return stop.code


def train(name, *options):
    assert command(*TINY, "--name", name, *options) is None
    return Path("runs") / name


def error_of(*argv):
    """The one line that a command ends with."""
    said = command(*argv)
    assert isinstance(said, str), f"it did not end with an error, but with {said!r}"
    assert said.startswith("error: ") and "\n" not in said
    return said


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def metrics_of(folder):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def checkpoint_of(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def assert_same_end(a, b):
    """Two runs ended alike: weights, optimizer, random numbers, and all metrics but the speed."""
    assert_same(checkpoint_of(a), checkpoint_of(b))
    assert without_speed(metrics_of(a)) == without_speed(metrics_of(b))
    assert set(content(a)) == set(content(b)) == FILES


def interrupt():
    """What Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def while_writing(monkeypatch):
    """Let something happen in the middle of the iteration of that number, from 0, and of no later run."""

    def plan(iteration, happen):
        calls = []

        def generate_and(*args, **kwargs):
            calls.append(1)
            if len(calls) == iteration + 1:
                happen()
            return generate(*args, **kwargs)

        monkeypatch.setattr(ppo, "generate", generate_and)

    return plan


# --- what a run leaves behind -------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_run_writes_four_files_and_says_where_they_are(task, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "dashboard", lambda history: drawn.extend(history) or plt.figure())
    folder = train("first", "--task", task)
    assert set(content(folder)) == FILES
    said = capsys.readouterr()
    assert said.out.splitlines()[-4:] == [
        str(folder / name) for name in ("dashboard.png", "metrics.jsonl", "config.json", "checkpoint.pt")
    ]
    assert said.err == ""
    assert (folder / "dashboard.png").read_bytes().startswith(b"\x89PNG")
    metrics = metrics_of(folder)
    assert metrics == drawn
    assert [line["iteration"] for line in metrics] == [0, 1]
    wanted = {
        "iteration", "reward", "gold", "kl_reference", "kl_old", "entropy", "clip_fraction",
        "explained_variance", "length", "beta", "tokens_per_second",
    }  # fmt: skip
    for line in metrics:
        assert wanted <= set(line)
        assert ("kl_optimum" in line) == (task == "toy")
        assert set(line["tokens_per_second"]) == {"rollout", "score", "update", "all"}


def test_the_metrics_are_those_that_training_gives():
    folder = train("first", "--rate", "0.05", "--seed", "3")
    _, history = ppo.train(**SMALL, rate=0.05, seed=3)
    assert without_speed(metrics_of(folder)) == without_speed(history)


def test_the_configuration_holds_every_option_and_the_versions():
    config = json.loads((train("first", "--rate", "0.05", "--no-whiten") / "config.json").read_text())
    options = inspect.signature(ppo.train).parameters
    given = {name for name, p in options.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert set(config["options"]) == given
    assert config["options"]["rate"] == 0.05 and config["options"]["whiten"] is False
    assert config["options"]["beta"] == TASKS["moods"].settings["beta"]  # the task's own
    assert config["options"]["lam"] == options["lam"].default
    assert set(config["versions"]) == {"python", "numpy", "torch"}
    assert config["versions"]["torch"] == torch.__version__


def test_samples_are_shown_before_and_after(capsys):
    loud = [part for part in TINY if part != "--quiet"]
    assert command(*loud, "--name", "first", "--rate", "0.5") is None
    said = capsys.readouterr().out
    before, after = re.fullmatch(r"\nBefore:\n(.*)\n\nAfter:\n(.*)\n\nreward .*", said, re.DOTALL).groups()
    for block in (before, after):
        assert len(block.splitlines()) == 4
        for line in block.splitlines():
            words = re.fullmatch(r" +-?\d+\.\d\d  :[()] (?:the|a) \| (.*)", line)[1]
            assert set(words.split()) <= set(TASKS["moods"].words)
    assert before != after
    command(*TINY, "--name", "second")
    assert "Before" not in capsys.readouterr().out


def test_the_last_line_but_the_files_sums_the_run_up(capsys):
    first, last = metrics_of(train("first", "--task", "toy"))
    line = capsys.readouterr().out.splitlines()[1]
    assert line == (
        f"reward {first['reward']:.3f} -> {last['reward']:.3f}, fluency {first['fluency']:.3f} -> "
        f"{last['fluency']:.3f} nats a token, KL to the reference {last['kl_reference']:.3f} nats, "
        f"to the optimum {last['kl_optimum']:.2g}"
    )


def test_without_a_name_the_next_free_number_is_taken():
    for _ in range(2):
        assert command(*TINY, "--iterations", "1") is None
    Path("runs/moods-1").rename("runs/moods-4")
    for _ in range(3):
        assert command(*TINY, "--iterations", "1", "--task", "moods") is None
    assert {path.name for path in Path("runs").iterdir()} == {f"moods-{n}" for n in range(1, 6)}
    assert command(*TINY, "--iterations", "1", "--task", "toy", "--runs", "elsewhere/deep") is None
    assert set(content(Path("elsewhere/deep/toy-1"))) == FILES


def test_threads_are_set_to_one_where_nothing_is_said(monkeypatch):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    train("first", "--threads", "2")
    train("second")
    assert threads == [2, 1]


# --- the command line ---------------------------------------------------------------------------------------


def test_help_lists_every_option_of_the_trainer_with_a_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert command("--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    texts = runs.described(ppo.train.__doc__)
    for name, parameter in runs.OPTIONS.items():
        flag = ("--no-" if parameter.default is True else "--") + name.replace("_", "-")
        expected = texts[name].replace("%%", "%")
        assert len(expected) > 4
        if parameter.default is True:
            expected = "do not: " + expected
        elif parameter.default not in (None, False):
            expected += f" (default: {parameter.default})"
        assert re.search(rf" {flag} (X )?{re.escape(expected)} ", said + " "), flag
    for flag in ("--name", "--runs", "--resume", "--threads", "--quiet"):
        assert f"{flag} " in said
    for name, task in TASKS.items():
        assert f"{name}: {task.about}" in said


def test_words_become_numbers_where_they_are_some():
    assert [runs.number_or_word(text) for text in ("3", "0.5", "1e-3", "gae")] == [3, 0.5, 0.001, "gae"]
    assert type(runs.number_or_word("3")) is int


def test_every_option_reaches_the_trainer(monkeypatch):
    seen = {}

    class Enough(Exception):
        pass

    @functools.wraps(ppo.train)
    def stop(**options):
        seen.update(options)
        raise Enough

    monkeypatch.setattr(ppo, "train", stop)
    asked = {
        "task": "moods", "seed": 7, "device": "cpu", "iterations": 3, "batch": 12, "advantage": "gae",
        "group": 4, "beta": 0.3, "target_kl": 2.0, "horizon": 99, "reward": "model", "pairs": 9, "noise": 0.4,
        "hidden": 5,
        "critic": "head", "gamma": 0.9, "lam": 0.8, "whiten": False, "clip": 0.15, "value_clip": 0.25,
        "value_weight": 0.7, "entropy_weight": 0.02, "epochs": 2, "minibatches": 3, "rate": 0.004,
        "constant_rate": True, "max_gradient": 0.8, "stop_kl": 0.06, "temperature": 1.2,
        "missing_eos_penalty": 0.5, "at_cap": "score", "mode": "sequence-sum",
    }  # fmt: skip
    assert set(asked) == set(runs.OPTIONS)
    argv = []
    for name, value in asked.items():
        flag = name.replace("_", "-")
        argv += (
            {True: [f"--{flag}"], False: [f"--no-{flag}"]}.get(value)
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    with pytest.raises(Enough):
        runs.main([*argv, "--name", "first"])
    assert {name: seen[name] for name in asked} == asked


WRONG = [
    (["--task", "chess"], "error: task: expected one of 'moods', 'toy', 'overoptimize', got 'chess'"),
    (["--advantage", "ppo"], "error: advantage: expected one of"),
    (["--rate", "fast"], "error: rate: expected a number above 0, got 'fast'"),
    (["--rate", "nan"], "error: rate: expected a number above 0, got nan"),
    (["--iterations", "2.5"], "error: iterations: expected a whole number at least 1, got 2.5"),
    (["--seed", str(10**400)], "error: seed: expected a whole number from 0 to"),
    (["--advantage", "group", "--batch", "12"], "error: batch: expected a multiple of group = 8"),
    (["--device", "abacus"], "error: device: expected one that is there .*'abacus'"),
    (["--device", "meta"], "error: device: expected one that is there .*'meta'"),
    (["--device", "cuda:99"], "error: device: expected one that is there .*'cuda:99'"),
    (["--device", "1.5"], "error: device: expected one that is there .*1.5"),
    (["--learning-rate", "1"], "error: unrecognized arguments: --learning-rate 1"),
    (["--task"], "error: argument --task: expected one argument"),
    (["--threads", "0"], "error: --threads: expected a whole number at least 1, got 0"),
    (["--threads", "two"], "error: argument --threads: invalid int value: 'two'"),
    (["--name", "a/b"], "error: --name: expected a plain name for a folder in runs, got 'a/b'"),
    (["--name", ""], "error: --name: expected a plain name"),
    (["--name", ".."], "error: --name: expected a plain name"),
    (["--resume", "runs/nothing"], "error: runs/nothing: there is no checkpoint.pt to go on from"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_a_wrong_command_line_ends_in_one_line_and_leaves_no_folder(argv, message):
    assert re.match(message, error_of(*argv))
    assert not list(Path().iterdir())


def test_a_name_that_is_taken_is_refused_and_what_is_there_stays():
    before = content(train("first"))
    said = error_of(*TINY, "--name", "first", "--seed", "9")
    assert said == "error: runs/first exists: choose another --name, or go on with --resume runs/first"
    assert content(Path("runs/first")) == before


def test_a_folder_that_cannot_be_made_is_one_line():
    Path("file").write_text("")
    assert re.fullmatch(
        r"error: file.*: Not a directory\..*", error_of(*TINY, "--runs", "file", "--name", "x")
    )


@pytest.mark.parametrize(
    "argv", [["--rate", "1"], ["--no-whiten"], ["--task", "moods"], ["--name", "second"]]
)
def test_options_cannot_be_changed_when_a_run_goes_on(argv):
    before = content(train("first"))
    said = error_of("--quiet", "--resume", "runs/first", *argv)
    flag = argv[0].replace("no-", "")
    assert said == f"error: {flag} cannot be changed: --resume goes on with the options in config.json"
    assert content(Path("runs/first")) == before


def test_a_run_that_blows_up_is_one_line_and_keeps_its_metrics(while_writing):
    """The weights become infinite, as a rate that is far too high makes them."""

    def blow_up():
        monkey = pytest.MonkeyPatch()
        monkey.setattr(
            torch.optim.Adam, "step", lambda self: self.param_groups[0]["params"][0].data.fill_(torch.inf)
        )
        undo.callback(monkey.undo)

    with contextlib.ExitStack() as undo:
        while_writing(2, blow_up)
        said = error_of(*TINY, "--name", "first", "--iterations", "4")
    assert re.match("error: iteration 2: no longer finite: .*weights. What was saved before is sound", said)
    assert len(metrics_of(Path("runs/first"))) == 2


# --- going on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_ctrl_c_saves_and_going_on_ends_as_if_nothing_had_happened(options, while_writing, capsys):
    options = [*options, "--iterations", "5", "--rate", "0.05", "--minibatches", "2"]
    whole = train("whole", *options)
    usual = signal.getsignal(signal.SIGINT)
    while_writing(1, interrupt)
    capsys.readouterr()
    stopped = train("stopped", *options)
    assert signal.getsignal(signal.SIGINT) is usual
    said = capsys.readouterr()
    assert said.err == "\nStopping after this iteration; Ctrl-C again stops at once.\n"
    assert said.out.splitlines()[-1] == f"To go on: python -m rltokens.ppo --resume {stopped}"
    assert set(content(stopped)) == FILES
    assert len(metrics_of(stopped)) == checkpoint_of(stopped)["iteration"] == 2
    assert command("--quiet", "--resume", stopped) is None
    assert_same_end(whole, stopped)
    assert "To go on" not in capsys.readouterr().out


def test_ctrl_c_in_the_first_iteration_saves_too(while_writing):
    while_writing(0, interrupt)
    folder = train("stopped", "--iterations", "3")
    assert checkpoint_of(folder)["iteration"] == 1
    assert command("--quiet", "--resume", folder) is None
    assert_same_end(train("whole", "--iterations", "3"), folder)


def test_a_second_ctrl_c_stops_at_once_and_the_last_checkpoint_is_gone_on_from(
    while_writing, monkeypatch, capsys
):
    """With metrics behind that checkpoint, which come again."""
    monkeypatch.setattr(runs, "CHECKPOINT_EVERY", 2)
    options = ["--iterations", "5", "--rate", "0.05"]
    while_writing(3, lambda: (interrupt(), interrupt()))
    folder = Path("runs/stopped")
    said = error_of(*TINY, "--name", "stopped", *options)
    assert said == "error: stopped at once; go on with --resume runs/stopped"
    assert checkpoint_of(folder)["iteration"] == 2 and len(metrics_of(folder)) == 3
    assert command("--quiet", "--resume", folder) is None
    assert_same_end(train("whole", *options), folder)


def test_a_second_ctrl_c_while_the_dashboard_is_drawn_stops_at_once_too(while_writing, monkeypatch):
    while_writing(1, interrupt)
    monkeypatch.setattr(plots, "dashboard", lambda history: interrupt())
    said = error_of(*TINY, "--name", "stopped", "--iterations", "3")
    assert said == "error: stopped at once; go on with --resume runs/stopped"
    assert checkpoint_of(Path("runs/stopped"))["iteration"] == 2


def test_ctrl_c_before_training_stops_at_once_since_nothing_is_there_to_save(monkeypatch):
    def imitate(hidden, seed, progress):
        interrupt()

    monkeypatch.setitem(TASKS, "moods", TASKS["moods"]._replace(imitate=imitate))
    assert error_of(*TINY, "--name", "first") == "error: stopped at once; nothing was saved yet"


def test_a_checkpoint_comes_every_so_many_iterations(while_writing, monkeypatch):
    """The process is killed in the middle of the fifth iteration: checkpoints were written at 2 and 4."""
    monkeypatch.setattr(runs, "CHECKPOINT_EVERY", 2)
    saved, save = [], runs.save

    def saves(state, folder):
        saved.append(state.iteration)
        save(state, folder)

    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    monkeypatch.setattr(runs, "save", saves)
    while_writing(4, kill)
    options = ["--iterations", "6", "--rate", "0.05"]
    with pytest.raises(Killed):
        command(*TINY, "--name", "killed", *options)
    assert saved == [2, 4]
    assert set(content(Path("runs/killed"))) == FILES - {"dashboard.png"}
    assert command("--quiet", "--resume", "runs/killed") is None
    assert_same_end(train("whole", *options), Path("runs/killed"))


@pytest.mark.parametrize("options", [KINDS["gae"], KINDS["toy"]], ids=["gae", "toy"])
def test_going_on_with_a_run_that_has_ended_changes_nothing(options):
    folder = train("first", *options)
    before = content(folder)
    assert command("--quiet", "--resume", folder) is None
    after = content(folder)
    # The checkpoint holds the same numbers in a file that may differ.
    assert {name for name in FILES if after[name] != before[name]} <= {"checkpoint.pt"}


# --- damage -------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(while_writing):
    """A run that was stopped after 2 of its 4 iterations."""
    while_writing(1, interrupt)
    return train("stopped", "--iterations", "4", "--rate", "0.05")


def flip(data, place):
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def first_weight(data):
    """Where the largest entry of the archive begins: numbers, which torch would take as they come."""
    name = max(zipfile.ZipFile("runs/stopped/checkpoint.pt").infolist(), key=lambda entry: entry.file_size)
    return name.header_offset + 200


DAMAGE = {
    "cut short at the end": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "cut to a few bytes": lambda data: data[:10],
    "empty": lambda data: b"",
    "garbage": lambda data: np.random.default_rng(0).bytes(len(data)),
    "text": lambda data: b"this was a checkpoint once",
    "one bit of a weight": lambda data: flip(data, first_weight(data)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_nothing_is_changed(stopped, damage):
    path = stopped / "checkpoint.pt"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    before = content(stopped)
    said = error_of("--quiet", "--resume", stopped)
    assert re.fullmatch(rf"error: {path} or config.json is damaged \(\w+\); nothing was changed", said)
    assert content(stopped) == before


def test_a_checkpoint_that_is_another_object_is_named(stopped):
    torch.save([1, 2, 3], stopped / "checkpoint.pt")
    assert "checkpoint.pt or config.json is damaged" in error_of("--quiet", "--resume", stopped)


def test_a_checkpoint_of_another_run_is_named_and_nothing_is_changed(stopped):
    other = train("other", "--hidden", "9")
    (stopped / "checkpoint.pt").write_bytes((other / "checkpoint.pt").read_bytes())
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write("{}\n")
    before = content(stopped)
    said = error_of("--quiet", "--resume", stopped)
    assert said == "error: checkpoint: expected one of a run with these options (RuntimeError)"
    assert content(stopped) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"options"', '{"versions": {}}'])
def test_a_damaged_configuration_is_named_and_nothing_is_changed(stopped, text):
    (stopped / "config.json").write_text(text)
    before = content(stopped)
    assert "config.json is damaged" in error_of("--quiet", "--resume", stopped)
    assert content(stopped) == before


def test_a_device_that_the_run_had_and_this_machine_has_not_is_named(stopped):
    config = json.loads((stopped / "config.json").read_text())
    config["options"]["device"] = "cuda:99"
    (stopped / "config.json").write_text(json.dumps(config))
    assert "device: expected one that is there" in error_of("--quiet", "--resume", stopped)


def test_a_torn_last_line_of_the_metrics_is_written_anew(stopped):
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 2, "rew')
    assert command("--quiet", "--resume", stopped) is None
    assert_same_end(train("whole", "--iterations", "4", "--rate", "0.05"), stopped)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:1], "ends before the checkpoint, at iteration 1"),
        (lambda lines: [], "ends before the checkpoint, at iteration 0"),
        (lambda lines: [lines[0][:30], lines[1]], "is damaged; nothing was changed"),
        (lambda lines: [lines[0], lines[1][:-5]], "is damaged; nothing was changed"),
        (lambda lines: [b"\xff\xfe" + lines[0], lines[1]], "is damaged; nothing was changed"),
    ],
)
def test_metrics_that_do_not_reach_the_checkpoint_are_named_and_nothing_is_changed(stopped, damage, message):
    path = stopped / "metrics.jsonl"
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))
    before = content(stopped)
    assert error_of("--quiet", "--resume", stopped) == f"error: {path} {message}"
    assert content(stopped) == before


def test_missing_metrics_are_named(stopped):
    (stopped / "metrics.jsonl").unlink()
    assert "metrics.jsonl: No such file or directory" in error_of("--quiet", "--resume", stopped)


# --- a full disk --------------------------------------------------------------------------------------------

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@needs_dev_full
@pytest.mark.parametrize("file", ["checkpoint.pt", "dashboard.png"])
def test_a_full_disk_leaves_the_last_sound_files(file, while_writing, monkeypatch):
    """What is written beside the old file ends on a device that is always full."""
    monkeypatch.setattr(runs, "CHECKPOINT_EVERY", 1)
    options = ["--iterations", "4", "--rate", "0.05"]
    folder = Path("runs/full")
    while_writing(2, lambda: (folder / f"{file}.new").symlink_to("/dev/full"))
    assert error_of(*TINY, "--name", "full", *options) == (
        "error: the run's folder: No space left on device. What was saved before is sound"
    )
    assert checkpoint_of(folder)["iteration"] == (2 if file == "checkpoint.pt" else 4)
    assert not list(folder.glob("*.new"))
    assert command("--quiet", "--resume", folder) is None
    assert_same_end(train("whole", *options), folder)


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_the_last_sound_files(while_writing, monkeypatch):
    monkeypatch.setattr(runs, "CHECKPOINT_EVERY", 1)
    options = ["--iterations", "4", "--rate", "0.05"]
    folder, usual = Path("runs/full"), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        size = (folder / "metrics.jsonl").stat().st_size + 40
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))

    while_writing(2, fill)
    try:
        said = error_of(*TINY, "--name", "full", *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert said == "error: the run's folder: File too large. What was saved before is sound"
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    assert len(lines) == 3 and len(lines[-1]) == 40  # torn
    assert checkpoint_of(folder)["iteration"] == 2
    assert command("--quiet", "--resume", folder) is None
    assert_same_end(train("whole", *options), folder)


def test_a_disk_that_is_full_from_the_start_is_one_line():
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, usual[1]))
    try:
        said = error_of(*TINY, "--name", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert "File too large" in said


def test_a_file_is_whole_or_the_old_one():
    path = Path("file")
    runs.write(path, b"old")
    with pytest.raises(TypeError):
        runs.write(path, "not bytes")
    assert path.read_bytes() == b"old" and not Path("file.new").exists()
    runs.write(path, b"new")
    assert path.read_bytes() == b"new"


# --- what may be missing ------------------------------------------------------------------------------------


def test_tqdm_and_tensorboard_may_be_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = train("first")
    assert set(content(folder)) == FILES
    assert capsys.readouterr().err == ""


def test_the_progress_bar_shows_reward_and_kl(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, steps, **options):
            self.steps, self.options, self.shown = steps, options, []
            bars.append(self)

        def __iter__(self):
            return iter(self.steps)

        def set_postfix(self, **shown):
            self.shown.append(shown)

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar))
    folder = train("first", "--reward", "model", "--pairs", "8")
    assert [bar.options["desc"].strip() for bar in bars] == ["learning preferences", "training"]
    assert all(bar.options["disable"] is True and bar.options["file"] is sys.stderr for bar in bars)
    assert bars[1].shown == [
        {"reward": f"{m['reward']:.3f}", "KL": f"{m['kl_reference']:.3f}"} for m in metrics_of(folder)
    ]
    assert not bars[0].shown
    loud = [part for part in TINY if part != "--quiet"]
    assert command(*loud, "--name", "second") is None
    assert bars[-1].options["disable"] is None  # tqdm looks itself whether somebody is there


def test_tensorboard_gets_every_number_where_it_is_installed(monkeypatch):
    boards = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder, self.scalars, self.closed = folder, [], False
            boards.append(self)

        def add_scalar(self, *entry):
            self.scalars.append(entry)

        def close(self):
            self.closed = True

    module = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    folder = train("first")
    (board,) = boards
    assert board.folder == folder and board.closed
    expected = [
        (name, value, metrics["iteration"])
        for metrics in metrics_of(folder)
        for name, value in metrics.items()
        if isinstance(value, float)
    ]
    assert board.scalars == expected and len(expected) > 20


# --- the dashboard ------------------------------------------------------------------------------------------


dashboard = plots.dashboard  # the real one


def panels(figure):
    shown = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    plt.close(figure)
    return shown


@pytest.mark.parametrize("task", TASKS)
def test_the_dashboard_draws_what_the_task_has(task):
    _, history = ppo.train(task, **SMALL)
    shown = panels(dashboard(history))
    everything = {title for title, _, _ in plots.PANELS}
    assert set(shown) == everything - (set() if task == "toy" else {"Distance to the optimum"})
    for title, names, _ in plots.PANELS:
        if title not in shown:
            continue
        curves = [line.get_ydata() for line in shown[title].lines]
        for name, curve in zip(names, curves, strict=True):
            values = [metrics[name] for metrics in history]
            if name == "tokens_per_second":
                values = [speed["all"] for speed in values]
            np.testing.assert_array_equal(curve, values)
    if task == "toy":
        assert shown["Distance to the optimum"].get_yscale() == "log"


def test_the_dashboard_of_a_run_without_a_critic_has_no_panel_for_one():
    _, history = ppo.train("moods", **SMALL, advantage="group")
    assert "Critic" not in panels(dashboard(history))


def test_a_distance_that_is_infinite_or_zero_is_no_trouble_to_draw():
    _, history = ppo.train("toy", **SMALL, beta=0.0)
    read_back = [json.loads(runs.as_line(metrics)) for metrics in history]
    for the_same in (history, read_back):
        assert "Distance to the optimum" not in panels(dashboard(the_same))
    for metrics in history:
        metrics["kl_optimum"] = 0.0
    assert panels(dashboard(history))["Distance to the optimum"].get_yscale() == "linear"


# --- as a command of its own --------------------------------------------------------------------------------

# The tests' small tasks in another process.
IN_ANOTHER = """
import pytest
from miniature import make_tasks_small
make_tasks_small(pytest.MonkeyPatch())
from rltokens import runs
runs.main()
"""


def start(*argv):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", IN_ANOTHER, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)


def test_a_real_ctrl_c_leaves_a_checkpoint_that_goes_on_to_the_same_end():
    """The signal comes at an iteration that nobody chose. The rest of it is run in this process."""
    options = ["--iterations", "40", "--rate", "0.02", "--seed", "2"]
    process = start(*TINY, "--name", "stopped", *options)
    folder = Path("runs/stopped")
    metrics = folder / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == "\nStopping after this iteration; Ctrl-C again stops at once.\n"
    assert out.splitlines()[-1].startswith("To go on: ")
    assert 2 < checkpoint_of(folder)["iteration"] == len(metrics_of(folder))
    assert command("--quiet", "--resume", folder) is None
    assert_same_end(train("whole", *options), folder)


def test_as_a_module_it_ends_with_exit_code_1_and_one_line():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "rltokens.ppo", "--task", "chess"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: task: expected one of 'moods', 'toy', 'overoptimize', got 'chess'\n"
