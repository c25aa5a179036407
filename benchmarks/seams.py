"""Seams tested in the simulator: does the generated action reach the expected state and earn the expected reward?

    trajstitch improve DATA.hdf5 --preset quick --out RUN
    python -m benchmarks.seams DATA.hdf5 RUN --out results/seams/NAME.json

Seams are replayed as by `trajstitch audit`, in all data and in the top tenth. The recorded action of the same
state is replayed in the same way; it shows how well the simulator repeats the recording (the floor). The models
are also tested on recorded steps of trajectories that they were not trained on; they are in the run directory, so
this part is missing if an improved file is given instead.

Distances are Euclidean, with every dimension divided by its standard deviation over the data. Observations clip
velocities, so a state with a clipped velocity cannot be set: seams from such states are counted but not tested.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.command import command
from trajstitch.data import Dataset, step_table
from trajstitch.evaluation.audit import reward_error, spread
from trajstitch.evaluation.replay import Simulator, Unit, replay_seams
from trajstitch.formats import load
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.storage.serialise import restore

Array = NDArray[Any]


def measure_seams(data: Dataset, improved: Dataset, simulator: Simulator) -> dict[str, Any]:
    """Test every distinct seam of improved data once."""
    unit = Unit.of_data(improved, data)
    found = replay_seams(improved, simulator, unit, data)
    if not len(found.step):
        return {"seams": found.distinct, "tried": 0}
    assert found.bridged is not None
    assert found.recorded_landing is not None
    assert found.replay_error is not None
    assert found.replay_reward_error is not None
    return {
        "seams": found.distinct,
        "tried": len(found.step),
        "bridged": spread(found.bridged * unit.typical_step),
        "landing": spread(found.landing * unit.typical_step),
        "landing_of_bridged": float(np.nanmedian(found.landing / found.bridged)),
        "replay_floor": spread(found.replay_error * unit.typical_step),
        "closer_than_recorded_action": float((found.landing < found.recorded_landing).mean()),
        "really_ended": float(found.ended.mean()),
        "reward": reward_error(found.reward_promised, found.reward),
        "reward_replay_floor": float(np.nanmean(found.replay_reward_error)),
    }


def measure_models(data: Dataset, run: Path, simulator: Simulator, many: int = 4096) -> dict[str, Any]:
    """Test the models on recorded steps that they were not trained on: the action from s to s', and its reward."""
    seed = json.loads((run / "config.json").read_text())["settings"]["seed"]
    table = step_table(data.split(0.95, seed)[1])  # the same split as in stitching/improve.py for both models
    rows = np.flatnonzero(simulator.settable(table["obs"]))
    rows = np.random.default_rng(0).permutation(rows)[:many]
    obs, next_obs = table["obs"][rows], table["next_obs"][rows]
    inverse, reward = (restore(run / "stages" / f"{name}.npz")[0] for name in ("inverse", "reward"))
    action = np.asarray(inverse.actions(obs, next_obs, jax.random.key(0)))
    landed, real, _ = simulator.step(obs, action)
    unit = data.obs.std(0, dtype=np.float64)
    return {
        "tried": len(rows),
        "moved": spread(np.linalg.norm((next_obs - obs) / unit, axis=1)),
        "landing": spread(np.linalg.norm((landed - next_obs) / unit, axis=1)),
        "reward": reward_error(np.asarray(reward.rewards(obs, action, next_obs, jax.random.key(0))), real),
    }


def describe(data: Dataset, improved: Dataset, simulator: Simulator) -> dict[str, Any]:
    """How much of these improved trajectories is stitched, and how diverse they are."""
    seams = improved.seams
    assert seams is not None
    steps, distinct = improved.transitions, len(np.unique(seams.source))
    visits = len(np.unique(improved.trajectory * len(data.obs) + seams.source))
    # A seam counts once per step that uses it; seams that cannot be tested are assumed to be like the others.
    step = np.flatnonzero(seams.stitched)
    step = step[simulator.settable(data.obs[seams.source[step]])]
    bias = 0.0
    if len(step):
        _, reward, _ = simulator.step(data.obs[seams.source[step]], improved.action[step])
        bias = float((improved.reward[step] - reward).mean())
    return {
        "trajectories": len(improved),
        "return": float(improved.returns.mean()),
        "return_before": float(seams.return_before.mean()),
        "steps": steps,
        "stitched_steps": float(seams.stitched.mean()),
        "seams_a_trajectory": float(seams.stitched.sum() / len(improved)),
        "steps_from_a_repeated_state": float(1 - visits / steps),
        "distinct_states": distinct,
        "steps_a_distinct_state": steps / distinct,
        "effective_recorded_trajectories": effective(data.trajectory[np.searchsorted(data.row, seams.source)]),
        "at_horizon": float((improved.length >= data.length.max()).mean()),
        "promised_too_much_of_return": float(bias * seams.stitched.sum() / np.abs(improved.returns).sum()),
    }


