"""How fast the miniature is: tokens per second of CPU time, beside other ways to do the same.

    python benchmarks/ppo.py                      # about five minutes; a table in Markdown at the end
    python benchmarks/ppo.py --quick              # the smallest size, seconds
    python benchmarks/ppo.py --trl-python PATH    # TRL's trainers too; README.md says how to install them
    python benchmarks/ppo.py --device cuda        # a GPU against the CPU instead

All that is compared runs in turn, once in each repetition, and the table holds the median of the repetitions'
ratios: other work on the machine slows all of them alike. README.md says what the columns mean.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import plain
import torch

from rltokens import freeze, ppo
from rltokens.gru import TokenGRU
from rltokens.tasks import TASKS, Task

EPOCHS = 4
GROUP = 8  # responses to a prompt, where there is no critic
PHASES = ("rollout", "score", "update", "all")


class Size(NamedTuple):
    """Of the vocabulary, the longest response, the batch and the hidden state."""

    V: int
    T: int
    B: int
    H: int

    def __str__(self):
        return f"V{self.V} T{self.T} B{self.B} H{self.H}"


QUICK = Size(16, 16, 256, 128)
MAIN = Size(64, 32, 512, 256)
SIZES = (QUICK, MAIN, Size(64, 64, 256, 256))
FOR_A_GPU = Size(64, 64, 4096, 1024)


def main(argv=None):
    options = parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        tables = on_cpu(options) if options.device == "cpu" else on_device(options)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    text = "\n\n".join([f"`{command(argv)}`", machine(options), *tables]) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
        say(f"written to {options.out}")


def parser():
    result = argparse.ArgumentParser(
        prog="python benchmarks/ppo.py",
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--quick", action="store_true", help="the smallest size and two repetitions")
    add("--size", type=size, action="append", help="V,T,B,H such as 64,32,512,256; may be repeated")
    add("--repetitions", type=int, default=5, help="besides one to warm up")
    add("--minibatches", type=int, default=1, help=f"optimizer steps in each of the {EPOCHS} epochs")
    add("--threads", type=int, default=1, help="of torch on the CPU")
    add("--trl-python", type=Path, metavar="PATH", help="a Python that has TRL, for its columns")
    add("--device", default="cpu", help="another one, such as cuda, is compared with the CPU by the clock")
    add("--out", type=Path, metavar="FILE", help="write the tables there too")
    return result


def size(text):
    """'64,32,512,256' as a Size."""
    numbers = [int(number) for number in text.split(",")]
    if len(numbers) != 4 or min(numbers) < 1:
        raise ValueError(text)
    return Size(*numbers)


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- what is compared ---------------------------------------------------------------------------------------


def task_of(size, eos):
    """Write anything, from weights just drawn: every token, and so EOS too, has a probability near 1/V."""

    def fresh_model(hidden, seed, progress):
        return TokenGRU(size.V, hidden, size.V)

    return Task(
        name="benchmark",
        about="letters without a meaning",
        words=tuple(map(str, range(size.V))),
        eos=eos,
        max_length=size.T,
        prompts=np.zeros((1, 0), dtype=np.int64),
        gold=lambda prompts, tokens, mask: ((tokens == 1) & (mask == 1)).sum(axis=1).astype(float),
        imitate=fresh_model,
        settings=TASKS["moods"].settings,
    )


def ours(task, size, options, seed, advantage="gae", device="cpu", now=time.process_time):
    """An iteration of `ppo.train`, its phases timed by `now`: ({phase: tokens/s}, tokens, final state)."""
    clock = mock.patch.object(ppo, "time", SimpleNamespace(perf_counter=now))
    with clock, mock.patch.dict(TASKS, moods=task):
        state, history = ppo.train(
            "moods", seed, device, iterations=1, batch=size.B, hidden=size.H, epochs=EPOCHS,
            minibatches=options.minibatches, advantage=advantage, group=GROUP,
        )  # fmt: skip
    return history[0]["tokens_per_second"], round(history[0]["length"] * size.B), state


def plain_version(task, size, options, seed):
    """The same by `plain.iteration`, from the same weights."""
    torch.manual_seed(seed)
    policy = TokenGRU(size.V, size.H, size.V)
    critic = TokenGRU(size.V, size.H, 1)
    laps = []
    settings = {name: task.settings[name] for name in ("rate", "beta", "entropy_weight")}
    tokens = plain.iteration(
        task, policy, freeze(policy), critic, seed, size.B, EPOCHS, options.minibatches, **settings,
        lap=lambda phase: laps.append((phase, time.process_time())),
    )  # fmt: skip
    seconds = {phase: now - before for (_, before), (phase, now) in pairwise(laps)}
    seconds["all"] = sum(seconds.values())
    return {phase: tokens / took for phase, took in seconds.items()}, tokens, SimpleNamespace(policy=policy)


class Trl:
    """TRL's trainer in a process of its own, which stands still until `iteration` is called."""

    def __init__(self, python, trainer, size, options, eos):
        arguments = {
            "trainer": trainer, "vocab-size": size.V, "length": size.T, "batch": size.B,
            "width": like_sized_llama(size), "epochs": EPOCHS, "minibatches": options.minibatches,
        }  # fmt: skip
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        flags += ["--no-eos"] if eos is None else []
        self.messages = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [python, Path(__file__).with_name("trl_worker.py"), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
        )
        self.answer()  # of the iteration to warm up

    def iteration(self):
        """({"all": tokens/s}, tokens) of one iteration."""
        print("go", file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.messages.seek(0)
            raise RuntimeError(f"TRL's trainer ended:\n{self.messages.read()[-2000:]}")
        report = json.loads(line)
        self.version = report["trl"]
        return {"all": report["tokens"] / report["seconds"]}, report["tokens"]

    def close(self):
        self.process.communicate()
        self.messages.close()


def like_sized_llama(size):
    """The width of the Llama of two layers that has about as many weights as our policy."""
    gru = 3 * size.H**2 + 3 * size.H * (size.V + 1) + 6 * size.H + size.V * size.H
    return min(range(16, 4096, 16), key=lambda width: abs(2 * 10 * width**2 + 2 * size.V * width - gru))


# --- what the machine could do ------------------------------------------------------------------------------


def matmul_seconds(size, times=20):
    """`times` rounds of a GRU's products on a full batch and nothing around them: (CPU seconds, FLOP).

    A round is one step forward, back to the state, and back to the weights.
    """
    states, gates = torch.randn(size.B, size.H), torch.randn(size.B, 3 * size.H)
    weights = torch.randn(size.H, 3 * size.H)
    of_gates, of_states, of_weights = (torch.empty_like(x) for x in (gates, states, weights))
    began = time.process_time()
    for _ in range(times):
        torch.mm(states, weights, out=of_gates)
        torch.mm(gates, weights.t(), out=of_states)
        torch.mm(states.t(), gates, out=of_weights)
    return time.process_time() - began, times * 3 * 6 * size.B * size.H**2


def flops(size, tokens, critic):
    """What the matrix products of one iteration cost: {phase: FLOP}.

    6 H^2 for each state that follows another one, 2 H for each number of a head, and twice as much again
    in a backward pass. Nothing is counted for padding, for a state before the first, or for a token's row
    of the input table.
    """
    _, _, rows, hidden = size
    states = 6 * hidden**2 * (tokens - rows)
    language_model = states + 2 * hidden * size.V * tokens
    counted = {
        "rollout": language_model,
        "score": language_model,  # by the reference
        "update": EPOCHS * 3 * language_model,
    }
    if critic:
        counted["score"] += 6 * hidden**2 * tokens + 2 * hidden * (tokens + rows)  # the last state too
        counted["update"] += EPOCHS * 3 * (states + 2 * hidden * tokens)
    return counted | {"all": sum(counted.values())}


# --- measuring ----------------------------------------------------------------------------------------------


def on_cpu(options):
    """The tables of CPU time."""
    sizes = options.size or ([QUICK] if options.quick else SIZES)
    found = [(size, measure(size, eos, options)) for size in sizes for eos in (size.V - 1, None)]
    return [beside_plain(found), share_of_peak(found), beside_trl(found, options), speed(found)]


def measure(size, eos, options):
    """{who: [(rates, tokens), ...]} and {"peak": [FLOP/s, ...]}, an entry for each repetition."""
    task = task_of(size, eos)
    say(f"{size}, {'fixed length' if eos is None else 'responses end with EOS'}")
    runners = {
        "ours": lambda seed: ours(task, size, options, seed)[:2],
        "no critic": lambda seed: ours(task, size, options, seed, advantage="leave-one-out")[:2],
        "plain": lambda seed: plain_version(task, size, options, seed)[:2],
    }
    others = {}
    if options.trl_python is not None:
        say("  starting TRL")
        others = {name: Trl(options.trl_python, name, size, options, eos) for name in ("rloo", "grpo")}
        runners |= {name: lambda seed, trl=trl: trl.iteration() for name, trl in others.items()}
    found = {name: [] for name in (*runners, "peak")}
    repetitions = 2 if options.quick else options.repetitions
    for repetition in range(repetitions + 1):
        say(f"  repetition {repetition} of {repetitions}" if repetition else "  warming up")
        products = []
        for name, run in runners.items():
            products.append(matmul_seconds(size))  # before each, since the machine's speed changes
            result = run(repetition)
            if repetition:
                found[name].append(result)
        if repetition:
            seconds, done = map(sum, zip(*products, strict=True))
            found["peak"].append(done / seconds)
    for trl in others.values():
        trl.close()
        found["TRL"] = trl.version
    return found


def on_device(options):
    """The table of a device beside the CPU, by the clock on the wall."""
    sizes = options.size or ([QUICK] if options.quick else [*SIZES, FOR_A_GPU])
    repetitions = 2 if options.quick else options.repetitions
    rows = []
    for size in sizes:
        task = task_of(size, size.V - 1)
        runs = [(options.device, options.threads, repetitions)]
        if size != FOR_A_GPU:
            runs += [("cpu", threads, 1) for threads in sorted({1, os.cpu_count()})]
        rates = {}
        for device, threads, times in runs:
            say(f"{size} on {device}{f', {threads} threads' if device == 'cpu' else ''}")
            torch.set_num_threads(threads)
            several = [
                ours(task, size, options, seed, device=device, now=time.perf_counter)
                for seed in range(times + 1)
            ][1:]  # without the one to warm up
            rates[device, threads] = {
                phase: statistics.median(rates[phase] for rates, *_ in several) for phase in PHASES
            }
            length = several[0][1] / size.B
        first, *cpu = rates.values()
        fastest = max((rate["all"] for rate in cpu), default=None)
        for (device, threads), rate in rates.items():
            who = f"cpu, {threads} thread{'s' * (threads > 1)}" if device == "cpu" else device
            times = "" if device == "cpu" or fastest is None else f"{first['all'] / fastest:.1f}"
            rows.append((size, f"{length:.1f}", who, *(f"{rate[phase]:,.0f}" for phase in PHASES), times))
    head = ("size", "mean length", "on", "rollout", "scoring", "update", "iteration", "times the CPU")
    about = "Tokens per second on the clock; the last column is against the CPU at its fastest:"
    return [f"{about}\n\n{table(head, rows)}"]


def ratio(numbers, one, other, phase="all"):
    """The median, over repetitions, of how many times faster one is than the other."""
    pairs = zip(numbers[one], numbers[other], strict=True)
    return f"{statistics.median(a[phase] / b[phase] for (a, _), (b, _) in pairs):.1f}"


def mean_length(numbers, size):
    return f"{statistics.mean(tokens for _, tokens in numbers['ours']) / size.B:.1f}"


# --- tables -------------------------------------------------------------------------------------------------


def beside_plain(found):
    rows = [
        (size, mean_length(numbers, size), *(ratio(numbers, "ours", "plain", phase) for phase in PHASES))
        for size, numbers in found
    ]
    head = ("size", "mean length", "rollout", "scoring", "update", "iteration")
    return "How many times as fast as the plain version:\n\n" + table(head, rows)


def share_of_peak(found):
    def share(size, numbers, who, phase):
        shares = (
            flops(size, tokens, critic=who == "ours")[phase] / tokens * rates[phase] / peak
            for (rates, tokens), peak in zip(numbers[who], numbers["peak"], strict=True)
        )
        return f"{100 * statistics.median(shares):.0f} %"

    rows = [
        (
            size,
            mean_length(numbers, size),
            *(share(size, numbers, "ours", phase) for phase in PHASES),
            share(size, numbers, "no critic", "all"),
        )
        for size, numbers in found
    ]
    head = ("size", "mean length", "rollout", "scoring", "update", "iteration", "iteration without critic")
    return "Share of this machine's measured matmul peak:\n\n" + table(head, rows)


def beside_trl(found, options):
    if options.trl_python is None:
        return "TRL was not measured: benchmarks/README.md says how to install it for `--trl-python`."
    rows = [
        (
            size,
            mean_length(numbers, size),
            *(ratio(numbers, who, trl) for who in ("ours", "no critic") for trl in ("rloo", "grpo")),
            like_sized_llama(size),
        )
        for size, numbers in found
    ]
    head = (
        "size", "mean length", "with critic: RLOO", "GRPO", "without critic: RLOO", "GRPO", "Llama's width"
    )  # fmt: skip
    about = (
        f"How many times as fast as the trainers of TRL {found[0][1]['TRL']}, whole iterations. Not like for "
        "like: theirs train a small transformer (a Llama of two layers with as many weights), ours a GRU:"
    )
    return f"{about}\n\n{table(head, rows)}"


def speed(found):
    def median(rates):
        return f"{statistics.median(rates):,.0f}"

    rows = [
        (
            size,
            mean_length(numbers, size),
            *(median(rates[phase] for rates, _ in numbers["ours"]) for phase in PHASES),
            median(rates["all"] for rates, _ in numbers["plain"]),
            median(peak / 1e9 for peak in numbers["peak"]),
        )
        for size, numbers in found
    ]
    head = (
        "size", "mean length", "rollout", "scoring", "update", "iteration", "plain iteration", "peak, GFLOP/s"
    )  # fmt: skip
    return "Tokens per second of CPU time, on this machine and under its load:\n\n" + table(head, rows)


def table(head, rows):
    """In Markdown.

    >>> print(table(("a", "b"), [(1, 2)]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    first, *others = ("| " + " | ".join(map(str, line)) + " |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def command(argv):
    return " ".join(["python benchmarks/ppo.py", *(sys.argv[1:] if argv is None else argv)])


def machine(options):
    """What the numbers depend on, without a name."""
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
    if options.device.startswith("cuda"):
        kind += f", {torch.cuda.get_device_name(options.device)}"
    threads = f"{options.threads} torch thread{'s' * (options.threads > 1)}"
    return f"{kind}; Python {platform.python_version()}, torch {torch.__version__}, {threads}."


if __name__ == "__main__":
    main()
