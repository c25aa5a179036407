"""Scores of one trained planner under other searches than its own: what noise, preference and the end are worth.

    trajstitch train mbop hopper-medium.traj --rule hopper-medium --width 200 --steps 15000 --seeds 2 --out RUN
    python benchmarks/searches.py RUN/policy.npz Hopper-v4 "" kappa=0 "kappa=0 sigma=0 samples=3" --json FILE

Each search is the planner's own ("") with what it says put over it. Results are added to FILE.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from trajstitch.files import write_json
from trajstitch.mppi import MPPI
from trajstitch.policy import load_policy
from trajstitch.scores import evaluate


def changed(planner: MPPI, words: str) -> MPPI:
    """The planner with another search."""
    pairs = [word.split("=") for word in words.split()]
    settings = {name: type(getattr(planner.search, name))(value) for name, value in pairs}
    return dataclasses.replace(planner, search=dataclasses.replace(planner.search, **settings))


def main() -> None:
    """Score every search that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("planner", type=Path)
    parser.add_argument("env")
    parser.add_argument("searches", nargs="+")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--physics", default="d4rl")
    parser.add_argument("--name", default="planner", help="what the results are filed under")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    planner = load_policy(asked.planner)
    assert isinstance(planner, MPPI)
    results: dict[str, Any] = {}
    for words in asked.searches:
        other = changed(planner, words)
        scores = evaluate(other, asked.env, episodes=asked.episodes, physics=asked.physics, seed=10_000).summary()
        results[words or "its own"] = scores
        print(words or "its own", json.dumps(scores["normalised"]), flush=True)
    if asked.json:
        known: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.exists() else {}
        own = dataclasses.asdict(planner.search)
        known[asked.name] = {"env": asked.env, "own": own, "episodes": asked.episodes, "searches": results}
        write_json(asked.json, known)


if __name__ == "__main__":
    main()
