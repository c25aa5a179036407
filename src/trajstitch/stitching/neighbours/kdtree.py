"""Neighbours: the exact nearest states of every state, by a KD-tree, by boxes, or on a GPU by all distances.

All three rotate the points to their principal axes, which changes no distance, and process them in the order of a
KD-tree's leaves, in which points that are near in space are near in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from trajstitch.blocks import Mapper, in_process
from trajstitch.progress import Tell, silent
from trajstitch.stitching.neighbours import cpu_boxes as boxes
from trajstitch.stitching.neighbours import gpu_tiles as tiles
from trajstitch.stitching.neighbours.cpu_boxes import Boxes
from trajstitch.stitching.neighbours.gpu_tiles import by_distances, make_tiles

_QUERIES = 16384  # states per query of the tree
_DENSE = range(50_000, 4_000_000)  # numbers of points for which computing all distances is faster on a GPU
_MANY = 100_000  # with at least this many points boxes are considered on a CPU
_WIDE = 0.03  # boxes are faster than the tree where they reach more than this share of all points
_PROBES = 8  # number of places where that share is measured

Find = Callable[[NDArray[np.float64]], NDArray[np.intp]]  # returns the rows [B, count] nearest to points [B, S]


class Tree:
    """SciPy's KD-tree on rotated points.

    States lie near a surface of few dimensions, so boxes along the principal axes are tight; queried in the order
    of its leaves, the tree finds most of what it reads in the cache. docs/speed.md measures the effect.
    """

    def __init__(self, points: NDArray[np.float64]) -> None:
        _, axes = np.linalg.eigh(np.atleast_2d(np.cov(points.T)))
        self._centre, self._axes = points.mean(0), axes[:, ::-1]
        points = self.turned(points)
        self.order = cKDTree(points, copy_data=False).indices
        self.points = points[self.order]
        self.place = np.empty(len(points), np.intp)
        self.place[self.order] = np.arange(len(points))

    def turned(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return points in the coordinates of the tree."""
        turned: NDArray[np.float64] = (points - self._centre) @ self._axes
        return turned

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.points)  # built again, on the points in leaf order

    def build(self) -> None:
        """Build the tree now, so that copies of this object have it."""
        _ = self._tree

    def nearest(self, points: NDArray[np.float64], count: int, radius: float) -> NDArray[np.intp]:
        """Return the rows [B, count] nearest to these (turned) points and within the radius, padded with -1."""
        _, near = self._tree.query(points, np.arange(1, count + 1), distance_upper_bound=radius, workers=-1)
        return np.append(self.order, -1)[near]  # SciPy marks a missing neighbour by the number of points

    def bound(self, points: NDArray[np.float64], count: int, radius: float) -> NDArray[np.float64]:
        """Return an upper bound on the distance of the `count`-th nearest to each of these, at most the radius.

        The search is approximate: the bound is at worst twice the distance, on real data half a percent above it,
        and takes a tenth of the time.
        """
        far, _ = self._tree.query(points, [count], eps=1.0, distance_upper_bound=radius, workers=-1)
        return np.minimum(far[:, 0], radius)

    def within(self, row: NDArray[Any], radius: float) -> NDArray[np.int32]:
        """Return all rows [B, K] within the radius of each of these, padded with -1."""
        balls = self._tree.query_ball_point(self.points[self.place[row]], radius, workers=-1)
        padded = np.full((len(row), max(map(len, balls))), -1, np.int32)
        for line, ball in zip(padded, balls, strict=True):
            line[: len(ball)] = np.sort(self.order[ball])
        return padded

    def distance(self, row: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
        """Return the distance of each of these rows [X] from the other [X]."""
        away: NDArray[np.float64] = self.points[self.place[row]] - self.points[self.place[other]]
        return np.sqrt(np.square(away).sum(1))


def all_nearest(
    tree: Tree, count: int, radius: float, tell: Tell = silent, mapper: Mapper = in_process
) -> NDArray[np.int32]:
    """Return the rows [rows, count] nearest to each point and within the radius, with itself, padded with -1."""
    return _search(tree, tree.points, tree.order, count, radius, tell, mapper)


def nearest_to(
    tree: Tree,
    points: NDArray[Any],
    count: int,
    radius: float,
    tell: Tell = silent,
    mapper: Mapper = in_process,
) -> NDArray[np.int32]:
    """Return the rows [B, count] of the tree nearest to other points [B, S] and within the radius, or -1."""
    turned = tree.turned(points)
    order = cKDTree(turned, copy_data=False).indices
    return _search(tree, turned[order], order, count, radius, tell, mapper)


def _search(
    tree: Tree,
    points: NDArray[np.float64],
    order: NDArray[np.intp],
    count: int,
    radius: float,
    tell: Tell,
    mapper: Mapper,
) -> NDArray[np.int32]:
    """Search for (turned) points in an order that keeps near ones together; found[order[i]] is of points[i]."""
    found = np.empty((len(points), count), np.int32)
    gpu = mapper is in_process and jax.default_backend() != "cpu"  # tasks of a cluster ask for none
    find, step = _choose(tree, points, count, radius, gpu)
    for part, near in mapper(_find, (find, points), len(points), step):
        found[order[part]] = near
        tell(part.stop, len(points), "states' neighbours")
    return found


def _find(shared: tuple[Find, NDArray[np.float64]], part: slice) -> NDArray[np.intp]:
    find, points = shared
    return find(points[part])


def _choose(tree: Tree, points: NDArray[np.float64], count: int, radius: float, gpu: bool) -> tuple[Find, int]:
    """Return the fastest search for these points, and how many of them it handles per call."""
    rows = len(tree.order)
    if gpu:
        if rows in _DENSE:
            return partial(by_distances, tree, make_tiles(tree.points), count=count, radius=radius), tiles.ROWS
    elif rows >= _MANY:
        small = Boxes(tree.points)
        probes = np.linspace(0, max(0, len(points) - boxes.ROWS), _PROBES).astype(int)
        queries = [points[a : a + boxes.ROWS] for a in probes]
        share = [small.share(query, tree.bound(query, count, radius)) for query in queries]
        if np.mean(share) > _WIDE:
            return partial(by_boxes, tree, small, count=count, radius=radius), _QUERIES
    tree.build()  # once, not in each task
    return partial(tree.nearest, count=count, radius=radius), _QUERIES


def by_boxes(tree: Tree, small: Boxes, points: NDArray[np.float64], count: int, radius: float) -> NDArray[np.intp]:
    """Return what `tree.nearest` would; the tree only bounds the distances."""
    bound = tree.bound(points, count, radius)

    def some(b: int) -> NDArray[np.intp]:
        return small.nearest(points[b : b + boxes.ROWS], bound[b : b + boxes.ROWS], count, radius)

    # One product per thread: threads inside a product would wait for each other.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        place = np.concatenate(list(pool.map(some, range(0, len(points), boxes.ROWS))))
    return np.append(tree.order, -1)[place]
