"""Ray engine: the cells of a grid as tasks of a Ray cluster, whose nodes need not share a file system.

    data set (made here) ──► stitched data, or a teacher (a task) ──► cell (a task) ──► DIR (written here)

A task is handed the files it needs, works in a folder of its own that is laid out like DIR, and hands back the
files that it made. Files that several tasks need are put into Ray's object store once. What a task hands back is
in DIR before anything builds on it; so a node that dies takes with it only what runs there, which is tried again.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.bench.cells import load_or_make, make_stitched, run_cell
from trajstitch.bench.datasets import STORED
from trajstitch.bench.engine import Ended, Failures, explained, failed, run_missing
from trajstitch.bench.grid import Cell, Grid, failure_path, guide_file, record_path, stitched_folder
from trajstitch.cluster import connected
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.storage.atomic import replacing
from trajstitch.version import __version__

Files = dict[str, NDArray[np.uint8]]  # content by the name relative to DIR
_ATTEMPTS = 4  # of a task whose worker dies
_GPU_SHARE = 0.25  # of a GPU for a task, where the cluster has any: most cells leave the larger part of it idle
_BASE_MEMORY = 2**30  # bytes for a task: Python and JAX
_MEMORY_PER_BYTE = 25  # of the data sets; stitching takes the most (docs/speed.md)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what one task may take of it."""

    address: str | None = None  # local: of this machine; None: RAY_ADDRESS if that is set, else local
    tasks: int | None = None  # at most so many at a time; None: as many as there is room for
    cpus: float = 1
    gpus: float | None = None  # None: a quarter, where the cluster has any

    def __post_init__(self) -> None:
        if not self.cpus >= 0 or (self.gpus is not None and not self.gpus >= 0):
            raise InputError("--cell-cpus and --cell-gpus must not be below 0")

    @property
    def local_cpus(self) -> int | None:
        """CPUs that a cluster of this machine needs for its tasks; None: its cores."""
        return None if self.tasks is None else max(1, math.ceil(self.tasks * self.cpus))


