"""CQL with all sampled actions pushed down by weight, and with one drawn by weight: do they learn the same?

    python benchmarks/pushed.py hopper-medium.traj --json results/pushed.json

Both learn from the same batches in turns, a chunk of steps each; a line a chunk says where they are.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch import fit
from trajstitch.files import write_json
from trajstitch.formats import load
from trajstitch.methods import configure

METRICS = ("critic_loss", "gap", "q", "policy_q", "entropy")


def main() -> None:
    """Train both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--chunk", type=int, default=1000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    data, seeds = load(asked.data), range(asked.seeds)
    sizes = {name: getattr(asked, name) for name in ("width", "depth", "batch")}
    runs: dict[str, Any] = {}
    for name, pushed in (("all", 0), ("one drawn", 1)):
        config = configure("cql", steps=asked.chunk * (asked.chunks + 1), pushed=pushed, **sizes)
        table = config.table(data)
        runs[name] = fit.run(config, fit.start(config, table, seeds), table, seeds, asked.chunk)
        next(runs[name])  # compiles
    report: dict[str, Any] = {"settings": {"seeds": asked.seeds, "chunk": asked.chunk, **sizes}, "chunks": []}
    for _ in range(asked.chunks):
        found: dict[str, Any] = {}
        for name, run in runs.items():
            begin = time.perf_counter()
            state, metrics = next(run)
            found[name] = {"ms_a_step": round((time.perf_counter() - begin) / asked.chunk * 1e3, 2)}
            found[name] |= {metric: np.round(metrics[metric], 3).tolist() for metric in METRICS}
        found["step"] = int(state.step)
        found["times_faster"] = round(found["all"]["ms_a_step"] / found["one drawn"]["ms_a_step"], 2)
        report["chunks"].append(found)
        print(found, flush=True)
    if asked.json:
        write_json(asked.json, report)


if __name__ == "__main__":
    main()
