"""Engines: run the cells of a grid that are not finished, in processes of this machine or as a job array."""

from __future__ import annotations

import multiprocessing
import os
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from trajstitch.bench.datasets import check_available
from trajstitch.bench.grid import Cell, Grid, failure_path, record_path
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.storage.atomic import write_text
from trajstitch.storage.jax_cache import keep_compiled

Failures = dict[str, str]  # sentence by the cell's name


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
        tell: called after every cell.
    """
    left = [cell for cell in cells if not record_path(out, cell).exists()]
    for name in dict.fromkeys(cell.data for cell in left):
        if not (out / "data" / name / "data.traj").exists():
            check_available(name, shared)
    workers = min(len(left), _cores() if workers is None else workers)
    failures, done = Failures(), len(cells) - len(left)
    for cell, why in (
        _one_by_one(out, shared, grid, left) if workers < 2 else _pool(out, shared, grid, left, workers)
    ):
        done += 1
        if why is not None:
            failures[cell.name] = why
            write_text(failure_path(out, cell), f"{why}\n")
        tell(done, len(cells), f"{cell.name} {'done' if why is None else 'failed'}")
    return failures


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Ended = Iterator[tuple[Cell, str | None]]  # each cell when it has ended, and why it failed if it did


def _one_by_one(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell]) -> Ended:
    for cell in cells:
        yield cell, _attempt(out, shared, grid, cell)


def _pool(out: Path, shared: Path, grid: Grid, cells: Sequence[Cell], workers: int) -> Ended:
    """Run cells in processes of their own, which share a GPU if there is one."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[str | None], Cell] = {
            pool.submit(_attempt, out, shared, grid, cell): cell for cell in cells
        }
        try:
            for future in as_completed(running):
                yield running[future], _outcome(future)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _outcome(future: Future[str | None]) -> str | None:
    error = future.exception()
    if error is None:
        return future.result()
    return f"its process ended ({type(error).__name__}); run it again, with fewer --workers if memory was short"


def _attempt(out: Path, shared: Path, grid: Grid, cell: Cell) -> str | None:
    """Run a cell and return None, or a sentence that says why it failed."""
    from trajstitch.bench.cells import run_cell

    keep_compiled()
    try:
        run_cell(out, shared, grid, cell)
    except MemoryError:
        return "there is not enough memory for this; run it again with fewer --workers"
    except Exception as error:  # one cell of many: the others are worth running
        return (
            " ".join(str(error).split()) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        )
    return None


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
