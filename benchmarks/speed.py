"""Run `trajstitch bench speed` on several data sets and sizes, one process each; results go to results/speed.json.

    python -m benchmarks.speed cpu hopper-medium.traj:100000 hopper-medium.traj:1000000 -- --steps 300
    python -m benchmarks.speed plot

Options after `--` go to the command. A data set larger than its file repeats the trajectories of the file, with
noise. The second line draws docs/speed.svg from the results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import TRAJSTITCH
from trajstitch.storage.atomic import write_json

RESULTS = Path("results/speed.json")


def measure(file: str, transitions: str, options: list[str]) -> dict[str, Any]:
    """Run the command once; its line of JSON together with the command."""
    words = ["bench", "speed", "--data", file, "--transitions", transitions, *options, "--json", "--quiet"]
    done = subprocess.run([*TRAJSTITCH, *words], stdout=subprocess.PIPE, text=True, check=True)
    words[3] = Path(file).name
    return {"command": " ".join(["trajstitch", *words]), **json.loads(done.stdout.splitlines()[-1])}


def exponent(size: list[int], seconds: list[float]) -> float:
    """The exponent by which time grows with size."""
    return float(np.polyfit(np.log(size), np.log(seconds), 1)[0])


def plot(target: Path) -> None:
    """Draw seconds over up to a million transitions for each stage, machine and data set."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for machine, runs in json.loads(RESULTS.read_text()).items():
        for name in sorted({key.partition(":")[0] for key in runs}):
            group = [
                r for k, r in runs.items() if k.startswith(f"{name}:") and int(k.rpartition(":")[2]) <= 1_000_000
            ]
            group.sort(key=lambda run: run["data"]["transitions"])
            if len(group) < 3:
                continue
            size = [run["data"]["transitions"] for run in group]
            for stage in ("neighbours", "edges", "graph", "iteration"):
                seconds = [run["stages"][stage]["seconds"] for run in group]
                label = f"{stage}, {name}, {machine}: exponent {exponent(size, seconds):.2f}"
                axes.loglog(size, seconds, "o-", label=label)
                print(label)
    axes.set(xlabel="transitions", ylabel="seconds")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, or draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="Name of the machine in the results, or `plot` to draw docs/speed.svg.")
    parser.add_argument("data", nargs="*", help="Data sets as FILE:TRANSITIONS.")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    if args.machine == "plot":
        plot(Path("docs/speed.svg"))
    for item in args.data:
        file, _, transitions = item.rpartition(":")
        result = measure(file, transitions, options)
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known.setdefault(args.machine, {})[f"{Path(file).stem}:{transitions}"] = result
        write_json(RESULTS, known)
        stages = {name: f"{s['seconds']:.2f} s, {s['ratio']:.1f} ×" for name, s in result["stages"].items()}
        print(item, json.dumps(stages, ensure_ascii=False), f"{result['peak_memory_gb']:.1f} GB", flush=True)


if __name__ == "__main__":
    main()
