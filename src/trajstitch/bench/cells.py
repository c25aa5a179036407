"""Cells: make the data of one, train and score its policies, and write its record.

Everything goes through the jobs that commands use, in run directories of their own; so a cell that was killed
goes on where it was. Cells that need the same data wait for one another, on one machine or on several that share
the folder.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trajstitch.bench.datasets import FRACTIONS, scoring_of, stored_data
from trajstitch.bench.grid import (
    Cell,
    Grid,
    critics_folder,
    distilled_folder,
    failure_path,
    guide_file,
    record_path,
    stitched_folder,
)
from trajstitch.bench.reward_models import compare_reward_model
from trajstitch.bench.speed import machine
from trajstitch.bench.suites import PRESET, REWARD_DATA, improve_settings, reward_settings, train_settings
from trajstitch.data import Dataset, effective_steps
from trajstitch.evaluation.divergence import EXPERT_STD, distance_to_expert
from trajstitch.formats import load
from trajstitch.jobs.improve import Stages, improve_run
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.score import RunScores
from trajstitch.jobs.train import train_run, train_together
from trajstitch.jobs.weigh import weigh_run, weigh_together
from trajstitch.methods import METHODS, configure
from trajstitch.methods.weigh import Appraisal, Weigh, weigh_towards
from trajstitch.policies.policy import Policy, acting
from trajstitch.policies.policy_files import load_policy
from trajstitch.stitching.improve import Improve
from trajstitch.stitching.improve import improve as stitch
from trajstitch.storage.archive import read_arrays, reading, write_arrays
from trajstitch.storage.atomic import write_json
from trajstitch.storage.lock import waiting_for
from trajstitch.version import versions

_POLICY_SEEDS = 100  # between the first policies of two stitching seeds, so that no two policies share a seed
_TOGETHER = "timings.json"  # in a run that was trained together with others


class Sources(NamedTuple):
    """The data of a cell."""

    recorded: Dataset
    stitched: Dataset | None  # whole trajectories
    cloned: Dataset  # what a method that takes one data set is trained on


def run_cell(out: Path, shared: Path, grid: Grid, cell: Cell) -> dict[str, Any]:
    """Run a cell and write its record, unless another process did so meanwhile."""
    target = record_path(out, cell)
    with waiting_for(target):
        if target.exists():
            return {}
        clock, made = Clock(), _made_before(out / "runs" / cell.name)
        if cell.recipe.method is None:
            record = _reward_record(out, shared, grid, cell, clock)
        else:
            sources = make_sources(out, shared, grid, cell, clock)
            run, scores = _train(out, grid, cell, sources, clock)
            record = _record(out, grid, cell, sources, run, scores)
            if cell.data in FRACTIONS and cell.recipe.method == "gaussian-bc":
                record["expert"] = _compare_with_expert(out / "data" / cell.data, run)
        record["made"] = {"machine": machine(), "seconds": clock.seconds, **made}
        write_json(target, record)
        failure_path(out, cell).unlink(missing_ok=True)
        return record


def _made_before(folder: Path) -> dict[str, Any]:
    """Return whether a run was begun by a call that was stopped, and of what other cells' program it was part."""
    file = folder / _TOGETHER
    if not file.exists():
        return {"resumed": folder.exists()}
    with reading(file):
        together = json.loads(file.read_text())
        return {"resumed": together.pop("resumed") or (folder / "scores").exists(), "together": together}


class Clock:
    """Seconds of each part of a cell; a part that an earlier cell or call made takes none."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Count the seconds of a block."""
        begin = time.monotonic()
        yield
        self.seconds[part] = round(self.seconds.get(part, 0) + time.monotonic() - begin, 3)


# -- data --------------------------------------------------------------------------------------------------------


