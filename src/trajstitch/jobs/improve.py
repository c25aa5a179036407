"""Improve a data set into a run directory; finished stages are stored, so that a killed run can continue.

config.json            the settings, the data's fingerprint, versions
stages/NAME.npz        the result of each stage; made again only when something it depends on has changed
metrics.jsonl          losses of every model at every check
improved.*             the improved data with their seams, as .hdf5, .npz or .traj
plan.*                 of the planners optimal and policy: the best step from every state, to be cloned
seams.npz              the seams table alone
weigh/                 the critics that weighed the improved data, if asked for (see jobs/weigh.py)
result.json            what was done: iterations, model errors, sizes of the graph
timings.json           how long each iteration took; apart, because no two runs take the same time
report.html            all of it as a page to read
audit.json             what `trajstitch audit` found; the page shows it too
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajstitch.blocks import Mapper, in_process
from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats import ENDINGS, save
from trajstitch.formats.npz import save_seams
from trajstitch.jobs.run_dir import Run, read_stored
from trajstitch.jobs.weigh import weigh_run
from trajstitch.methods.weigh import Weigh
from trajstitch.policies.policy import Policy, acting, fingerprint_of
from trajstitch.progress import Tell, silent
from trajstitch.stitching.current import just_make
from trajstitch.stitching.improve import Improve, Models, Result, check_data
from trajstitch.stitching.improve import improve as stitch
from trajstitch.storage.atomic import write_json, write_json_lines, write_text
from trajstitch.storage.serialise import read_note, restore, store
from trajstitch.tracking import Log, log_nothing
from trajstitch.version import __version__

if TYPE_CHECKING:
    from trajstitch.evaluation.scores import Scores  # which loads the simulator


def improve(
    data: Dataset,
    config: Improve | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    models: Models | None = None,
    overwrite: bool = False,
    mapper: Mapper = in_process,
    tell: Callable[[str], Tell] = lambda name: silent,
) -> Result:
    """Improve a data set by stitching its trajectories.

    Arguments:
        data: the data set to improve.
        config: the settings; `Improve()` unless given.
        seed: the random seed.
        out: a run directory to work in; without it, everything stays in memory.
        models: models of the caller's own, used in place of trained ones.
        overwrite: start again if `out` holds a run with other settings or data.
        mapper: where blocks of neighbours and edges are computed: here, or on a cluster (`RayMapper`).
        tell: called with the name of each stage; returns its callback for progress.
    """
    if out is None:
        return stitch(data, config, seed=seed, models=models, mapper=mapper, tell=tell)
    options: dict[str, Any] = {"seed": seed, "models": models, "overwrite": overwrite}
    _, result = improve_run(data, config or Improve(), out, **options, mapper=mapper, tell=tell)
    return result


def improve_run(
    data: Dataset,
    config: Improve,
    out: str | Path,
    *,
    seed: int = 0,
    models: Models | None = None,
    policy: Policy | None = None,
    weigh: Weigh | None = None,
    ending: str = ".hdf5",
    overwrite: bool = False,
    inputs: Sequence[str] = (),
    mapper: Mapper = in_process,
    tell: Callable[[str], Tell] = lambda name: silent,
    log: Log = log_nothing,
) -> tuple[Run, Result]:
    """Improve into a run directory; the same call continues a run that was stopped, with the same result.

    Arguments:
        data: the data set to improve.
        config: the settings.
        out: the run directory.
        seed: the random seed.
        models: models of the caller's own. With them no stage is stored, because a later call cannot know whether
            its models are the same.
        policy: the policy that the planner policy follows.
        weigh: how to weigh the steps of the improved data; without it, they have no weights.
        ending: the format of the improved data, one of `trajstitch.formats.ENDINGS`.
        overwrite: start again if `out` holds a run with other settings or data.
        inputs: the files the data came from, which must not lie in `out`.
        mapper: where blocks of neighbours and edges are computed: here, or on a cluster (`RayMapper`).
        tell: called with the name of each stage; returns its callback for progress.
        log: a tracker, which is told the models' losses and what each iteration did, when all is done.
    """
    if ending not in ENDINGS:
        raise InputError(f"improved data can be written as {', '.join(ENDINGS)}, not {ending}")
    check_data(data, config)
    if weigh is not None:
        weigh.check(data)
    asked = {
        "config": dataclasses.asdict(config),
        "seed": seed,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }
    if policy is not None:
        asked["policy"] = fingerprint_of(policy)
    with Run.working(out, asked, overwrite, inputs) as run:
        stage = Stages(run.path, data.fingerprint, seed) if models is None else just_make
        if policy is not None:  # no stage depends on it
            models = dataclasses.replace(models or Models(), policy=acting(policy))
        result = stitch(data, config, seed=seed, models=models, stage=stage, mapper=mapper, tell=tell)
        if weigh is not None:
            _write(run, result, ending)  # so that nothing is lost if weighing fails
            _, weighed, _ = weigh_run(
                result.dataset, weigh, run.path / "weigh", seed=seed, overwrite=True, tell=tell("weights")
            )
            result = dataclasses.replace(result, dataset=weighed)
        _write(run, result, ending)
        write_report(run, data, result)
        _log(result, log)
    return run, result


def _log(result: Result, log: Log) -> None:
    """Hand the losses of all models, and the numbers of all iterations, to a tracker."""
    for name, history in result.training.items():
        for step, train, held_out in zip(*history, strict=True):
            log(step, {f"{name}/train loss": sum(train) / len(train)})
            log(step, {f"{name}/held-out loss": sum(held_out) / len(held_out)})
    for entry in result.history:
        log(entry["iteration"], {f"iterations/{key}": float(entry[key]) for key in ("accepted", "return_mean")})


class Stages:
    """Stores the results of stages; a stage depends on the data, the seed and every stage before it."""

    def __init__(self, path: Path, fingerprint: str, seed: int) -> None:
        self.path = path / "stages"
        self.chain = hashlib.blake2b(f"{fingerprint} {seed}".encode(), digest_size=16)

    def __call__(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return the stored result of a stage, or call `make` and store what it returns.

        A stage of other data, settings or another version of trajstitch is not used, but made again.
        """
        self.chain.update(f"{name} {key!r}".encode())
        file = self.path / f"{name.replace(' ', '-')}.npz"
        note = f"{__version__} {self.chain.hexdigest()}"
        made = read_stored(file, lambda file: restore(file) if read_note(file) == note else None, None)
        if made is None:
            made = make()
            store(made, file, note)
        return made


