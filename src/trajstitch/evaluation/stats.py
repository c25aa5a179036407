"""Statistics of scores: mean, spread over seeds, bootstrap interval."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def spread(scores: NDArray[Any]) -> float | None:
    """Standard deviation over seeds of each seed's mean, scores [P, E]; None for one seed."""
    return float(scores.mean(1).std(ddof=1)) if len(scores) > 1 else None


def interval(scores: NDArray[Any], level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of scores [P, E].

    Seeds are drawn with replacement, then episodes within each drawn seed, so both sources of randomness count.
    """
    many, episodes = scores.shape
    generator = np.random.default_rng(seed)
    which = generator.integers(many, size=(draws, many, 1))
    means = scores[which, generator.integers(episodes, size=(draws, many, episodes))].mean((1, 2))
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
