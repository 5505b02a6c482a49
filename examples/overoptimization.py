"""Goodhart's law in five minutes: a learned reward model is climbed with a cheap and with a dear KL.

    python examples/overoptimization.py

writes runs/overoptimization.png and prints, for each seed, where the true reward was highest and where it
ended. With a small beta the proxy climbs on while the true reward turns down; with a larger one it does not.
"""

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

from rltokens import plots, ppo


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="runs for each beta (default: 5)")
    parser.add_argument("--betas", type=float, nargs="+", default=[0.02, 0.5], help="default: 0.02 0.5")
    parser.add_argument("--out", type=Path, default=Path("runs/overoptimization.png"), help="the figure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # such small matrices gain nothing from a second one

    groups = {f"beta = {beta}": [] for beta in arguments.betas}
    work = [(beta, seed) for seed in range(arguments.seeds) for beta in arguments.betas]
    for beta, seed in tqdm(work, desc="runs"):
        _, history = ppo.train("overoptimize", seed=seed, beta=beta)
        groups[f"beta = {beta}"].append(history)

    print("beta         seed   proxy gained   true: start   highest     end   KL at the end")
    for label, histories in groups.items():
        for seed, history in enumerate(histories):
            first, last = history[0], history[-1]
            highest = max(metrics["gold"] for metrics in history)
            print(
                f"{label:12} {seed:4} {last['reward'] - first['reward']:14.2f} {first['gold']:13.2f} "
                f"{highest:9.2f} {last['gold']:7.2f} {last['kl_reference']:15.1f}"
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    plots.over_distance(groups).savefig(arguments.out, dpi=120)
    arguments.out.with_suffix(".json").write_text(json.dumps(groups), encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
