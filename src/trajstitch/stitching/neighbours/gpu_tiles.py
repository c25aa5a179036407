"""Tiles: nearest neighbours by computing all distances, which on a GPU is faster than any tree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.stitching.neighbours.distances import (
    ROUNDING,
    fill_up,
    largest_square,
    left_factors,
    right_factors,
)

if TYPE_CHECKING:
    from trajstitch.stitching.neighbours.kdtree import Tree

GROUP = 64  # points per group; at first only the smallest distance of a group is kept
TILE = 16384  # points whose distances are computed together
ROWS = 2048  # states queried together
_SPARE = 8  # groups searched beyond the number required


class Tiles(NamedTuple):
    """The points in the order of the tree, in the layout that matrix products need.

    Points are in groups of 64 that are near each other; of each group the smallest distance is kept. The k
    nearest points lie in at most k groups, those with the smallest minima; in these groups distances are computed
    again, by differences, and ranked.
    """

    point: Array  # [groups, 64, S]
    # [tiles, S+2, 64 · groups per tile]: the first points of all groups, then the second ones, and so on, so that
    # the minimum over a group is taken over rows
    column: Array
    reach: Array  # [] the largest |p|²


def make_tiles(points: NDArray[np.float64]) -> Tiles:
    """Arrange all points in tiles; the last tile is padded with points very far away."""
    dims = points.shape[1]
    padded = fill_up(points, TILE)
    right = right_factors(padded).reshape(-1, TILE // GROUP, GROUP, dims + 2)
    column = right.transpose(0, 3, 2, 1).reshape(-1, dims + 2, TILE)
    reach = jnp.float32(largest_square(points))
    return Tiles(jnp.asarray(padded.reshape(-1, GROUP, dims)), jnp.asarray(column), reach)


def by_distances(
    tree: Tree, tiles: Tiles, points: NDArray[np.float64], count: int, radius: float
) -> NDArray[np.intp]:
    """Return what `tree.nearest` would for at most ROWS points; it is called where rounding might matter."""
    query = np.asarray(points, np.float32)
    place, certain = search_tiles(tiles, np.resize(query, (ROWS, query.shape[1])), count, radius)
    found = np.append(tree.order, -1)[np.asarray(place)[: len(query)]]
    uncertain = np.flatnonzero(~np.asarray(certain)[: len(query)])
    if len(uncertain):
        found[uncertain] = tree.nearest(points[uncertain], count, radius)
    return found


@partial(jax.jit, static_argnums=2)
def search_tiles(tiles: Tiles, query: Array, count: int, radius: Any) -> tuple[Array, Array]:
    """Return places [B, count] of the nearest points within the radius, -1: none, and if they are certain [B]."""
    left = left_factors(query, jnp)

    def minima(column: Array) -> Array:
        distance = jnp.dot(left, column, precision="highest")
        return distance.reshape(len(query), GROUP, -1).min(1)

    least = jax.lax.map(minima, tiles.column)  # [tiles, B, groups]
    least = least.transpose(1, 0, 2).reshape(len(query), -1)
    searched = min(count + _SPARE, least.shape[1])
    minimum, group = jax.lax.top_k(-least, searched)
    distance = jnp.sum((tiles.point[group] - query[:, None, None]) ** 2, -1).reshape(len(query), -1)
    smallest, which = jax.lax.top_k(-distance, count)
    place = jnp.take_along_axis(group, which // GROUP, 1) * GROUP + which % GROUP
    last = jnp.minimum(-smallest[:, -1], radius**2)
    slack = ROUNDING * (left[:, -2] + tiles.reach)
    certain = (searched == least.shape[1]) | (-minimum[:, -1] > last + slack)
    return jnp.where(-smallest <= radius**2, place, -1), certain
