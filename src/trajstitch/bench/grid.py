"""Grid: the cells of a suite, with the sizes they share, and the folder that they are run in.

suite.json                       suite, sizes, and every data set and method that was asked for so far
data/DATA/data.traj              the data set
data/DATA/expert.{npz,traj}      the expert that clones of expert-fraction are compared with, and episodes of it
data/DATA/PLANNER.sK/            the data stitched with seed K, a run directory of improve; with another reward
                                 model PLANNER-MODEL.sK/
data/DATA/TEACHER/               what the policies of a method do in every recorded state, a run of improve too
data/DATA/weigh/                 a run directory of weigh; PLANNER.sK.weigh/ of stitched data
data/DATA/METHOD.npz             the weights of a method that a teacher guides
runs/DATA/METHOD[.sK]/           a run directory of train, or of a reward model
records/DATA/METHOD[.sK].json    the record of a finished cell
records/DATA/METHOD[.sK].failed  why a cell could not be finished
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trajstitch.bench.datasets import check_name
from trajstitch.bench.records import check_record
from trajstitch.bench.suites import PRESET, RECIPES, REWARD_DATA, SUITES, Recipe, runs_on
from trajstitch.errors import InputError, unknown
from trajstitch.storage.archive import reading
from trajstitch.storage.atomic import write_json
from trajstitch.storage.lock import waiting_for

_GROWS = ("data", "methods", "stitch_seeds")  # may differ between calls; the folder keeps all that was asked for
_FILE = "suite.json"
_MOST_STITCH_SEEDS = 1000


@dataclass(frozen=True)
class Cell:
    """One method on one data set."""

    data: str
    method: str
    stitch_seed: int | None = None  # of methods that stitch

    @property
    def recipe(self) -> Recipe:
        """What the method does."""
        return RECIPES[self.method]

    @property
    def teacher(self) -> Cell | None:
        """The cell whose policies it distils."""
        return None if self.recipe.teacher is None else Cell(self.data, self.recipe.teacher)

    @property
    def needs(self) -> tuple[str, ...]:
        """The data sets that it is run on: its own, and those on which a reward model is tried."""
        return (self.data, *(REWARD_DATA[self.data] if self.recipe.method is None else ()))

    @property
    def name(self) -> str:
        """The name of its folder and record."""
        return f"{self.data}/{self.method}" + ("" if self.stitch_seed is None else f".s{self.stitch_seed}")


@dataclass(frozen=True)
class Grid:
    """All cells of a suite, and their sizes."""

    suite: str
    data: tuple[str, ...]
    methods: tuple[str, ...]
    stitch_seeds: int
    seeds: int
    seed: int  # the first policy's; the first stitching seed's too
    steps: int | None
    transitions: int
    episodes: int
    checkpoints: int
    preset: str

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise unknown("suite", self.suite, SUITES)
        for name in self.data:
            check_name(name)
        for name in self.methods:
            if name not in RECIPES:
                raise unknown("method", name, RECIPES)
        if self.preset not in PRESET:
            raise unknown("preset", self.preset, PRESET)
        for name in ("seed", "stitch_seeds", "seeds", "transitions", "episodes", "checkpoints", "steps"):
            number, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if number is None and name == "steps":  # each method's own
                continue
            if type(number) is not int:
                raise InputError(f"{option} must be a whole number, not {number!r}")
            if number < 1 and name != "seed":
                raise InputError(f"{option} must be at least 1, not {number}")
        if self.stitch_seeds > _MOST_STITCH_SEEDS:
            raise InputError(f"--stitch-seeds must be at most {_MOST_STITCH_SEEDS}, not {self.stitch_seeds}")
        if not self.cells:
            raise InputError(f"reward models are compared on {', '.join(REWARD_DATA)}; give one of them in --data")

    @property
    def sizes(self) -> dict[str, Any]:
        """What all cells of a folder have in common."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _GROWS}

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells: those whose data are made first come last, and neighbours are of different data sets.

        So processes that work side by side seldom wait for the same data.
        """
        found = []
        for method in sorted(self.methods, key=lambda name: bool(RECIPES[name].planner or RECIPES[name].teacher)):
            seeds = [None] if RECIPES[method].planner is None else range(self.seed, self.seed + self.stitch_seeds)
            found += [Cell(name, method, seed) for seed in seeds for name in self.data if runs_on(method, name)]
        return found


def make_grid(suite: str, seed: int = 0, **options: Any) -> Grid:
    """Return the grid of a suite, with the options that are given in place of the suite's own."""
    if suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    sizes = {
        field.name: getattr(SUITES[suite], field.name)
        for field in dataclasses.fields(Grid)[1:]
        if field.name != "seed"
    }
    given = {name: value for name, value in options.items() if value not in (None, ())}
    return Grid(suite, seed=seed, **(sizes | given))