def effective(number: Array) -> float:
    """The effective number of distinct values, 1 / Σ share²; equal shares give the number of values."""
    share = np.bincount(number) / len(number)
    return float(1 / np.square(share).sum())


def audit(data: Dataset, path: Path) -> dict[str, Any]:
    """All measurements."""
    files = sorted(path.glob("improved.*")) if path.is_dir() else [path]
    improved = load(files[0])
    if improved.seams is None or improved.info.get("improved_from") not in (None, data.fingerprint):
        raise SystemExit(f"{path} was not made from this data set, or has no seams")
    simulator = Simulator(str(data.info["env_id"]), str(data.info.get("physics", "gymnasium")), data.info)
    groups, before = {"all": improved, "top tenth": improved.top(10)}, data.top(10)
    return {
        "env": data.info["env_id"],
        "clipped_states": float(1 - simulator.settable(data.obs[data.row]).mean()),
        "seams": {name: measure_seams(data, group, simulator) for name, group in groups.items()},
        "recorded_steps": measure_models(data, path, simulator) if path.is_dir() else None,
        "groups": {name: describe(data, group, simulator) for name, group in groups.items()},
        "top_tenth_before": {
            "trajectories": len(before),
            "return": float(before.returns.mean()),
            "steps": before.transitions,
            "distinct_states": before.transitions,
            "effective_recorded_trajectories": effective(before.trajectory),
            "at_horizon": float((before.length >= data.length.max()).mean()),
        },
    }


def text_table(found: dict[str, Any]) -> str:
    """The main results as a table."""
    seams, models, groups = found["seams"], found["recorded_steps"], found["groups"]
    rows: list[list[Any]] = [["", "all", "top tenth", "recorded steps"]]
    tried = [f"{s['tried']} of {s['seams']}" for s in seams.values()]
    rows.append(["seams tried", *tried, models and models["tried"]])
    for name in ("bridged", "landing", "replay_floor"):
        cells = [s.get(name) for s in (*seams.values(), models or {})]
        rows.append([f"{name}, median / p90", *(c and f"{c['median']:.3f} / {c['p90']:.3f}" for c in cells)])
    for name in ("landing_of_bridged", "closer_than_recorded_action", "really_ended"):
        rows.append([name, *(s.get(name) for s in seams.values()), None])
    for name in ("promised", "bias", "mean_absolute"):
        cells = [s.get("reward", {}).get(name) for s in (*seams.values(), models or {})]
        rows.append([f"reward {name}", *cells])
    rows.append(["", "all", "top tenth", "top tenth before"])
    for name in groups["all"]:
        rows.append([name, *(g[name] for g in groups.values()), found["top_tenth_before"].get(name)])

    def shown(cell: Any) -> str:
        return "" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else str(cell)

    return "\n".join("".join([f"{row[0]:32}", *(f"{shown(cell):>18}" for cell in row[1:])]) for row in rows)


def commands(data: Path, improved: Path, out: Path) -> list[str]:
    """The commands that made the result file, with file names instead of paths."""
    own = command("seams", [data.name, improved.name, "--out", f"results/seams/{out.name}"])
    if not improved.is_dir():
        return [own]
    settings = json.loads((improved / "config.json").read_text())["settings"]
    plain = {name: json.loads(json.dumps(asdict(config))) for name, config in PRESETS.items()}
    preset = next((name for name in plain if plain[name] == settings["config"]), "other")
    first = f"trajstitch improve {data.name} --preset {preset} --seed {settings['seed']} --out {improved.name}"
    return [first, own]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="Data set that was improved.")
    parser.add_argument("improved", type=Path, help="Run directory of `trajstitch improve`, or improved file.")
    parser.add_argument("--out", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    found = audit(load(args.data), args.improved)
    print(text_table(found))
    if args.out:
        write_json(args.out, {"commands": commands(args.data, args.improved, args.out), **found})


if __name__ == "__main__":
    main()
