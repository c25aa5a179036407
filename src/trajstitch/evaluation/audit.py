"""Audit: the landings and rewards that improved data promise at seams, compared with the simulator's."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset, Int
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.env import Float
from trajstitch.evaluation.replay import Replays, Simulator, Unit, replay_seams, seam_number, seams_of
from trajstitch.progress import Tell, silent

_FLOOR_STEPS = 1024  # recorded steps that test the simulator
_FLOOR_LIMIT = 0.5  # typical steps; where recorded steps miss by more, the simulator is another one
_FLOOR_EXACT = 1e-3  # typical steps; the simulator that recorded the data is a thousand times nearer
_POINTS = 1000  # seams kept one by one, to be drawn
_DECILES = 10


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found; `summary` has the numbers, `replays` every seam."""

    settings: dict[str, Any]
    unit: Unit
    floor: dict[str, Any]  # recorded steps replayed: what the simulator itself misses
    replays: Replays

    def summary(self) -> dict[str, Any]:
        """Return all numbers, as plain ones."""
        found, unit = self.replays, self.unit
        numbers: dict[str, Any] = {
            "settings": self.settings,
            "seams": {
                "distinct": found.distinct,
                "chosen": found.chosen,
                "clipped": found.chosen - len(found.step),
                "replayed": len(found.step),
            },
            "scale": {"of": unit.of, "typical_step_in_std": unit.typical_step},
            "floor": self.floor,
            "landing": spread(found.landing),
            "landing_per_use": spread(np.repeat(found.landing, found.uses)),
            "most_used": float(found.uses.max() / found.uses.sum()),
            "landing_in_std": spread(found.landing * unit.typical_step),
            "promise": calibration(found.promised, found.landing),
            "bridged": None,
            "recorded_action": None,
            "reward": reward_error(found.reward_promised, found.reward),
            "really_ended": float(found.ended.mean()),
        }
        if found.bridged is not None and found.recorded_landing is not None:
            known = np.isfinite(found.bridged)
            landing, bridged, recorded = (x[known] for x in (found.landing, found.bridged, found.recorded_landing))
            if known.any():
                ratio = float(np.median(landing / np.maximum(bridged, 1e-9)))
                closer = float((landing < recorded).mean())
                numbers["bridged"] = {**spread(bridged), "median_ratio": ratio}
                numbers["recorded_action"] = {**spread(recorded), "seam_lands_closer": closer}
        return numbers

    def points(self) -> dict[str, list[float | None]]:
        """Return up to 1,000 seams one by one, in typical steps, to be drawn; None for a number not known."""
        found = self.replays
        shown = np.unique(np.linspace(0, len(found.step) - 1, _POINTS).astype(np.int64))
        columns = {"promised": found.promised, "bridged": found.bridged, "landing": found.landing}
        return {
            name: [float(f"{x:.4g}") if np.isfinite(x) else None for x in values[shown]]
            for name, values in columns.items()
            if values is not None
        }


