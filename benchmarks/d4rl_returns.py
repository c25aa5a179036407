"""Mean return of D4RL's own medium policies in our simulator, compared with the published mean.

    python -m benchmarks.d4rl_returns --policies FOLDER --json results/d4rl_returns.json

FOLDER holds d4rl-{hopper,halfcheetah,walker2d}-medium-v2.npz. Each policy is evaluated with D4RL's physics and
with Gymnasium's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from trajstitch.evaluation.scores import evaluate

PUBLISHED = {"Hopper": 1422.0, "Walker2d": 2852.0, "HalfCheetah": 4770.0}


def main() -> None:
    """Evaluate every policy, print a table and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=Path, required=True, help="Folder with the policy files.")
    parser.add_argument("--episodes", type=int, default=500, help="Episodes per policy and physics.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    rows = []
    for name, published in PUBLISHED.items():
        policy = args.policies / f"d4rl-{name.lower()}-medium-v2.npz"
        for physics in ("d4rl", "gymnasium"):
            scores = evaluate(
                policy, f"{name}-v4", episodes=args.episodes, physics=physics, stochastic=True, seed=1
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
    if args.json:
        args.json.write_text(json.dumps({"episodes": args.episodes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
