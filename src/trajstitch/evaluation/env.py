"""Env: the interface of a batch of environments that are stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]


Bool = NDArray[np.bool_]


class Step(NamedTuple):
    """Result of one step; a row that was not running has its last observation, reward 0 and no end."""

    obs: Float  # [B, S]
    reward: Float  # [B]
    terminal: Bool  # [B], the episode really ended
    timeout: Bool  # [B], the horizon is reached; like Gymnasium's, it may come together with `terminal`


class Env(Protocol):
    """B environments side by side, in raw units; only the caller resets environments and clips actions."""

    id: str  # of the environment that is really simulated: Hopper-v4 for Hopper-v5 with physics="d4rl"
    count: int  # B
    obs_dim: int  # S
    action_low: Float  # [A]
    action_high: Float  # [A]
    horizon: int  # steps until the time limit

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """Start new episodes in the environments `index`, one seed each; return obs[len(index), S]."""

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """Take one step with action[B, A] in the environments where running[B] is true; in all if None."""

    def close(self) -> None:
        """Release threads and windows."""


def checked_action(action: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Return the actions as a NumPy array; ValueError for another shape, which might broadcast silently."""
    action = np.asarray(action)
    if action.shape != shape:
        raise ValueError(f"action has shape {action.shape}, not {shape}")
    return action
