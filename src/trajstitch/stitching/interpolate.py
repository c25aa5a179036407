"""Interpolate: what an ensemble says of many actions in a state, from a few actions that were tried there.

An action has few dimensions and a state many candidates, so most tries tell little that others have not told. Of
the actions of a state some that lie far apart are tried, and a Gaussian process for each state gives the others,
with a doubt: how far off it may be. The kernel is a straight line plus what bends slowly (Matérn 3/2, _LENGTH half
ranges of the action), both around the first try; its size in each state is the one that suits the tries best.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

_LENGTH = 4.0  # of the kernel, in half ranges of the action
_LINEAR = 10.0  # variance of the slopes, in units of that of what bends
_NUGGET = 1e-4  # keeps the equations solvable where two tries are nearly the same
_UNKNOWN = 1e6  # the same for a try that there is not


class Tries(NamedTuple):
    """Actions tried in a block of B states, and C answers to each; the first one is always there."""

    action: Array  # [B, J, A], in half ranges of the action
    answer: Array  # [B, J, C]
    there: Array  # [B, J]


@partial(jax.jit, static_argnames="many")
def choose_apart(tried: Array, action: Array, there: Array, many: int) -> tuple[Array, Array]:
    """Choose `many` of the actions [B, K, A] that are there [B, K]: always the farthest from all tried [B, J, A].

    Return their columns [B, many], and which of these there are.
    """
    apart = jnp.square(action[:, :, None] - tried[:, None]).sum(-1).min(-1)
    apart = jnp.where(there, apart, -1.0)
    columns, real = [], []
    for _ in range(many):
        column = apart.argmax(1)
        picked = jnp.take_along_axis(action, column[:, None, None], 1)
        columns.append(column)
        real.append(jnp.take_along_axis(apart, column[:, None], 1)[:, 0] >= 0)
        apart = jnp.minimum(apart, jnp.square(action - picked).sum(-1))
        apart = jnp.where(jnp.arange(action.shape[1]) == column[:, None], -1.0, apart)
    return jnp.stack(columns, 1), jnp.stack(real, 1)


@jax.jit
def interpolate(tries: Tries, action: Array) -> tuple[Array, Array, Array]:
    """Return the answers [B, K, C] to actions [B, K, A], and how far off they may be (one std).

    That is a product of two: how far each action is from the tries [B, K], and how much answers bend [B, C].
    """
    first = tries.action[:, :1]
    known, asked = tries.action - first, action - first
    answer = jnp.where(tries.there[..., None], tries.answer - tries.answer[:, :1], 0.0)
    between = _kernel(known, known)
    loose = jnp.where(tries.there, _NUGGET, _UNKNOWN)
    inverse = _inverse(between + loose[:, :, None] * jnp.eye(known.shape[1]))
    to_known = _kernel(asked, known)
    weight = jnp.einsum("bkj,bji->bki", to_known, inverse)
    own = 1.0 + _LINEAR * jnp.square(asked).sum(-1)
    variance = jnp.maximum(own - (weight * to_known).sum(-1), 0.0)
    free = jnp.maximum(tries.there.sum(1) - 1 - known.shape[2], 1)
    size = jnp.einsum("bjc,bji,bic->bc", answer, inverse, answer) / free[:, None]
    found = tries.answer[:, :1] + jnp.einsum("bki,bic->bkc", weight, answer)
    return found, jnp.sqrt(variance), jnp.sqrt(jnp.maximum(size, 0.0))


def _kernel(one: Array, other: Array) -> Array:
    """Return the covariances [B, K, J] of actions [B, K, A] and [B, J, A]."""
    apart = jnp.square(one[:, :, None] - other[:, None]).sum(-1)
    far = jnp.sqrt(3.0 * apart + 1e-12) / _LENGTH
    return (1.0 + far) * jnp.exp(-far) + _LINEAR * jnp.einsum("bka,bja->bkj", one, other)


def _inverse(matrix: Array) -> Array:
    """Invert positive definite matrices [B, J, J], all at once: one column after the other is swept."""
    swept = matrix.transpose(1, 2, 0)  # the many last, so that each operation runs over them
    for k in range(len(swept)):
        pivot, row = swept[k, k], swept[k]
        swept = swept - row[:, None] * (row / pivot)
        swept = swept.at[k].set(row / pivot).at[:, k].set(row / pivot).at[k, k].set(-1.0 / pivot)
    return -swept.transpose(2, 0, 1)
