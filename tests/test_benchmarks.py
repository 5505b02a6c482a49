"""The benchmark compares equal things, counts rightly and runs; how fast anything is, no test says."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(ROOT / "benchmarks"))
import ppo as benchmark

TINY = benchmark.Size(V=5, T=6, B=16, H=8)


@pytest.mark.parametrize("eos", [4, None])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_plain_version_learns_what_the_trainer_learns(eos, minibatches):
    task, options = benchmark.task_of(TINY, eos), SimpleNamespace(minibatches=minibatches)
    fast_rates, fast_tokens, fast = benchmark.ours(task, TINY, options, seed=3)
    plain_rates, plain_tokens, slow = benchmark.plain_version(task, TINY, options, seed=3)
    assert fast_tokens == plain_tokens
    assert (fast_tokens == 16 * 6) == (eos is None)
    assert set(fast_rates) == set(plain_rates) == {"rollout", "score", "update", "all"}
    fresh = task.imitate(TINY.H, 3, None)
    for got, expected, start in zip(
        fast.policy.parameters(), slow.policy.parameters(), fresh.parameters(), strict=True
    ):
        assert not torch.allclose(start, expected, rtol=0, atol=1e-3)  # or both could have stood still
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_another_task_is_put_back_after_each_run():
    before = benchmark.TASKS["moods"]
    benchmark.ours(benchmark.task_of(TINY, None), TINY, SimpleNamespace(minibatches=1), seed=0)
    assert benchmark.TASKS["moods"] is before and before.name == "moods"
    assert benchmark.ppo.time.__name__ == "time"


class MatrixProducts(TorchDispatchMode):
    """Counts what every matrix product costs that torch is asked for."""

    flop = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            a, b = arguments[-2:]
            self.flop += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        assert name not in ("bmm", "baddbmm", "matmul", "mv", "addmv")  # which would go uncounted
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("eos", [4, None])
def test_flops_are_those_of_all_matrix_products_that_are_made(eos):
    task, options = benchmark.task_of(TINY, eos), SimpleNamespace(minibatches=1)
    for advantage, critic in (("gae", True), ("leave-one-out", False)):
        with MatrixProducts() as made:
            _, tokens, _ = benchmark.ours(task, TINY, options, seed=0, advantage=advantage)
        assert made.flop == benchmark.flops(TINY, tokens, critic)["all"]
    # By hand, for the rollout: 5 states that follow another one and 6 heads, in each of 16 rows.
    assert benchmark.flops(TINY, 16 * 6, True)["rollout"] == 16 * (5 * 2 * 8 * 24 + 6 * 2 * 8 * 5)


def test_the_llama_has_about_as_many_weights_as_the_policy():
    for size in benchmark.SIZES:
        ours = sum(p.numel() for p in benchmark.TokenGRU(size.V, size.H, size.V).parameters())
        width = benchmark.like_sized_llama(size)
        layer = 4 * width**2 + 3 * width * 2 * width  # attention; gate, up and down
        assert width % 4 == 0 and abs((2 * layer + 2 * size.V * width) / ours - 1) < 0.2


def test_the_benchmark_prints_its_tables(tmp_path, capsys):
    out = tmp_path / "table.md"
    benchmark.main(["--size", "5,6,16,8", "--repetitions", "1", "--out", str(out)])
    shown = capsys.readouterr().out
    assert out.read_text(encoding="utf-8") in shown
    assert "`python benchmarks/ppo.py --size 5,6,16,8 --repetitions 1" in shown
    rows = [line for line in shown.splitlines() if line.startswith("| V5 T6 B16 H8 |")]
    assert len(rows) == 3 * 2  # three tables, with and without EOS
    assert [row.split("|")[2].strip() for row in rows[1::2]] == ["6.0"] * 3
    assert "--trl-python" in shown  # how to get the missing columns


def test_a_trl_python_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit, match="nowhere/python"):
        benchmark.main(["--size", "5,6,16,8", "--repetitions", "1", "--trl-python", "nowhere/python"])


def test_a_trl_python_without_trl_says_what_is_missing():
    with pytest.raises(SystemExit, match=r"TRL's trainer ended[\s\S]*No module named 'trl'"):
        benchmark.main(["--size", "5,6,16,8", "--repetitions", "1", "--trl-python", sys.executable])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_the_gpu_script_says_so_and_fails(tmp_path):
    before = sorted((ROOT / "benchmarks" / "results").iterdir())
    done = subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "no CUDA device" in done.stderr
    assert sorted((ROOT / "benchmarks" / "results").iterdir()) == before
    with pytest.raises(SystemExit, match="device: expected one that is there"):
        benchmark.main(["--device", "cuda", "--quick"])
