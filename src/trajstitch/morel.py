"""MOReL: a rollout halts, at a price, where members of the learnt world disagree (Kidambi et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Table
from trajstitch.model_based import Batch, ModelBased
from trajstitch.world import Belief, World, discrepancy

_BLOCK = 10_000  # rows at a time, so that the beliefs of a whole data set need not fit in memory


class Halt(eqx.Module):
    """The end of a rollout in unknown country."""

    largest: Array  # [], discrepancy of a step in the data
    threshold: Array  # [], beyond which a rollout halts, in units of the largest
    reward: Array  # []


@dataclass(frozen=True)
class MOReL(ModelBased):
    """Model-based offline RL in a pessimistic world."""

    # Discrepancy beyond which a rollout halts, in units of the data's largest; None: the data's 99% quantile.
    threshold: float | None = None
    halt_penalty: float = 30.0  # the reward of halting is the data's least less this

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.threshold is not None and not self.threshold > 0) or self.halt_penalty < 0:
            raise InputError("threshold must be above 0 and halt_penalty not below 0")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """With what a halt depends on."""
        table = super().table(data, prepared)
        found = discrepancies(table["world"], table["obs"], table["action"])
        threshold = np.quantile(found, 0.99) / found.max() if self.threshold is None else self.threshold
        reward = table["reward"].min() - self.halt_penalty
        return {**table, "halt": Halt(*[jnp.asarray(x, jnp.float32) for x in (found.max(), threshold, reward)])}

    def weigh(self, batch: Batch, belief: Belief, reward: Array) -> tuple[Array, Array, Array]:
        """Beyond the threshold, the price and the end; `doubt` is the discrepancy in units of the largest."""
        halt: Halt = batch["halt"]
        doubt = discrepancy(belief) / halt.largest
        halted = doubt > halt.threshold
        return jnp.where(halted, halt.reward, reward), halted, doubt


def discrepancies(world: World, obs: Array, action: Array) -> NDArray[np.float32]:
    """Of the transitions in the data [T]."""
    of_block = jax.jit(jax.vmap(lambda o, a: discrepancy(world.believe(o, a))))
    blocks = range(0, len(obs), _BLOCK)
    return np.concatenate([of_block(obs[i : i + _BLOCK], action[i : i + _BLOCK]) for i in blocks])
