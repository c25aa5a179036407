"""Episodes: how good each one is, which are unlike the others, and why.

episode       number in the data set, from 0
length        steps
return        sum of rewards; unknown where all rewards are 0
success       the higher reward occurs; known where all rewards are 0 or one other number, such as 1 or -1
jerk          mean size of the third difference of the actions, in half-ranges
jumps         steps in which an action changes by more than half of its range
idle          share of steps in which the state hardly moves: less than 5% of a typical step
saturation    share of actions within 0.1% of the ends of their range
duplicate     number of the first episode with the same states and actions; -1 if there is none
distance      from its states to the nearest states of other episodes, 1 being typical
weight        mean weight of its steps; known where the data have weights
terminal      the episode really ended
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Float, Spread
from trajstitch.weight_facts import mean_weights

Real = NDArray[np.float64]
_SATURATED = 0.999  # an action beyond this share of its half-range counts as saturated
_JUMP = 1.0  # half-ranges within one step
_IDLE = 0.05  # typical steps
_STATES = 6000  # of all episodes together, about, between which distances are measured
_BLOCK = 1024  # states whose distances to all others are in memory at once
_FAR = 4.0  # an episode whose number is so many deviations from the median is named

# Column: what about it is worth a word (more than usual, less, or both), and the least deviation that counts.
_REASONS: dict[str, tuple[str, float]] = {
    "length": ("both", 1.0),
    "return": ("low", 0.0),
    "jerk": ("high", 0.01),
    "jumps": ("high", 0.02),  # per step
    "idle": ("high", 0.05),
    "saturation": ("high", 0.05),
    "distance": ("high", 0.25),
}


@dataclass(frozen=True, eq=False)
class Episodes:
    """One number per episode [M] in each column; a column of numbers that are not known is all nan."""

    column: Mapping[str, Real]
    outlier: Mapping[int, list[str]]  # episode: what is unusual about it

    def __len__(self) -> int:
        return len(self.column["episode"])

    def known(self, name: str) -> bool:
        """Whether a column says anything."""
        return not np.isnan(self.column[name]).all()

    def rows(self) -> list[dict[str, Any]]:
        """Return plain values, one dictionary per episode; None for what is not known."""
        return self.rows_of(range(len(self)))

    def rows_of(self, chosen: Iterable[int]) -> list[dict[str, Any]]:
        """Return the rows of these episodes."""
        return [
            {name: _plain(name, values[m]) for name, values in self.column.items()}
            | {"outlier": self.outlier.get(int(m), [])}
            for m in chosen
        ]


def episode_table(data: Dataset) -> Episodes:
    """Return what can be said of each episode of a data set; rewards and weights are not needed."""
    step = np.diff(data.action / _half_range(data), axis=0)
    inside = np.diff(data.trajectory) == 0  # between two steps of one episode
    states = _scaled(data)
    column = {
        "episode": np.arange(len(data), dtype=np.float64),
        "length": data.length.astype(np.float64),
        "return": data.returns if data.reward.any() else np.full(len(data), np.nan),
        "success": _success(data),
        "jerk": _jerk(data, step),
        "jumps": _sum(data, np.append((np.abs(step).max(1) > _JUMP) & inside, False)),
        "idle": _sum(data, _idle(data, states)) / data.length,
        "saturation": _sum(data, saturated(data).mean(1)) / data.length,
        "duplicate": duplicates(data).astype(np.float64),
        "distance": _distance(data, states),
        "weight": np.full(len(data), np.nan) if data.weight is None else mean_weights(data, data.weight),
        "terminal": data.terminal.astype(np.float64),
    }
    return Episodes(column, _outliers(column))


# -- columns ------------------------------------------------------------------------------------------------------


def _half_range(data: Dataset) -> Real:
    low, high = _range(data)
    return np.where(high > low, (high - low) / 2, np.maximum(np.abs(high), 1))


def _range(data: Dataset) -> tuple[Real, Real]:
    """Return the least and largest action, in double precision: their sum and difference may exceed float32."""
    return data.action.min(0).astype(np.float64), data.action.max(0).astype(np.float64)


def _success(data: Dataset) -> Real:
    values = np.unique(data.reward)
    if len(values) != 2 or 0 not in values:
        return np.full(len(data), np.nan)
    return (np.maximum.reduceat(data.reward, data.start[:-1]) == values[1]).astype(np.float64)


def _jerk(data: Dataset, step: NDArray[Any]) -> Real:
    """Return nan for episodes of fewer than four steps, which have no third difference."""
    third = np.zeros(data.transitions)
    third[: max(len(step) - 2, 0)] = np.linalg.norm(np.diff(step, 2, axis=0), axis=1)
    third[data.steps_left < 4] = 0  # it would reach into the next episode
    with np.errstate(invalid="ignore"):
        return np.where(data.length > 3, _sum(data, third) / np.maximum(data.length - 3, 1), np.nan)


def _sum(data: Dataset, values: NDArray[Any]) -> Real:
    return np.add.reduceat(values, data.start[:-1], dtype=np.float64)


def _scaled(data: Dataset) -> Float:
    """Return the states in stds of their columns."""
    return (data.obs / Spread.of(data.obs).unit).astype(np.float32)


def _idle(data: Dataset, states: Float) -> Bool:
    moved = np.linalg.norm(states[data.row + 1] - states[data.row], axis=1)
    typical = np.median(moved[moved > 0]) if moved.any() else 1.0
    return moved < _IDLE * typical


def saturated(data: Dataset) -> Bool:
    """Mark the actions at the ends of their range, [N, A]."""
    low, high = _range(data)
    return np.abs(data.action - (low + high) / 2) > _SATURATED * _half_range(data)


def duplicates(data: Dataset) -> NDArray[np.int64]:
    """Return the first episode with the same states and actions as each, [M]; -1 if there is none before it."""
    first: dict[tuple[bytes, bytes], int] = {}
    found = np.full(len(data), -1)
    for m, trajectory in enumerate(data):
        earliest = first.setdefault((trajectory.obs.tobytes(), trajectory.action.tobytes()), m)
        found[m] = earliest if earliest != m else -1
    return found


def _distance(data: Dataset, scaled: Float) -> Real:
    """Return the mean distance of some states of each episode to the nearest ones of others; 1 is typical."""
    if len(data) < 2:
        return np.full(len(data), np.nan)
    each = int(np.clip(_STATES // len(data), 2, 32))
    place = np.linspace(0, data.length, each).round().astype(np.int64).T  # spread evenly over the episode
    row = (place + (data.start[:-1] + np.arange(len(data)))[:, None]).reshape(-1)
    states, owner = scaled[row], np.repeat(np.arange(len(data)), each)
    nearest = np.empty(len(states))
    square = np.square(states).sum(1)
    for begin in range(0, len(states), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        distance = square[block, None] + square - 2 * states[block] @ states.T
        distance[owner[block, None] == owner] = np.inf
        nearest[block] = np.linalg.norm(states[block] - states[distance.argmin(1)], axis=1)
    mean = nearest.reshape(len(data), each).mean(1)
    return mean / (np.median(mean) or 1.0)


# -- outliers -----------------------------------------------------------------------------------------------------


def _outliers(column: Mapping[str, Real]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for m in np.flatnonzero(column["duplicate"] >= 0):
        found.setdefault(int(m), []).append(f"the same as episode {column['duplicate'][m]:.0f}")
    success = column["success"]
    if np.mean(success) > 0.5:  # where most fail, failing is not unusual
        for m in np.flatnonzero(success == 0):
            found.setdefault(int(m), []).append("no success")
    for name, (side, least) in _REASONS.items():
        values = column[name] / column["length"] if name == "jumps" else column[name]
        if np.isnan(values).all():
            continue
        median = np.nanmedian(values)
        deviation = max(1.4826 * float(np.nanmedian(np.abs(values - median))), 0.1 * abs(float(median)), least)
        off = (values - median) / (deviation or 1.0)
        for m in np.flatnonzero(np.abs(off) > _FAR):
            high = off[m] > 0
            if side in ("both", "high" if high else "low"):
                label = "jumps per step" if name == "jumps" else name
                what = f"{label} {_short(values[m])}, {'above' if high else 'below'} the usual {_short(median)}"
                found.setdefault(int(m), []).append(what)
    return dict(sorted(found.items()))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}"


def _plain(name: str, value: float) -> Any:
    if np.isnan(value):
        return None
    if name in ("success", "terminal"):
        return bool(value)
    if name == "duplicate":
        return int(value) if value >= 0 else None
    return int(value) if name in ("episode", "length", "jumps") else float(value)
