"""Methods: trained on a data set, P seeds at once, in memory or into a run directory that can be killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch import fit
from trajstitch.bc import BC, WeightedBC
from trajstitch.cql import CQL
from trajstitch.data import Dataset
from trajstitch.diffuser import Diffuser
from trajstitch.errors import InputError
from trajstitch.iql import IQL
from trajstitch.judge import Judge, Judged, judge_run
from trajstitch.mbop import MBOP, TSMBOP
from trajstitch.method import Method
from trajstitch.mopo import MOPO
from trajstitch.morel import MOReL
from trajstitch.planner import Planner
from trajstitch.policy import Policy, load_policy, save_policy, stack
from trajstitch.progress import Tell, silent
from trajstitch.run import Run
from trajstitch.td3bc import TD3BC, TD3TSBC

METHODS: dict[str, Method] = {
    "bc": BC(),
    "percent-bc": BC(percent=10.0),
    "gaussian-bc": BC(head="gaussian"),
    "weighted-bc": WeightedBC(),
    "td3bc": TD3BC(),
    "td3tsbc": TD3TSBC(),
    "iql": IQL(),
    "cql": CQL(),
    "mbop": MBOP(),
    "tsmbop": TSMBOP(),
    "diffuser": Diffuser(),
    "mopo": MOPO(),
    "morel": MOReL(),
}


def configure(method: str, **settings: Any) -> Method:
    """The method's defaults with these settings; steps, batch and rate belong to its `fit`."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    config = METHODS[method]
    of_fit = {name: settings.pop(name) for name in ("steps", "batch", "rate") if name in settings}
    if unknown := settings.keys() - {field.name for field in dataclasses.fields(config)}:
        raise InputError(f"{method} has no setting {sorted(unknown)[0]!r}")
    settings["fit"] = dataclasses.replace(config.schedule, **of_fit)
    return dataclasses.replace(config, **settings)


def train(
    method: str,
    data: Dataset,
    *,
    improved: Dataset | None = None,
    seed: int = 0,
    seeds: int | None = None,
    tell: Tell = silent,
    **settings: Any,
) -> Policy | Planner:
    """Train in memory and return the policy (or planner, where the method plans) of one seed, or `seeds` stacked.

    td3tsbc and tsmbop take the `improved` data as well.
    """
    config = configure(method, **settings)
    config.check(data, improved)
    policy: Any = None
    for state, mean in _steps(config, data, improved, range(seed, seed + (seeds or 1)), _chunk(config), tell):
        policy = config.policy(state.model)
        tell(int(state.step), config.schedule.steps, f"loss {mean['loss'].mean():.4g}")
    return policy if seeds else jax.tree.map(lambda leaf: leaf[0], policy)


def train_run(
    method: str,
    data: Dataset,
    out: str | Path,
    *,
    improved: Dataset | None = None,
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
    every = _chunk(config) if every is None else every
    if every < 1:
        raise InputError(f"a checkpoint every {every} steps is not possible; give at least 1")
    config.check(data, improved)
    if judge:
        judge.check(data)
    settings_asked = {
        "method": method,
        "config": dataclasses.asdict(config),
        "seed": seed,
        "seeds": seeds,
        "every": every,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }
    if improved is not None:
        settings_asked["improved"] = {"fingerprint": improved.fingerprint}
    run = Run.open(out, settings_asked, overwrite)
    last, seed_range = run.path / "policy.npz", range(seed, seed + seeds)
    for state, mean in [] if last.exists() else _steps(config, data, improved, seed_range, every, tell, run):
        step = int(state.step)
        tell(step, config.schedule.steps, f"loss {mean['loss'].mean():.4g}")
        save_policy(config.policy(state.model), run.checkpoint(step), data.info, overwrite=True)
        run.record(step, **{name: _numbers(value) for name, value in mean.items()})
        run.save_state(state)  # last, so that what it says is done is on disk
        if judge:
            judge_run(run, judge)
    if not last.exists():
        save_policy(load_policy(run.checkpoint(config.schedule.steps)), last, data.info)
    run.forget_state()
    judged = judge_run(run, judge, tell) if judge else None
    if judged:
        save_policy(best_policies(run, judged), run.path / "policy-best.npz", data.info, overwrite=True)
    return run, judged


def best_policies(run: Run, judged: Judged) -> Policy | Planner:
    """Each seed's policy at its own best checkpoint."""
    chosen = [
        jax.tree.map(lambda leaf, p=p: leaf[p], load_policy(run.checkpoint(step)))
        for p, step in enumerate(judged.best_steps)
    ]
    return stack(chosen)


def _steps(
    config: Method,
    data: Dataset,
    improved: Dataset | None,
    seeds: range,
    every: int,
    tell: Tell,
    run: Run | None = None,
) -> Iterator[tuple[fit.State, dict[str, NDArray[Any]]]]:
    """The training itself, from the run's last state where there is one."""

    def prepare() -> Any:
        return config.prepare(data, lambda done, total, note: tell(done, total, f"learnt first, {note}"))

    state: fit.State | None = None
    prepared = run.prepared(prepare) if run else prepare()
    for learner, table, until in config.stages(data, improved, prepared):
        if state is None:
            fresh = fit.start(config, table, seeds)
            state = run.load_state(fresh) if run else fresh
        for reached, mean in fit.run(learner, state, table, seeds, every, until):
            state = reached
            yield state, mean


def _numbers(values: NDArray[Any]) -> list[float | None]:
    """As JSON has them, which knows no nan."""
    return [float(x) if np.isfinite(x) else None for x in values]


def _chunk(config: Method) -> int:
    """Twenty checkpoints a run."""
    return max(1, config.schedule.steps // 20)
