"""MOPO: rewards in the world model are lowered by the model's uncertainty (Yu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from trajstitch.checks import check_not_negative
from trajstitch.methods.model_based import Batch, ModelBased
from trajstitch.models.world_model import Prediction, largest_std


@dataclass(frozen=True)
class MOPO(ModelBased):
    """Model-based offline policy optimization."""

    penalty: float = 1.0  # Weight of the largest predicted std that is taken off the reward.
    actor_rate: float = 1e-4  # Learning rate of the actor and the temperature.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "penalty")

    def penalise(self, batch: Batch, prediction: Prediction, reward: Array) -> tuple[Array, Array, Array]:
        """Return r - λ·max_i ||σ_i(s,a)|| with λ the `penalty`; a rollout never halts."""
        uncertainty = largest_std(prediction)
        return reward - self.penalty * uncertainty, jnp.zeros((), bool), uncertainty
