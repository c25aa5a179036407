"""Distances: squared distances of many points as one matrix product, |q - p|² = [q, |q|², 1] · [-2p, 1, |p|²]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDING = 4e-6  # error of such a distance in float32, in units of |q|² + |p|²: about 30 roundings
_FAR = 1e15  # coordinate of padding points


def fill_up(points: NDArray[np.float64], multiple: int) -> NDArray[np.float32]:
    """Return the points in float32, padded with points far away to a multiple of this number."""
    padded = np.full((-(-len(points) // multiple) * multiple, points.shape[1]), _FAR, np.float32)
    padded[: len(points)] = points
    return padded


def right_factors(padded: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute [-2p, 1, |p|²] of padded points."""
    factors = np.empty((len(padded), padded.shape[1] + 2), np.float32)
    factors[:, :-2] = np.where(padded == _FAR, 0, -2 * padded)  # for padding points |p|² is enough
    factors[:, -2] = 1
    factors[:, -1] = np.einsum("ns,ns->n", padded, padded)
    return factors


def largest_square(points: NDArray[np.float64]) -> float:
    """Return the largest |p|²."""
    return float(np.einsum("ns,ns->n", points, points).max())


def left_factors(query: Any, np: Any = np) -> Any:
    """Compute [q, |q|², 1] with NumPy, or with the array module given as `np`."""
    square = np.sum(query**2, -1, keepdims=True)
    return np.concatenate([query, square, np.ones_like(square)], axis=1)