def run_ray(
    out: Path, shared: Path, grid: Grid, cells: list[Cell], cluster: Cluster, tell: Tell = silent
) -> Failures:
    """Run the cells that have no record yet on a cluster; the arguments are those of `run_local`."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # tasks may share this machine's GPU
    with connected(cluster.address, cluster.local_cpus) as ray:
        return run_missing(
            out, shared, cells, lambda left: _Scheduler(ray, out, shared, grid, cluster).run(left), tell
        )


class _Job(NamedTuple):
    """A task to be run: a cell, or the stitched data that it shares with others."""

    cell: Cell
    stitches: bool = False
    attempt: int = 1

    @property
    def makes(self) -> str:
        """The folder that others may wait for."""
        return str(stitched_folder(self.cell)) if self.stitches else f"runs/{self.cell.name}"


class _Scheduler:
    """Starts tasks, and writes what they hand back to DIR."""

    def __init__(self, ray: Any, out: Path, shared: Path, grid: Grid, cluster: Cluster) -> None:
        self.ray, self.out, self.shared, self.grid, self.cluster = ray, out, shared, grid, cluster
        self.todo: deque[_Job] = deque()
        self.held: defaultdict[str, list[Cell]] = defaultdict(list)  # cells by the folder they wait for
        self.asked: set[Cell] = set()
        self.running: dict[Any, _Job] = {}  # by the reference of the task's result
        self.put: dict[str, Any] = {}  # reference of the files of each folder that tasks share
        self.task = ray.remote(max_retries=0, scheduling_strategy="SPREAD")(_work)

    def run(self, cells: list[Cell]) -> Ended:
        """Yield each cell when it has ended, and why it failed if it did."""
        self.asked = set(cells)
        for cell in cells:
            self._enqueue(cell)
        try:
            while self.todo or self.running:
                if self.todo and len(self.running) < (self.cluster.tasks or np.inf):
                    yield from self._start(self.todo.popleft())
                    wait = 0.0  # only look: more can be started
                else:
                    wait = None
                ended, _ = self.ray.wait(list(self.running), timeout=wait) if self.running else ([], [])
                for reference in ended:
                    yield from self._end(self.running.pop(reference), reference)
        finally:
            for reference in self.running:
                self.ray.cancel(reference, force=True)

    def _enqueue(self, cell: Cell) -> None:
        """Let a cell be run, after the data that it shares with others are stitched, or its teacher is trained."""
        first = self._first(cell)
        if first is None:
            self.todo.append(_Job(cell))
            return
        if first.makes not in self.held and (first.stitches or first.cell not in self.asked):
            self.todo.append(first)
        self.held[first.makes].append(cell)

    def _first(self, cell: Cell) -> _Job | None:
        """Return the job that has to be done before a cell, or None."""
        folder = stitched_folder(cell)
        if folder is not None and not (self.out / folder / "report.html").exists():
            return _Job(cell, stitches=True)
        if cell.teacher is not None and not record_path(self.out, cell.teacher).exists():
            return _Job(cell.teacher)
        return None

    def _start(self, job: _Job) -> Ended:
        """Start a task; a cell whose data cannot be made, or that fits on no node, has ended."""
        cell, folder = job.cell, stitched_folder(job.cell)
        failure_path(self.out, cell).unlink(missing_ok=True)
        for name in cell.needs:
            why = explained(partial(load_or_make, self.out, self.shared, self.grid, name))
            if why is not None:
                yield from self._failed(job, why)
                return
        try:
            options = self._resources(cell)
        except InputError as error:
            yield from self._failed(job, failed(error))
            return
        given = [self._shared(f"data/{name}/{file}") for name in cell.needs for file in STORED]
        if job.stitches:
            given.append(pack(self.out, str(folder)))  # what an earlier call left
        else:
            given += [self._shared(folder)] if folder else []
            if (teacher := cell.teacher) is not None:
                given += [self._shared(f"runs/{teacher.name}"), self._shared(f"records/{teacher.name}.json")]
            if guide := guide_file(cell):
                given.append(pack(self.out, guide))
            given.append(pack(self.out, f"runs/{cell.name}"))
        task = self.task.options(name=f"{'stitch' if job.stitches else 'cell'} {cell.name}", **options)
        self.running[task.remote(__version__, self.grid, cell, job.stitches, *given)] = job

    def _end(self, job: _Job, reference: Any) -> Ended:
        """Write what a task handed back; start it again if its worker died."""
        errors = self.ray.exceptions
        try:
            why, files = self.ray.get(reference)
        except errors.RayTaskError as error:  # before our own code was reached
            yield from self._failed(job, f"the node's Python cannot run it: {failed(error.cause or error)}")
            return
        except errors.RayError as error:
            if job.attempt < _ATTEMPTS:
                self.todo.appendleft(job._replace(attempt=job.attempt + 1))
            else:
                kind = type(error).__name__
                yield from self._failed(job, f"its worker died {_ATTEMPTS} times, the last time with {kind}")
            return
        unpack(files, self.out)
        if why is not None:
            yield from self._failed(job, why)
        else:
            if job.cell in self.asked and not job.stitches:
                yield job.cell, None
            self.todo.extend(_Job(cell) for cell in self.held.pop(job.makes, ()))

    def _failed(self, job: _Job, why: str) -> Ended:
        """Yield the cells that fail with a job: its own, and those that wait for what it makes."""
        if job.cell in self.asked and not job.stitches:
            yield job.cell, why
        yield from ((cell, why) for cell in self.held.pop(job.makes, ()))

    def _shared(self, folder: str) -> Any:
        """Return the reference of a folder's files (none if it does not exist), which are put once."""
        if folder not in self.put:
            self.put[folder] = self.ray.put(pack(self.out, folder))
        return self.put[folder]

    def _resources(self, cell: Cell) -> dict[str, float]:
        """Return what a cell's task takes; InputError if no node has it."""
        files = (file for name in cell.needs for file in (self.out / "data" / name / "data.traj").rglob("*"))
        size = sum(file.stat().st_size for file in files)
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        gpus = self.cluster.gpus
        if gpus is None:
            gpus = _GPU_SHARE if any(node.get("GPU") for node in nodes) else 0
        need = {"CPU": self.cluster.cpus, "GPU": gpus, "memory": _BASE_MEMORY + _MEMORY_PER_BYTE * size}
        if not any(all(node.get(name, 0) >= amount for name, amount in need.items()) for node in nodes):
            raise InputError(
                f"no node of the cluster has {need['CPU']:g} CPUs, {gpus:g} GPUs and {need['memory'] / 2**30:.1f} "
                "GiB of memory for a cell; give fewer --cell-cpus or --cell-gpus, or add such a node"
            )
        return {"num_cpus": need["CPU"], "num_gpus": gpus, "memory": need["memory"]}


# -- on the nodes ------------------------------------------------------------------------------------------------


def _work(version: str, grid: Grid, cell: Cell, stitches: bool, *given: Files) -> tuple[str | None, Files]:
    """Run a cell, or only stitch its data; return why it failed, or None, and the files that were made."""
    if version != __version__:
        return f"a node has trajstitch {__version__}, not {version}; install the same version on all nodes", {}
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # read when JAX first asks for a GPU
    with TemporaryDirectory(prefix="trajstitch-", ignore_cleanup_errors=True) as folder:
        out = Path(folder)
        for files in given:
            unpack(files, out)
        before = {unit(name) for files in given for name in files} - {_Job(cell, stitches).makes}
        why = explained(partial(make_stitched if stitches else run_cell, out, out, grid, cell))
        return why, {name: content for name, content in pack(out).items() if unit(name) not in before}


# -- files -------------------------------------------------------------------------------------------------------


def pack(out: Path, folder: str = "") -> Files:
    """Return the files of DIR, or one of its files or folders; hidden ones, such as locks, are left out."""
    found: Files = {}
    for file in [out / folder, *sorted((out / folder).rglob("*"))]:
        name = file.relative_to(out)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            found[name.as_posix()] = np.fromfile(file, np.uint8)
    return found


def unpack(files: Files, out: Path) -> None:
    """Write files into DIR, each run directory in one rename; records last, as they say that all else is there."""
    units: defaultdict[str, Files] = defaultdict(dict)
    for name, content in files.items():
        units[unit(name)][name] = content
    for target in sorted(units, key=lambda name: name.startswith("records/")):
        with replacing(out / target, overwrite=True) as part:
            for name, content in units[target].items():
                place = part / Path(name).relative_to(target)
                place.parent.mkdir(parents=True, exist_ok=True)
                content.tofile(place)


def unit(name: str) -> str:
    """Return the first three parts of a name, such as runs/hopper-medium/bc: what is made as a whole."""
    return "/".join(Path(name).parts[:3])
