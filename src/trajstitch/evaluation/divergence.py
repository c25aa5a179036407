"""Divergence: how far Gaussian clones are from an expert, in the expert's own states (paper, sub-optimal data)."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.data import Float
from trajstitch.errors import InputError
from trajstitch.policies.policy import Policy, acting, stacked

EXPERT_STD = 0.01  # of the paper's expert, which is otherwise deterministic


class Distance(NamedTuple):
    """What separates P clones from an expert, as means over states."""

    kl: NDArray[np.float64]  # [P], KL divergence from the expert's actions to the clone's, in nats
    action_error: NDArray[np.float64]  # [P], squared difference of the most likely actions, mean over dimensions


def gaussian_kl(mean: Array, log_std: Array, other_mean: Array, other_log_std: Array) -> Array:
    """Compute KL(N(mean, std²) || N(other_mean, other_std²)) of diagonal Gaussians, summed over the last axis."""
    ratio = jnp.exp(2 * (log_std - other_log_std))
    shift = ((mean - other_mean) * jnp.exp(-other_log_std)) ** 2
    return jnp.sum(other_log_std - log_std + 0.5 * (ratio + shift - 1), -1)


def distance_to_expert(clones: Policy, expert: Policy, obs: Float, std: float = EXPERT_STD) -> Distance:
    """Compare clones with an expert whose actions are N(π*(s), std²), in states obs [B, S] that the expert visits.

    The KL divergence of their trajectories per step is the mean over these states of that of their actions. The
    expectation over the expert's actions is exact, where the paper draws them.
    """
    if clones.head != "gaussian":
        raise InputError(f"the KL divergence needs clones with a gaussian head, not {clones.head}")
    kl, error = _compare(stacked(clones), jnp.asarray(obs), acting(expert)(obs), jnp.log(std))
    return Distance(np.asarray(kl, np.float64), np.asarray(error, np.float64))


@eqx.filter_jit
def _compare(clones: Policy, obs: Array, wanted: Array, log_std: Array) -> tuple[Array, Array]:
    def one(clone: Policy) -> tuple[Array, Array]:
        mean, own_log_std = jax.vmap(clone.moments)(obs)
        kl = gaussian_kl(wanted, jnp.full_like(wanted, log_std), mean, own_log_std)
        return kl.mean(), jnp.mean((jax.vmap(clone.act)(obs) - wanted) ** 2)

    return eqx.filter_vmap(one)(clones)
