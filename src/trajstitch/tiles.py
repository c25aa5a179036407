"""Tiles: the nearest states of every state by all distances, which on a GPU is faster than any tree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.products import ROUNDING, fill_up, largest_square, left_factors, right_factors

if TYPE_CHECKING:
    from trajstitch.neighbours import Tree

GROUP = 64  # points of which at first only the nearest counts
TILE = 16384  # points, and
ROWS = 2048  # states, whose distances are taken together
_SPARE = 8  # groups looked into beyond those that must be


class Tiles(NamedTuple):
    """The points in the order of the tree, as matrix products need them.

    Points are in groups of 64, near in space; of each group the smallest distance is kept. The k nearest points
    lie in at most k groups, those with the smallest minima; in these, distances are taken again, as differences,
    and ranked.
    """

    point: Array  # [groups, 64, S]
    column: (
        Array  # [tiles, S+2, 64 · groups of a tile]: point after point of all groups, so that minima are of rows
    )
    reach: Array  # [] the largest |p|²


def make_tiles(points: NDArray[np.float64]) -> Tiles:
    """All points; the last tile is filled up with points very far away."""
    dims = points.shape[1]
    padded = fill_up(points, TILE)
    right = right_factors(padded).reshape(-1, TILE // GROUP, GROUP, dims + 2)
    column = right.transpose(0, 3, 2, 1).reshape(-1, dims + 2, TILE)
    reach = jnp.float32(largest_square(points))
    return Tiles(jnp.asarray(padded.reshape(-1, GROUP, dims)), jnp.asarray(column), reach)


def by_distances(tree: Tree, tiles: Tiles, a: int, count: int, radius: float) -> NDArray[np.intp]:
    """What `tree.nearest` says of the places from `a` on; where rounding leaves a doubt, the tree is asked."""
    query = np.asarray(tree.points[a : a + ROWS], np.float32)
    place, certain = search_tiles(tiles, np.resize(query, (ROWS, query.shape[1])), count, radius)
    found = np.append(tree.order, -1)[np.asarray(place)[: len(query)]]
    doubt = np.flatnonzero(~np.asarray(certain)[: len(query)])
    if len(doubt):
        found[doubt] = tree.nearest(tree.order[a + doubt], count, radius)
    return found


@partial(jax.jit, static_argnums=2)
def search_tiles(tiles: Tiles, query: Array, count: int, radius: Any) -> tuple[Array, Array]:
    """Places [B, count] of the nearest points within the radius, -1: none, and whether [B] that is certain."""
    left = left_factors(query, jnp)

    def minima(column: Array) -> Array:
        distance = jnp.dot(left, column, precision="highest")
        return distance.reshape(len(query), GROUP, -1).min(1)

    least = jax.lax.map(minima, tiles.column)  # [tiles, B, groups]
    least = least.transpose(1, 0, 2).reshape(len(query), -1)
    looked = min(count + _SPARE, least.shape[1])
    minimum, group = jax.lax.top_k(-least, looked)
    distance = jnp.sum((tiles.point[group] - query[:, None, None]) ** 2, -1).reshape(len(query), -1)
    smallest, which = jax.lax.top_k(-distance, count)
    place = jnp.take_along_axis(group, which // GROUP, 1) * GROUP + which % GROUP
    last = jnp.minimum(-smallest[:, -1], radius**2)
    slack = ROUNDING * (left[:, -2] + tiles.reach)
    certain = (looked == least.shape[1]) | (-minimum[:, -1] > last + slack)
    return jnp.where(-smallest <= radius**2, place, -1), certain
