"""MOPO: rewards in the learnt world are lowered by how unsure the world is (Yu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from trajstitch.errors import InputError
from trajstitch.model_based import Batch, ModelBased
from trajstitch.world import Belief, largest_std


@dataclass(frozen=True)
class MOPO(ModelBased):
    """Model-based offline policy optimization."""

    penalty: float = 1.0  # λ, of the largest std
    actor_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0:
            raise InputError(f"penalty must not be below 0, as {self.penalty:g} is")

    def weigh(self, batch: Batch, belief: Belief, reward: Array) -> tuple[Array, Array, Array]:
        """r - λ·max_i ||σ_i(s,a)||; a rollout never halts."""
        doubt = largest_std(belief)
        return reward - self.penalty * doubt, jnp.zeros((), bool), doubt
