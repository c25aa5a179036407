"""Gradient steps a second of d3rlpy and of ours, in one run: BC, TD3+BC and IQL, batch 256, 256-256 networks.

    python benchmarks/peers/d3rlpy_speed.py --json results/d3rlpy-speed.json

d3rlpy goes into a virtual environment of its own, made in --folder or in a temporary one; `--install` names what
pip is to fetch. Both take batches from the same random data, sampling included. Rounds alternate, and each one's
fastest counts, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
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
    """Random numbers in the shape of Hopper's data."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(TRANSITIONS, OBS)).astype(np.float32),
        "action": rng.uniform(-1, 1, (TRANSITIONS, ACTIONS)).astype(np.float32),
        "reward": rng.normal(size=TRANSITIONS).astype(np.float32),
    }


def theirs(method: str, steps: int) -> float:
    """Steps a second of d3rlpy; runs in its environment."""
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
    """Steps a second of trajstitch, each of all seeds at once; compiling is not counted."""
    from trajstitch import fit
    from trajstitch.data import Dataset
    from trajstitch.methods import configure

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
    state = fit.start(config, table, range(seeds))
    chunks = fit.run(config, state, table, range(seeds), steps)
    next(chunks)
    begin = time.perf_counter()
    next(chunks)
    return steps / (time.perf_counter() - begin)


def install(folder: Path, packages: list[str]) -> Path:
    """The interpreter of an environment with d3rlpy, made where there is none yet."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import d3rlpy"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def run(words: list[str]) -> Any:
    """What this script says when called so, in a process of its own, free of the other's threads."""
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(python: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step of each, and how many times faster we are."""
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
    """Compare, or measure one side where --side says so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of the virtual environment; kept, and used again")
    parser.add_argument("--install", nargs="+", default=["d3rlpy"], help="such as torch==2.8.0+cpu d3rlpy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=("ours", "theirs"), help="used by the script itself")
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    if asked.side == "theirs":
        print(theirs(asked.method, asked.steps))
        return
    if asked.side == "ours":
        print(ours(asked.method, asked.steps, asked.seeds))
        return
    with tempfile.TemporaryDirectory() as text:
        python = install((asked.folder or Path(text)).absolute(), asked.install)
        versions = "import json, d3rlpy, torch; print(json.dumps([d3rlpy.__version__, torch.__version__]))"
        report = {
            "command": "python benchmarks/peers/d3rlpy_speed.py " + " ".join(sys.argv[1:]),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": os.getloadavg(),
            "versions": dict(zip(("d3rlpy", "torch"), run([str(python), "-c", versions]), strict=True)),
            "batch": BATCH,
            "methods": compare(python, asked.rounds, asked.steps),
            "load_after": os.getloadavg(),
        }
    print(json.dumps(report))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
