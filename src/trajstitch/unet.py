"""U-Net over time: layers that see neighbouring steps of a window, at coarser and coarser resolution and back.

A window is [..., H, C], time before channels. Level i has H / 2^i steps of width · 2^i channels:

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

from trajstitch.nets import MLP, Linear

GROUPS = 8  # of channels that are normalised together


class Sizes(NamedTuple):
    """Of a network over windows."""

    columns: int  # D, of a window
    width: int  # channels of the finest level
    depth: int  # levels
    blocks: int  # of each level

    @property
    def channels(self) -> list[int]:
        """Of each level, the finest first."""
        return [self.width * 2**level for level in range(self.depth)]


class Conv(eqx.Module):
    """One Linear layer for the neighbourhood of every step; beyond the ends are zeros."""

    layer: Linear
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)

    @staticmethod
    def init(inputs: int, outputs: int, key: Array, kernel: int = 5, stride: int = 1) -> Conv:
        """Fresh weights."""
        return Conv(Linear.init(kernel * inputs, outputs, key), kernel, stride)

    def __call__(self, x: Array) -> Array:
        # A dense product, since a convolution whose weights are batched over seeds is a slow one.
        steps, reach = x.shape[-2], self.kernel // 2
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(reach, reach), (0, 0)])
        near = [x[..., k : k + steps : self.stride, :] for k in range(self.kernel)]
        return self.layer(jnp.concatenate(near, -1))


class Norm(eqx.Module):
    """Mean 0 and std 1 over the steps and each group of channels, then a factor and a shift of each channel."""

    weight: Array  # [C]
    bias: Array  # [C]

    def __call__(self, x: Array) -> Array:
        groups = x.reshape(*x.shape[:-1], GROUPS, -1)
        groups = groups - jnp.mean(groups, (-3, -1), keepdims=True)
        groups = groups * jax.lax.rsqrt(jnp.mean(groups**2, (-3, -1), keepdims=True) + 1e-5)
        return groups.reshape(x.shape) * self.weight + self.bias


class Layer(eqx.Module):
    """A convolution, normalised."""

    conv: Conv
    norm: Norm

    @staticmethod
    def init(inputs: int, outputs: int, key: Array) -> Layer:
        """Fresh weights."""
        return Layer(Conv.init(inputs, outputs, key), Norm(jnp.ones(outputs), jnp.zeros(outputs)))

    def __call__(self, x: Array) -> Array:
        return silu(self.norm(self.conv(x)))


class Block(eqx.Module):
    """Two layers, told the diffusion step between them, added to what came in."""

    first: Layer
    second: Layer
    told: Linear
    around: Linear | None  # where the number of channels changes

    @staticmethod
    def init(inputs: int, outputs: int, width: int, key: Array) -> Block:
        """Fresh weights; the embedded step has `width` numbers."""
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
    """Blocks one after another, the first of which changes the number of channels."""

    each: tuple[Block, ...]

    @staticmethod
    def init(inputs: int, outputs: int, sizes: Sizes, key: Array) -> Blocks:
        """Fresh weights."""
        keys = jax.random.split(key, sizes.blocks)
        given = [inputs] + [outputs] * (sizes.blocks - 1)
        return Blocks(tuple(Block.init(a, outputs, sizes.width, k) for a, k in zip(given, keys, strict=True)))

    def __call__(self, x: Array, step: Array) -> Array:
        for block in self.each:
            x = block(x, step)
        return x


class Down(eqx.Module):
    """The way down, which the denoiser and the value of a window have alike, and the embedding of the step."""

    embed: MLP
    levels: tuple[Blocks, ...]
    halve: tuple[Conv, ...]  # between levels

    @staticmethod
    def init(sizes: Sizes, key: Array) -> Down:
        """Fresh weights."""
        embed_key, *keys = jax.random.split(key, 2 * sizes.depth)
        channels = [sizes.columns, *sizes.channels]
        levels = [
            Blocks.init(a, b, sizes, k) for a, b, k in zip(channels[:-1], channels[1:], keys[::2], strict=True)
        ]
        halve = [Conv.init(c, c, k, 3, 2) for c, k in zip(sizes.channels[:-1], keys[1::2], strict=True)]
        embed = MLP.init([sizes.width, 4 * sizes.width, sizes.width], embed_key)
        return Down(embed, tuple(levels), tuple(halve))

    def __call__(self, x: Array, step: Array) -> tuple[list[Array], Array]:
        """What each level makes of a window, and the embedded step."""
        told = self.embed(waves(step, self.embed.layers[-1].bias.shape[-1]))
        found = [self.levels[0](x, told)]
        for halve, level in zip(self.halve, self.levels[1:], strict=True):
            found.append(level(halve(found[-1]), told))
        return found, told


class UNet(eqx.Module):
    """A window of the same shape for a window [..., H, D] at a diffusion step []."""

    down: Down
    middle: Blocks
    double: tuple[Conv, ...]  # to each level but the coarsest, which come first
    up: tuple[Blocks, ...]
    last: tuple[Layer, Linear]

    @staticmethod
    def init(sizes: Sizes, key: Array) -> UNet:
        """Fresh weights."""
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
        (*found, x), told = self.down(window, step)
        x = self.middle(x, told)
        for same, double, up in zip(reversed(found), self.double, self.up, strict=True):
            x = up(jnp.concatenate([double(jnp.repeat(x, 2, -2)), same], -1), told)
        layer, last = self.last
        return last(layer(x))


class WindowValue(eqx.Module):
    """A number [...] for a window [..., H, D] at a diffusion step []: the way down, then dense layers."""

    down: Down
    head: MLP

    @staticmethod
    def init(sizes: Sizes, horizon: int, key: Array) -> WindowValue:
        """Fresh weights for windows of `horizon` steps."""
        down_key, head_key = jax.random.split(key)
        coarsest = sizes.channels[-1]
        flat = horizon // 2 ** (sizes.depth - 1) * coarsest + sizes.width
        return WindowValue(Down.init(sizes, down_key), MLP.init([flat, coarsest, 1], head_key))

    def __call__(self, window: Array, step: Array) -> Array:
        found, told = self.down(window, step)
        flat = found[-1].reshape(*window.shape[:-2], -1)
        told = jnp.broadcast_to(told, (*flat.shape[:-1], told.shape[-1]))
        return self.head(jnp.concatenate([flat, told], -1))[..., 0]


def waves(step: Array, width: int) -> Array:
    """The step as sines and cosines of `width` / 2 frequencies, from 1 down to 1e-4."""
    angle = step * jnp.logspace(0, -4, width // 2)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
