"""Improve and train again and again in one process, on data that change; record memory, threads and open files.

    python -m benchmarks.long_run --minutes 60 --out results/long_run.json

Every round has other walks, of other lengths, and its own run directories. JAX keeps each program it compiles, and
programs depend on sizes, so its caches are emptied every `--forget` rounds, as a process of many sizes should do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import trajstitch as ts

MODELS = ("dynamics", "inverse", "reward", "value")


def walks(seed: int) -> ts.Dataset:
    """Random walks in a plane; the reward is how far right a step lands."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for _ in range(30):
        action = rng.uniform(-1, 1, (int(rng.integers(10, 20)), 2)).astype(np.float32)
        obs = np.concatenate([rng.normal(size=(1, 2)) / 10, action / 3]).cumsum(0).astype(np.float32)
        trajectories.append(ts.Trajectory(obs, action, obs[1:, 0], terminal=bool(rng.random() < 0.5)))
    return ts.from_trajectories(trajectories)


def work(seed: int, folder: Path) -> None:
    """Improve data and clone what came out, both in run directories."""
    fit = ts.Fit(steps=20, batch=32)
    config = ts.Improve(
        iterations=2,
        dynamics=ts.DynamicsConfig(members=2, elites=2, width=16, fit=fit),
        inverse=ts.InverseConfig(width=16, fit=fit),
        reward=ts.RewardConfig(width=16, fit=fit),
        value=ts.ValueConfig(width=16, fit=fit),
    )
    result = ts.improve(walks(seed), config, seed=seed, out=folder / f"improve{seed}")
    ts.train_run("bc", result.dataset, folder / f"train{seed}", seeds=2, steps=20, width=16)


def measure() -> dict[str, Any]:
    """Return the memory in MB, the threads and the open files of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    files = len(list(Path("/proc/self/fd").iterdir()))
    return {"rss_mb": int(status["VmRSS"].split()[0]) // 1024, "threads": int(status["Threads"]), "files": files}


def main() -> None:
    """Work until the time is over, and write a line per round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--forget", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/long_run.json"))
    args = parser.parse_args()
    begin = time.monotonic()
    rounds: list[dict[str, Any]] = []
    while time.monotonic() - begin < 60 * args.minutes:
        with tempfile.TemporaryDirectory() as folder:
            work(len(rounds), Path(folder))
        if len(rounds) % args.forget == args.forget - 1:
            jax.clear_caches()  # type: ignore[no-untyped-call]
        rounds.append({"minute": round((time.monotonic() - begin) / 60, 2), **measure()})
        print(rounds[-1], flush=True)
        options = f"--minutes {args.minutes:g} --forget {args.forget}"
        text = {"command": f"python -m benchmarks.long_run {options}", "rounds": rounds}
        args.out.write_text(json.dumps(text) + "\n")


if __name__ == "__main__":
    main()
