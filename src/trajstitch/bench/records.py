"""Records as they are read back: whatever tables and plots take from one is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.bench.datasets import FRACTIONS
from trajstitch.bench.suites import REWARD_DATA
from trajstitch.errors import InputError

if TYPE_CHECKING:
    from trajstitch.bench.grid import Cell

_LARGEST = 1e100  # of a number; the square of one is a number too
_LARGEST_WHOLE = 1 << 53
_REMEDY = "remove this file, and trajstitch bench runs the cell again"


def check_record(cell: Cell, record: Any) -> dict[str, Any]:
    """Return the record of a cell; InputError if it lacks something, or has something else in its place."""
    data = _part(record, "data")
    if not isinstance(data.get("source"), str) or not data["source"].isprintable():
        raise InputError(f"data.source is not a line of text; {_REMEDY}")
    _check_number("data.return_mean", data.get("return_mean"))
    _check_whole("data.transitions", data.get("transitions"))
    if cell.recipe.method is None:
        _check_errors(cell, record)
        return dict(record)
    if cell.recipe.planner is not None:
        _check_number("stitched.return_mean", _part(record, "stitched").get("return_mean"))
    for which in ("last", "best"):
        scores = _part(record, which)
        for unit in ("raw", "normalised", "success"):
            if unit == "raw" or scores.get(unit) or record["last"].get(unit):
                place = f"{which}.{unit}"
                _check_numbers(f"{place}.per_seed", _part(scores, unit, place).get("per_seed"), 1)
    if cell.data in FRACTIONS and cell.recipe.method == "gaussian-bc":
        expert = _part(record, "expert")
        for name in ("kl", "action_error"):
            _check_numbers(f"expert.{name}", expert.get(name), 2)
    return dict(record)


def _check_errors(cell: Cell, record: Mapping[str, Any]) -> None:
    """Check the errors of P reward models: at C checkpoints, [C, P] each, and on other data."""
    steps = record.get("step")
    if not isinstance(steps, list) or not steps:
        raise InputError(f"step is not a list of numbers; {_REMEDY}")
    for step in steps:
        _check_whole("step", step)
    shapes = {name: _check_numbers(name, record.get(name), 2, missing=True) for name in ("train", "test")}
    if shapes["train"] != shapes["test"] or shapes["train"][0] != len(steps):
        raise InputError(f"step, train and test have different sizes; {_REMEDY}")
    others = _part(record, "others")
    for name in REWARD_DATA[cell.data]:
        for part in ("mse", "std"):
            place = f"others.{name}"
            _check_numbers(f"{place}.{part}", _part(others, name, place).get(part), 1, missing=True)


def _part(record: Any, name: str, place: str | None = None) -> Mapping[str, Any]:
    part = record.get(name) if isinstance(record, dict) else None
    if not isinstance(part, dict):
        raise InputError(f"{place or name} is missing or no object; {_REMEDY}")
    return part


def _check_numbers(name: str, values: Any, depth: int, missing: bool = False) -> tuple[int, ...]:
    """Return the shape of a list of numbers of this depth, in which null may stand for one that was not finite."""
    rows = values if depth == 2 else [values]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise InputError(f"{name} is not a list of numbers, or empty; {_REMEDY}")
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"{name} has rows of different lengths; {_REMEDY}")
    for row in rows:
        for value in row:
            if not missing or value is not None:
                _check_number(name, value)
    return np.shape(values)


def _check_number(name: str, value: Any) -> None:
    largest = _LARGEST if isinstance(value, float) else _LARGEST_WHOLE
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= largest:
        raise InputError(f"{name} is not a number that can be shown; {_REMEDY}")


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_WHOLE:
        raise InputError(f"{name} is not a whole number; {_REMEDY}")
