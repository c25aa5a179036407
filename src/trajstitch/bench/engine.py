"""Engines: run the cells of a grid that are not finished, in processes of this machine or as a job array.

A third engine, a Ray cluster, is in ray_engine.py.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shlex
import signal
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any, Literal, NamedTuple

from trajstitch.bench.datasets import check_available
from trajstitch.bench.grid import (
    Cell,
    Grid,
    failure_path,
    made_for,
    make_grid,
    open_folder,
    read_failure,
    record_path,
)
from trajstitch.bench.suites import train_settings
from trajstitch.errors import InputError
from trajstitch.methods import configure
from trajstitch.progress import Tell, silent
from trajstitch.storage.atomic import write_text
from trajstitch.storage.jax_cache import keep_compiled

LOG = logging.getLogger("trajstitch")
Failures = dict[str, str]  # sentence by the cell's name


def run_suite(
    suite: str,
    out: str | Path,
    *,
    shared: str | Path = "shared",
    workers: int | None = None,
    together: bool = False,
    seed: int = 0,
    tell: Tell = silent,
    **options: Any,
) -> Failures:
    """Run a suite, or go on with it: what `trajstitch bench` does, without the packages of the command line.

    Arguments:
        suite: its name.
        out: the folder of runs and records.
        shared: the folder that data are recorded from.
        workers: processes; as many as there are cores unless given.
        together: train a method, or critics, on several data sets in one program where that is possible.
        seed: the first random seed.
        tell: a callback for progress.
        options: options of the command, such as `data`, `seeds` and `steps`.
    """
    grid = make_grid(suite, seed, **options)
    open_folder(Path(out), grid)
    return run_local(Path(out), Path(shared), grid, grid.cells, workers, tell, together)


def run_local(
    out: Path,
    shared: Path,
    grid: Grid,
    cells: Sequence[Cell],
    workers: int | None = None,
    tell: Tell = silent,
    together: bool = False,
) -> Failures:
    """Run the cells that have no record yet; one that fails does not stop the others.

    Arguments:
        out: the folder, opened by `open_folder`.
        shared: the folder that data are recorded from.
        grid: the sizes.
        cells: what to run.
        workers: processes; as many as there are cores unless given. With one, everything runs in this process.
        tell: called after every cell; what was finished before does not count, so that the time left is right.
        together: train cells of one method, or their critics, in one program where that is possible.
    """

    def run(left: list[Cell]) -> Ended:
        jobs = plan_jobs(grid, left, together)
        count = min(len(jobs), _cores() if workers is None else workers)
        work = _one_by_one if count < 2 else partial(_side_by_side, workers=count)
        return work(out, shared, grid, jobs)

    return run_missing(out, shared, cells, run, tell)


Ended = Iterator[tuple[Cell, str | None]]  # each cell when it has ended, and why it failed if it did


def run_missing(
    out: Path, shared: Path, cells: Sequence[Cell], run: Callable[[list[Cell]], Ended], tell: Tell
) -> Failures:
    """Let an engine run the cells that have no record yet, and note which of them failed."""
    left = [cell for cell in cells if not record_path(out, cell).exists()]
    for name in dict.fromkeys(name for cell in left for name in cell.needs):
        if not (out / "data" / name / "data.traj").exists():
            check_available(name, shared)
    failures = Failures()
    tell(0, len(left), "")
    for done, (cell, why) in enumerate(run(left), 1):
        if why is not None:
            failures[cell.name] = why
            write_text(failure_path(out, cell), f"{why}\n")
        tell(done, len(left), f"{cell.name} {'done' if why is None else 'failed'}")
    return failures


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Job(NamedTuple):
    """What one process does: run a cell, or something before that from which several cells profit."""

    part: Literal["record", "weigh", "make", "train", "run"]
    cells: tuple[Cell, ...]


_PARTS = ("record", "weigh", "make", "train", "run")
_JOINED = {"weigh": "the critics of ", "train": ""}  # parts of several cells, and what of these they train
_ALIKE = {"halfcheetah": "walker2d"}  # states and actions have as many dimensions


def plan_jobs(grid: Grid, cells: Sequence[Cell], together: bool) -> list[Job]:
    """Return the jobs of cells: only to run each, or to train critics and methods in one program before that."""
    runs = [Job("run", (cell,)) for cell in cells]
    if not together:
        return runs
    critics, programs = (
        [group for group in _grouped(cells, key) if len({cell.data for cell in group}) > 1]
        for key in (_critics, partial(_program, grid))
    )
    joined = [cell for cell in cells if any(cell in group for group in (*critics, *programs))]
    return [
        *(Job("record", group) for group in _grouped(joined, lambda cell: cell.data)),
        *(Job("weigh", group) for group in critics),
        *(Job("make", group) for group in _grouped(joined, made_for)),
        *(Job("train", group) for group in programs),
        *runs,
    ]


def _critics(cell: Cell) -> Hashable:
    """Return what cells have in common whose critics can be trained in one program; None if there are none."""
    return _family(cell) if cell.recipe.weigh and cell.recipe.planner is None else None


def _family(cell: Cell) -> str:
    """Return what data have in common whose states and actions have as many dimensions."""
    env = cell.data.partition("-")[0]
    return _ALIKE.get(env, env)


def _program(grid: Grid, cell: Cell) -> Hashable:
    """Return what cells have in common that can be trained in one program; None if a cell cannot be."""
    recipe = cell.recipe
    if recipe.method is None:
        return None
    try:
        config = configure(recipe.method, **train_settings(recipe, cell.data, grid.preset, grid.steps))
    except InputError:  # the cell says why when it is run, and no other fails with it
        return None
    return (cell.method, cell.stitch_seed, _family(cell), config.joint) if config.joins else None


def _grouped(cells: Sequence[Cell], key: Callable[[Cell], Hashable]) -> list[tuple[Cell, ...]]:
    """Return the cells by what they have in common, those that have nothing left out."""
    found: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        if common := key(cell):
            found.setdefault(common, []).append(cell)
    return [tuple(group) for group in found.values()]


def _is_ready(job: Job, unfinished: Sequence[Job]) -> bool:
    """Whether nothing is unfinished that a job's cells need: earlier parts, and the policies they learn from."""
    # No teacher is asked to record or weigh data; what cells share is made for the first.
    asked = {"record": 0, "weigh": 0, "make": 1}.get(job.part, len(job.cells))
    teachers = {cell.teacher for cell in job.cells[:asked]}
    return not any(
        (_PARTS.index(other.part) < _PARTS.index(job.part) and {*job.cells} & {*other.cells})
        or (other.part == "run" and teachers & {*other.cells})
        for other in unfinished
    )


