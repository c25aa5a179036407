"""How much faster a method is trained on several data sets in one program than on one after another.

    python -m benchmarks.together_speed --json results/together_speed.json

The data are random numbers of the size of Walker2d's. Steps are timed as a run takes them, with a checkpoint at
the end, after a first part that compiles. Peak memory is that of the device, where it can be asked for it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from benchmarks.command import command
from trajstitch.bench.speed import machine
from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.jobs.train import train_together
from trajstitch.storage.atomic import write_json

_LENGTH = 1000  # steps of a trajectory
_SIZES = ((1, (17,)), (0, (6,)), (0, ()))  # of states, actions and rewards: further rows, and columns


def random_data(transitions: int, seed: int) -> Dataset:
    """Return trajectories of random numbers, with Walker2d's 17 observations and 6 actions."""
    rng = np.random.default_rng(seed)

    def trajectory() -> Trajectory:
        obs, action, reward = (rng.standard_normal((_LENGTH + n, *size), np.float32) for n, size in _SIZES)
        return Trajectory(obs, action, reward, False)

    return from_trajectories([trajectory() for _ in range(max(1, transitions // _LENGTH))])


def steps_per_second(method: str, sets: list[Dataset], seeds: int, settings: dict[str, Any], steps: int) -> float:
    """Return how many steps all data sets are trained per second, in one program."""
    times: list[float] = []
    with TemporaryDirectory() as folder:
        outs = [Path(folder) / str(i) for i in range(len(sets))]
        options: dict[str, Any] = {
            "seeds": seeds,
            "every": steps,
            "tell": lambda *_: times.append(time.perf_counter()),
        }
        train_together(method, sets, outs, [{**settings, "steps": 3 * steps}] * len(sets), **options)
    return 2 * steps / (times[2] - times[0])


def peak_gib() -> float | None:
    """Return the most memory that was in use on the device so far."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 2**30 if stats else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["bc", "iql", "rebrac"], help="Methods.")
    parser.add_argument("--sets", type=int, nargs="+", default=[2, 4, 8], help="Numbers of data sets.")
    parser.add_argument("--transitions", type=int, default=300_000, help="Of each data set.")
    parser.add_argument("--seeds", type=int, default=5, help="Policies of each data set.")
    parser.add_argument("--batch", type=int, default=256, help="Rows per step and policy.")
    parser.add_argument("--steps", type=int, default=2000, help="Steps between two looks at the clock.")
    parser.add_argument("--turns", type=int, default=3, help="Measurements of each, in turns; the median counts.")
    parser.add_argument("--json", type=Path, help="Where to write the result.")
    args = parser.parse_args()
    data = [random_data(args.transitions, seed) for seed in range(max(args.sets))]
    report: dict[str, Any] = {"command": command("together_speed"), "machine": machine()}
    for method in args.methods:
        report[method] = []
        for many in args.sets:
            turns = [
                [
                    steps_per_second(method, data[:n], args.seeds, {"batch": args.batch}, args.steps)
                    for n in (1, many)
                ]
                for _ in range(args.turns)
            ]
            alone, ours = np.median(turns, 0)
            gain = float(np.median([many * b / a for a, b in turns]))
            row = {
                "sets": many,
                "steps_per_second": float(ours),
                "alone": float(alone),
                "gain": gain,
                "peak_gib": peak_gib(),
            }
            report[method].append(row)
            print(
                f"{method}, {many} sets: {ours:.0f} steps/s, one {alone:.0f}, {gain:.2f} times as fast", flush=True
            )
        if args.json:
            write_json(args.json, report)


if __name__ == "__main__":
    main()
