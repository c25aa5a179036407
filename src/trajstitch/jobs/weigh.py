"""Weigh a data set, in memory or with a run directory, so that a killed run can continue.

config.json        the settings, the data's fingerprint, versions
metrics.jsonl      losses, values and advantages of every member at every check
state.npz          the training state at the last check, removed when training is finished
appraisal.npz      what the critics say of every step and state; another temperature needs no new training
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from trajstitch.checks import check_settings
from trajstitch.data import Dataset, check_dataset, check_finite
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run, check_owner, numbers, read_stored
from trajstitch.jobs.together import Part, check_same_dimensions, train_parts
from trajstitch.methods.iql import scaled_steps
from trajstitch.methods.weigh import (
    Appraisal,
    Weigh,
    appraise,
    member_seeds,
    start_critics,
    train_critics,
    weigh_by,
)
from trajstitch.progress import Tell, silent
from trajstitch.storage.archive import INFO, read_arrays, write_arrays
from trajstitch.tracking import Log, by_seed, log_nothing
from trajstitch.training.loop import State

_APPRAISAL = "appraisal.npz"
_CHECKS = 20  # times that progress is recorded
_AFTER_TRAINING = ("effective_share", "temperature", "gae_lambda")  # settings that need no other critics


def weigh(
    data: Dataset,
    config: Weigh | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    tell: Tell = silent,
) -> Dataset:
    """Return the data with one weight per step: how much it is worth cloning.

    Arguments:
        data: the data set, with rewards.
        config: the settings; `Weigh()` unless given.
        seed: the random seed.
        out: a run directory to work in; without it, everything stays in memory.
        overwrite: start again if `out` holds a run with other settings or data.
        tell: a callback for progress.
    """
    config = config or Weigh()
    check_settings(config, Weigh, "WEIGH_PRESETS")
    check_dataset("data", data)
    if out is not None:
        return weigh_run(data, config, out, seed=seed, overwrite=overwrite, tell=tell)[1]
    config.check(data)
    table = scaled_steps(data)
    state = start_critics(table, config, seed)
    for reached, mean in train_critics(table, config, state, seed, _every(config)):
        state = reached
        tell(int(state.step), config.fit.steps, f"loss {mean['loss'].mean():.4g}")
    return weigh_by(data, appraise(state.model, data), config)


def weigh_run(
    data: Dataset,
    config: Weigh,
    out: str | Path,
    *,
    seed: int = 0,
    overwrite: bool = False,
    inputs: Sequence[str] = (),
    tell: Tell = silent,
    log: Log = log_nothing,
) -> tuple[Run, Dataset, Appraisal]:
    """Weigh with a run directory; the same call continues a run that was stopped, with the same weights.

    What a finished run's critics said is used again, with another temperature or share too.

    Arguments:
        data: the data set, with rewards.
        config: the settings.
        out: the run directory.
        seed: the random seed.
        overwrite: start again if `out` holds a run with other settings or data.
        inputs: the files the data came from, which must not lie in `out`.
        tell: a callback for progress.
        log: a tracker, which is told the losses of the critics.
    """
    config.check(data)
    with Run.working(out, run_settings(data, config, seed), overwrite, inputs) as run:
        appraisal = stored_appraisal(run, data, config)
        if appraisal is None:
            appraisal = _train_and_appraise(run, data, config, seed, tell, log)
            store_appraisal(run, appraisal)
        run.forget_state()
    return run, weigh_by(data, appraisal, config), appraisal


def weigh_together(
    sets: Sequence[Dataset], config: Weigh, outs: Sequence[str | Path], *, seed: int = 0, tell: Tell = silent
) -> None:
    """Train the critics of several data sets in one program, each into a run directory of its own.

    `weigh_run`, called with the same settings, then finds what they said. After a kill the same call continues.

    Arguments:
        sets: the data sets, with rewards, states of one size and actions of one size.
        config: the settings.
        outs: the run directory of each.
        seed: the random seed.
        tell: a callback for progress.
    """
    check_same_dimensions(sets)
    for data in sets:
        config.check(data)
    with ExitStack() as stack:
        parts, unfinished = [], []
        for data, out in zip(sets, outs, strict=True):
            run = stack.enter_context(Run.working(out, run_settings(data, config, seed)))
            if stored_appraisal(run, data, config) is None:
                table = scaled_steps(data)
                state = run.load_state(start_critics(table, config, seed))
                parts.append(Part(config, table, state, partial(_keep, run)))
                unfinished.append((run, data, state))
        train_parts(parts, member_seeds(config, seed), _every(config), tell)
        for run, data, like in unfinished:
            store_appraisal(run, appraise(run.load_state(like).model, data))
            run.forget_state()


def run_settings(data: Dataset, config: Weigh, seed: int) -> dict[str, Any]:
    """Return what a run directory belongs to: all that its critics depend on."""
    trained = {k: v for k, v in dataclasses.asdict(config).items() if k not in _AFTER_TRAINING}
    return {"job": "weigh", "config": trained, "seed": seed, "data": {"fingerprint": data.steps_fingerprint}}


def stored_appraisal(run: Run, data: Dataset, config: Weigh) -> Appraisal | None:
    """Return what a finished run's critics said of these data; None, and a warning, if it cannot be used."""
    return read_stored(run.path / _APPRAISAL, partial(_read_appraisal, run.identity, data, config), None)


def store_appraisal(run: Run, appraisal: Appraisal) -> None:
    """Store what the critics of a run say."""
    arrays = {"advantage": appraisal.advantage, "value": appraisal.value}
    write_arrays(run.path / _APPRAISAL, arrays, {"run": run.identity}, overwrite=True)


def _train_and_appraise(run: Run, data: Dataset, config: Weigh, seed: int, tell: Tell, log: Log) -> Appraisal:
    """Train the critics from the last check on, and ask them."""
    table = scaled_steps(data)
    state = run.load_state(start_critics(table, config, seed))
    for reached, mean in train_critics(table, config, state, seed, _every(config)):
        state = reached
        tell(int(state.step), config.fit.steps, f"loss {mean['loss'].mean():.4g}")
        log(int(state.step), by_seed(mean, range(config.members)))
        _keep(run, state, mean)
    return appraise(state.model, data)


def _keep(run: Run, state: State, mean: Mapping[str, Any]) -> None:
    """Write the metrics and the state of a check."""
    run.record(int(state.step), **{name: numbers(value) for name, value in mean.items()})
    run.save_state(state)  # last, so that everything up to its step is on disk


def _read_appraisal(identity: str, data: Dataset, config: Weigh, file: Path) -> Appraisal | None:
    stored = read_arrays(file)
    check_owner(json.loads(str(stored[INFO])).get("run"), identity)
    arrays = {"advantage": (config.members, data.transitions), "value": (len(data.obs),)}
    for name, shape in arrays.items():
        if stored[name].shape != shape or stored[name].dtype.kind != "f":
            raise InputError(
                f"{name} is {stored[name].dtype} of shape {stored[name].shape}, not floats of {shape}"
            )
        check_finite(name, stored[name])
    return Appraisal(stored["advantage"], stored["value"])


def _every(config: Weigh) -> int:
    return max(1, -(-config.fit.steps // _CHECKS))
