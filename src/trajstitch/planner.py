"""Planner: what is played instead of a Policy, by whoever plans anew at every step of an episode."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jax import Array

from trajstitch.nets import Range


class Planner(eqx.Module):
    """What every planner has; every array may have a leading axis P, as a Policy's."""

    range: Range  # of actions

    @abstractmethod
    def blank(self, episodes: int) -> Any:
        """What P planners remember of `episodes` that have not begun; the arrays have the leading axis P."""

    @abstractmethod
    def plan(self, memory: Any, obs: Array, begun: Array, key: Array) -> tuple[Array, Any]:
        """One planner's actions [B, A] for observations [B, S], and what to remember.

        Where `begun` [B] an episode starts, and what is remembered there is of another.
        """

    @property
    @abstractmethod
    def obs_dim(self) -> int:
        """S."""

    @property
    def action_dim(self) -> int:
        """A."""
        return self.range.low.shape[-1]

    @property
    def count(self) -> int | None:
        """P, or None for a single planner."""
        return self.range.low.shape[0] if self.range.low.ndim == 2 else None


@jax.jit
def plan_all(planner: Planner, memory: Any, obs: Array, begun: Array, key: Array) -> tuple[Array, Any]:
    """Actions [P, B, A] of P planners for their own observations [P, B, S], and what to remember.

    All planners draw the same noise, so one is the same alone and in company.
    """
    plan: Any = eqx.filter_vmap(lambda one, *given: one.plan(*given), in_axes=(0, 0, 0, 0, None))
    return plan(planner, memory, obs, begun, key)
