"""Seams tested in the simulator: does the generated action reach the expected state and earn the expected reward?

    trajstitch improve DATA.hdf5 --preset quick --out RUN
    python -m benchmarks.seams DATA.hdf5 RUN --out results/seams/NAME.json

The simulator is set to the state that a seam starts from, and the action of the seam is applied. The result is
compared with the state and the reward in the improved data. The recorded action of the same state is replayed in
the same way; it shows how well the simulator repeats the recording (the floor). The models are also tested on
recorded steps of trajectories that they were not trained on; they are in the run directory, so this part is
missing if an improved file is given instead.

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
from trajstitch.evaluation import envs
from trajstitch.evaluation.envs import env_options
from trajstitch.evaluation.mujoco_batch import NativeEnv
from trajstitch.formats import load
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.storage.serialise import restore

Array = NDArray[Any]


class Simulator:
    """Makes one step from any state that can be read from its observation."""

    def __init__(self, data: Dataset, count: int = 256) -> None:
        env_id, physics = str(data.info["env_id"]), str(data.info.get("physics", "gymnasium"))
        env = envs.make(env_id, count, physics=physics, **env_options(env_id, data.info))
        if not isinstance(env, NativeEnv):
            raise SystemExit(f"{env_id}: only Hopper, HalfCheetah and Walker2d can be set to a state")
        self.env = env
        qpos, qvel = env.state()
        self.velocities = qvel.shape[1]
        # The observation of an infinite velocity is the limit at which velocities are clipped.
        self.limit = env.set_state([0], qpos[:1], np.full_like(qvel[:1], np.inf))[0, -1]

    def settable(self, obs: Array) -> Array:
        """Which observations [B, S] show the whole state except x."""
        return np.asarray((np.abs(obs[:, -self.velocities :]) < self.limit).all(1))

    def step(self, obs: Array, action: Array) -> tuple[Array, Array, Array]:
        """Next observation, reward and terminal of each row."""
        parts = []
        for begin in range(0, len(obs), self.env.count):
            part = obs[begin : begin + self.env.count].astype(np.float64)
            rows = np.arange(len(part))
            self.env.set_state(rows, *self.env.state_of(part))
            given = np.zeros((self.env.count, action.shape[1]))
            given[rows] = action[begin : begin + len(part)]
            result = self.env.step(given, np.arange(self.env.count) < len(part))
            parts.append((result.obs[rows], result.reward[rows], result.terminal[rows]))
        next_obs, reward, terminal = (np.concatenate(column) for column in zip(*parts, strict=True))
        return next_obs, reward, terminal


def spread(values: Array) -> dict[str, float]:
    """Median and 90th percentile."""
    return {"median": float(np.median(values)), "p90": float(np.quantile(values, 0.9))}


def reward_error(predicted: Array, real: Array) -> dict[str, float]:
    """Errors of predicted rewards."""
    error = predicted - real
    return {
        "promised": float(predicted.mean()),
        "bias": float(error.mean()),
        "standard_error": float(error.std() / np.sqrt(len(error))),
        "mean_absolute": float(np.abs(error).mean()),
        "share_too_high": float((error > 0).mean()),
    }


def measure_seams(data: Dataset, improved: Dataset, simulator: Simulator) -> dict[str, Any]:
    """Test every distinct seam of improved data once."""
    assert improved.seams is not None
    source, target = improved.seams.source, improved.seams.target
    step = np.flatnonzero(improved.seams.stitched)
    _, first = np.unique(source[step] * len(data.obs) + target[step], return_index=True)
    distinct = step[first]
    step = distinct[simulator.settable(data.obs[source[distinct]])]
    if not len(step):
        return {"seams": len(distinct), "tried": 0}
    unit = data.obs.std(0, dtype=np.float64)
    obs, recorded, predicted = data.obs[source[step]], data.obs[source[step] + 1], data.obs[target[step]]
    old = np.searchsorted(data.row, source[step])  # the recorded transition from the same row

    def distance(a: Array, b: Array) -> Array:
        return np.linalg.norm((a - b) / unit, axis=1)

    landed, reward, ended = simulator.step(obs, improved.action[step])
    replayed, old_reward, _ = simulator.step(obs, data.action[old])
    landing, recorded_landing = distance(landed, predicted), distance(replayed, predicted)
    return {
        "seams": len(distinct),
        "tried": len(step),
        "bridged": spread(distance(recorded, predicted)),
        "landing": spread(landing),
        "landing_of_bridged": float(np.median(landing / distance(recorded, predicted))),
        "replay_floor": spread(distance(replayed, recorded)),
        "closer_than_recorded_action": float((landing < recorded_landing).mean()),
        "really_ended": float(ended.mean()),
        "reward": reward_error(improved.reward[step], reward),
        "reward_replay_floor": float(np.abs(old_reward - data.reward[old]).mean()),
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
    simulator, groups, before = Simulator(data), {"all": improved, "top tenth": improved.top(10)}, data.top(10)
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
