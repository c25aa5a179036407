"""Episode ends: where the episodes of one long table end, by its flags and, where those are wrong, by its states.

D4RL's antmaze-v0 files, for one, mark each time-out two rows before the reset:

    observations   … s997 s998 s999 │ s0 s1 …       │ the reset: s0 does not follow from s999
    timeouts       …   1    0    0  │  0  0 …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Float, Int
from trajstitch.errors import InputError

GOAL = "infos/goal"  # goals change with the episode, or within one; only looked at to find resets
_NOISE = 1e-3  # share of a column's std; a successor that differs less from the next row is that row, rounded
_ROUNDING = 1e-6  # share of a column's largest number that float32 cannot hold
_SAMPLE = 20_000  # steps from which the usual change of a column is estimated …
_BLOCK = 4096  # steps looked at together; they stay in a processor's cache
_FEWEST = 100  # … and without so many of them nothing is judged by its size
_NEAR = 5  # rows around a flag within which the reset that it means is looked for; they are not in the sample
# A step is a reset if a column changes by more than _FAR times what 99% of the steps change it by. In 13 recorded
# files of four robots no step inside an episode exceeds 7.3; most resets have about 20, in ant mazes about 100.
_FAR = 15.0
_FAR_AT_GOAL = 5.0  # the same, where the goal changes with the step
_STDS = 0.25  # … and by at least so many std of the column, so that an object at rest may be pushed
_OTHERS = 0.2  # share of the other columns that must change unusually too, so that an angle may wrap round
_RESETS = 0.05  # at most this share of the steps are resets
# All time-outs are moved by the same number of rows if there are at least _FLAGS of them and the steps there are
# _STANDS_OUT times as large as those beside any flag (geometric means): 3 to 17 times in three robots' files.
_FLAGS = 10
_STANDS_OUT = 2.0


@dataclass(frozen=True)
class Ends:
    """Which steps are the last of their episode, which of those have no known successor, and a note on both."""

    end: Bool  # [N]
    lost: Bool  # [N]
    note: dict[str, str | int]


@dataclass(frozen=True)
class Usual:
    """How the columns usually change from row to row; those that hardly ever change are left out."""

    column: Int  # [C], the columns that are looked at
    q90: NDArray[np.float64]  # [C], 90% of the changes are at most so large
    q99: NDArray[np.float64]  # [C]
    std: NDArray[np.float64]  # [C], of the column itself

    def limit(self, times: float) -> NDArray[np.float64]:
        """Return the change [C] beyond which a step is far."""
        return np.maximum(times * self.q99, _STDS * self.std)

    def far(self, change: NDArray[Any], times: float) -> Bool:
        """Mark the changes [B, C] that are resets: a column changes far, and others change unusually too."""
        needed = 1 + np.ceil(_OTHERS * (len(self.column) - 1))
        return (change > self.limit(times)).any(1) & ((change > self.q90).sum(1) >= needed)


def find_ends(table: Mapping[str, NDArray[Any]], episode_horizon: int | None) -> Ends:
    """Find the ends in a table of D4RL's arrays; where flags and states disagree, the states are believed."""
    obs, successor = table["observations"], table.get("next_observations")
    flagged = table["terminals"] | table.get("timeouts", False)
    note: dict[str, str | int] = {}
    if "timeouts" in table:
        if episode_horizon is not None:
            raise InputError("this file records its time-outs; leave --episode-horizon out")
    elif episode_horizon is not None:
        note["split_by"] = f"horizon {episode_horizon}"
    elif successor is not None:
        note["split_by"] = "discontinuity"
    else:
        raise InputError(
            "the key 'timeouts' is missing and so is 'next_observations', so where episodes were cut is unknown; "
            "give the time limit with --episode-horizon, such as --episode-horizon 1000"
        )
    by_horizon = _every(episode_horizon, flagged) if episode_horizon is not None else flagged
    usual = _usual(obs, flagged | by_horizon)
    if usual and successor is None and "timeouts" in table:
        timeouts, shift = _shifted(obs, table["timeouts"] & ~table["terminals"], usual)
        if shift:
            note |= {"moved_timeouts": int(table["timeouts"].sum()), "moved_by": shift}
            flagged = table["terminals"] | timeouts
    jump = _breaks(obs, successor, flagged)
    far = _far(obs, successor, flagged, usual, table.get(GOAL)) if usual else np.zeros(len(obs), bool)
    found = (jump | far) & ~flagged
    end = flagged | found
    if episode_horizon is not None:
        by_horizon = _every(episode_horizon, end)
        found &= ~by_horizon
        end |= by_horizon
    if (unmarked := int(found.sum())) and note.get("split_by") != "discontinuity":
        note["unmarked_cuts"] = unmarked  # no end is marked, but the next row is not the successor
    end[-1] = True  # a file may stop inside an episode
    if successor is None:
        return Ends(end, end.copy(), note)
    if wrong := int(far.sum()):
        note["wrong_successors"] = wrong
    return Ends(end, far, note)


