"""Statistics of scores: mean, spread, interquartile mean, intervals, profiles, probability of improvement.

Two layouts are used. `spread` and `interval` take the episodes of one run of a method, [P, E]. All others take

    scores [runs, tasks]     one number per run (a seed) and task (a data set); nan where a run is missing

and treat tasks as given: runs are the only randomness, so a bootstrap draws runs anew within each task (Agarwal et
al. 2021, "Deep reinforcement learning at the edge of the statistical precipice").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]  # [..., runs, tasks]
Statistic = Callable[[Scores], Any]  # of the last two axes

_DRAWS = 2000  # of a bootstrap
_LEVEL = 0.95  # of its intervals


def spread(scores: NDArray[Any]) -> float | None:
    """Standard deviation over seeds of each seed's mean, scores [P, E]; None for one seed."""
    return float(scores.mean(1).std(ddof=1)) if len(scores) > 1 else None


def interval(
    scores: NDArray[Any], level: float = _LEVEL, draws: int = _DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of scores [P, E].

    Seeds are drawn with replacement, then episodes within each drawn seed, so both sources of randomness count.
    """
    many, episodes = scores.shape
    generator = np.random.default_rng(seed)
    which = generator.integers(many, size=(draws, many, 1))
    means = scores[which, generator.integers(episodes, size=(draws, many, episodes))].mean((1, 2))
    low, high = _middle(means, level)
    return float(low), float(high)


# -- statistics of scores [..., runs, tasks] ---------------------------------------------------------------------


def mean(scores: Scores) -> Any:
    """Mean over tasks of each task's mean over its runs."""
    return np.nanmean(scores, -2).mean(-1)


def median(scores: Scores) -> Any:
    """Median over tasks of each task's mean over its runs."""
    return np.median(np.nanmean(scores, -2), -1)


def std(scores: Scores) -> Any:
    """Mean over tasks of the standard deviation over runs; nan if no task has two runs."""
    count = (~np.isnan(scores)).sum(-2)
    squares = np.nansum((scores - np.nanmean(scores, -2, keepdims=True)) ** 2, -2)
    deviation = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
    several = count > 1
    return np.where(several, deviation, 0).sum(-1) / np.where(several.any(-1), several.sum(-1), np.nan)


def iqm(scores: Scores) -> Any:
    """Interquartile mean: of all runs of all tasks together, the mean without the lowest and the highest quarter.

    It is less sensitive to single runs than the mean, and less wasteful than the median. Of n runs, n/4 are left
    out at either end, rounded down.
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)  # nan comes last
    count = int((~np.isnan(flat)).sum(-1).max())
    return flat[..., count // 4 : count - count // 4].mean(-1)


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "IQM": iqm}


def profile(scores: Scores, thresholds: NDArray[Any]) -> Any:
    """Performance profile: for each threshold, the share of runs above it, as a mean over tasks."""
    above = np.where(np.isnan(scores), np.nan, 0.0)[..., None] + (scores[..., None] > thresholds)
    return np.nanmean(above, -3).mean(-2)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Any:
    """Mean over tasks of the chance that a run of ours scores more than one of theirs; a tie counts half.

    Both have the same tasks, but perhaps different numbers of runs.
    """
    difference = ours[..., :, None, :] - theirs[..., None, :, :]
    wins = np.where(np.isnan(difference), np.nan, 0.5 * (1 + np.sign(difference)))
    return np.nanmean(wins, (-3, -2)).mean(-1)


# -- intervals ---------------------------------------------------------------------------------------------------


def stratified_interval(
    statistic: Callable[..., Any],
    *scores: Scores,
    level: float = _LEVEL,
    draws: int = _DRAWS,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Percentile bootstrap interval of a statistic of one or several arrays of scores.

    Each draw takes as many runs of each task as there are, with replacement and independently of other tasks.
    """
    generator = np.random.default_rng(seed)
    drawn = statistic(*(_resampled(array, draws, generator) for array in scores))
    low, high = _middle(drawn, level)
    return low, high


def _resampled(scores: Scores, draws: int, generator: np.random.Generator) -> Scores:
    """Return [draws, runs, tasks]; tasks keep their number of runs, the rest is nan."""
    made = np.full((draws, *scores.shape), np.nan)
    for task, column in enumerate(scores.T):
        runs = column[~np.isnan(column)]
        made[:, : len(runs), task] = runs[generator.integers(len(runs), size=(draws, len(runs)))]
    return made


def _middle(drawn: Any, level: float) -> Any:
    """Return both ends of the middle `level` of the draws."""
    tail = (1 - level) / 2
    return np.quantile(drawn, [tail, 1 - tail], axis=0)
