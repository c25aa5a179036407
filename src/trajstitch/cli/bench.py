"""The command `trajstitch bench`: a suite of methods and data sets, or the speed of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeFloat, MaybeInt, MaybeStr, MaybeTracker, parse_as
from trajstitch.errors import InputError, unknown
from trajstitch.sources import SOURCES

if TYPE_CHECKING:
    from trajstitch.bench.engine import Failures
    from trajstitch.bench.grid import Cell, Grid
    from trajstitch.progress import Tell
    from trajstitch.tracking import Log

_ENGINES = ("local", "ray", "slurm")


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Run a suite: a grid of data sets, methods and seeds. Stopped, the same command goes on.

    trajstitch report OUT makes tables of what has been run; trajstitch bench speed measures this machine instead.
    """

    suite: Annotated[Positional[str], tyro.conf.arg(metavar="SUITE")]
    """table1, iterations, expert-fraction, reward-models, weighted-bc, weigh, mazes, or smoke (everything tiny, in
    minutes); or speed."""
    out: str
    """Folder of the runs and records; finished cells in it are not run again."""
    data: tuple[str, ...] = ()
    """Only these data sets, such as hopper-medium; unless given, the suite's."""
    methods: tuple[str, ...] = ()
    """Only these methods, such as bc ts-bc iql; unless given, the suite's."""
    seeds: MaybeInt = None
    """Policies per method and data set, trained side by side from --seed on; unless given, the suite's."""
    stitch_seeds: MaybeInt = None
    """Times that data are stitched anew, each with --seeds policies; unless given, the suite's."""
    steps: MaybeInt = None
    """Gradient steps of every policy and compared reward model; unless given, the suite's, or each one's own."""
    preset: MaybeStr = None
    """Sizes of the models that stitch and weigh, and training steps: tiny, quick, short, standard or paper; unless
    given, the suite's."""
    transitions: MaybeInt = None
    """Transitions to record per data set, where data are recorded; unless given, the suite's."""
    episodes: MaybeInt = None
    """Evaluation episodes per policy and checkpoint; unless given, the suite's."""
    checkpoints: MaybeInt = None
    """How often, at most, each policy is stored and scored on the way, the end included; unless given, the
    suite's."""
    shared: str = "shared"
    """Folder with policies/ and replay/, for data sets that are not in the cache of D4RL's files."""
    engine: str = "local"
    """local: processes of this machine. ray: a Ray cluster. slurm: only print the script of an array job."""
    workers: MaybeInt = None
    """Cells side by side; unless given, one per core, or all that a cluster has room for."""
    together: bool = False
    """Train each method, and critics that weigh, on all data sets of one size in one program, where it can: for a
    GPU, which one data set leaves idle in part. All these data are in its memory at once."""
    address: MaybeStr = None
    """Of a Ray cluster, such as HOST:6379, or local: on this machine; unless given, RAY_ADDRESS, or else local."""
    cell_cpus: float = 1
    """CPUs of the cluster that a cell takes."""
    cell_gpus: MaybeFloat = None
    """GPUs of the cluster that a cell takes; unless given, a quarter of one where there are any."""
    track: MaybeTracker = None
    """Also log the returns of each cell that this call finishes to a tracker, whose files go beside the folder."""
    cell: MaybeInt = None
    """Run only the cell of this number, from 0 on, as a task of an array job does."""

    def run(self) -> dict[str, Any]:
        """Run what is missing, and say what is there."""
        from trajstitch.bench.grid import open_folder, read_records, record_path
        from trajstitch.progress import bar
        from trajstitch.tracking import tracking

        if self.engine not in _ENGINES:
            raise unknown("engine", self.engine, _ENGINES)
        if self.engine != "ray" and self.address:
            raise InputError("--address is that of a Ray cluster; give --engine ray too")
        if self.engine != "local" and self.together:
            raise InputError("--together shares one program, so it needs --engine local")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"--workers must be at least 1, not {self.workers}")
        grid, out = self._grid(), Path(self.out)
        cells = self._cells(grid)
        if self.engine == "slurm":
            return self._print_script(grid)
        open_folder(out, grid)
        left = [cell for cell in cells if not record_path(out, cell).exists()]
        with tracking(self.track, self.out, grid.sizes) as log, bar(f"{self.suite}, cells", self.quiet) as tell:

            def tell_and_log(done: int, total: int, note: str = "") -> None:
                tell(done, total, note)
                for cell, record in read_records(out, left).items():
                    left.remove(cell)
                    _log(cell, record, log)

            failures = self._run_cells(out, grid, cells, tell_and_log)
        finished = len(cells) - len(left)
        self.say(f"{self.out}: {finished} of {len(cells)} cells finished; trajstitch report {self.out} shows them")
        if failures:
            name, why = next(iter(failures.items()))
            raise InputError(f"{self.out}: {len(failures)} of {len(cells)} cells failed, the first, {name}: {why}")
        return {"out": self.out, "cells": len(cells), "finished": finished}

    def _run_cells(self, out: Path, grid: Grid, cells: list[Cell], tell: Tell) -> Failures:
        from trajstitch.bench.engine import run_local

        if self.engine == "local":
            return run_local(out, Path(self.shared), grid, cells, self.workers, tell, self.together)
        from trajstitch.bench.ray_engine import Cluster, run_ray

        cluster = Cluster(self.address, self.workers, self.cell_cpus, self.cell_gpus)
        return run_ray(out, Path(self.shared), grid, cells, cluster, tell)

    def _grid(self) -> Grid:
        from trajstitch.bench.grid import make_grid

        return make_grid(
            self.suite,
            self.seed,
            data=self.data,
            methods=self.methods,
            seeds=self.seeds,
            stitch_seeds=self.stitch_seeds,
            steps=self.steps,
            preset=self.preset,
            transitions=self.transitions,
            episodes=self.episodes,
            checkpoints=self.checkpoints,
        )

    def _cells(self, grid: Grid) -> list[Cell]:
        if self.cell is None:
            return grid.cells
        if not 0 <= self.cell < len(grid.cells):
            raise InputError(f"--cell {self.cell} does not exist; the cells are 0 to {len(grid.cells) - 1}")
        return [grid.cells[self.cell]]

    def _print_script(self, grid: Grid) -> dict[str, Any]:
        from trajstitch.bench.engine import slurm_script

        script = slurm_script(self.suite, grid.cells, self._arguments(), self.workers)
        self.say(script)
        return {"script": script}

    def _arguments(self) -> list[str]:
        """Return the options that decide what a cell is, as they were given."""
        words = []
        names = ("out", "data", "methods", "seeds", "stitch_seeds", "steps", "preset", "transitions", "episodes")
        for name in (*names, "checkpoints", "shared", "seed"):
            if (value := getattr(self, name)) not in (None, ()):
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{name.replace('_', '-')}", *map(str, values)]
        return [*words, "--one-thread"] if self.one_thread else words