def _write(run: Run, result: Result, ending: str) -> None:
    save(result.dataset, run.path / f"improved{ending}", overwrite=True)
    if result.plan is not None:
        save(result.plan, run.path / f"plan{ending}", overwrite=True)
    save_seams(result.seams, run.path / "seams.npz")
    lines = [
        {"model": name, "step": step, "train": train, "held_out": held_out}
        for name, history in result.training.items()
        for step, train, held_out in zip(*history, strict=True)
    ]
    write_json_lines(run.path / "metrics.jsonl", lines)
    write_json(
        run.path / "result.json",
        {"iterations": result.history, "model_errors": result.errors, "graph": result.graph},
    )
    write_json(run.path / "timings.json", {"iterations": result.seconds})


def write_report(run: Run, data: Dataset, result: Result, scores: Mapping[str, Scores] | None = None) -> Path:
    """Write report.html of a run, with its audit if it has one, and return its path.

    Arguments:
        run: the run directory.
        data: the original data set.
        result: what `improve` returned.
        scores: scores of policies by name, to be shown too.
    """
    from trajstitch.jobs.audit import stored_audit
    from trajstitch.report import render

    target = run.path / "report.html"
    audit = stored_audit(run, result.dataset)
    write_text(target, render(data, result.dataset, result, run.settings(), scores, audit))
    return target
