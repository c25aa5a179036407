"""Speed of loading data, collecting data and stepping environments, each compared with a baseline in the same run.

python -m benchmarks.data_speed --policy POLICY --json results/data_speed.json
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

from benchmarks import simulator_speed
from benchmarks.command import TRAJSTITCH, command
from trajstitch.data import Dataset
from trajstitch.formats import load, save
from trajstitch.formats.d4rl import to_table

PEAK = """
import sys
import h5py
from trajstitch.formats import load
import trajstitch.formats.d4rl
def peak():  # in KiB; getrusage would include the memory of the parent process
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
load(sys.argv[1])
print(peak() - before)
"""


def synthetic(transitions: int, obs_dim: int = 11, action_dim: int = 3, length: int = 1000) -> Dataset:
    """Random numbers with the shapes of a D4RL data set."""
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
    """Seconds of the fastest of several runs."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def read_all(path: Path) -> None:
    """Read all arrays of a file with h5py alone."""
    with h5py.File(path) as file:
        for name in file:
            file[name][()]


def measure_load(transitions: int, folder: Path) -> list[dict[str, Any]]:
    """Seconds and peak memory of loading every format, compared with h5py reading the same arrays from HDF5."""
    data = synthetic(transitions)
    gzipped, plain = folder / "gzip.hdf5", folder / "plain.hdf5"
    with h5py.File(gzipped, "w") as file:
        for name, array in to_table(data).items():
            file.create_dataset(name, data=array, compression="gzip")  # like D4RL's files
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
    """Measure, print the tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Transitions to load.")
    parser.add_argument("--policy", default="random", help="Policy that collects data: a file, or random.")
    parser.add_argument("--steps", type=int, default=1_000_000, help="Steps to collect.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        loads = measure_load(args.transitions, Path(name))
        for row in loads:
            print(
                f"load {row['file']:10} {row['seconds']:6.2f} s, {row['ratio']:.2f} times h5py's "
                f"{row['h5py_seconds']:.2f} s, peak memory {row['peak_over_size']:.2f} times the arrays"
            )
        begin = time.perf_counter()
        collect = [*TRAJSTITCH, "collect", args.policy, "--env", "Hopper-v5", "--steps", str(args.steps)]
        subprocess.run([*collect, "--out", f"{name}/x.traj"], check=True)
        seconds = time.perf_counter() - begin
        print(f"collect {args.steps:,} Hopper-v5 steps: {seconds:.1f} s, {args.steps / seconds:,.0f} steps/s")
    steps = [simulator_speed.compare(env_id, count=64, steps=100, rounds=5) for env_id in simulator_speed.ENVS]
    for row in steps:
        print(f"step {row['env']}: {row['ratio']} times SyncVectorEnv, 64 environments")
    episodes = simulator_speed.compare_episodes("Ant-v5", 32)
    print(
        "32 episodes of Ant-v5, one in each environment: SyncVectorEnv takes {ratio:.2f} times as long".format(
            **episodes
        )
    )
    if args.json:
        results = {
            "command": command("data_speed"),
            "load": loads,
            "collect": {"policy": Path(args.policy).name, "steps": args.steps, "seconds": seconds},
            "step": steps,
            "episodes": episodes,
        }
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
