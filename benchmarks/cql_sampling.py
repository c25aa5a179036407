"""CQL with the gradient of all sampled actions, and of one action drawn by weight: do both learn the same?

    python -m benchmarks.cql_sampling hopper-medium.traj --json results/cql_sampling.json

Both variants learn from the same batches. They take turns, one chunk of steps each, so that other work on the
machine slows both. One line per chunk shows the metrics of both.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.formats import load
from trajstitch.methods import configure
from trajstitch.storage.atomic import write_json
from trajstitch.training import loop

METRICS = ("critic_loss", "gap", "q", "policy_q", "entropy")


def main() -> None:
    """Train both variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="Data set to train on.")
    parser.add_argument("--seeds", type=int, default=3, help="Seeds trained side by side.")
    parser.add_argument(
        "--chunks", type=int, default=6, help="Measured chunks per variant, after one for compiling."
    )
    parser.add_argument("--chunk", type=int, default=1000, help="Gradient steps per chunk.")
    parser.add_argument("--width", type=int, default=128, help="Width of the networks.")
    parser.add_argument("--depth", type=int, default=2, help="Hidden layers of the networks.")
    parser.add_argument("--batch", type=int, default=128, help="Transitions per gradient step.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    data, seeds = load(args.data), range(args.seeds)
    sizes = {name: getattr(args, name) for name in ("width", "depth", "batch")}
    runs: dict[str, Any] = {}
    for name, pushed in (("all", 0), ("one drawn", 1)):
        config = configure("cql", steps=args.chunk * (args.chunks + 1), pushed=pushed, **sizes)
        table = config.table(data)
        runs[name] = loop.run(config, loop.start(config, table, seeds), table, seeds, args.chunk)
        next(runs[name])  # compiles
    report: dict[str, Any] = {"settings": {"seeds": args.seeds, "chunk": args.chunk, **sizes}, "chunks": []}
    for _ in range(args.chunks):
        found: dict[str, Any] = {}
        for name, run in runs.items():
            begin = time.perf_counter()
            state, metrics = next(run)
            found[name] = {"ms_a_step": round((time.perf_counter() - begin) / args.chunk * 1e3, 2)}
            found[name] |= {metric: np.round(metrics[metric], 3).tolist() for metric in METRICS}
        found["step"] = int(state.step)
        found["times_faster"] = round(found["all"]["ms_a_step"] / found["one drawn"]["ms_a_step"], 2)
        report["chunks"].append(found)
        print(found, flush=True)
    if args.json:
        write_json(args.json, report)


if __name__ == "__main__":
    main()