def _log(cell: Cell, record: dict[str, Any], log: Log) -> None:
    """Hand a finished cell to a tracker: mean returns, or of a reward model errors, at every checkpoint."""
    for kind in ("train", "test") if cell.recipe.method is None else ("returns",):
        for step, values in zip(record["step"], record[kind], strict=True):
            log(step, {f"{kind}/{cell.name}": float(np.mean(np.array(values, np.float64)))})  # null becomes nan


@dataclass(frozen=True, kw_only=True)
class BenchSpeed(Command):
    """Measure the speed of trajstitch on this machine."""

    suite: Positional[Literal["speed"]]
    """speed: throughput of every stage, compared with a plain baseline in the same run."""
    data: Annotated[str, tyro.conf.arg(help=f"Data set to measure with: {SOURCES}.")] = "demo"
    transitions: int = 100_000
    """About this many transitions: the data are cut, or repeated with noise."""
    steps: int = 300
    """Training steps timed per model."""
    states: int = 500
    """States timed in the plain loop."""
    nearest: MaybeInt = None
    """Neighbours per state; unless given, as in improve."""
    epsilon: MaybeFloat = None
    """Radius of the neighbourhood; unless given, as in improve."""

    def run(self) -> dict[str, Any]:
        """Measure and print a table."""
        from trajstitch.bench.speed import Speed, measure, table
        from trajstitch.formats import load
        from trajstitch.progress import bars
        from trajstitch.stitching.graph import GraphConfig

        graph = GraphConfig(nearest=self.nearest, epsilon=self.epsilon)
        config = Speed(self.transitions, self.steps, self.states, graph=graph)
        with bars(self.quiet) as tell:
            result: dict[str, Any] = measure(load(self.data), config, self.seed, tell)
        self.say(table(result))
        return result


def parse(name: str, arguments: list[str]) -> Bench | BenchSpeed:
    """Return the command with its options; `speed` has options of its own."""
    if arguments[:1] == ["speed"]:
        return parse_as(BenchSpeed, name, arguments)
    return parse_as(Bench, name, arguments)
