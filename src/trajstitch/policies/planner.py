"""Action planner: acts in place of a Policy by planning anew at every step of an episode."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jax import Array

from trajstitch.training.networks import Range


class ActionPlanner(eqx.Module):
    """Interface of all planners; every array may have a leading axis P, like a Policy's."""

    range: Range  # of actions

    @abstractmethod
    def blank(self, episodes: int) -> Any:
        """Return the memory of P planners before the first step of `episodes`, with the leading axis P."""

    @abstractmethod
    def plan(self, memory: Any, obs: Array, begun: Array, key: Array) -> tuple[Array, Any]:
        """Return one planner's actions [B, A] for observations [B, S], and its new memory.

        Where `begun` [B] is true an episode starts, and the planner must forget the last one.
        """

    @property
    @abstractmethod
    def obs_dim(self) -> int:
        """S, the dimensions of an observation."""

    @property
    def action_dim(self) -> int:
        """A, the dimensions of an action."""
        return self.range.low.shape[-1]

    @property
    def count(self) -> int | None:
        """P, the number of stacked planners, or None for a single one."""
        return self.range.low.shape[0] if self.range.low.ndim == 2 else None


@jax.jit
def plan_all(planner: ActionPlanner, memory: Any, obs: Array, begun: Array, key: Array) -> tuple[Array, Any]:
    """Return the actions [P, B, A] of P planners, each for its own observations [P, B, S], and their new memory.

    All planners use the same random key, so a planner acts the same alone and in a stack.
    """
    plan: Any = eqx.filter_vmap(lambda one, *inputs: one.plan(*inputs), in_axes=(0, 0, 0, 0, None))
    return plan(planner, memory, obs, begun, key)
