"""Gradient steps per second of d3rlpy and trajstitch: BC, TD3+BC and IQL, batch 256, 256-256 networks.

    python -m benchmarks.peers.d3rlpy_speed --json results/d3rlpy_speed.json

d3rlpy is installed in a virtual environment of its own, in --folder or a temporary folder. Both libraries draw
batches from the same random data, and the time includes drawing. They take turns, so that other work on the
machine slows both, and the fastest round of each counts.

This file is also run by the Python of that environment, which has no trajstitch, so it imports nothing of this
repository at the top.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

METHODS = ("bc", "td3bc", "iql")
TRANSITIONS, LENGTH, OBS, ACTIONS, BATCH = 100_000, 1000, 11, 3, 256


def arrays() -> dict[str, Any]:
    """Random numbers with the shapes of Hopper's data."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(TRANSITIONS, OBS)).astype(np.float32),
        "action": rng.uniform(-1, 1, (TRANSITIONS, ACTIONS)).astype(np.float32),
        "reward": rng.normal(size=TRANSITIONS).astype(np.float32),
    }


def theirs(method: str, steps: int) -> float:
    """Steps per second of d3rlpy; runs in its environment."""
    import d3rlpy  # type: ignore[import-not-found]

    data = arrays()
    ends = (np.arange(TRANSITIONS) % LENGTH == LENGTH - 1).astype(np.float32)
    dataset = d3rlpy.dataset.MDPDataset(data["obs"], data["action"], data["reward"], 0 * ends, ends)
    configs = {
        "bc": d3rlpy.algos.BCConfig,
        "td3bc": d3rlpy.algos.TD3PlusBCConfig,
        "iql": d3rlpy.algos.IQLConfig,
    }
    config = configs[method](batch_size=BATCH, observation_scaler=d3rlpy.preprocessing.StandardObservationScaler())
    algorithm = config.create(device="cpu:0")
    algorithm.build_with_dataset(dataset)
    config.observation_scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)

    def train(count: int) -> None:
        for _ in range(count):
            algorithm.update(dataset.sample_transition_batch(BATCH))

    train(20)
    begin = time.perf_counter()
    train(steps)
    return steps / (time.perf_counter() - begin)


def ours(method: str, steps: int, seeds: int) -> float:
    """Steps per second of trajstitch, all seeds side by side in each step; compiling is not counted."""
    from trajstitch.data import Dataset
    from trajstitch.methods import configure
    from trajstitch.training import loop

    data = arrays()
    many = TRANSITIONS // LENGTH
    dataset = Dataset(
        obs=np.concatenate([data["obs"], data["obs"][:many]]),
        action=data["action"],
        reward=data["reward"],
        start=np.arange(0, TRANSITIONS + 1, LENGTH),
        terminal=np.zeros(many, bool),
    )
    config = configure(method, batch=BATCH)
    table = config.table(dataset)
    state = loop.start(config, table, range(seeds))
    chunks = loop.run(config, state, table, range(seeds), steps)
    next(chunks)
    begin = time.perf_counter()
    next(chunks)
    return steps / (time.perf_counter() - begin)


def install(folder: Path, packages: list[str]) -> Path:
    """The Python of an environment with d3rlpy, which is made if it does not exist."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import d3rlpy"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def run(words: list[str]) -> Any:
    """Run a command and parse its last line as JSON; in a process of its own the other library has no threads."""
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(python: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step of both libraries, and their ratio."""
    result: dict[str, Any] = {}
    for method in METHODS:
        speed: dict[str, list[float]] = {"d3rlpy": [], "trajstitch": [], "trajstitch, 5 seeds": []}
        for _ in range(rounds):
            words = [__file__, "--method", method, "--steps", str(steps)]
            speed["d3rlpy"].append(run([str(python), *words, "--side", "theirs"]))
            speed["trajstitch"].append(run([sys.executable, *words, "--side", "ours"]))
            speed["trajstitch, 5 seeds"].append(run([sys.executable, *words, "--side", "ours", "--seeds", "5"]))
        best = {name: max(values) for name, values in speed.items()}
        result[method] = {
            "milliseconds_a_step": {name: round(1000 / value, 3) for name, value in best.items()},
            "steps_a_second": {name: round(value, 1) for name, value in best.items()},
            "ratio": round(best["trajstitch"] / best["d3rlpy"], 2),
            "ratio_a_seed_of_5": round(5 * best["trajstitch, 5 seeds"] / best["d3rlpy"], 2),
        }
        print(method, json.dumps(result[method]), flush=True)
    return result


def main() -> None:
    """Compare both libraries, or measure one of them with --side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Folder of the virtual environment; kept and used again.")
    parser.add_argument("--install", nargs="+", default=["d3rlpy"], help="Packages for pip to install.")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds; the fastest counts.")
    parser.add_argument("--steps", type=int, default=500, help="Gradient steps per round.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    parser.add_argument(
        "--side", choices=("ours", "theirs"), help="Measure one library only; used by the script itself."
    )
    parser.add_argument("--method", choices=METHODS, help="Method to measure with --side.")
    parser.add_argument("--seeds", type=int, default=1, help="Seeds side by side with --side ours.")
    args = parser.parse_args()
    if args.side == "theirs":
        print(theirs(args.method, args.steps))
        return
    if args.side == "ours":
        print(ours(args.method, args.steps, args.seeds))
        return
    with tempfile.TemporaryDirectory() as text:
        python = install((args.folder or Path(text)).absolute(), args.install)
        versions = "import json, d3rlpy, torch; print(json.dumps([d3rlpy.__version__, torch.__version__]))"
        report = {
            "command": shlex.join(["python", "-m", "benchmarks.peers.d3rlpy_speed", *sys.argv[1:]]),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": os.getloadavg(),
            "versions": dict(zip(("d3rlpy", "torch"), run([str(python), "-c", versions]), strict=True)),
            "batch": BATCH,
            "methods": compare(python, args.rounds, args.steps),
            "load_after": os.getloadavg(),
        }
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
