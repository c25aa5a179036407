"""Run the whole Hopper demo with several seeds and save the scores of each run.

python -m benchmarks.demo --json results/demo.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.command import TRAJSTITCH, command


def main() -> None:
    """Run `trajstitch demo hopper` once per seed; the results so far are saved after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="Number of runs; seeds are 0, 1, ...")
    parser.add_argument("--json", type=Path, required=True, help="File to write the results to.")
    args = parser.parse_args()
    rows = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*TRAJSTITCH, "demo", "hopper", "--quiet", "--json", "--seed", str(seed), "--out", folder],
                capture_output=True,
                text=True,
                check=True,
            )
        rows.append({"seed": seed, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], flush=True)
        mean = {name: round(float(np.mean([row[name] for row in rows])), 2) for name in rows[0] if name != "seed"}
        report = {"command": command("demo"), "mean": mean, "runs": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
