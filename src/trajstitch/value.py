"""Value: twin V with target networks, by squared Bellman error; a time-out is no terminal (paper, eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.errors import InputError
from trajstitch.fit import Fit, History, Learner, Table, check_sizes, train_best
from trajstitch.nets import MLP, Scale, follow
from trajstitch.progress import Tell, silent


@dataclass(frozen=True)
class ValueConfig(Learner):
    """State value."""

    width: int = 256
    discount: float = 0.99
    target_rate: float = 0.005
    warm: bool = True  # whether later iterations go on from the last network, or else from a fresh one
    fit: Fit = Fit(steps=100_000, batch=256, rate=3e-4)

    def __post_init__(self) -> None:
        check_sizes(self, "width")
        if not 0 <= self.discount < 1 or not 0 < self.target_rate <= 1:
            raise InputError("discount must be from 0 to below 1 and target_rate above 0 and at most 1")

    def init(self, table: Table, key: Array) -> Value:
        """Two fresh networks and their targets; values start in units of a typical discounted return."""
        obs, reward = table["obs"], table["reward"]
        unit = float(np.sqrt(np.mean(np.square(reward, dtype=np.float64)))) / (1 - self.discount)
        sizes = [obs.shape[1], self.width, self.width, 1]
        twins = eqx.filter_vmap(lambda k: MLP.init(sizes, k))(jax.random.split(key))
        return Value(twins, twins, Scale.of(obs), jnp.asarray(max(unit, 1e-6), jnp.float32))

    def loss(self, model: Value, row: Mapping[str, Array], key: Array) -> Array:
        """(V_k(s) - r - γ·(1 - done)·min_k V'_k(s'))², summed over the twins, in units of a typical return."""
        unit = jax.lax.stop_gradient(model.unit)
        future = (1 - row["done"]) * jnp.min(model.scaled(model.target, row["next_obs"]))
        goal = jax.lax.stop_gradient(row["reward"] / unit + self.discount * future)
        return jnp.sum((model.scaled(model.twins, row["obs"]) - goal) ** 2)

    def after(self, model: Value) -> Value:
        """Targets follow the twins slowly."""
        return Value(model.twins, follow(model.target, model.twins, self.target_rate), model.scale, model.unit)


class Value(eqx.Module):
    """The minimum of two networks; their arrays have a leading axis of 2."""

    twins: MLP
    target: MLP
    scale: Scale
    unit: Array

    def scaled(self, nets: MLP, obs: Array) -> Array:
        """Both values [2] of one state, in units of a typical return."""
        return eqx.filter_vmap(lambda net: net(self.scale(obs))[0])(nets)

    @eqx.filter_jit
    def value(self, obs: Array) -> Array:
        """Discounted value [B] of states [B, S], raw units."""
        return self.unit * jax.vmap(lambda one: jnp.min(self.scaled(self.twins, one)))(obs)


def train_value(
    table: Table, config: ValueConfig, seed: int, tell: Tell = silent, model: Value | None = None
) -> tuple[Value, History]:
    """Train on the rows obs, reward, next_obs, done; from `model` on where it is given.

    The last weights are kept: a Bellman error is smallest before anything is learnt.
    """
    rows = len(table["obs"])
    order = np.random.default_rng(seed).permutation(rows)
    cut = max(1, rows // 20)
    train, held_out = (
        {name: np.asarray(table[name])[part] for name in ("obs", "reward", "next_obs", "done")}
        for part in (order[cut:] if rows > 1 else order, order[:cut])
    )
    old = None if model is None else jax.tree.map(lambda leaf: leaf[None], model)
    trained, history = train_best(config, train, held_out, [seed], tell, model=old, keep_last=True)
    return jax.tree.map(lambda leaf: leaf[0], trained), history