def make_sources(out: Path, shared: Path, grid: Grid, cell: Cell, clock: Clock | None = None) -> Sources:
    """Make the data of a cell, or load what an earlier one made."""
    recipe, clock = cell.recipe, clock or Clock()
    with clock.timing("data"):
        data = load_or_make(out, shared, grid, cell.data)
    cloned, stitched = data, None
    if (place := stitched_folder(cell)) is not None:
        assert cell.stitch_seed is not None
        config = improve_settings(recipe, cell.data, grid.preset)
        with waiting_for(out / place), clock.timing("stitch"):
            stitched, plan = _stitched(data, config, out / place, cell.stitch_seed)
            if recipe.iterations is not None:
                stitched = _after(data, config, recipe.iterations, out / place, cell.stitch_seed)
        plainly = recipe.method == "bc" and recipe.plan and not recipe.weigh  # what a plan is for
        cloned = plan if plan is not None and plainly else stitched
    policies = None if cell.teacher is None else _policies(out, shared, grid, cell.teacher)
    if policies is not None and (place := distilled_folder(cell)) is not None:
        config = improve_settings(recipe, cell.data, grid.preset)
        with waiting_for(out / place), clock.timing("stitch"):
            cloned = _distilled(data, config, policies, out / place, grid.seed)
    weigh, appraisal = PRESET[grid.preset].weigh, None
    if (place := critics_folder(cell)) is not None:
        with waiting_for(out / place), clock.timing("weigh"):
            _, cloned, appraisal = weigh_run(cloned, weigh, out / place, seed=cell.stitch_seed or grid.seed)
    if policies is not None and (place := guide_file(cell)) is not None:
        with waiting_for(out / place), clock.timing("weigh"):
            cloned = _guided(cloned, policies, weigh, appraisal, out / place)
    return Sources(data, stitched, cloned)


def _policies(out: Path, shared: Path, grid: Grid, cell: Cell) -> Policy:
    """Return the last policies of a cell, which is run unless it is finished."""
    run_cell(out, shared, grid, cell)
    return _policy(out / "runs" / cell.name / "policy.npz")


def _distilled(data: Dataset, config: Improve, policies: Policy, folder: Path, seed: int) -> Dataset:
    """Return the policies' step from every recorded state; a finished run is read."""
    if not (folder / "report.html").exists():
        improve_run(data, config, folder, seed=seed, policy=policies, ending=".traj")
    return load(folder / "plan.traj")


def _guided(data: Dataset, policies: Policy, config: Weigh, appraisal: Appraisal | None, file: Path) -> Dataset:
    """Return the data with weights towards the policies, which are made once.

    Another process or machine may round what the policies do in another way, and a run goes on only with the very
    data that it was begun with.
    """
    if not file.exists():
        weight = weigh_towards(data, acting(policies), config, appraisal).weight
        assert weight is not None
        write_arrays(file, {"weight": weight}, {})
    with reading(file):
        return dataclasses.replace(data, weight=read_arrays(file)["weight"])


def load_or_make(out: Path, shared: Path, grid: Grid, name: str) -> Dataset:
    """Return a data set of the folder, made unless it is there."""
    folder = out / "data" / name
    with waiting_for(folder / "data.traj"):
        return stored_data(name, folder, shared, grid.transitions)


def make_stitched(out: Path, shared: Path, grid: Grid, cell: Cell) -> None:
    """Stitch the data of a cell, if that is not done yet."""
    place = stitched_folder(cell)
    assert place is not None
    assert cell.stitch_seed is not None
    data = load_or_make(out, shared, grid, cell.data)
    with waiting_for(out / place):
        _stitched(data, improve_settings(cell.recipe, cell.data, grid.preset), out / place, cell.stitch_seed)


