"""Kill commands with SIGKILL at random moments, call them again, and compare every byte with an undisturbed run.

    python -m benchmarks.kill_resume --kills 50 --out results/kill_resume.json

Each command is run twice undisturbed, and both must be the same. Then it is killed at a moment drawn evenly from
the time that took, called again, killed again and so on, until it ends by itself; what it has written must be the
same, file by file and byte by byte. Only timings.json may differ, which holds nothing but clock times, and what a
record of a suite's cell says under `made`: its machine, its seconds, and whether it was resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajstitch.formats import load, save

CLOCKS = ("timings.json",)  # not compared
MADE = "made"  # what is not compared of a record of `bench`
SMALL = ["--steps", "40", "--every", "10", "--seeds", "2", "--batch", "16", "--width", "8", "--quiet"]
IMPROVE = ["improve", "data.npz", "--out", "out", "--preset", "quick", "--quiet"]
FEW = {
    model: [f"--{model}.fit.steps=100", f"--{model}.width=16"]
    for model in ("dynamics", "inverse", "reward", "value", "world")
}
GREEDY = ["--iterations", "2", *FEW["dynamics"], *FEW["inverse"], *FEW["reward"], *FEW["value"]]
AGAIN = ["--overwrite", "--quiet"]  # killed after its output was written, a command finds it there
WORLD = ["--world-steps", "40", "--world-width", "8", "--rollouts", "4", "--rollout-interval", "20"]
BENCH = ["bench", "smoke", "--out", "out", "--data", "demo", "--methods", "bc", "td3bc", "ts-bc", "--quiet"]
TOGETHER = [
    *("bench", "table1", "--out", "out", "--data", "hopper-medium", "hopper-expert", "--methods", "bc", "rebrac"),
    *("--preset", "tiny", "--seeds", "2", "--steps", "40", "--transitions", "2000", "--episodes", "1"),
    *("--checkpoints", "2", "--workers", "1", "--together", "--quiet"),
]
TRAIN: dict[str, list[str]] = {
    "bc": ["--episodes", "2"],  # the only one that is scored here, since scoring is the same for all
    "percent-bc": [],
    "gaussian-bc": [],
    "weighted-bc": ["--value-steps", "40"],
    "td3bc": [],
    "rebrac": [],
    "td3tsbc": ["--switch", "20"],
    "iql": [],
    "cql": [],
    "mbop": ["--samples", "4", "--plan-horizon", "2"],
    "tsmbop": ["--samples", "4", "--plan-horizon", "2"],
    "diffuser": ["--depth", "2", "--blocks", "1", "--plan-horizon", "4", "--diffusion-steps", "3"],
    "mopo": WORLD,
    "morel": WORLD,
}


def commands(shared: Path) -> dict[str, list[str]]:
    """Return every command by name; policies are those of the folder `shared`."""
    found = {
        "improve": [*IMPROVE, *GREEDY],
        "improve --planner optimal": [*IMPROVE, "--planner", "optimal", *FEW["world"], *FEW["value"]],
        "improve --planner held": [*IMPROVE, "--planner", "held", *FEW["world"]],
        "weigh": ["weigh", "data.npz", "--out", "out.npz", "--preset", "quick", "--fit.steps=100", *AGAIN],
        "collect": ["collect", "random", "--env", "Hopper-v5", "--steps", "2000", "--out", "out.npz", *AGAIN],
        "bench": [*BENCH, "--workers", "1"],
        "bench --workers 2": [*BENCH, "--workers", "2"],  # processes that outlive the killed one for a moment
        "bench --together": [*TOGETHER, "--shared", str(shared.resolve())],
    }
    for method, words in TRAIN.items():
        inputs = ["data.npz", "better.npz"] if method in ("td3tsbc", "tsmbop") else ["data.npz"]
        scoring = [] if "--episodes" in words else ["--no-evaluation"]
        found[f"train {method}"] = ["train", method, *inputs, "--out", "out", *SMALL, *words, *scoring]
    return found


def start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a folder; all of them share compiled programs in the folder beside it."""
    program = [sys.executable, "-m", "trajstitch.cli", *words]
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        program,
        cwd=folder,
        env={**cache, **os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a command that must succeed."""
    _, text = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}: {text}")


def content(folder: Path) -> dict[str, bytes]:
    """Return every file that is compared."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _compared(path) for path in files if path.name not in CLOCKS}


def _compared(path: Path) -> bytes:
    if path.parent.parent.name != "records" or path.suffix != ".json":
        return path.read_bytes()
    record = json.loads(path.read_bytes())
    del record[MADE]
    return json.dumps(record).encode()


def differences(reference: Path, folder: Path) -> list[str]:
    """Return the names of files that are not the same, or in one folder only."""
    a, b = content(reference), content(folder)
    hidden = {name for name in b.keys() - a.keys() if name.endswith(".part") and "out/" not in name}
    return sorted(name for name in (a.keys() | b.keys()) - hidden if a.get(name) != b.get(name))


def prepare(folder: Path) -> Path:
    """Make a folder with the inputs."""
    folder.mkdir(parents=True)
    save(load("demo")[:12], folder / "data.npz")
    save(load("demo")[12:18], folder / "better.npz")
    return folder


def newest(folder: Path) -> str:
    """Return the file that was written last: how far the command had come."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("data.npz", "better.npz")]
    return (
        str(max(files, key=lambda path: path.stat().st_mtime_ns).relative_to(folder)) if files else "nothing yet"
    )


def try_command(words: Sequence[str], kills: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Kill a command so often, in as many runs as it takes, and compare each run with an undisturbed one."""
    for name in ("first", "reference"):  # the first one compiles
        reference = prepare(folder / name)
        begin = time.monotonic()
        finish(start(words, reference))
        took = time.monotonic() - begin
    killed: list[dict[str, Any]] = []
    runs, different = 0, differences(folder / "first", reference)
    while len(killed) < kills:
        work = prepare(folder / f"run{runs}")
        while True:
            process, moment = start(words, work), rng.uniform(0.2, took)
            try:
                process.wait(timeout=moment if len(killed) < kills else 600)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()  # for this one only: processes that it started may still be ending at the next call
                killed.append({"after": round(moment, 2), "newest": newest(work)})
                continue
            finish(process)
            break
        runs += 1
        different += differences(reference, work)
        shutil.rmtree(work)
    return {"seconds": round(took, 1), "kills": killed, "runs": runs, "different": different}


def main() -> None:
    """Try all commands and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="names of commands, such as improve or 'train bc'")
    parser.add_argument("--out", type=Path, default=Path("results/kill_resume.json"))
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="folder with policies/, for bench")
    args = parser.parse_args()
    every = commands(args.shared)
    names = [name for name in every if not args.only or name in args.only]
    earlier = json.loads(args.out.read_text()) if args.out.exists() else {}  # by calls that tried other commands
    found = earlier.get("commands", {})
    for k, name in enumerate(names):
        if name in found:
            continue
        kills = args.kills // len(names) + (k < args.kills % len(names))
        with tempfile.TemporaryDirectory() as folder:
            found[name] = try_command(every[name], kills, random.Random(f"{args.seed} {name}"), Path(folder))
        print(name, found[name], flush=True)
        command = f"python -m benchmarks.kill_resume --kills {args.kills} --seed {args.seed}"
        summary = {
            "command": earlier.get("command", command),
            "kills": sum(len(each["kills"]) for each in found.values()),
            "runs_compared": sum(each["runs"] for each in found.values()),
            "different_files": sum(len(each["different"]) for each in found.values()),
            "commands": found,
            **{name: earlier[name] for name in ("note",) if name in earlier},
        }
        args.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