def _one_by_one(out: Path, shared: Path, grid: Grid, jobs: Sequence[Job]) -> Ended:
    waiting = list(jobs)
    while waiting:
        job = next(job for job in waiting if _is_ready(job, waiting))
        why = _attempt(out, shared, grid, job)
        waiting.remove(job)
        if job.part == "run":
            yield job.cells[0], why


def _side_by_side(out: Path, shared: Path, grid: Grid, jobs: Sequence[Job], workers: int) -> Ended:
    """Do every job in a process of its own, which shares a GPU with the others if there is one.

    A process that the system kills takes its own cells with it and no other.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    context = multiprocessing.get_context("spawn")
    waiting = list(jobs)
    running: dict[Any, tuple[SpawnProcess, Job]] = {}  # by what says that the process has ended
    try:
        while waiting or running:
            unfinished = [*waiting, *(job for _, job in running.values())]
            for job in [job for job in waiting if _is_ready(job, unfinished)][: workers - len(running)]:
                waiting.remove(job)
                if job.part == "run":
                    failure_path(out, job.cells[0]).unlink(missing_ok=True)
                process = context.Process(target=_in_process, args=(out, shared, grid, job))
                process.start()
                running[process.sentinel] = process, job
            for sentinel in wait(list(running)):
                process, job = running.pop(sentinel)
                process.join()
                if job.part == "run":
                    yield job.cells[0], _outcome(out, job.cells[0], process.exitcode)
                elif job.part in _JOINED and process.exitcode:
                    _warn(job, f"the process ended with code {process.exitcode}")
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def _in_process(out: Path, shared: Path, grid: Grid, job: Job) -> None:
    """Do a job in a process of its own, which ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the keyboard stops the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    why = _attempt(out, shared, grid, job)
    if why is not None and job.part == "run":
        write_text(failure_path(out, job.cells[0]), f"{why}\n")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _outcome(out: Path, cell: Cell, code: int | None) -> str | None:
    """Return None for a finished cell, or why it failed."""
    if record_path(out, cell).exists():
        return None
    if (why := read_failure(out, cell)) is not None:
        return why
    return f"its process ended with code {code}; run it again, with fewer --workers if memory was short"


def _attempt(out: Path, shared: Path, grid: Grid, job: Job) -> str | None:
    """Do a job and return None, or a sentence that says why it failed; cells are run on their own too."""
    from trajstitch.bench.cells import load_or_make, make_critics, make_sources, run_cell, train_cells

    first = job.cells[0]
    make: dict[str, Callable[[], Any]] = {
        "record": lambda: load_or_make(out, shared, grid, first.data),
        "weigh": lambda: make_critics(out, shared, grid, job.cells),
        "make": lambda: make_sources(out, shared, grid, first),
        "train": lambda: train_cells(out, shared, grid, job.cells),
        "run": lambda: run_cell(out, shared, grid, first),
    }
    why = explained(make[job.part])
    if why is not None and job.part in _JOINED:
        _warn(job, why)
    return why


def _warn(job: Job, why: str) -> None:
    names = " and ".join(cell.name for cell in job.cells)
    what = _JOINED[job.part] + names
    LOG.warning("%s cannot be trained in one program (%s); each is trained on its own", what, why)


def explained(make: Callable[[], Any]) -> str | None:
    """Make something of one cell and return None, or a sentence that says why it failed."""
    keep_compiled()
    try:
        make()
    except Exception as error:  # one cell of many: the others are worth running
        return failed(error)
    return None


def failed(error: BaseException) -> str:
    """Return a sentence that says why a cell failed."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; run it again with fewer --workers"
    return " ".join(str(error).split()) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def slurm_script(suite: str, cells: Sequence[Cell], arguments: Sequence[str], workers: int | None) -> str:
    """Return a script of an array job, in which each task runs one cell.

    Tasks that need the same data wait for one another, so all nodes must share the folder's file system.
    """
    limit = "" if workers is None else f"%{workers}"
    command = shlex.join(["trajstitch", "bench", suite, *arguments, "--workers", "1", "--quiet", "--cell"])
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name=trajstitch-{suite}",
        f"#SBATCH --array=0-{len(cells) - 1}{limit}",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --gpus-per-task=1",
        "#SBATCH --mem=16G",
        "#SBATCH --time=24:00:00",
        "#SBATCH --requeue",
        "",
        "# A task that was stopped goes on where it was, and a finished one ends at once.",
        f"{command} $SLURM_ARRAY_TASK_ID",
    ]
    return "\n".join(lines) + "\n"
