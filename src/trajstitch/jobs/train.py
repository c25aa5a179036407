"""Train into a run directory, with checkpoints and scores; after a kill, the same call continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run, numbers
from trajstitch.jobs.score import RunScores, ScoreConfig, score_run
from trajstitch.jobs.together import Part, check_same_dimensions, train_parts
from trajstitch.methods import configure, name_of
from trajstitch.methods.method import Method
from trajstitch.methods.train import check_given, check_seeds, chunk, train_steps
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy, stack
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.progress import Tell, silent
from trajstitch.tracking import Log, by_seed, log_nothing
from trajstitch.training import loop
from trajstitch.training.networks import pick


def train_run(
    method: str | Method,
    data: Dataset,
    out: str | Path,
    *,
    improved: Dataset | None = None,
    seed: int = 0,
    seeds: int = 1,
    every: int | None = None,
    scoring: ScoreConfig | None = None,
    overwrite: bool = False,
    inputs: Sequence[str] = (),
    tell: Tell = silent,
    log: Log = log_nothing,
    **settings: Any,
) -> tuple[Run, RunScores | None]:
    """Train into a run directory, with checkpoints and, if wanted, their scores.

    After a kill at any moment, the same call continues from the last checkpoint and ends with the same policies.

    Arguments:
        method: its name, a key of `trajstitch.methods.METHODS`, or a `Method` of the caller's own.
        data: the data set to learn from.
        out: the run directory.
        improved: the improved data set, for td3tsbc and tsmbop only.
        seed: the first random seed.
        seeds: how many seeds to train side by side.
        every: steps between checkpoints; a twentieth of all unless given.
        scoring: where and how to score every checkpoint; without it, nothing is scored.
        overwrite: start again if `out` holds a run with other settings or data.
        inputs: the files the data came from, which must not lie in `out`.
        tell: a callback for progress.
        log: a tracker, which is told the losses and scores of every checkpoint.
        settings: fields of the method's dataclass; also steps, batch and rate of its `fit`.
    """
    check_given(data, improved)
    config = configure(method, **settings)
    every = _checked_every(config, seeds, every)
    config.check(data, improved)
    if scoring:
        scoring.check(data)
    asked = _asked(method, config, data, seed, seeds, every)
    if improved is not None:
        asked["improved"] = {"fingerprint": improved.fingerprint}
    with Run.working(out, asked, overwrite, inputs) as run:
        if not _finished(run):
            _train(run, config, data, improved, range(seed, seed + seeds), every, scoring, tell, log)
            _finish(run, config, data)
        run.forget_state()
        scored = score_run(run, scoring, tell) if scoring else None
        if scored:
            for step, returns in zip(scored.step, scored.returns.mean(-1), strict=True):
                log(step, by_seed({"return": returns}, range(seed, seed + seeds)))
            save_policy(best_policies(run, scored), run.path / "policy-best.npz", data.info, overwrite=True)
    return run, scored


def _checked_every(config: Method, seeds: int, every: int | None) -> int:
    """Return the steps between checkpoints; InputError if they, or the seeds, are fewer than one."""
    check_seeds(seeds)
    every = chunk(config) if every is None else every
    if every < 1:
        raise InputError(f"a checkpoint every {every} steps is not possible; give at least 1")
    return every


def _asked(
    method: str | Method, config: Method, data: Dataset, seed: int, seeds: int, every: int
) -> dict[str, Any]:
    """Return the settings that a run directory belongs to."""
    return {
        "method": name_of(method),
        "config": dataclasses.asdict(config),
        "seed": seed,
        "seeds": seeds,
        "every": every,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }


def _finished(run: Run) -> bool:
    return (run.path / "policy.npz").exists()


def _finish(run: Run, config: Method, data: Dataset) -> None:
    """Write the file that says that training is finished."""
    save_policy(load_policy(run.checkpoint(config.fit.steps)), run.path / "policy.npz", data.info)


def _train(
    run: Run,
    config: Method,
    data: Dataset,
    improved: Dataset | None,
    seeds: range,
    every: int,
    scoring: ScoreConfig | None,
    tell: Tell,
    log: Log,
) -> None:
    """Train from the last checkpoint to the end."""
    steps = train_steps(config, data, improved, seeds, every, tell, run.prepared, run.load_state)
    for state, mean in steps:
        step = int(state.step)
        tell(step, config.fit.steps, f"loss {mean['loss'].mean():.4g}")
        log(step, by_seed(mean, seeds))
        _checkpoint(run, config, data, state, mean)
        if scoring:
            score_run(run, scoring)


def _checkpoint(run: Run, config: Method, data: Dataset, state: loop.State, mean: Mapping[str, Any]) -> None:
    """Write the policies, the metrics and the state of a step."""
    step = int(state.step)
    save_policy(config.policy(state.model), run.checkpoint(step), data.info, overwrite=True)
    run.record(step, **{name: numbers(value) for name, value in mean.items()})
    run.save_state(state)  # last, so that everything up to its step is on disk


# -- several data sets in one program ----------------------------------------------------------------------------


def train_together(
    method: str,
    sets: Sequence[Dataset],
    outs: Sequence[str | Path],
    settings: Sequence[Mapping[str, Any]],
    *,
    seed: int = 0,
    seeds: int = 1,
    every: int | None = None,
    tell: Tell = silent,
) -> None:
    """Train a method on several data sets in one program, each into a run directory of its own.

    A GPU takes little longer for all of them than for one. `train_run`, called with the same settings, then finds
    each of the runs finished, with the policies that it would have trained but for rounding, which many steps may
    make large. After a kill the same call continues.

    Arguments:
        method: its name; not every method can (`Method.joins`).
        sets: the data sets, with states of one size and actions of one size.
        outs: the run directory of each.
        settings: the settings for each; they may differ in what a model carries (`Method.carried`) alone.
        seed: the first random seed.
        seeds: how many seeds to train for each.
        every: steps between checkpoints; a twentieth of all unless given.
        tell: a callback for progress.
    """
    configs = [configure(method, **own) for own in settings]
    _check_alike(configs)
    every = _checked_every(configs[0], seeds, every)
    check_same_dimensions(sets)
    for config, data in zip(configs, sets, strict=True):
        config.check(data)
    with ExitStack() as stack:
        parts, unfinished = [], []
        for config, data, out in zip(configs, sets, outs, strict=True):
            run = stack.enter_context(Run.working(out, _asked(method, config, data, seed, seeds, every)))
            if not _finished(run):
                table = config.table(data)
                state = run.load_state(loop.start(config, table, range(seed, seed + seeds)))
                parts.append(Part(config, table, state, partial(_checkpoint, run, config, data)))
                unfinished.append((run, config, data))
        train_parts(parts, range(seed, seed + seeds), every, tell)
        for run, config, data in unfinished:
            _finish(run, config, data)
            run.forget_state()


def _check_alike(configs: Sequence[Method]) -> None:
    """Raise InputError unless these settings can be trained in one program."""
    first = configs[0]
    if not first.joins:
        kind = type(first).__name__
        raise InputError(f"{kind} cannot learn from several data sets at once; train on each by a call of its own")
    if any(config.joint != first.joint for config in configs):
        raise InputError("data sets that are trained on together need the same settings")


def best_policies(run: Run, scored: RunScores) -> Policy | ActionPlanner:
    """Return each seed's policy at its own best checkpoint."""
    chosen = [pick(load_policy(run.checkpoint(step)), p) for p, step in enumerate(scored.best_steps)]
    return stack(chosen)
