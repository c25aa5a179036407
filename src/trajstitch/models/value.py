"""State value: twin networks with targets, by squared Bellman error; a time-out is not terminal (paper, eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.checks import check_sizes
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Fit, History, Learner, Table, train_best
from trajstitch.training.networks import MLP, Scale, pick, polyak_update


@dataclass(frozen=True)
class ValueConfig(Learner):
    """State value."""

    width: int = 256  # Units per hidden layer.
    discount: float = 0.99  # Discount of future rewards.
    target_rate: float = 0.005  # Rate at which the target networks follow the trained ones.
    warm: bool = True  # Go on from the last iteration's value function; --value.no-warm starts afresh.
    fit: Fit = Fit(steps=100_000, batch=256, rate=3e-4)  # Training schedule.

    def __post_init__(self) -> None:
        check_sizes(self, "width")
        if not 0 <= self.discount < 1 or not 0 < self.target_rate <= 1:
            raise InputError("discount must be from 0 to below 1 and target_rate above 0 and at most 1")

    def init(self, table: Table, key: Array) -> Value:
        """Initialise two networks and their targets, whose outputs are in units of a typical discounted return."""
        obs, reward = table["obs"], table["reward"]
        unit = float(np.sqrt(np.mean(np.square(reward, dtype=np.float64)))) / (1 - self.discount)
        sizes = [obs.shape[1], self.width, self.width, 1]
        twins = eqx.filter_vmap(lambda k: MLP.init(sizes, k))(jax.random.split(key))
        return Value(twins, twins, Scale.of(obs), jnp.asarray(unit or 1.0, jnp.float32))

    def loss(self, model: Value, row: Mapping[str, Array], key: Array) -> Array:
        """Compute (V_k(s) - r - γ·(1 - done)·min_k V'_k(s'))², summed over the twins k.

        γ is the discount, V' are the target networks; values are in units of a typical return.
        """
        unit = jax.lax.stop_gradient(model.unit)
        future = (1 - row["done"]) * jnp.min(model.scaled(model.target, row["next_obs"]))
        goal = jax.lax.stop_gradient(row["reward"] / unit + self.discount * future)
        return jnp.sum((model.scaled(model.twins, row["obs"]) - goal) ** 2)

    def after(self, model: Value) -> Value:
        """Move the target networks towards the trained ones."""
        return Value(
            model.twins, polyak_update(model.target, model.twins, self.target_rate), model.scale, model.unit
        )


class Value(eqx.Module):
    """The minimum of two networks, whose arrays have a leading axis of 2."""

    twins: MLP
    target: MLP
    scale: Scale  # of observations
    unit: Array  # [], a typical discounted return

    def scaled(self, nets: MLP, obs: Array) -> Array:
        """Compute both values [2] of one state, in units of a typical return."""
        return eqx.filter_vmap(lambda net: net(self.scale(obs))[0])(nets)

    @eqx.filter_jit
    def value(self, obs: Array) -> Array:
        """Compute the discounted values [B] of states [B, S], in raw units."""
        return self.unit * jax.vmap(lambda one: jnp.min(self.scaled(self.twins, one)))(obs)


def train_value(
    table: Table, config: ValueConfig, seed: int, tell: Tell = silent, model: Value | None = None
) -> tuple[Value, History]:
    """Train on the columns obs, reward, next_obs and done; continue from `model` where it is given.

    The last weights are returned, because the Bellman error is smallest before training.
    """
    rows = len(table["obs"])
    order = np.random.default_rng(seed).permutation(rows)
    cut = max(1, rows // 20)
    train, held_out = (
        {name: np.asarray(table[name])[part] for name in ("obs", "reward", "next_obs", "done")}
        for part in (order[cut:] if rows > 1 else order, order[:cut])
    )
    previous = None if model is None else pick(model, None)
    trained, history = train_best(config, train, held_out, [seed], tell, model=previous, keep_last=True)
    return pick(trained, 0), history
