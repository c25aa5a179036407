"""Seams tried in the simulator: does the generated action reach the promised state and earn the promised reward?

    trajstitch improve DATA.hdf5 --preset quick --out RUN
    python benchmarks/seams.py DATA.hdf5 RUN --out results/seams/NAME.json

The simulator is put into the state a seam starts from, the action made for the seam is applied, and what comes out
is compared with the state and the reward the improved data promise. The recorded action of the same state,
replayed the same way, shows how well the simulator repeats the recording (the floor). The same models on steps of
trajectories they were not trained on show what they can do without a stitch; only a run directory has them, so
with an improved file in its place this part is left out.

Distances are Euclidean, every dimension in units of its standard deviation over the data. A state with a velocity
at the simulator's clip can't be set: seams from there are counted and left out.
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

from trajstitch import envs
from trajstitch.data import Dataset
from trajstitch.dynamics import step_table
from trajstitch.files import write_json
from trajstitch.formats import load
from trajstitch.keep import recall
from trajstitch.scores import env_options
from trajstitch.stitch import PRESETS

Array = NDArray[Any]


class Simulator:
    """One step from any state an observation shows whole."""

    def __init__(self, data: Dataset, count: int = 256) -> None:
        env_id, physics = str(data.info["env_id"]), str(data.info.get("physics", "gymnasium"))
        env = envs.make(env_id, count, physics=physics, **env_options(env_id, data.info))
        if not isinstance(env, envs.NativeEnv):
            raise SystemExit(f"{env_id}: only Hopper, HalfCheetah and Walker2d can be put into a state")
        self.env = env
        qpos, qvel = env.state()
        self.speeds = qvel.shape[1]
        # An infinite speed shows the clip.
        self.limit = env.set_state([0], qpos[:1], np.full_like(qvel[:1], np.inf))[0, -1]

    def settable(self, obs: Array) -> Array:
        """Which observations [B, S] show all of the state but x."""
        return np.asarray((np.abs(obs[:, -self.speeds :]) < self.limit).all(1))

    def step(self, obs: Array, action: Array) -> tuple[Array, Array, Array]:
        """Next observation, reward and end of each row."""
        parts = []
        for begin in range(0, len(obs), self.env.count):
            part = obs[begin : begin + self.env.count].astype(np.float64)
            rows = np.arange(len(part))
            self.env.set_state(rows, *self.env.state_of(part))
            given = np.zeros((self.env.count, action.shape[1]))
            given[rows] = action[begin : begin + len(part)]
            made = self.env.step(given, np.arange(self.env.count) < len(part))
            parts.append((made.obs[rows], made.reward[rows], made.terminal[rows]))
        next_obs, reward, terminal = (np.concatenate(column) for column in zip(*parts, strict=True))
        return next_obs, reward, terminal


def spread(values: Array) -> dict[str, float]:
    """Median and 90th percentile."""
    return {"median": float(np.median(values)), "p90": float(np.quantile(values, 0.9))}


def off(promised: Array, real: Array) -> dict[str, float]:
    """How far promised rewards are from real ones."""
    error = promised - real
    return {
        "promised": float(promised.mean()),
        "bias": float(error.mean()),
        "standard_error": float(error.std() / np.sqrt(len(error))),
        "mean_absolute": float(np.abs(error).mean()),
        "share_too_high": float((error > 0).mean()),
    }


def try_seams(data: Dataset, better: Dataset, simulator: Simulator) -> dict[str, Any]:
    """The distinct seams of improved data, each tried once."""
    assert better.seams is not None
    source, target = better.seams.source, better.seams.target
    step = np.flatnonzero(better.seams.stitched)
    _, first = np.unique(source[step] * len(data.obs) + target[step], return_index=True)
    every = step[first]
    step = every[simulator.settable(data.obs[source[every]])]
    if not len(step):
        return {"seams": len(every), "tried": 0}
    unit = data.obs.std(0, dtype=np.float64)
    obs, recorded, promised = data.obs[source[step]], data.obs[source[step] + 1], data.obs[target[step]]
    old = np.searchsorted(data.row, source[step])  # the transition recorded from the same row

    def apart(a: Array, b: Array) -> Array:
        return np.linalg.norm((a - b) / unit, axis=1)

    landed, reward, ended = simulator.step(obs, better.action[step])
    replayed, old_reward, _ = simulator.step(obs, data.action[old])
    landing, as_before = apart(landed, promised), apart(replayed, promised)
    return {
        "seams": len(every),
        "tried": len(step),
        "bridged": spread(apart(recorded, promised)),
        "landing": spread(landing),
        "landing_of_bridged": float(np.median(landing / apart(recorded, promised))),
        "replay_floor": spread(apart(replayed, recorded)),
        "closer_than_recorded_action": float((landing < as_before).mean()),
        "really_ended": float(ended.mean()),
        "reward": off(better.reward[step], reward),
        "reward_replay_floor": float(np.abs(old_reward - data.reward[old]).mean()),
    }


def try_models(data: Dataset, run: Path, simulator: Simulator, many: int = 4096) -> dict[str, Any]:
    """The models on recorded steps they were not trained on: action between s and s', and its reward."""
    seed = json.loads((run / "config.json").read_text())["settings"]["seed"]
    table = step_table(data.split(0.95, seed)[1])  # as stitch.py splits for both models
    rows = np.flatnonzero(simulator.settable(table["obs"]))
    rows = np.random.default_rng(0).permutation(rows)[:many]
    obs, next_obs = table["obs"][rows], table["next_obs"][rows]
    inverse, reward = (recall(run / "stages" / f"{name}.npz")[0] for name in ("inverse", "reward"))
    action = np.asarray(inverse.actions(obs, next_obs, jax.random.key(0)))
    landed, real, _ = simulator.step(obs, action)
    unit = data.obs.std(0, dtype=np.float64)
    return {
        "tried": len(rows),
        "moved": spread(np.linalg.norm((next_obs - obs) / unit, axis=1)),
        "landing": spread(np.linalg.norm((landed - next_obs) / unit, axis=1)),
        "reward": off(np.asarray(reward.rewards(obs, action, next_obs, jax.random.key(0))), real),
    }


