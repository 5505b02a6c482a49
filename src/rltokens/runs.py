"""The command `python -m rltokens.ppo`, and the folder that a run leaves behind.

    runs/<name>/config.json     every option, and the versions used
                metrics.jsonl   a line for each iteration
                checkpoint.pt   to go on from, bit for bit on a CPU
                dashboard.png   the curves

Files are written beside their place and then moved there, so that a full disk or a pulled plug leaves the
last sound ones.
"""

import argparse
import inspect
import io
import json
import os
import re
import signal
import sys
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from rltokens import plots, ppo
from rltokens.gru import generate
from rltokens.tasks import TASKS

CHECKPOINT_EVERY = 25  # iterations


class RunError(Exception):
    """What stopped a run, in one line for whoever started it."""


def main(argv=None):
    """Train as the command line says; errors are one line and exit code 1."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.threads < 1:
            raise RunError(f"--threads: expected a whole number at least 1, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
        run(arguments)
    except (RunError, ValueError, FloatingPointError, AssertionError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        where = error.filename or "the run's folder"
        sys.exit(f"error: {where}: {error.strerror}. What was saved before is sound")


def parser():
    """The options of `ppo.train`, with its defaults, and their help from its docstring."""
    result = argparse.ArgumentParser(
        prog="python -m rltokens.ppo",
        description="PPO with four models on a small language model; writes runs/NAME/.",
        epilog="tasks: " + "; ".join(f"{task.name}: {task.about}" for task in TASKS.values()),
        argument_default=argparse.SUPPRESS,
    )
    help_of = described(ppo.train.__doc__)
    for name, parameter in inspect.signature(ppo.train).parameters.items():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            continue
        default, text = parameter.default, help_of[name]
        flag = name.replace("_", "-")
        if default is True:
            result.add_argument(f"--no-{flag}", dest=name, action="store_false", help=f"do not: {text}")
        elif default is False:
            result.add_argument(f"--{flag}", dest=name, action="store_true", help=text)
        else:
            known = "" if default is None else f" (default: {default})"
            result.add_argument(f"--{flag}", dest=name, type=number_or_word, metavar="X", help=text + known)
    where = result.add_argument_group("the run")
    where.add_argument("--name", default=None, help="of the folder in runs/ (default: TASK-1, TASK-2, ...)")
    where.add_argument("--runs", default=Path("runs"), type=Path, help="folder of all runs (default: runs)")
    where.add_argument("--resume", default=None, type=Path, metavar="FOLDER", help="go on with this run")
    where.add_argument(
        "--threads", default=1, type=int, help="of torch on the CPU (default: 1, often fastest)"
    )
    where.add_argument("--quiet", action="store_true", default=False, help="no progress bar, no samples")
    # One line, as for every other mistake.
    result.error = lambda message: sys.exit(f"error: {message}; --help lists the options")
    return result


def described(docstring):
    """The entries under Parameters: {name: text}."""
    section = docstring.partition("Parameters\n")[2].partition("Returns\n")[0]
    entries = re.findall(r"^ {4}(\w+) : (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()).replace("%", "%%") for name, text in entries}


def number_or_word(text):
    """'3' is 3, '0.5' is 0.5, 'gae' is 'gae': the trainer checks what may stand where."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def run(arguments):
    """Train, and write it down."""
    asked = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    if arguments.resume is None:
        ppo.train.check(**asked)  # before there is a folder
        folder = new_folder(arguments.runs, arguments.name, asked.get("task", OPTIONS["task"].default))
        checkpoint, metrics = None, []
        versions = {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch.__version__}
        # What was not asked for too: a default may be another one when the run is resumed.
        defaults = {name: parameter.default for name, parameter in OPTIONS.items()}
        task = TASKS[asked.get("task", defaults["task"])]
        asked = defaults | task.settings | asked
        write(folder / "config.json", json.dumps({"options": asked, "versions": versions}, indent=2).encode())
    else:
        if asked or arguments.name is not None:
            flag = "--" + next(iter(asked), "name").replace("_", "-")
            raise RunError(f"{flag} cannot be changed: --resume goes on with the options in config.json")
        folder = arguments.resume
        asked, checkpoint, metrics = load(folder)
    log = Log(folder, metrics, arguments.quiet)
    with log.stops_on_interrupt():
        state, _ = ppo.train(
            **asked, progress=log.progress, on_iteration=log.iteration, checkpoint=checkpoint
        )
        log.finish(state)


OPTIONS = {
    name: parameter
    for name, parameter in inspect.signature(ppo.train).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
}


