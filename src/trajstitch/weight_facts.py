"""Weight facts: which steps and trajectories the weights of a data set prefer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Float, effective_steps

_EXAMPLES = 3  # trajectories of largest and of smallest weight that are shown


def weight_facts(data: Dataset) -> dict[str, Any] | None:
    """Return which steps and trajectories the weights prefer; None for data without weights."""
    if data.weight is None:
        return None
    mean = mean_weights(data, data.weight)
    total = mean * data.length
    order = np.argsort(mean, kind="stable")
    effective = effective_steps(data.weight)
    return {
        "effective_steps": effective,
        "effective_share": effective / data.transitions,
        "max": float(data.weight.max()),
        "best_tenth_share": float(total[data.best(10)].sum() / total.sum()),
        "mean_by_fifth": _mean_by_fifth(data, data.weight),
        "return_spearman": _spearman(mean, data.returns),
        "heaviest": [_weighed(data, mean, m) for m in order[::-1][:_EXAMPLES]],
        "lightest": [_weighed(data, mean, m) for m in order[:_EXAMPLES]],
    }


def mean_weights(data: Dataset, weight: Float) -> NDArray[np.float64]:
    """Return the mean weight of the steps of each trajectory, [M]."""
    mean: NDArray[np.float64] = np.add.reduceat(weight, data.start[:-1], dtype=np.float64) / data.length
    return mean


def _mean_by_fifth(data: Dataset, weight: Float) -> list[float | None]:
    """Return the mean weight in each fifth of the trajectories' length; None where no step's middle lies."""
    length = np.repeat(data.length, data.length)
    fifth = (5 * (2 * (length - data.steps_left) + 1)) // (2 * length)
    count = np.bincount(fifth, minlength=5)
    total = np.bincount(fifth, weight, minlength=5)
    return [float(t / c) if c else None for t, c in zip(total, count, strict=True)]


def _spearman(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    """Return the rank correlation; None where one of the two is always the same."""
    from scipy.stats import spearmanr

    return None if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def _weighed(data: Dataset, mean: NDArray[Any], m: int) -> dict[str, float]:
    return {"trajectory": int(m), "return": float(data.returns[m]), "mean_weight": float(mean[m])}
