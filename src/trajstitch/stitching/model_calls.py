"""Model calls: the interfaces that a caller's own models must have, and calls in blocks of one shape."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from trajstitch.data import Float
from trajstitch.errors import InputError

_BLOCK = 4096  # states or pairs per model call


class ValueModel(Protocol):
    """A model of state values."""

    def value(self, obs: Any) -> Any:
        """Return values [B] of states obs [B, S]."""


class InverseModel(Protocol):
    """A model of the actions between states."""

    def actions(self, obs: Any, next_obs: Any, key: Any) -> Any:
        """Return actions [B, A] that lead from obs to next_obs, [B, S] each."""


class RewardModel(Protocol):
    """A model of the rewards of transitions."""

    def rewards(self, obs: Any, action: Any, next_obs: Any, key: Any) -> Any:
        """Return rewards [B]."""


def actions_of(model: InverseModel, obs: Float, next_obs: Float, actions: int, key: Any) -> Float:
    """Return the model's actions [N, actions], block by block."""
    parts = [
        model_output(
            "inverse",
            "actions",
            model.actions(padded(obs[part]), padded(next_obs[part]), jax.random.fold_in(key, part.start)),
            part.stop - part.start,
            (actions,),
        )
        for part in blocks(len(obs))
    ]
    return np.concatenate([np.zeros((0, actions), np.float32), *parts])


def rewards_of(model: RewardModel, obs: Float, action: Float, next_obs: Float, key: Any) -> Float:
    """Return the model's rewards [N], block by block."""
    parts = [
        model_output(
            "reward",
            "rewards",
            model.rewards(
                padded(obs[part]),
                padded(action[part]),
                padded(next_obs[part]),
                jax.random.fold_in(key, part.start),
            ),
            part.stop - part.start,
            (),
        )
        for part in blocks(len(obs))
    ]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def blocks(rows: int) -> list[slice]:
    """Return the slices that cut this many rows into blocks."""
    return [slice(a, min(a + _BLOCK, rows)) for a in range(0, rows, _BLOCK)]


def padded(rows: Float) -> Float:
    """Pad the rows to a whole block, so that only one shape is compiled."""
    return np.concatenate([rows, np.repeat(rows[:1], _BLOCK - len(rows), 0)]) if len(rows) < _BLOCK else rows


def model_output(model: str, what: str, output: Any, rows: int, shape: tuple[int, ...]) -> Float:
    """Return the first `rows` of a model's output; InputError where its shape is wrong or it is not finite."""
    array = np.asarray(output, np.float32)
    if array.shape != (_BLOCK, *shape):
        raise InputError(f"the {model} model's {what} have shape {array.shape}, not {(_BLOCK, *shape)}")
    if not np.isfinite(array[:rows]).all():
        raise InputError(f"the {model} model's {what} are not finite for some states; look at its training")
    return array[:rows]