class Log:
    """Shows a run on the terminal and writes it to its folder."""

    def __init__(self, folder, metrics, quiet):
        self.folder, self.metrics, self.quiet = folder, metrics, quiet
        self.bar = None
        self.training = self.stopping = False

    def progress(self, steps, label):
        """The range `steps` with a progress bar, where tqdm is installed and somebody is looking."""
        if label == "training":
            self.training = True
            # What came after the checkpoint will come again.
            write(self.folder / "metrics.jsonl", "".join(map(as_line, self.metrics)).encode())
        self.bar = None
        with suppress(ImportError):
            from tqdm import tqdm

            self.bar = tqdm(steps, desc=f"{label:24}", disable=self.quiet or None, file=sys.stderr)
        return steps if self.bar is None else self.bar

    def iteration(self, state, metrics):
        """Called after each iteration; true when the run should end here."""
        self.metrics.append(metrics)
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(as_line(metrics))
        if self.bar is not None:
            self.bar.set_postfix(reward=f"{metrics['reward']:.3f}", KL=f"{metrics['kl_reference']:.3f}")
        self.to_tensorboard(metrics)
        if self.stopping or state.iteration % CHECKPOINT_EVERY == 0:
            save(state, self.folder)
        return self.stopping

    def to_tensorboard(self, metrics):
        """The same numbers for TensorBoard, where it is installed."""
        if not hasattr(self, "board"):
            self.board = None
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(self.folder)
        if self.board is not None:
            for name, value in metrics.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, metrics["iteration"])

    @contextmanager
    def stops_on_interrupt(self):
        """The first Ctrl-C ends the run after the iteration that is going on, the second at once."""

        def interrupt(*_):
            if self.stopping or not self.training:
                raise KeyboardInterrupt
            self.stopping = True
            print("\nStopping after this iteration; Ctrl-C again stops at once.", file=sys.stderr)

        usual = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        except KeyboardInterrupt:
            saved = (self.folder / "checkpoint.pt").exists()
            stands = f"go on with --resume {self.folder}" if saved else "nothing was saved yet"
            raise RunError(f"stopped at once; {stands}") from None
        finally:
            signal.signal(signal.SIGINT, usual)

    def finish(self, state):
        """Save what there is, and say where."""
        save(state, self.folder)
        if getattr(self, "board", None) is not None:
            self.board.close()
        figure = plots.dashboard(self.metrics)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        plots.plt.close(figure)
        write(self.folder / "dashboard.png", image.getvalue())
        if not self.quiet:
            for title, model in (("Before:", state.reference), ("After:", state.policy)):
                print("\n".join(["", title, *samples(state, model)]))
        last = self.metrics[-1]
        first = self.metrics[0]
        print(
            f"\nreward {first['reward']:.3f} -> {last['reward']:.3f}, fluency {first['fluency']:.3f} -> "
            f"{last['fluency']:.3f} nats a token, KL to the reference {last['kl_reference']:.3f} nats"
            + (f", to the optimum {last['kl_optimum']:.2g}" if last.get("kl_optimum") is not None else "")
        )
        for name in ("dashboard.png", "metrics.jsonl", "config.json", "checkpoint.pt"):
            print(self.folder / name)
        if self.stopping:
            print(f"To go on: python -m rltokens.ppo --resume {self.folder}")


def samples(state, model, count=4):
    """A few responses as text; always by the same random numbers."""
    task = state.task
    prompts = torch.as_tensor(task.prompts)[torch.arange(count) % len(task.prompts)]
    prompts = prompts.to(model.head.weight.device)
    written = generate(model, prompts, task.max_length, task.eos, generator=torch.Generator().manual_seed(0))
    rows = [x.cpu().numpy() for x in (prompts, written.tokens, written.mask)]
    return [f"  {score:5.2f}  {task.text(*row)}" for score, *row in zip(task.gold(*rows), *rows, strict=True)]


def new_folder(runs, name, task):
    """Make runs/<name>/; without a name the next free TASK-1, TASK-2, ..."""
    if name is None:
        taken = {path.name for path in runs.glob(f"{task}-*")}
        name = next(f"{task}-{n}" for n in range(1, len(taken) + 2) if f"{task}-{n}" not in taken)
    elif Path(name).name != name or name in ("", ".."):
        raise RunError(f"--name: expected a plain name for a folder in {runs}, got {name!r}")
    folder = runs / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{folder} exists: choose another --name, or go on with --resume {folder}") from None
    return folder


def save(state, folder):
    """Write the checkpoint."""
    data = io.BytesIO()
    torch.save(state.saved(), data)
    write(folder / "checkpoint.pt", data.getvalue())


def load(folder):
    """(options, checkpoint, metrics up to the checkpoint) of a run."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        raise RunError(f"{folder}: there is no checkpoint.pt to go on from")
    try:
        options = json.loads((folder / "config.json").read_text(encoding="utf-8"))["options"]
        with zipfile.ZipFile(path) as parts:
            if (part := parts.testzip()) is not None:  # torch does not look at the sums
                raise ValueError(part)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        iteration = checkpoint["iteration"]
    except Exception as error:  # a damaged file can fail anywhere inside of torch
        kind = type(error).__name__
        raise RunError(f"{path} or config.json is damaged ({kind}); nothing was changed") from error
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()[:iteration]
    if len(lines) < iteration:
        raise RunError(f"{folder / 'metrics.jsonl'} ends before the checkpoint, at iteration {len(lines)}")
    try:
        return options, checkpoint, [json.loads(line) for line in lines]
    except ValueError as error:
        raise RunError(f"{folder / 'metrics.jsonl'} is damaged; nothing was changed") from error


def as_line(metrics):
    """Metrics as a line of JSON, which knows no infinity; with beta = 0 the optimum is infinitely far away.

    >>> as_line({"reward": 0.5, "kl_optimum": float("inf")})
    '{"reward": 0.5, "kl_optimum": null}\\n'
    """
    finite = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in metrics.items()}
    return json.dumps(finite) + "\n"


def write(path, data):
    """Put a whole file in its place, or leave the old one."""
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or the new name could reach the disk before what it names
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
