"""Scores of one trained MBOP planner with different search settings, such as its noise (sigma) or its horizon.

    trajstitch train mbop hopper-medium.traj --rule hopper-medium --width 200 --steps 15000 --seeds 2 --out RUN
    python -m benchmarks.mbop_search RUN/policy.npz Hopper-v4 "" kappa=0 "kappa=0 sigma=0 samples=3" --json FILE

Each search is the planner's own ("") with the given settings changed. Results are added to FILE.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from trajstitch.evaluation.scores import evaluate
from trajstitch.policies.mppi import MPPI
from trajstitch.policies.policy_files import load_policy
from trajstitch.storage.atomic import write_json


def with_search(planner: MPPI, text: str) -> MPPI:
    """The planner with these search settings changed, such as "kappa=0 samples=3"."""
    pairs = [word.split("=") for word in text.split()]
    settings = {name: type(getattr(planner.search, name))(value) for name, value in pairs}
    return dataclasses.replace(planner, search=dataclasses.replace(planner.search, **settings))


def main() -> None:
    """Score the planner with every search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("planner", type=Path, help="Planner file, such as policy.npz of a run of mbop or tsmbop.")
    parser.add_argument("env", help="Environment, such as Hopper-v4.")
    parser.add_argument(
        "searches", nargs="+", help='Settings to change, such as "kappa=0 samples=3"; "" for none.'
    )
    parser.add_argument("--episodes", type=int, default=20, help="Evaluation episodes per seed.")
    parser.add_argument("--physics", default="d4rl", help="Physics of the environment: d4rl or gymnasium.")
    parser.add_argument("--name", default="planner", help="Key of these results in the JSON file.")
    parser.add_argument("--json", type=Path, help="File to add the results to.")
    args = parser.parse_args()
    planner = load_policy(args.planner)
    if not isinstance(planner, MPPI):
        parser.error(f"{args.planner} holds no planner of mbop or tsmbop")
    results: dict[str, Any] = {}
    for text in args.searches:
        changed = with_search(planner, text)
        scores = evaluate(changed, args.env, episodes=args.episodes, physics=args.physics, seed=10_000).summary()
        results[text or "its own"] = scores
        print(text or "its own", json.dumps(scores["normalised"]), flush=True)
    if args.json:
        known: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
        own = dataclasses.asdict(planner.search)
        known[args.name] = {"env": args.env, "own": own, "episodes": args.episodes, "searches": results}
        write_json(args.json, known)


if __name__ == "__main__":
    main()
