"""U-Net over time: convolutions over the steps of a window, at coarser and coarser resolution and back.

A window is [..., H, C]: H time steps of C channels. Level i has H / 2^i steps of width · 2^i channels:

    level 0    window ── blocks ──┬───────────────────────► join ── blocks ── last ──► window
    level 1               halve ──┴─ blocks ──┬─► join ── double
    level 2                            halve ─┴─ blocks ── middle ── double
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import silu

from trajstitch.training.networks import MLP, Linear

GROUPS = 8  # number of channel groups, each of which is normalised as a whole


class Sizes(NamedTuple):
    """Sizes of a network over windows."""

    columns: int  # columns of a window, D
    width: int  # channels of the finest level
    depth: int  # number of levels
    blocks: int  # residual blocks per level

    @property
    def channels(self) -> list[int]:
        """Channels of each level, the finest level first."""
        return [self.width * 2**level for level in range(self.depth)]


class Conv(eqx.Module):
    """Convolution over time: one Linear layer on the neighbourhood of every step, padded with zeros."""

    layer: Linear
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)

    @staticmethod
    def init(inputs: int, outputs: int, key: Array, kernel: int = 5, stride: int = 1) -> Conv:
        """Initialise the weights."""
        return Conv(Linear.init(kernel * inputs, outputs, key), kernel, stride)

    def __call__(self, x: Array) -> Array:
        # A dense product, because a convolution whose weights are batched over seeds is slow.
        steps, padding = x.shape[-2], self.kernel // 2
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(padding, padding), (0, 0)])
        shifted = [x[..., k : k + steps : self.stride, :] for k in range(self.kernel)]
        return self.layer(jnp.concatenate(shifted, -1))


class Norm(eqx.Module):
    """Group normalisation over the steps and each group of channels, then a factor and a shift per channel."""

    weight: Array  # [C]
    bias: Array  # [C]

    def __call__(self, x: Array) -> Array:
        groups = x.reshape(*x.shape[:-1], GROUPS, -1)
        groups = groups - jnp.mean(groups, (-3, -1), keepdims=True)
        groups = groups * jax.lax.rsqrt(jnp.mean(groups**2, (-3, -1), keepdims=True) + 1e-5)
        return groups.reshape(x.shape) * self.weight + self.bias


class Layer(eqx.Module):
    """A convolution, group normalisation and SiLU."""

    conv: Conv
    norm: Norm

    @staticmethod
    def init(inputs: int, outputs: int, key: Array) -> Layer:
        """Initialise the weights."""
        return Layer(Conv.init(inputs, outputs, key), Norm(jnp.ones(outputs), jnp.zeros(outputs)))

    def __call__(self, x: Array) -> Array:
        return silu(self.norm(self.conv(x)))


class Block(eqx.Module):
    """Residual block of two layers; the embedded diffusion step is added between them."""

    first: Layer
    second: Layer
    told: Linear  # projects the embedded step
    around: Linear | None  # projects the input where the number of channels changes

    @staticmethod
    def init(inputs: int, outputs: int, width: int, key: Array) -> Block:
        """Initialise the weights; the embedded step has `width` numbers."""
        keys = jax.random.split(key, 4)
        return Block(
            Layer.init(inputs, outputs, keys[0]),
            Layer.init(outputs, outputs, keys[1]),
            Linear.init(width, outputs, keys[2]),
            Linear.init(inputs, outputs, keys[3]) if inputs != outputs else None,
        )

    def __call__(self, x: Array, step: Array) -> Array:
        change = self.second(self.first(x) + self.told(silu(step)))
        return change + (self.around(x) if self.around else x)


class Blocks(eqx.Module):
    """Residual blocks in sequence; the first changes the number of channels."""

    each: tuple[Block, ...]

    @staticmethod
    def init(inputs: int, outputs: int, sizes: Sizes, key: Array) -> Blocks:
        """Initialise the weights."""
        keys = jax.random.split(key, sizes.blocks)
        channels = [inputs] + [outputs] * (sizes.blocks - 1)
        return Blocks(tuple(Block.init(c, outputs, sizes.width, k) for c, k in zip(channels, keys, strict=True)))

    def __call__(self, x: Array, step: Array) -> Array:
        for block in self.each:
            x = block(x, step)
        return x


class Down(eqx.Module):
    """Downsampling path, with the embedding of the step; the denoiser and the value network each have one."""

    embed: MLP
    levels: tuple[Blocks, ...]
    halve: tuple[Conv, ...]  # halves the number of steps between levels

    @staticmethod
    def init(sizes: Sizes, key: Array) -> Down:
        """Initialise the weights."""
        embed_key, *keys = jax.random.split(key, 2 * sizes.depth)
        channels = [sizes.columns, *sizes.channels]
        levels = [
            Blocks.init(a, b, sizes, k) for a, b, k in zip(channels[:-1], channels[1:], keys[::2], strict=True)
        ]
        halve = [Conv.init(c, c, k, 3, 2) for c, k in zip(sizes.channels[:-1], keys[1::2], strict=True)]
        embed = MLP.init([sizes.width, 4 * sizes.width, sizes.width], embed_key)
        return Down(embed, tuple(levels), tuple(halve))

    def __call__(self, x: Array, step: Array) -> tuple[list[Array], Array]:
        """Return the output of each level for a window, and the embedded step."""
        embedded = self.embed(waves(step, self.embed.layers[-1].bias.shape[-1]))
        outputs = [self.levels[0](x, embedded)]
        for halve, level in zip(self.halve, self.levels[1:], strict=True):
            outputs.append(level(halve(outputs[-1]), embedded))
        return outputs, embedded


class UNet(eqx.Module):
    """Maps a window [..., H, D] at a diffusion step [] to a window of the same shape."""

    down: Down
    middle: Blocks
    double: tuple[Conv, ...]  # doubles the number of steps, for each level but the coarsest, from coarse to fine
    up: tuple[Blocks, ...]
    last: tuple[Layer, Linear]

    @staticmethod
    def init(sizes: Sizes, key: Array) -> UNet:
        """Initialise the weights."""
        down_key, middle_key, layer_key, last_key, *keys = jax.random.split(key, 2 * sizes.depth + 2)
        coarsest, *others = sizes.channels[::-1]
        double = [Conv.init(2 * c, c, k, 3) for c, k in zip(others, keys[::2], strict=True)]
        up = [Blocks.init(2 * c, c, sizes, k) for c, k in zip(others, keys[1::2], strict=True)]
        return UNet(
            Down.init(sizes, down_key),
            Blocks.init(coarsest, coarsest, sizes, middle_key),
            tuple(double),
            tuple(up),
            (Layer.init(sizes.width, sizes.width, layer_key), Linear.init(sizes.width, sizes.columns, last_key)),
        )

    def __call__(self, window: Array, step: Array) -> Array:
        (*outputs, x), embedded = self.down(window, step)
        x = self.middle(x, embedded)
        for skip, double, up in zip(reversed(outputs), self.double, self.up, strict=True):
            x = up(jnp.concatenate([double(jnp.repeat(x, 2, -2)), skip], -1), embedded)
        layer, last = self.last
        return last(layer(x))


class WindowValue(eqx.Module):
    """Predicts a number [...] for a window [..., H, D] at a diffusion step []: downsampling, then dense layers."""

    down: Down
    head: MLP

    @staticmethod
    def init(sizes: Sizes, horizon: int, key: Array) -> WindowValue:
        """Initialise the weights for windows of `horizon` steps."""
        down_key, head_key = jax.random.split(key)
        coarsest = sizes.channels[-1]
        flat = horizon // 2 ** (sizes.depth - 1) * coarsest + sizes.width
        return WindowValue(Down.init(sizes, down_key), MLP.init([flat, coarsest, 1], head_key))

    def __call__(self, window: Array, step: Array) -> Array:
        outputs, embedded = self.down(window, step)
        flat = outputs[-1].reshape(*window.shape[:-2], -1)
        embedded = jnp.broadcast_to(embedded, (*flat.shape[:-1], embedded.shape[-1]))
        return self.head(jnp.concatenate([flat, embedded], -1))[..., 0]


def waves(step: Array, width: int) -> Array:
    """Encode the step as sines and cosines of `width` / 2 frequencies, from 1 down to 1e-4."""
    angle = step * jnp.logspace(0, -4, width // 2)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
