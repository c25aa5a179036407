"""Nets: the small pieces every model is made of; scales live inside models, so callers see raw units only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Activation = Literal["relu", "silu"]


class Scale(eqx.Module):
    """Mean and std of each column, kept inside the model trained with them."""

    mean: Array
    std: Array

    @staticmethod
    def of(values: Any) -> Scale:
        """The scale of these rows; a constant column is only centred, so it cannot blow up."""
        mean, std = np.mean(values, 0, np.float64), np.std(values, 0, dtype=np.float64)
        return Scale(jnp.asarray(mean, jnp.float32), jnp.asarray(np.where(std < 1e-6, 1, std), jnp.float32))

    @staticmethod
    def unit(columns: int) -> Scale:
        """Leaves numbers as they are."""
        return Scale(jnp.zeros(columns), jnp.ones(columns))

    def __call__(self, values: Array) -> Array:
        mean, std = jax.lax.stop_gradient((self.mean, self.std))  # facts about the data, not weights
        return (values - mean) / std


class Linear(eqx.Module):
    """weight @ x + bias."""

    weight: Array  # [out, in]
    bias: Array  # [out]

    @staticmethod
    def init(inputs: int, outputs: int, key: Array) -> Linear:
        """Uniform within ±1/sqrt(inputs), PyTorch's rule, under which the published scores were made."""
        bound = 1 / np.sqrt(inputs)
        weight_key, bias_key = jax.random.split(key)
        return Linear(
            jax.random.uniform(weight_key, (outputs, inputs), minval=-bound, maxval=bound),
            jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound),
        )

    def __call__(self, x: Array) -> Array:
        # With x in front, vmap makes a product whose rows are the batch. The other way round they are its columns,
        # which costs a transposition a layer: a fifth of a BC step's time.
        return x @ self.weight.T + self.bias


class MLP(eqx.Module):
    """Linear layers with ReLU, or something smoother, between them."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True, default="relu")

    @staticmethod
    def init(sizes: Sequence[int], key: Array, activation: Activation = "relu") -> MLP:
        """Layers from sizes[0] inputs over hidden sizes to sizes[-1] outputs."""
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [Linear.init(a, b, k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        return MLP(tuple(layers), activation)

    def __call__(self, x: Array) -> Array:
        bend = {"relu": jax.nn.relu, "silu": jax.nn.silu}[self.activation]
        for layer in self.layers[:-1]:
            x = bend(layer(x))
        return self.layers[-1](x)


class Range(eqx.Module):
    """The range of actions, and tanh's way into it."""

    low: Array  # [A]
    high: Array  # [A]

    @staticmethod
    def of(action: Any) -> Range:
        """The range these actions [N, A] take up."""
        return Range(jnp.asarray(action.min(0), jnp.float32), jnp.asarray(action.max(0), jnp.float32))

    def __call__(self, x: Array) -> Array:
        low, high = jax.lax.stop_gradient((self.low, self.high))
        return low + (high - low) * (jnp.tanh(x) + 1) / 2

    @property
    def middle(self) -> Array:
        """Halfway from low to high."""
        return jax.lax.stop_gradient(self.low + self.high) / 2

    @property
    def half(self) -> Array:
        """Half the range, the unit methods measure actions in; 1 where an action never changes."""
        half = jax.lax.stop_gradient(self.high - self.low) / 2
        return jnp.where(half > 0, half, 1.0)

    def unit(self, action: Array) -> Array:
        """Where an action lies in the range, from -1 to 1."""
        return (action - self.middle) / self.half


def follow(slow: Any, fast: Any, rate: float) -> Any:
    """Target networks, moved by `rate` of their distance to the trained ones."""
    return jax.tree.map(lambda a, b: a + rate * (b - a), slow, fast)
