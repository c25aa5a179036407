"""Diffusion: plans drawn as noise and denoised, pushed towards higher returns on the way (Janner et al., 2022).

A window is a plan in scaled units, H steps of actions (-1 to 1) and observations side by side:

    [a_0 s_0]    s_0 is the present state, put in place again after every change ("inpainting")
    [a_1 s_1]
    …            [..., H, A + S]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.errors import InputError
from trajstitch.fit import check_sizes
from trajstitch.nets import Scale
from trajstitch.planner import Planner
from trajstitch.unet import UNet, WindowValue


@dataclass(frozen=True)
class Sampling:
    """How plans are drawn; published values for locomotion."""

    plan_horizon: int = 32  # H, steps of a window
    diffusion_steps: int = 20  # from noise to a plan
    samples: int = 64  # plans drawn, of which the one of the highest predicted return is taken
    guide_scale: float = 0.1  # of a push along the return's slope, in units of the reward; 0: no guidance
    guide_steps: int = 2  # pushes a diffusion step
    guide_stop: int = 2  # the last steps, which push no more
    sample_noise: float = 0.5  # std of what is drawn at a diffusion step, in units of the posterior's

    def __post_init__(self) -> None:
        check_sizes(self, "plan_horizon", "diffusion_steps", "samples", "guide_steps")
        for name in ("guide_scale", "guide_stop", "sample_noise"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must not be below 0, as {getattr(self, name):g} is")


class Schedule(NamedTuple):
    """What noising and denoising multiply with at each step [steps], the noisiest last."""

    signal: Array  # √ᾱ_t, of the clean window in a noised one
    noise: Array  # √(1 - ᾱ_t)
    clean: Array  # of the clean window in the mean one step before
    noisy: Array  # of the noised window there
    variance: Array  # around that mean; 0 at step 0


def schedule(steps: int) -> Schedule:
    """ᾱ falls from 1 to 0 along a squared cosine (Nichol & Dhariwal, 2021); no step takes more than 99.9%."""
    time = (np.arange(steps + 1) / steps + 0.008) / 1.008
    left = np.cos(time * np.pi / 2) ** 2
    beta = np.minimum(1 - left[1:] / left[:-1], 0.999)
    after = np.cumprod(1 - beta)
    before = np.append(1.0, after[:-1])
    columns = (
        np.sqrt(after),
        np.sqrt(1 - after),
        np.sqrt(before) * beta / (1 - after),
        np.sqrt(1 - beta) * (1 - before) / (1 - after),
        beta * (1 - before) / (1 - after),
    )
    return Schedule(*(jnp.asarray(column, jnp.float32) for column in columns))


def hold(window: Array, obs: Array) -> Array:
    """The window with this scaled observation [..., S] as its first."""
    return window.at[..., 0, -obs.shape[-1] :].set(obs)


def climb(value: Callable[[Array], Array], window: Array, obs: Array, size: Array, steps: int) -> Array:
    """The window after `steps` steps of `size` up the slope of its value, its first observation held."""
    slope = jax.grad(lambda x: jnp.sum(value(x)))
    return jax.lax.fori_loop(0, steps, lambda _, x: hold(x + size * slope(x), obs), window)


class Diffusion(Planner):
    """Denoiser and value of windows; remembers nothing."""

    denoise: UNet  # the clean window, of a noised one
    value: WindowValue  # the return of the clean window, of a noised one; in units of its std
    scale: Scale  # of observations
    total: Scale  # of returns
    sampling: Sampling = eqx.field(static=True)

    @property
    def obs_dim(self) -> int:
        """S."""
        return self.scale.mean.shape[-1]

    def blank(self, episodes: int) -> tuple[()]:
        """Nothing."""
        return ()

    def window(self, action: Array, obs: Array) -> Array:
        """Actions [..., H, A] and observations [..., H, S], scaled and side by side."""
        return jnp.concatenate([self.range.unit(action), self.scale(obs)], -1)

    def plan(self, memory: tuple[()], obs: Array, begun: Array, key: Array) -> tuple[Array, tuple[()]]:
        """The first actions of the best of the plans drawn for each observation."""
        windows = self.draw(obs, key)
        best = jnp.argmax(self.value(windows, jnp.zeros(())), 1)
        unit = windows[jnp.arange(len(obs)), best, 0, : self.action_dim]
        action = self.range.middle + self.range.half * unit
        return jnp.clip(action, self.range.low, self.range.high), memory

    def draw(self, obs: Array, key: Array) -> Array:
        """Plans [B, N, H, A + S] for observations [B, S], guided."""
        s = self.sampling
        now = self.scale(obs)[:, None]
        shape = (len(obs), s.samples, s.plan_horizon, self.action_dim + self.obs_dim)

        def back(window: Array, given: tuple[Array, Array, Schedule]) -> tuple[Array, None]:
            """One step less noise."""
            step, key, at = given
            mean = hold(at.clean * self.denoise(window, step) + at.noisy * window, now)
            if s.guide_scale:
                size = jnp.where(step < s.guide_stop, 0.0, s.guide_scale * self.total.std * at.variance)
                mean = climb(lambda x: self.value(x, jnp.maximum(step - 1, 0)), mean, now, size, s.guide_steps)
            noise = s.sample_noise * jnp.sqrt(at.variance) * jax.random.normal(key, shape)
            return hold(mean + noise, now), None

        first, key = jax.random.split(key)
        steps = jnp.arange(s.diffusion_steps)
        every = (steps, jax.random.split(key, s.diffusion_steps), schedule(s.diffusion_steps))
        noise = hold(jax.random.normal(first, shape), now)
        return jax.lax.scan(back, noise, every, reverse=True)[0]
