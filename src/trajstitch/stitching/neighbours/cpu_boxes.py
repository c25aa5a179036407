"""Boxes: nearest neighbours on a CPU where neighbours are so far apart that a KD-tree prunes little.

A tree is queried for one state at a time. Here 128 states that are near each other are queried together: boxes too
far from all of them are skipped, and the distances to all points in the other boxes are one matrix product.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.data import Int
from trajstitch.stitching.neighbours.distances import (
    ROUNDING,
    fill_up,
    largest_square,
    left_factors,
    right_factors,
)

ROWS = 128  # states queried together
_POINTS = 16  # points per small box
_SMALL = 16  # small boxes per large box
_COLUMNS = 4096  # boxes, or points, per call
_UNROLLED = 8  # states whose distances to boxes are computed per loop iteration


class Boxes:
    """Points in the order of a tree's leaves, grouped in small boxes, and these in large boxes."""

    def __init__(self, points: NDArray[np.float64]) -> None:
        self.points = points
        self._padded = fill_up(points, _POINTS * _SMALL)
        split = self._padded.reshape(-1, _SMALL, _POINTS, points.shape[1])
        low, high = split.min(2), split.max(2)
        self._small = np.stack([low, high]).transpose(1, 3, 0, 2).copy()  # [large boxes, S, 2, 16]
        ends = np.stack([low.min(1), high.max(1)], 1)  # [large boxes, 2, S]
        filled = fill_up(ends.reshape(len(ends), -1), _COLUMNS).reshape(-1, _COLUMNS, 2, points.shape[1])
        self._large = filled.transpose(0, 3, 2, 1).copy()  # [calls, S, 2, 4096]
        self._reach = largest_square(points)

    @cached_property
    def _right(self) -> NDArray[np.float32]:
        return right_factors(self._padded).reshape(-1, _POINTS, self.points.shape[1] + 2)

    def nearest(
        self, query: NDArray[np.float64], bound: NDArray[Any], count: int, radius: float
    ) -> NDArray[np.intp]:
        """Return places [B, count] of the points nearest to queries [B, S] and within the radius, -1: none.

        A place is a position in the order of the tree. `bound` [B] is at least the distance of the last point.
        """
        left, limit = self._ask(query, bound)
        box = self._reached(left[:, :-2], limit)
        none = np.zeros(0, np.int64)
        found = [(none, none)]
        for b in range(0, len(box), _COLUMNS // _POINTS):
            some = box[b : b + _COLUMNS // _POINTS]
            distance = left @ self._right[some].reshape(-1, left.shape[1]).T
            row, column = np.divmod(np.flatnonzero(distance <= limit[:, None]), distance.shape[1])
            found.append((row, some[column // _POINTS] * _POINTS + column % _POINTS))
        row, place = (np.concatenate(part) for part in zip(*found, strict=True))
        # The distances of these candidates are computed again, exactly, and ranked.
        exact = np.sum((query[row] - self.points[place]) ** 2, -1)
        order = np.lexsort((exact, row))
        row, place, exact = row[order], place[order], exact[order]
        rank = np.arange(len(row)) - np.searchsorted(row, np.arange(len(query)))[row]
        keep = (rank < count) & (exact <= radius**2)
        nearest = np.full((len(query), count), -1)
        nearest[row[keep], rank[keep]] = place[keep]
        return nearest

    def share(self, query: NDArray[np.float64], bound: NDArray[Any]) -> float:
        """Return the share of all points whose distances `nearest` would compute for these queries."""
        left, limit = self._ask(query, bound)
        return len(self._reached(left[:, :-2], limit)) * _POINTS / len(self._padded)

    def _ask(self, query: NDArray[np.float64], bound: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        left = left_factors(query.astype(np.float32))
        return left, (bound**2 + ROUNDING * (left[:, -2] + self._reach)).astype(np.float32)

    def _reached(self, query: NDArray[Any], limit: NDArray[Any]) -> Int:
        """Return the small boxes that are within the limit of at least one query."""
        query, limit = np.resize(query, (ROWS, query.shape[1])), np.resize(limit, ROWS)
        large = np.flatnonzero(np.concatenate([_within(box, query, limit) for box in self._large]))
        together = _COLUMNS // _SMALL
        small = [np.zeros(0, bool)]
        for b in range(0, len(large), together):
            some = np.resize(large[b : b + together], together)  # always a whole call, for one shape
            box = self._small[some].transpose(1, 2, 0, 3).reshape(query.shape[1], 2, _COLUMNS)
            small.append(_within(box, query, limit))
        inside = np.flatnonzero(np.concatenate(small)[: len(large) * _SMALL])
        return large[inside // _SMALL] * _SMALL + inside % _SMALL


@jax.jit
def _within(box: Array, query: Array, limit: Array) -> Array:
    """Return whether at least one query [B, S] is within its limit (squared) of each box [S, 2, C]."""

    def update(best: Array, some: tuple[Array, Array]) -> tuple[Array, None]:
        for x, most in zip(*some, strict=True):
            outside = [
                jnp.maximum(jnp.maximum(low - y, y - high), 0) for (low, high), y in zip(box, x, strict=True)
            ]
            best = jnp.minimum(best, sum(d * d for d in outside) - most)
        return best, None

    some = query.reshape(-1, _UNROLLED, query.shape[1]), limit.reshape(-1, _UNROLLED)
    return jax.lax.scan(update, jnp.full(box.shape[2], jnp.inf, jnp.float32), some)[0] <= 0
