"""MOReL: a rollout halts, with a low reward, where members of the world model disagree (Kidambi et al., 2020)."""

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
from trajstitch.methods.model_based import Batch, ModelBased
from trajstitch.models.world_model import Prediction, World, discrepancy
from trajstitch.training.loop import Table

_BLOCK = 10_000  # rows at a time, so that the predictions for a whole data set need not fit in memory


class Halt(eqx.Module):
    """The rule by which a rollout halts where the members disagree."""

    largest: Array  # [], largest discrepancy of a transition in the data
    threshold: Array  # [], discrepancy above which a rollout halts, in units of the largest
    reward: Array  # [], reward of the step that halts


@dataclass(frozen=True)
class MOReL(ModelBased):
    """Model-based offline RL in a pessimistic world model."""

    # Disagreement at which a rollout halts, in units of the data's largest; unless given the data's 99% quantile.
    threshold: float | None = None
    halt_penalty: float = 30.0  # The reward of halting is the data's lowest minus this.

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.threshold is not None and not self.threshold > 0) or self.halt_penalty < 0:
            raise InputError("threshold must be above 0 and halt_penalty not below 0")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the table of model-based methods, with the rule by which rollouts halt."""
        table = super().table(data, prepared)
        found = discrepancies(table["world"], table["obs"], table["action"])
        threshold = np.quantile(found, 0.99) / found.max() if self.threshold is None else self.threshold
        reward = table["reward"].min() - self.halt_penalty
        return {**table, "halt": Halt(*[jnp.asarray(x, jnp.float32) for x in (found.max(), threshold, reward)])}

    def penalise(self, batch: Batch, prediction: Prediction, reward: Array) -> tuple[Array, Array, Array]:
        """Halt above the threshold, with the halting reward; the uncertainty is in units of the data's largest."""
        halt: Halt = batch["halt"]
        uncertainty = discrepancy(prediction) / halt.largest
        halted = uncertainty > halt.threshold
        return jnp.where(halted, halt.reward, reward), halted, uncertainty


def discrepancies(world: World, obs: Array, action: Array) -> NDArray[np.float32]:
    """Compute the discrepancy of each transition in the data [N]."""
    of_block = jax.jit(jax.vmap(lambda o, a: discrepancy(world.predict(o, a))))
    blocks = range(0, len(obs), _BLOCK)
    return np.concatenate([of_block(obs[i : i + _BLOCK], action[i : i + _BLOCK]) for i in blocks])
