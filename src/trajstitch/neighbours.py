"""Neighbours: the nearest states of every state, exactly; by a tree, or on a GPU by all distances.

Both turn the points into their principal axes, which changes no distance, and work in the order of a KD-tree's
leaves, in which points that are near in space are near in memory.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from trajstitch.data import Int
from trajstitch.progress import Tell, silent

_QUERIES = 16384  # states a tree is asked about together
_GROUP = 64  # points of which at first only the nearest counts
_TILE = 16384  # points, and
_ROWS = 2048  # states, whose distances are taken together
_SPARE = 8  # groups looked into beyond those that must be
_DENSE = range(50_000, 4_000_000)  # numbers of points for which all distances are the faster way on a GPU


class Tree:
    """SciPy's KD-tree.

    States lie near a surface of few dimensions, so boxes along its axes are tight; asked in the order of its
    leaves, a query finds most of what it reads in the cache. Both together pay (docs/speed.md).
    """

    def __init__(self, points: NDArray[np.float64]) -> None:
        _, axes = np.linalg.eigh(np.atleast_2d(np.cov(points.T)))
        points = (points - points.mean(0)) @ axes[:, ::-1]
        self.order = cKDTree(points, copy_data=False).indices
        self.points = points[self.order]
        self.place = np.empty(len(points), np.intp)
        self.place[self.order] = np.arange(len(points))

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.points)  # in their new order

    def nearest(self, row: Int, count: int, radius: float) -> NDArray[np.intp]:
        """Rows [B, count] nearest to each of these and within the radius, padded with -1."""
        _, near = self._tree.query(
            self.points[self.place[row]], np.arange(1, count + 1), distance_upper_bound=radius, workers=-1
        )
        return np.append(self.order, -1)[near]  # SciPy's number for none is the one behind the last

    def within(self, row: Int, radius: float) -> NDArray[np.int32]:
        """Rows [B, K] of all within the radius of each of these, padded with -1."""
        balls = self._tree.query_ball_point(self.points[self.place[row]], radius, workers=-1)
        padded = np.full((len(row), max(map(len, balls))), -1, np.int32)
        for line, ball in zip(padded, balls, strict=True):
            line[: len(ball)] = np.sort(self.order[ball])
        return padded


def all_nearest(tree: Tree, count: int, radius: float, tell: Tell = silent) -> NDArray[np.int32]:
    """Rows [rows, count] nearest to each point and within the radius, itself too, padded with -1."""
    rows = len(tree.order)
    dense = jax.default_backend() != "cpu" and rows in _DENSE
    step = _ROWS if dense else _QUERIES
    tiles = make_tiles(tree.points) if dense else None
    found = np.empty((rows, count), np.int32)
    for a in range(0, rows, step):
        row = tree.order[a : a + step]
        found[row] = by_distances(tree, tiles, a, count, radius) if tiles else tree.nearest(row, count, radius)
        tell(min(a + step, rows), rows, "states' neighbours")
    return found


# -- all distances -----------------------------------------------------------------------------------------------


class Tiles(NamedTuple):
    """The points in the order of the tree, as matrix products need them.

    |q - p|² = [q, |q|², 1] · [-2p, 1, |p|²], so the distances of many points are one product. Points are in groups
    of 64, near in space; of each group the smallest distance is kept. The k nearest points lie in at most k
    groups, those with the smallest minima; in these, distances are taken again, as differences, and ranked.
    """

    point: Array  # [groups, 64, S]
    column: (
        Array  # [tiles, S+2, 64 · groups of a tile]: point after point of all groups, so that minima are of rows
    )
    reach: Array  # [] the largest |p|²


def make_tiles(points: NDArray[np.float64]) -> Tiles:
    """All points; the last tile is filled up with points very far away."""
    rows, dims = points.shape
    tiles = -(-rows // _TILE)
    padded = np.full((tiles * _TILE, dims), 1e15, np.float32)
    padded[:rows] = points
    square = np.full(len(padded), 1e30, np.float32)
    square[:rows] = np.sum(points**2, -1)
    right = np.concatenate([-2 * padded, np.ones((len(padded), 1), np.float32), square[:, None]], axis=1)
    right[rows:, :dims] = 0  # 1e30 is all they need
    column = right.reshape(tiles, -1, _GROUP, dims + 2).transpose(0, 3, 2, 1).reshape(tiles, dims + 2, _TILE)
    return Tiles(
        jnp.asarray(padded.reshape(-1, _GROUP, dims)), jnp.asarray(column), jnp.asarray(square[:rows].max())
    )


def by_distances(tree: Tree, tiles: Tiles, a: int, count: int, radius: float) -> NDArray[np.intp]:
    """What `tree.nearest` says of the places from `a` on; where rounding leaves a doubt, the tree is asked."""
    query = np.asarray(tree.points[a : a + _ROWS], np.float32)
    place, certain = search_tiles(tiles, np.resize(query, (_ROWS, query.shape[1])), count, radius)
    found = np.append(tree.order, -1)[np.asarray(place)[: len(query)]]
    doubt = np.flatnonzero(~np.asarray(certain)[: len(query)])
    if len(doubt):
        found[doubt] = tree.nearest(tree.order[a + doubt], count, radius)
    return found


@partial(jax.jit, static_argnums=2)
def search_tiles(tiles: Tiles, query: Array, count: int, radius: Any) -> tuple[Array, Array]:
    """Places [B, count] of the nearest points within the radius, -1: none, and whether [B] that is certain."""
    square = jnp.sum(query**2, -1, keepdims=True)
    left = jnp.concatenate([query, square, jnp.ones_like(square)], axis=1)

    def minima(column: Array) -> Array:
        distance = jnp.dot(left, column, precision="highest")
        return distance.reshape(len(query), _GROUP, -1).min(1)

    least = jax.lax.map(minima, tiles.column)  # [tiles, B, groups]
    least = least.transpose(1, 0, 2).reshape(len(query), -1)
    looked = min(count + _SPARE, least.shape[1])
    minimum, group = jax.lax.top_k(-least, looked)
    distance = jnp.sum((tiles.point[group] - query[:, None, None]) ** 2, -1).reshape(len(query), -1)
    smallest, which = jax.lax.top_k(-distance, count)
    place = jnp.take_along_axis(group, which // _GROUP, 1) * _GROUP + which % _GROUP
    last = jnp.minimum(-smallest[:, -1], radius**2)
    slack = 4e-6 * (square[:, 0] + tiles.reach)  # some 30 roundings of the products
    certain = (looked == least.shape[1]) | (-minimum[:, -1] > last + slack)
    return jnp.where(-smallest <= radius**2, place, -1), certain
