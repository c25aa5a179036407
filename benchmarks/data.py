"""Load, collect and step, each as a ratio to its baseline in the same run.

python benchmarks/data.py --json results/data.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import simulators

from trajstitch.data import Dataset
from trajstitch.formats import load, save
from trajstitch.formats.d4rl import to_table

PEAK = """
import sys
import h5py
from trajstitch.formats import load
import trajstitch.formats.d4rl
def peak():  # in KiB; getrusage would count the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
load(sys.argv[1])
print(peak() - before)
"""


def synthetic(transitions: int, obs_dim: int = 11, action_dim: int = 3, length: int = 1000) -> Dataset:
    """Random numbers in the shape of a D4RL data set."""
    rng = np.random.default_rng(0)
    many = transitions // length
    return Dataset(
        obs=rng.normal(size=(transitions + many, obs_dim)).astype(np.float32),
        action=rng.uniform(-1, 1, (transitions, action_dim)).astype(np.float32),
        reward=rng.normal(size=transitions).astype(np.float32),
        start=np.arange(0, transitions + 1, length),
        terminal=np.zeros(many, bool),
    )


def fastest(work: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of several tries."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def read_all(path: Path) -> None:
    """What h5py needs for the file's arrays."""
    with h5py.File(path) as file:
        for name in file:
            file[name][()]


def measure_load(transitions: int, folder: Path) -> list[dict[str, Any]]:
    """Every format, seconds and peak memory, against h5py reading the arrays of the gzipped D4RL file."""
    data = synthetic(transitions)
    gzipped, plain = folder / "gzip.hdf5", folder / "plain.hdf5"
    with h5py.File(gzipped, "w") as file:
        for name, array in to_table(data).items():
            file.create_dataset(name, data=array, compression="gzip")  # as D4RL's files are
    size = sum(array.nbytes for array in to_table(data).values())
    for path in (plain, folder / "own.npz", folder / "own.traj"):
        save(data, path)
    return [
        _against_h5py(gzipped, gzipped, size),
        _against_h5py(plain, plain, size),
        _against_h5py(folder / "own.npz", plain, size),
        _against_h5py(folder / "own.traj", plain, size),
    ]


def _against_h5py(path: Path, baseline: Path, size: int) -> dict[str, Any]:
    ours, theirs = fastest(lambda: load(path)), fastest(lambda: read_all(baseline))
    peak = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    return {
        "file": path.name,
        "seconds": ours,
        "h5py_seconds": theirs,
        "ratio": ours / theirs,
        "peak_over_size": int(peak.stdout) * 1024 / size,
    }


def main() -> None:
    """Print the tables and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--policy", default="random", help="rolled out by the collect measurement")
    parser.add_argument("--steps", type=int, default=1_000_000, help="collected")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        loads = measure_load(asked.transitions, Path(name))
        for row in loads:
            print(
                f"load {row['file']:10} {row['seconds']:6.2f} s, {row['ratio']:.2f} times h5py's "
                f"{row['h5py_seconds']:.2f} s, peak memory {row['peak_over_size']:.2f} times the arrays"
            )
        begin = time.perf_counter()
        command = [
            str(Path(sys.executable).with_name("trajstitch")),
            "collect",
            asked.policy,
            "--env",
            "Hopper-v5",
        ]
        subprocess.run([*command, "--steps", str(asked.steps), "--out", f"{name}/x.traj"], check=True)
        seconds = time.perf_counter() - begin
        print(f"collect {asked.steps:,} Hopper-v5 steps: {seconds:.1f} s, {asked.steps / seconds:,.0f} steps/s")
    steps = [simulators.compare(env_id, count=64, steps=100, rounds=5) for env_id in simulators.ENVS]
    for row in steps:
        print(f"step {row['env']}: {row['ratio']} times SyncVectorEnv, 64 environments")
    episodes = simulators.compare_episodes("Ant-v5", 32)
    print(
        "32 episodes of Ant-v5, one in each environment: SyncVectorEnv takes {ratio:.2f} times as long".format(
            **episodes
        )
    )
    if asked.json:
        results = {
            "command": "python benchmarks/data.py " + " ".join(sys.argv[1:]),
            "load": loads,
            "collect": {"policy": Path(asked.policy).name, "steps": asked.steps, "seconds": seconds},
            "step": steps,
            "episodes": episodes,
        }
        asked.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
