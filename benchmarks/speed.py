"""`trajstitch bench speed` for several data sets and sizes, a process each, gathered in results/speed.json.

    python benchmarks/speed.py cpu hopper-medium.traj:100000 hopper-medium.traj:1000000 -- --steps 300

The first word names the machine in the results; what follows `--` goes to the command. Data larger than the file
are its trajectories again, with noise.
`python benchmarks/speed.py plot` draws docs/speed.svg from what is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.files import write_json

RESULTS = Path("results/speed.json")


def measure(file: str, transitions: str, options: list[str]) -> dict[str, Any]:
    """One run of the command, its line of JSON with the command beside it."""
    words = ["bench", "speed", "--data", file, "--transitions", transitions, *options, "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "trajstitch.cli", *words], stdout=subprocess.PIPE, text=True, check=True
    )
    words[3] = Path(file).name
    return {"command": " ".join(["trajstitch", *words]), **json.loads(done.stdout.splitlines()[-1])}


def exponent(size: list[int], seconds: list[float]) -> float:
    """How the time grows with the size."""
    return float(np.polyfit(np.log(size), np.log(seconds), 1)[0])


def plot(target: Path) -> None:
    """Seconds of the graph and of an iteration over up to a million transitions, for each machine and data set."""
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
    """Measure, or draw."""
    machine, *asked = sys.argv[1:] or ["--help"]
    if machine in ("-h", "--help"):
        print(__doc__)
    elif machine == "plot":
        plot(Path("docs/speed.svg"))
    else:
        options = asked[asked.index("--") + 1 :] if "--" in asked else []
        for item in asked[: asked.index("--")] if "--" in asked else asked:
            file, _, transitions = item.rpartition(":")
            result = measure(file, transitions, options)
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            known.setdefault(machine, {})[f"{Path(file).stem}:{transitions}"] = result
            write_json(RESULTS, known)
            rates = {name: f"{s['seconds']:.2f} s, {s['ratio']:.1f} ×" for name, s in result["stages"].items()}
            print(item, json.dumps(rates, ensure_ascii=False), f"{result['peak_memory_gb']:.1f} GB", flush=True)


if __name__ == "__main__":
    main()
