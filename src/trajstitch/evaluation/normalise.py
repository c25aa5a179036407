"""Normalised scores: 0 is a random policy, 100 an expert (D4RL's definition)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trajstitch.data import Info
from trajstitch.errors import InputError

# Returns of a random and of an expert policy, by D4RL's definition of the normalised score; ids without version.
REFERENCE: Mapping[str, tuple[float, float]] = {
    "Hopper": (-20.272305, 3234.3),
    "HalfCheetah": (-280.178953, 12135.0),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
}


def reference_scores(env_id: str, info: Info | None = None) -> tuple[float, float] | None:
    """Return the (random, expert) returns: from `info` if it has them, else D4RL's, else None."""
    if info and "ref_min_score" in info and "ref_max_score" in info:
        try:
            low, high = float(info["ref_min_score"]), float(info["ref_max_score"])
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high)) or low == high:
            raise InputError(
                f"ref_min_score {info['ref_min_score']!r} and ref_max_score {info['ref_max_score']!r} in the "
                "file's info are not two different numbers; correct them or leave them out"
            )
        return low, high
    return REFERENCE.get(env_id.partition("-v")[0])


def normalise(returns: Any, reference: tuple[float, float]) -> Any:
    """Return 100 · (return - random) / (expert - random)."""
    random, expert = reference
    return 100 * (returns - random) / (expert - random)