def _stitched(data: Dataset, config: Improve, folder: Path, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return the stitched data and the plan, if there is one; a finished run, which has a report, is read."""
    if not (folder / "report.html").exists():
        improve_run(data, config, folder, seed=seed, ending=".traj")
    plan = folder / "plan.traj"
    return load(folder / "improved.traj"), load(plan) if plan.exists() else None


def _after(data: Dataset, config: Improve, iterations: int, folder: Path, seed: int) -> Dataset:
    """Return the data after the first iterations of a finished run, by the models that it stored."""
    stages = Stages(folder, data.fingerprint, seed)

    def stage(name: str, key: Any, make: Callable[[], Any]) -> Any:
        whole = (
            tuple(config if isinstance(part, Improve) else part for part in key) if isinstance(key, tuple) else key
        )
        return stages(name, whole, make)

    return stitch(data, dataclasses.replace(config, iterations=iterations), seed=seed, stage=stage).dataset


def make_critics(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Train the critics that weigh the recorded data of cells in one program; `make_sources` then finds them."""
    places = {place: cell.data for cell in cells if (place := critics_folder(cell)) is not None}
    with ExitStack() as stack:
        for place in sorted(places):  # so that no two calls wait for each other
            stack.enter_context(waiting_for(out / place))
        sets = [load_or_make(out, shared, grid, name) for name in places.values()]
        weigh_together(sets, PRESET[grid.preset].weigh, [out / place for place in places], seed=grid.seed)


# -- policies ----------------------------------------------------------------------------------------------------


def policy_seeds(grid: Grid, cell: Cell) -> range:
    """Return the seeds of a cell's policies."""
    first = grid.seed + _POLICY_SEEDS * ((cell.stitch_seed or grid.seed) - grid.seed)
    return range(first, first + grid.seeds)


def train_cells(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Train the policies of cells of one method in one program; `run_cell` then finds them trained.

    Cells that other processes are at work on are waited for, and left to them.
    """
    clock = Clock()
    with ExitStack() as stack:
        for cell in sorted(cells, key=lambda cell: cell.name):  # so that no two calls wait for each other
            stack.enter_context(waiting_for(record_path(out, cell)))
        left = [cell for cell in cells if not (record_path(out, cell).exists() or _is_trained(out, cell))]
        if not left:
            return
        method, options = left[0].recipe.method, _schedule(grid, left[0])
        assert method is not None
        folders = [out / "runs" / cell.name for cell in left]
        settings = [train_settings(cell.recipe, cell.data, grid.preset, grid.steps) for cell in left]
        resumed = any(folder.exists() for folder in folders)
        sets = [make_sources(out, shared, grid, cell).cloned for cell in left]
        with clock.timing("train"):
            train_together(method, sets, folders, settings, **options)
        together = {"cells": [cell.name for cell in left], "seconds": clock.seconds, "resumed": resumed}
        for folder in folders:
            write_json(folder / _TOGETHER, together)


def _is_trained(out: Path, cell: Cell) -> bool:
    return (out / "runs" / cell.name / "policy.npz").exists()


def _schedule(grid: Grid, cell: Cell) -> dict[str, Any]:
    """Return the seeds and checkpoints of a cell's training."""
    method, seeds = cell.recipe.method, policy_seeds(grid, cell)
    assert method is not None
    config = configure(method, **train_settings(cell.recipe, cell.data, grid.preset, grid.steps))
    return {"seed": seeds[0], "seeds": len(seeds), "every": -(-config.fit.steps // grid.checkpoints)}


def _train(out: Path, grid: Grid, cell: Cell, sources: Sources, clock: Clock) -> tuple[Run, RunScores]:
    """Train and score the policies of a cell."""
    recipe, folder = cell.recipe, out / "runs" / cell.name
    assert recipe.method is not None
    both = METHODS[recipe.method].improved
    settings = train_settings(recipe, cell.data, grid.preset, grid.steps)
    options = {"improved": sources.stitched if both else None, **_schedule(grid, cell), **settings}
    data = sources.recorded if both else sources.cloned
    with clock.timing("train"):
        train_run(recipe.method, data, folder, **options)
    with clock.timing("score"):
        scoring = scoring_of(sources.recorded.info, grid.episodes)
        run, scores = train_run(recipe.method, data, folder, scoring=scoring, **options)
    assert scores is not None
    return run, scores


def _compare_with_expert(folder: Path, run: Run) -> dict[str, Any]:
    """Return how far the policies of every checkpoint are from the data's expert, in episodes of the expert."""
    expert, episodes = _policy(folder / "expert.npz"), load(folder / "expert.traj")
    obs = episodes.obs[episodes.row]
    found = [distance_to_expert(_policy(run.checkpoint(step)), expert, obs) for step in run.steps()]
    return {
        "std": EXPERT_STD,
        "fingerprint": episodes.fingerprint,
        "kl": [one.kl.tolist() for one in found],  # [C, P]
        "action_error": [one.action_error.tolist() for one in found],
    }


def _policy(file: Path) -> Policy:
    policy = load_policy(file)
    assert isinstance(policy, Policy)  # neither clones nor experts plan
    return policy


# -- records -----------------------------------------------------------------------------------------------------


def _record(out: Path, grid: Grid, cell: Cell, sources: Sources, run: Run, scores: RunScores) -> dict[str, Any]:
    """Return all that is needed to run a cell again and to compare it; the same settings give the same record."""
    recipe = cell.recipe
    settings: dict[str, Any] = {"train": run.settings(), "scoring": dataclasses.asdict(scores.scoring)}
    if stitched_folder(cell) or distilled_folder(cell):
        settings["improve"] = dataclasses.asdict(improve_settings(recipe, cell.data, grid.preset))
    if recipe.weigh or recipe.guide:
        settings["weigh"] = dataclasses.asdict(PRESET[grid.preset].weigh)
    if cell.teacher is not None:
        settings["teacher"] = Run.existing(out / "runs" / cell.teacher.name).settings()
    return {
        **_identity(grid, cell, sources.recorded, settings),
        "stitched": None if sources.stitched is None else _facts(sources.stitched),
        "cloned": _facts(sources.cloned),
        "reference": scores.reference,
        "step": scores.step,
        "returns": scores.returns.tolist(),  # [C, P, E]
        "length": scores.length.tolist(),
        **({} if scores.reached is None else {"reached": scores.reached.tolist()}),  # steps to the goal, or −1
        **scores.summary(),
    }


def _reward_record(out: Path, shared: Path, grid: Grid, cell: Cell, clock: Clock) -> dict[str, Any]:
    """Train and measure a reward model, and return its record."""
    with clock.timing("data"):
        data = load_or_make(out, shared, grid, cell.data)
        others = {name: load_or_make(out, shared, grid, name) for name in REWARD_DATA[cell.data]}
    config, seeds = reward_settings(cell.recipe, grid.preset, grid.steps), policy_seeds(grid, cell)
    with clock.timing("train"):
        found = compare_reward_model(data, others, config, seeds, grid.checkpoints, out / "runs" / cell.name)
    for name, other in others.items():
        found["others"][name] |= _facts(other) | {"source": _source(other)}
    return {**_identity(grid, cell, data, {"reward": dataclasses.asdict(config)}), **found}


def _identity(grid: Grid, cell: Cell, data: Dataset, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the record of every cell begins with."""
    return {
        "cell": dataclasses.asdict(cell),
        "title": cell.recipe.title,
        "settings": {"suite": grid.sizes, "recipe": dataclasses.asdict(cell.recipe), **settings},
        "versions": versions(),
        "seeds": list(policy_seeds(grid, cell)),
        "data": {**_facts(data), "source": _source(data)},
    }


def _source(data: Dataset) -> str:
    return str(data.info.get("source", "unknown"))


def _facts(data: Dataset) -> dict[str, Any]:
    return {
        "fingerprint": data.fingerprint,
        "transitions": data.transitions,
        "trajectories": len(data),
        "return_mean": float(data.returns.mean()),
        "return_std": float(data.returns.std()),
        "effective_steps": None if data.weight is None else float(effective_steps(data.weight)),
    }