def _every(episode_horizon: int, end: Bool) -> Bool:
    """Mark every `episode_horizon`-th step since the last end of an episode."""
    if episode_horizon < 1:
        raise InputError(f"episode_horizon must be at least 1, not {episode_horizon}")
    index = np.arange(len(end))
    begin = np.maximum.accumulate(np.where(np.concatenate([[True], end[:-1]]), index, 0))
    return (index - begin + 1) % episode_horizon == 0


def _breaks(obs: Float, successor: Float | None, end: Bool) -> Bool:
    """Mark where the recorded successor is not the next row, except at known ends."""
    broken = np.zeros(len(obs), bool)
    if successor is None:
        return broken
    broken[np.flatnonzero(successor[:-1] != obs[1:]) // obs.shape[1]] = True
    broken &= ~end
    if broken.any():
        rows = np.flatnonzero(broken)
        with np.errstate(over="ignore"):
            some = obs[:: 1 + len(obs) // _SAMPLE].astype(np.float64)
            noise = _NOISE * some.std(0) + _ROUNDING * np.abs(some).max(0)
            broken[rows] = (np.abs(successor[rows] - obs[rows + 1]) > noise).any(1)
    return broken


def _usual(obs: Float, end: Bool) -> Usual | None:
    """Estimate how columns usually change, from steps that are not near an end; None if there are too few."""
    near = np.zeros(len(end), bool)
    for shift in range(-_NEAR, _NEAR + 1):
        near[np.clip(np.flatnonzero(end) + shift, 0, len(end) - 1)] = True
    row = np.flatnonzero(~near[:-1])
    row = row[:: 1 + len(row) // _SAMPLE]
    if len(row) < _FEWEST:
        return None
    before = obs[row].astype(np.float64)
    change = np.abs(obs[row + 1] - before)
    column = np.flatnonzero(np.quantile(change, 0.99, axis=0))
    if not len(column):
        return None
    change, std = change[:, column], before.std(0)[column]
    q90, q99 = np.quantile(change, [0.9, 0.99], axis=0)
    # In short episodes without flags more than 1% of the steps are resets; leave those out that are plain to see.
    plain = Usual(column, q90, np.where(q90 > 0, q90, q99), std).far(change, _FAR)
    if 0 < plain.mean() < _RESETS:
        q99 = np.maximum(np.quantile(change[~plain], 0.99, axis=0), q90)
    return Usual(column, q90, q99, std)


def _shifted(obs: Float, timeouts: Bool, usual: Usual) -> tuple[Bool, int]:
    """Return the time-outs, moved to the resets if all are that many rows away from them, and by how many rows."""
    flag = np.flatnonzero(timeouts)
    flag = flag[(flag >= _NEAR) & (flag < len(obs) - 1 - _NEAR)]
    if len(flag) < _FLAGS:
        return timeouts, 0
    shifts = np.arange(-_NEAR, _NEAR + 1)
    row = flag + shifts[:, None]
    change = np.abs(obs[row + 1][..., usual.column] - obs[row][..., usual.column].astype(np.float64))
    size = (change / usual.q99).max(2)  # [shifts, flags]
    order = np.argsort(score := np.log(np.maximum(size, 1e-9)).mean(1))
    best = order[-1]
    if best == _NEAR or score[best] - score[order[-2]] < np.log(_STANDS_OUT):
        return timeouts, 0
    moved = np.zeros_like(timeouts)
    moved[np.clip(np.flatnonzero(timeouts) + shifts[best], 0, len(obs) - 1)] = True
    moved[flag[size[_NEAR] >= size[best]]] = True  # here the states say that the flag may be right as well
    return moved, int(shifts[best])


def _far(obs: Float, successor: Float | None, end: Bool, usual: Usual, goal: NDArray[Any] | None) -> Bool:
    """Mark the steps that are resets by their size; without recorded successors, ends are not looked at."""
    far = np.zeros(len(obs), bool)
    after = obs[1:] if successor is None else successor
    limit = usual.limit(_FAR)
    for a in range(0, len(after), _BLOCK):
        part = slice(a, min(a + _BLOCK, len(after)))
        with np.errstate(over="ignore"):
            change = after[part] - obs[part]
        np.abs(change, out=change)
        if successor is None:
            change[end[part]] = 0
        if not (change.max(0)[usual.column] > limit).any():
            continue
        far[part] = usual.far(change[:, usual.column], _FAR)
    if goal is not None:
        row = np.flatnonzero((goal[1:] != goal[:-1]).any(1) & ~(end[:-1] | far[:-1]))
        change = np.abs(after[row][:, usual.column] - obs[row][:, usual.column].astype(np.float64))
        far[row] = usual.far(change, _FAR_AT_GOAL)
    return far
