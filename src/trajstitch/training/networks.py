"""Networks: the modules every model consists of; models contain their scales, so callers see raw units only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import ROUNDING, Spread

Activation = Literal["relu", "silu"]
_NOTHING = 1e-30  # the smallest scale of a prediction, of which float32 can still hold a fraction


class Scale(eqx.Module):
    """Mean and std of each column, kept inside the model trained with them."""

    mean: Array
    std: Array

    @staticmethod
    def of(values: Any) -> Scale:
        """Compute the scale of these rows; a constant column is centred and divided by its size, not by 0."""
        return Scale._of(values, Spread.of(values).unit)

    @staticmethod
    def of_change(change: Any, states: Any, still: float = 1.0) -> Scale:
        """Compute the scale of changes; of one that varies by rounding alone, `still` of that of the states."""
        spread, moved = Spread.of(states), np.std(change, 0, dtype=np.float64)
        return Scale._of(change, np.where(moved > ROUNDING * spread.size, moved, still * spread.unit))

    @staticmethod
    def of_target(values: Any) -> Scale:
        """Compute the scale of what is predicted; of a constant so small a one that it is predicted as it is."""
        spread = Spread.of(values)
        return Scale._of(values, np.where(spread.varies, spread.std, np.maximum(ROUNDING * spread.size, _NOTHING)))

    @staticmethod
    def _of(values: Any, std: Any) -> Scale:
        mean = np.mean(values, 0, np.float64)
        return Scale(jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32))

    @staticmethod
    def unit(columns: int) -> Scale:
        """Return the scale that changes nothing: mean 0 and std 1."""
        return Scale(jnp.zeros(columns), jnp.ones(columns))

    def __call__(self, values: Array) -> Array:
        mean, std = jax.lax.stop_gradient((self.mean, self.std))  # statistics of the data, not trained
        return (values - mean) / std


class Linear(eqx.Module):
    """A dense layer: weight @ x + bias."""

    weight: Array  # [out, in]
    bias: Array  # [out]

    @staticmethod
    def init(inputs: int, outputs: int, key: Array) -> Linear:
        """Draw weights uniformly within ±1/sqrt(inputs), as PyTorch does; the published scores used this rule."""
        bound = 1 / np.sqrt(inputs)
        weight_key, bias_key = jax.random.split(key)
        return Linear(
            jax.random.uniform(weight_key, (outputs, inputs), minval=-bound, maxval=bound),
            jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound),
        )

    def __call__(self, x: Array) -> Array:
        # With x on the left, vmap gives a product whose rows are the batch. With the weight on the left they would
        # be its columns, which costs one transposition per layer: a fifth of the time of a BC step.
        return x @ self.weight.T + self.bias


class MLP(eqx.Module):
    """Linear layers with an activation function between them."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True, default="relu")

    @classmethod
    def init(cls, sizes: Sequence[int], key: Array, activation: Activation = "relu") -> Self:
        """Initialise layers from sizes[0] inputs through the hidden sizes to sizes[-1] outputs."""
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [Linear.init(a, b, k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        return cls(tuple(layers), activation)

    def __call__(self, x: Array) -> Array:
        activation = {"relu": jax.nn.relu, "silu": jax.nn.silu}[self.activation]
        for layer in self.layers[:-1]:
            x = self.hidden(activation(layer(x)))
        return self.layers[-1](x)

    def hidden(self, x: Array) -> Array:
        """Return what a hidden layer hands on."""
        return x


class LayerNormMLP(MLP):
    """An MLP whose hidden layers hand on their outputs with mean 0 and std 1.

    The next layer's weights take the place of a gain and a shift of the norm's own.
    """

    def hidden(self, x: Array) -> Array:
        """Return the outputs of one layer for one input, with mean 0 and std 1."""
        return jax.nn.standardize(x, epsilon=1e-6)


class Range(eqx.Module):
    """The range of actions; calling it squashes numbers into the range by tanh."""

    low: Array  # [A]
    high: Array  # [A]

    @staticmethod
    def of(action: Any) -> Range:
        """Return the range from the lowest to the highest of these actions [N, A]."""
        return Range(jnp.asarray(action.min(0), jnp.float32), jnp.asarray(action.max(0), jnp.float32))

    def __call__(self, x: Array) -> Array:
        low, high = jax.lax.stop_gradient((self.low, self.high))
        return low + (high - low) * (jnp.tanh(x) + 1) / 2

    @property
    def middle(self) -> Array:
        """Midpoint of the range."""
        return jax.lax.stop_gradient(self.low + self.high) / 2

    @property
    def half(self) -> Array:
        """Half the width of the range, in which methods measure actions; 1 where an action never changes."""
        half = jax.lax.stop_gradient(self.high - self.low) / 2
        return jnp.where(half > 0, half, 1.0)

    def unit(self, action: Array) -> Array:
        """Map an action from the range to -1 … 1."""
        return (action - self.middle) / self.half


def polyak_update(slow: Any, fast: Any, rate: float) -> Any:
    """Return the target networks `slow`, moved by `rate` of their distance to the trained networks `fast`."""
    return jax.tree.map(lambda a, b: a + rate * (b - a), slow, fast)


def pick(stack: Any, index: Any) -> Any:
    """Select one or several models from a stack: `index` is applied to the leading axis of every array."""
    return jax.tree.map(lambda leaf: leaf[index], stack)