def open_folder(out: Path, grid: Grid) -> None:
    """Make the folder of a grid, or add a grid to it; InputError if it holds another suite or other sizes."""
    asked = json.loads(json.dumps(dataclasses.asdict(grid)))
    if out.exists() and not _is_empty(out) and not (out / _FILE).exists():  # another process may just make it
        raise InputError(f"{out} exists and is not a folder of trajstitch bench; choose another name")
    with waiting_for(out / _FILE):  # calls side by side add to it one after another
        _add(out, asked)


def _add(out: Path, asked: dict[str, Any]) -> None:
    """Write what was asked for, or add it to what the folder holds."""
    if not (out / _FILE).exists():
        write_json(out / _FILE, asked)
        return
    held = dataclasses.asdict(stored_grid(out))
    for name, value in asked.items():
        if name not in _GROWS and held[name] != value:
            raise InputError(f"{out} was made with {name} {held[name]}, not {value}; choose another --out")
    grown = {name: _merged(held[name], asked[name]) for name in _GROWS}
    if asked | grown != json.loads(json.dumps(held)):
        write_json(out / _FILE, asked | grown)


def _is_empty(out: Path) -> bool:
    """Whether a folder has no files but hidden ones, such as those that are being written."""
    return out.is_dir() and all(file.name.startswith(".") for file in out.iterdir())


def _merged(held: Any, asked: Any) -> Any:
    return max(held, asked) if isinstance(held, int) else [*held, *(one for one in asked if one not in held)]


def stored_grid(out: Path) -> Grid:
    """Return everything that was asked for in a folder."""
    file = out / _FILE
    if not file.exists():
        raise InputError(f"{out} is not a folder of trajstitch bench ({_FILE} is missing); give its --out")
    with reading(file):
        stored = json.loads(file.read_text())
        sequences = {name: tuple(stored[name]) for name in ("data", "methods")}
        return Grid(**{**stored, **sequences})


def stitched_folder(cell: Cell) -> str | None:
    """Return the folder of a cell's stitched data, which other cells may share; None if it stitches none."""
    recipe = cell.recipe
    if recipe.planner is None:
        return None
    model = f"-{recipe.reward}" if recipe.reward else ""
    return f"data/{cell.data}/{recipe.planner}{model}.s{cell.stitch_seed}"


def distilled_folder(cell: Cell) -> str | None:
    """Return the folder of what a cell's teacher does in every recorded state; None if that is not cloned."""
    return None if cell.teacher is None or cell.recipe.guide else f"data/{cell.teacher.name}"


def critics_folder(cell: Cell) -> str | None:
    """Return the folder of the critics that weigh a cell's data; None if none do."""
    if not cell.recipe.weigh:
        return None
    return f"{stitched}.weigh" if (stitched := stitched_folder(cell)) else f"data/{cell.data}/weigh"


def guide_file(cell: Cell) -> str | None:
    """Return the file of a cell's weights towards its teacher; None if it has none."""
    return f"data/{cell.name}.npz" if cell.recipe.guide else None


def made_for(cell: Cell) -> tuple[str, ...]:
    """Return the folders of what is made for a cell out of its data set."""
    return tuple(one for find in (stitched_folder, distilled_folder, critics_folder) if (one := find(cell)))


def record_path(out: Path, cell: Cell) -> Path:
    """Return the file of a cell's record."""
    return out / "records" / f"{cell.name}.json"


def failure_path(out: Path, cell: Cell) -> Path:
    """Return the file that says why a cell could not be finished."""
    return out / "records" / f"{cell.name}.failed"


def read_records(out: Path, cells: Sequence[Cell]) -> dict[Cell, dict[str, Any]]:
    """Return the records of the finished cells among these."""
    found = {}
    for cell in cells:
        if (file := record_path(out, cell)).exists():
            with reading(file):
                found[cell] = check_record(cell, json.loads(file.read_text()))
    return found


def read_failure(out: Path, cell: Cell) -> str | None:
    """Return why a cell could not be finished; None if nothing says so."""
    file = failure_path(out, cell)
    if not file.exists():
        return None
    with reading(file):
        return file.read_text().strip()
