"""Engines: run the cells of a grid that are not finished, in processes of this machine or as a job array.

A third engine, a Ray cluster, is in ray_engine.py.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any

from trajstitch.bench.datasets import check_available
from trajstitch.bench.grid import Cell, Grid, failure_path, make_grid, open_folder, record_path
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.storage.atomic import write_text
from trajstitch.storage.jax_cache import keep_compiled

Failures = dict[str, str]  # sentence by the cell's name


def run_suite(
    suite: str,
    out: str | Path,
    *,
    shared: str | Path = "shared",
    workers: int | None = None,
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
        seed: the first random seed.
        tell: a callback for progress.
        options: data, methods, seeds, stitch_seeds, steps, preset, transitions and episodes, as of the command.
    """
    grid = make_grid(suite, seed, **options)
    open_folder(Path(out), grid)
    return run_local(Path(out), Path(shared), grid, grid.cells, workers, tell)


def run_local(
    out: Path, shared: Path, grid: Grid, cells: Sequence[Cell], workers: int | None = None, tell: Tell = silent
) -> Failures:
    """Run the cells that have no record yet; one that fails does not stop the others.

    Arguments:
        out: the folder, opened by `open_folder`.
        shared: the folder that data are recorded from.
        grid: the sizes.
        cells: what to run.
        workers: processes; as many as there are cores unless given. With one, everything runs in this process.
        tell: called after every cell; what was finished before does not count, so that the time left is right.
    """

    def run(left: list[Cell]) -> Ended:
        count = min(len(left), _cores() if workers is None else workers)
        if count < 2:
            return _one_by_one(out, shared, grid, left)
        return _side_by_side(out, shared, grid, left, count)

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


def _one_by_one(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell]) -> Ended:
    for cell in cells:
        yield cell, _attempt(out, shared, grid, cell)


def _side_by_side(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell], workers: int) -> Ended:
    """Run every cell in a process of its own, which shares a GPU with the others if there is one.

    A process that the system kills takes its own cell with it and no other.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    context = multiprocessing.get_context("spawn")
    waiting = deque(cells)
    running: dict[Any, tuple[SpawnProcess, Cell]] = {}  # by what says that the process has ended
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                cell = waiting.popleft()
                failure_path(out, cell).unlink(missing_ok=True)
                process = context.Process(target=_in_process, args=(out, shared, grid, cell))
                process.start()
                running[process.sentinel] = process, cell
            for sentinel in wait(list(running)):
                process, cell = running.pop(sentinel)
                process.join()
                yield cell, _outcome(out, cell, process.exitcode)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def _in_process(out: Path, shared: Path, grid: Grid, cell: Cell) -> None:
    """Run a cell in a process of its own, which ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the keyboard stops the parent, which ends this one
    Thread(target=_end_with_parent, daemon=True).start()
    if (why := _attempt(out, shared, grid, cell)) is not None:
        write_text(failure_path(out, cell), f"{why}\n")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _outcome(out: Path, cell: Cell, code: int | None) -> str | None:
    """Return None for a finished cell, or why it failed."""
    if record_path(out, cell).exists():
        return None
    file = failure_path(out, cell)
    if file.exists():
        return file.read_text().strip()
    return f"its process ended with code {code}; run it again, with fewer --workers if memory was short"


def _attempt(out: Path, shared: Path, grid: Grid, cell: Cell) -> str | None:
    """Run a cell and return None, or a sentence that says why it failed."""
    from trajstitch.bench.cells import run_cell

    return explained(lambda: run_cell(out, shared, grid, cell))


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
