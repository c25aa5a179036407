"""Methods: trained on a data set, P seeds at once, in memory or into a run directory that can be killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from numpy.typing import NDArray

from trajstitch import fit
from trajstitch.bc import BC, WeightedBC
from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.judge import Judge, Judged, judge_run
from trajstitch.policy import Policy, load_policy, save_policy, stack
from trajstitch.progress import Tell, silent
from trajstitch.run import Run

METHODS: dict[str, BC] = {
    "bc": BC(),
    "percent-bc": BC(percent=10.0),
    "gaussian-bc": BC(head="gaussian"),
    "weighted-bc": WeightedBC(),
}


def configure(method: str, **settings: Any) -> BC:
    """The method's defaults with these settings; steps, batch and rate belong to its `fit`."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    config = METHODS[method]
    of_fit = {name: settings.pop(name) for name in ("steps", "batch", "rate") if name in settings}
    if unknown := settings.keys() - {field.name for field in dataclasses.fields(config)}:
        raise InputError(f"{method} has no setting {sorted(unknown)[0]!r}")
    return dataclasses.replace(config, **settings, fit=dataclasses.replace(config.fit, **of_fit))


def train(
    method: str,
    data: Dataset,
    *,
    seed: int = 0,
    seeds: int | None = None,
    tell: Tell = silent,
    **settings: Any,
) -> Policy:
    """Train in memory and return the policy of one seed, or `seeds` of them stacked."""
    config = configure(method, **settings)
    policy: Any = None
    for state, loss in _steps(config, data, range(seed, seed + (seeds or 1)), _chunk(config)):
        policy = state.model
        tell(int(state.step), config.fit.steps, f"loss {loss.mean():.4g}")
    return policy if seeds else jax.tree.map(lambda leaf: leaf[0], policy)


def train_run(
    method: str,
    data: Dataset,
    out: str | Path,
    *,
    seed: int = 0,
    seeds: int = 1,
    every: int | None = None,
    judge: Judge | None = None,
    overwrite: bool = False,
    tell: Tell = silent,
    **settings: Any,
) -> tuple[Run, Judged | None]:
    """Train into a run directory with a checkpoint (and, with a judge, its scores) every `every` steps.

    Killed at any moment, the same call goes on from the last checkpoint and ends with the same policies.
    """
    config = configure(method, **settings)
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    every = every or _chunk(config)
    if every < 1:
        raise InputError(f"a checkpoint every {every} steps is not possible; give at least 1")
    if judge:
        judge.check(data)
    run = Run.open(
        out,
        {
            "method": method,
            "config": dataclasses.asdict(config),
            "seed": seed,
            "seeds": seeds,
            "every": every,
            "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
        },
        overwrite,
    )
    last = run.path / "policy.npz"
    for state, loss in [] if last.exists() else _steps(config, data, range(seed, seed + seeds), every, run):
        step = int(state.step)
        tell(step, config.fit.steps, f"loss {loss.mean():.4g}")
        save_policy(state.model, run.checkpoint(step), data.info, overwrite=True)
        run.record(step, loss=[float(x) for x in loss])
        run.save_state(state)  # last, so that what it says is done is on disk
        if judge:
            judge_run(run, judge)
    if not last.exists():
        save_policy(load_policy(run.checkpoint(config.fit.steps)), last, data.info)
        run.forget_state()
    judged = judge_run(run, judge, tell) if judge else None
    if judged:
        save_policy(best_policies(run, judged), run.path / "policy-best.npz", data.info, overwrite=True)
    return run, judged


def best_policies(run: Run, judged: Judged) -> Policy:
    """Each seed's policy at its own best checkpoint."""
    chosen = [
        jax.tree.map(lambda leaf, p=p: leaf[p], load_policy(run.checkpoint(step)))
        for p, step in enumerate(judged.best_steps)
    ]
    return stack(chosen)


def _steps(
    config: BC, data: Dataset, seeds: range, every: int, run: Run | None = None
) -> Iterator[tuple[fit.State, NDArray[Any]]]:
    """The training itself, from the run's last state where there is one."""
    table = config.table(data)
    state = fit.start(config, table, seeds)
    return fit.run(config, run.load_state(state) if run else state, table, seeds, every)


def _chunk(config: BC) -> int:
    """Twenty checkpoints a run."""
    return max(1, config.fit.steps // 20)
