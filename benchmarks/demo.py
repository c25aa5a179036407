"""The demo with several whole-pipeline seeds: python benchmarks/demo.py --json results/demo.json."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def main() -> None:
    """Run `trajstitch demo` once a seed and write down what each said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    for seed in range(asked.seeds):
        with tempfile.TemporaryDirectory() as folder:
            command = [str(Path(sys.executable).with_name("trajstitch")), "demo", "--quiet", "--json"]
            done = subprocess.run(
                [*command, "--seed", str(seed), "--out", folder], capture_output=True, text=True, check=True
            )
        rows.append({"seed": seed, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], flush=True)
        mean = {name: round(float(np.mean([row[name] for row in rows])), 2) for name in rows[0] if name != "seed"}
        report = {"command": "python benchmarks/demo.py --json results/demo.json", "mean": mean, "runs": rows}
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
