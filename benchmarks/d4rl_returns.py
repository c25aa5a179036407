"""Return of D4RL's own medium policies in our simulator with D4RL's physics, beside the published mean.

    python benchmarks/d4rl_returns.py --policies FOLDER --json results/d4rl-returns.json

FOLDER holds d4rl-{hopper,halfcheetah,walker2d}-medium-v2.npz.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from trajstitch.scores import evaluate

PUBLISHED = {"Hopper": 1422.0, "Walker2d": 2852.0, "HalfCheetah": 4770.0}


def main() -> None:
    """Print a table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for name, published in PUBLISHED.items():
        policy = asked.policies / f"d4rl-{name.lower()}-medium-v2.npz"
        for physics in ("d4rl", "gymnasium"):
            scores = evaluate(
                policy, f"{name}-v4", episodes=asked.episodes, physics=physics, stochastic=True, seed=1
            )
            returns = scores.returns[0]
            mean, off = float(returns.mean()), float(100 * (returns.mean() / published - 1))
            print(f"{name}-v4 {physics}: {mean:.1f} ± {returns.std():.1f}, {off:+.1f}% of {published:.0f}")
            rows.append(
                {
                    "env": f"{name}-v4",
                    "physics": physics,
                    "mean": mean,
                    "std": float(returns.std()),
                    "standard_error": float(returns.std() / np.sqrt(len(returns))),
                    "length": float(scores.length.mean()),
                    "published": published,
                    "off_percent": off,
                }
            )
    if asked.json:
        asked.json.write_text(json.dumps({"episodes": asked.episodes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
