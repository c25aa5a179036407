"""Comparison: all numbers that compare the improved with the original data; other modules draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Int, Seams, Spread, count_revisits
from trajstitch.errors import InputError
from trajstitch.evaluation.normalise import normalise, reference_scores
from trajstitch.stitching.improve import time_limit

Real = NDArray[np.float64]
_BLOCK = 1 << 18  # steps compared together


@dataclass(frozen=True, eq=False)
class Facts:
    """Numbers that compare the two data sets; X stitched steps."""

    original: Dataset
    improved: Dataset
    known: bool  # the improved data have a table of seams
    before: Real  # [M] return of the trajectory each improved one came from
    was: Int  # [M] number of that trajectory in the original data
    replaced: Bool  # [M] it has a stitched step
    imagined: int  # steps to a state that a world model predicted; the stitched steps below are the others
    step: Int  # [X] stitched steps of the improved data
    source: Int  # [X] original row they start from
    landing: Int  # [X] original row they land on
    margin: Real  # [X]
    landing_error: Real  # [X] in typical steps; nan for seams that were chosen by plausibility
    spread: Real  # [X]
    gain: Real  # [X] value gain
    moment: Int  # [X] number of the step within its trajectory
    distance: Real  # [X] from the old successor of the source to the landing, in the graph's metric
    strides: Real  # lengths of single steps of the original data, a sample
    metric: str  # scaled or raw
    foreign: int  # steps that differ from the original rows they name
    repeats: int  # steps from a state in which their trajectory has been before
    horizon: int  # greatest length of a trajectory
    kept: float  # share of the original's steps that still occur
    reference: tuple[float, float] | None  # (random, expert) return

    @property
    def after(self) -> Real:
        """Returns [M] of the improved trajectories."""
        return self.improved.returns

    @property
    def reachable(self) -> bool:
        """Whether seams were chosen because an action leads there, not by plausibility."""
        return bool(np.isfinite(self.landing_error).any())

    @property
    def ends(self) -> tuple[int, int]:
        """Trajectories that really end, original and improved."""
        return int(self.original.terminal.sum()), int(self.improved.terminal.sum())

    @property
    def longer(self) -> Bool:
        """Trajectories [M] that go on where the recording was cut, so that their returns sum up more steps."""
        grown = self.improved.length > self.original.length[self.was]
        return self.known & ~self.original.terminal[self.was] & grown

    @property
    def cut_short(self) -> Bool:
        """Trajectories [M] that became shorter than recorded without really ending."""
        return self.known & ~self.improved.terminal & (self.improved.length < self.original.length[self.was])

    @property
    def means(self) -> tuple[float, float]:
        """Mean return, original and improved."""
        return float(self.original.returns.mean()), float(self.after.mean())

    @property
    def normalised(self) -> tuple[float, float] | None:
        """Mean normalised score, original and improved; None if the environment has no reference returns."""
        if self.reference is None:
            return None
        old, new = (normalise(mean, self.reference) for mean in self.means)
        return old, new


def measure(original: Dataset, improved: Dataset, settings: Mapping[str, Any]) -> Facts:
    """Compare two data sets; InputError if `improved` cannot have come from `original`."""
    config = settings.get("config", settings)
    seams = improved.seams or _unknown_seams(improved)
    if improved.obs_dim != original.obs_dim or max(seams.source.max(), seams.target.max()) >= len(original.obs):
        raise InputError("the seams of the improved data do not fit the original; give the data it was made from")
    real = (seams.source >= 0) & (seams.target >= 0)
    step = np.flatnonzero(seams.stitched & real)
    owner = improved.trajectory[step]
    graph = config.get("graph")
    metric = str(graph.get("metric", "scaled")) if isinstance(graph, Mapping) else "scaled"
    unit = Spread.of(original.obs).unit if metric == "scaled" else np.float32(1)
    row = some(original.row, 50_000)
    first = seams.source[improved.start[:-1]]
    assert seams.landing_error is not None
    usual = (seams.source[step] + 1).clip(max=len(original.obs) - 1)
    return Facts(
        original=original,
        improved=improved,
        known=improved.seams is not None,
        before=seams.return_before,
        was=np.searchsorted(original.start[:-1] + np.arange(len(original)), first, side="right") - 1,
        replaced=np.logical_or.reduceat(seams.stitched, improved.start[:-1]),
        imagined=int((~real).sum()),
        step=step,
        source=seams.source[step],
        landing=seams.target[step],
        margin=seams.margin[step].astype(float),
        landing_error=seams.landing_error[step].astype(float),
        spread=seams.spread[step].astype(float),
        gain=seams.value_gain[step].astype(float),
        moment=step - improved.start[owner],
        distance=_length((original.obs[seams.target[step]] - original.obs[usual]) / unit),
        strides=_length((original.obs[row + 1] - original.obs[row]) / unit),
        metric=metric,
        foreign=_foreign(original, improved) if improved.seams else 0,
        repeats=count_revisits(seams.source, improved.start) if improved.seams and real.all() else 0,
        horizon=int(config.get("max_length") or time_limit(original) or original.length.max()),
        kept=len(np.unique(seams.source[~seams.stitched])) / original.transitions,
        reference=reference_scores(str(original.info.get("env_id", "")), original.info),
    )


def _unknown_seams(improved: Dataset) -> Seams:
    no = np.zeros(improved.transitions, np.float32)
    rows = no.astype(np.int64)
    return Seams(rows, rows, no.astype(bool), no, no, no, np.full(len(improved), np.nan))


def _length(change: NDArray[Any]) -> Real:
    return np.linalg.norm(change.astype(float), axis=1)


def some(items: NDArray[Any], count: int) -> NDArray[Any]:
    """Return at most `count` items, evenly spaced, in order."""
    return items if len(items) <= count else items[np.linspace(0, len(items) - 1, count).astype(np.int64)]


def _foreign(original: Dataset, improved: Dataset) -> int:
    """Count the steps whose states (unless stitched, also action and reward) differ from the original rows."""
    assert improved.seams is not None
    owner = np.repeat(np.arange(len(original)), original.length + 1)
    wrong = 0
    for a in range(0, improved.transitions, _BLOCK):
        part = slice(a, a + _BLOCK)
        row, source, target = improved.row[part], improved.seams.source[part], improved.seams.target[part]
        same = (source < 0) | (improved.obs[row] == original.obs[source]).all(1)
        same &= (target < 0) | (improved.obs[row + 1] == original.obs[target]).all(1)
        plain = np.flatnonzero(~improved.seams.stitched[part])
        begin, end = source[plain], target[plain]
        old = (begin - owner[begin]).clip(max=original.transitions - 1)
        same[plain] &= (end == begin + 1) & (owner[begin] == owner[end])
        same[plain] &= (improved.action[part][plain] == original.action[old]).all(1)
        same[plain] &= improved.reward[part][plain] == original.reward[old]
        wrong += int((~same).sum())
    return wrong