def audit(
    improved: Dataset,
    env: str | None = None,
    *,
    data: Dataset | None = None,
    physics: str | None = None,
    sample: int = 20_000,
    seed: int = 0,
    tell: Tell = silent,
) -> Audit:
    """Replay the seams of improved data in the simulator.

    Arguments:
        improved: the improved data, with their seams.
        env: the Gymnasium id; unless given, the environment of the data.
        data: the original data. With them the audit also knows the distance bridged and what the recorded action
            would do, and distances have the scale of the original data.
        physics: gymnasium or d4rl; unless given, the physics of the data.
        sample: replay at most this many distinct seams, a random sample; 0 for all.
        seed: the random seed of the sample.
        tell: a callback for progress.
    """
    if sample < 0:
        raise InputError(f"sample must not be below 0, not {sample}; 0 replays all seams")
    seams = seams_of(improved)
    if not seams.stitched.any():
        raise InputError("nothing is stitched in these data, so there is no seam to replay")
    if data is not None:
        _check_original(improved, data)
    env = env or envs.env_named_in(improved.info)
    if not env:
        raise InputError("the data name no environment; give --env (env in Python), such as --env Hopper-v5")
    physics = physics or str(improved.info.get("physics", "gymnasium"))
    settings = {
        "env": env,
        "physics": physics,
        "sample": sample,
        "seed": seed,
        "improved": improved.steps_fingerprint,
        "original": None if data is None else data.steps_fingerprint,
    }
    simulator = Simulator(env, physics, improved.info)
    try:
        want = (simulator.env.obs_dim, len(simulator.env.action_low))
        have = (improved.obs_dim, improved.action_dim)
        check_same_sizes("the data have", have, f"{env} has", want, "choose the environment they came from")
        unit = Unit.of_data(improved, data)
        floor = _floor(improved, data, simulator, unit, seed, env, physics)
        replays = replay_seams(improved, simulator, unit, data, sample=sample, seed=seed, tell=tell)
    finally:
        simulator.close()
    if not len(replays.step):
        raise InputError(
            f"all {replays.chosen:,} seams start from a state with a clipped velocity, which cannot be set; there "
            "is none to replay"
        )
    return Audit(settings, unit, floor, replays)


def _floor(
    improved: Dataset,
    original: Dataset | None,
    simulator: Simulator,
    unit: Unit,
    seed: int,
    env: str,
    physics: str,
) -> dict[str, Any]:
    """Replay recorded steps; InputError if the simulator does not repeat them."""
    step = np.flatnonzero(~seams_of(improved).stitched)
    if original is not None and not len(step):
        improved, step = original, np.arange(original.transitions)
    step = np.sort(np.random.default_rng(seed).permutation(step)[: 2 * _FLOOR_STEPS])
    step = step[simulator.settable(improved.obs[improved.row[step]])][:_FLOOR_STEPS]
    if not len(step):
        raise InputError("no recorded step of these data can be replayed, so the simulator cannot be tested")
    row = improved.row[step]
    landed, reward, _ = simulator.step(improved.obs[row], improved.action[step])
    missed = spread(unit.distance(landed, improved.obs[row + 1]))
    if not missed["median"] <= _FLOOR_LIMIT:
        raise InputError(
            f"{env} with physics {physics} misses recorded steps by {missed['median']:.2g} typical steps in the "
            "median, so it is not the simulator of these data; give the right --env or --physics"
        )
    error = float(np.abs(reward - improved.reward[step]).mean())
    return {"steps": len(step), **missed, "reward_error": error, "exact": missed["median"] <= _FLOOR_EXACT}


def _check_original(improved: Dataset, original: Dataset) -> None:
    """Raise InputError unless the improved data were made from the original."""
    seams = seams_of(improved)
    same = improved.info.get("improved_from", original.steps_fingerprint) == original.steps_fingerprint
    same = same and improved.obs_dim == original.obs_dim
    same = same and max(seams.source.max(), seams.target.max()) < len(original.obs)
    step = np.flatnonzero(seams.stitched & (seams.source >= 0))
    if not same or not (improved.obs[improved.row[step]] == original.obs[seams.source[step]]).all():
        raise InputError("the improved data were not made from the data given; give the original data as --data")


