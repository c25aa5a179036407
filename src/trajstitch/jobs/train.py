"""Train into a run directory, with checkpoints and scores; after a kill, the same call continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run, numbers
from trajstitch.jobs.score import RunScores, ScoreConfig, score_run
from trajstitch.methods import configure, name_of
from trajstitch.methods.method import Method
from trajstitch.methods.train import chunk, train_steps
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy, stack
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.progress import Tell, silent
from trajstitch.tracking import Log, by_seed, log_nothing
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
    config = configure(method, **settings)
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    every = chunk(config) if every is None else every
    if every < 1:
        raise InputError(f"a checkpoint every {every} steps is not possible; give at least 1")
    config.check(data, improved)
    if scoring:
        scoring.check(data)
    settings_asked = {
        "method": name_of(method),
        "config": dataclasses.asdict(config),
        "seed": seed,
        "seeds": seeds,
        "every": every,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }
    if improved is not None:
        settings_asked["improved"] = {"fingerprint": improved.fingerprint}
    with Run.working(out, settings_asked, overwrite, inputs) as run:
        last = run.path / "policy.npz"
        if not last.exists():
            _train(run, config, data, improved, range(seed, seed + seeds), every, scoring, tell, log)
            save_policy(load_policy(run.checkpoint(config.fit.steps)), last, data.info)
        run.forget_state()
        scored = score_run(run, scoring, tell) if scoring else None
        if scored:
            for step, returns in zip(scored.step, scored.returns.mean(-1), strict=True):
                log(step, by_seed({"return": returns}, range(seed, seed + seeds)))
            save_policy(best_policies(run, scored), run.path / "policy-best.npz", data.info, overwrite=True)
    return run, scored


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
        save_policy(config.policy(state.model), run.checkpoint(step), data.info, overwrite=True)
        run.record(step, **{name: numbers(value) for name, value in mean.items()})
        log(step, by_seed(mean, seeds))
        run.save_state(state)  # last, so that everything up to its step is on disk
        if scoring:
            score_run(run, scoring)


def best_policies(run: Run, scored: RunScores) -> Policy | ActionPlanner:
    """Return each seed's policy at its own best checkpoint."""
    chosen = [pick(load_policy(run.checkpoint(step)), p) for p, step in enumerate(scored.best_steps)]
    return stack(chosen)