def describe(data: Dataset, better: Dataset, simulator: Simulator) -> dict[str, Any]:
    """How much of some improved trajectories is stitched, and how varied they are."""
    seams = better.seams
    assert seams is not None
    steps, distinct = better.transitions, len(np.unique(seams.source))
    visits = len(np.unique(better.trajectory * len(data.obs) + seams.source))
    # A seam counts as often as trajectories pass it; those that can't be tried are taken to be like the others.
    step = np.flatnonzero(seams.stitched)
    step = step[simulator.settable(data.obs[seams.source[step]])]
    bias = 0.0
    if len(step):
        _, reward, _ = simulator.step(data.obs[seams.source[step]], better.action[step])
        bias = float((better.reward[step] - reward).mean())
    return {
        "trajectories": len(better),
        "return": float(better.returns.mean()),
        "return_before": float(seams.return_before.mean()),
        "steps": steps,
        "stitched_steps": float(seams.stitched.mean()),
        "seams_a_trajectory": float(seams.stitched.sum() / len(better)),
        "steps_from_a_repeated_state": float(1 - visits / steps),
        "distinct_states": distinct,
        "steps_a_distinct_state": steps / distinct,
        "effective_recorded_trajectories": effective(data.trajectory[np.searchsorted(data.row, seams.source)]),
        "at_horizon": float((better.length >= data.length.max()).mean()),
        "promised_too_much_of_return": float(bias * seams.stitched.sum() / np.abs(better.returns).sum()),
    }


def effective(number: Array) -> float:
    """How many equally frequent numbers would be as varied as these: 1 / Σ share²."""
    share = np.bincount(number) / len(number)
    return float(1 / np.square(share).sum())


def audit(data: Dataset, improved: Path) -> dict[str, Any]:
    """Everything that is measured."""
    files = sorted(improved.glob("improved.*")) if improved.is_dir() else [improved]
    better = load(files[0])
    if better.seams is None or better.info.get("improved_from") not in (None, data.fingerprint):
        raise SystemExit(f"{improved} was not made from this data set, or has no seams")
    simulator, groups, before = Simulator(data), {"all": better, "top tenth": better.top(10)}, data.top(10)
    return {
        "env": data.info["env_id"],
        "clipped_states": float(1 - simulator.settable(data.obs[data.row]).mean()),
        "seams": {name: try_seams(data, group, simulator) for name, group in groups.items()},
        "recorded_steps": try_models(data, improved, simulator) if improved.is_dir() else None,
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


def table(found: dict[str, Any]) -> str:
    """What a person looks at first."""
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
    """What made the file, by the files' names alone."""
    own = f"python benchmarks/seams.py {data.name} {improved.name} --out results/seams/{out.name}"
    if not improved.is_dir():
        return [own]
    settings = json.loads((improved / "config.json").read_text())["settings"]
    plain = {name: json.loads(json.dumps(asdict(config))) for name, config in PRESETS.items()}
    preset = next((name for name in plain if plain[name] == settings["config"]), "other")
    first = f"trajstitch improve {data.name} --preset {preset} --seed {settings['seed']} --out {improved.name}"
    return [first, own]


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data set that was improved")
    parser.add_argument("improved", type=Path, help="run directory of `trajstitch improve`, or the improved file")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    found = audit(load(asked.data), asked.improved)
    print(table(found))
    if asked.out:
        write_json(asked.out, {"commands": commands(asked.data, asked.improved, asked.out), **found})


if __name__ == "__main__":
    main()