def drop_seams(improved: Dataset, found: Audit, worse_than: float) -> Dataset:
    """Return the data without the seams that land worse than so many typical steps in the simulator.

    A trajectory is cut before such a step, and what follows the step is a trajectory of its own with the same
    `return_before`. Seams that could not be replayed stay.

    Arguments:
        improved: the data that were audited.
        found: their audit, of all seams (sample 0).
        worse_than: the largest landing error that is kept, in typical steps.
    """
    if found.settings["improved"] != improved.steps_fingerprint:
        raise InputError("this is an audit of other data; audit these data first")
    if found.replays.chosen < found.replays.distinct:
        raise InputError("seams can be dropped only after all of them were replayed; audit with sample 0")
    if not worse_than >= 0:
        raise InputError(f"a landing error is not below 0, so seams worse than {worse_than:g} cannot be dropped")
    seams, replays = seams_of(improved), found.replays
    stitched = np.flatnonzero(seams.stitched)
    worse = seam_number(seams, replays.step[~(replays.landing <= worse_than)])
    dropped = stitched[np.isin(seam_number(seams, stitched), worse)]
    info = {
        **improved.info,
        "used_simulator": True,
        "audit_env": str(found.settings["env"]),
        "audit_physics": str(found.settings["physics"]),
        "audit_drop_worse_than": float(worse_than),
        "audit_dropped_steps": len(dropped),
        "audit_untested_seams": replays.chosen - len(replays.step),
    }
    return dataclasses.replace(_without_steps(improved, dropped), info=info)


def _without_steps(data: Dataset, dropped: Int) -> Dataset:
    """Return the data without these steps; a trajectory is cut at each, and empty pieces are left out."""
    kept = np.ones(data.transitions, bool)
    kept[dropped] = False
    step = np.flatnonzero(kept)
    if not len(step):
        raise InputError("every step of these data would be dropped; allow a larger landing error")
    first = np.ones(len(step), bool)  # of a piece: the step before is gone, or of another trajectory
    first[1:] = (np.diff(step) > 1) | (np.diff(data.trajectory[step]) > 0)
    start = np.append(np.flatnonzero(first), len(step))
    last = step[start[1:] - 1]
    owner = data.trajectory[last]
    return dataclasses.replace(
        data,
        obs=data.obs[np.insert(data.row[step], start[1:], data.row[last] + 1)],
        action=data.action[step],
        reward=data.reward[step],
        start=start,
        terminal=data.terminal[owner] & (last == data.start[owner + 1] - 1),
        seams=seams_of(data).choose(step, owner),
        weight=data.choose_weight(step),
        origin=None,  # pieces are not the recorded episodes
    )


# -- numbers -----------------------------------------------------------------------------------------------------


def spread(values: NDArray[Any]) -> dict[str, float]:
    """Return median and 90th percentile of the numbers that are known."""
    median, p90 = np.nanquantile(values, [0.5, 0.9])
    return {"median": float(median), "p90": float(p90)}


def reward_error(promised: NDArray[Any], real: NDArray[Any]) -> dict[str, float]:
    """Return the errors of promised rewards; a positive bias is a promise that is too high."""
    error = promised - real
    return {
        "promised": float(promised.mean()),
        "bias": float(error.mean()),
        "standard_error": float(error.std() / np.sqrt(len(error))),
        "mean_absolute": float(np.abs(error).mean()),
        "share_too_high": float((error > 0).mean()),
    }


def calibration(promised: Float, real: Float) -> dict[str, Any] | None:
    """Compare promised with real landing errors; None where no model made a promise.

    `deciles` are groups of seams in the order of their promise; a promise that is right has the same number twice.
    """
    known = np.isfinite(promised)
    if not known.any():
        return None
    promised, real = promised[known], real[known]
    groups = np.array_split(np.argsort(promised, kind="stable"), min(_DECILES, len(promised)))
    return {
        "seams": len(promised),
        **{f"promised_{name}": value for name, value in spread(promised).items()},
        "pearson": _correlation(promised, real),
        "spearman": _correlation(rankdata(promised), rankdata(real)),
        "median_ratio": float(np.median(real / np.maximum(promised, 1e-9))),
        "share_within_promise": float((real <= promised).mean()),
        "deciles": [
            {
                "seams": len(group),
                "promised": float(np.median(promised[group])),
                "promised_up_to": float(promised[group[-1]]),
                **spread(real[group]),
            }
            for group in groups
        ],
    }


def _correlation(a: Float, b: Float) -> float | None:
    """Return Pearson's correlation; None where a column is constant."""
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
