"""Diffusion: plans sampled by denoising, with guidance towards higher returns (Janner et al., 2022).

A window is a plan in scaled units, H steps of actions (-1 to 1) and observations side by side:

    [a_0 s_0]    s_0 is the current state, restored after every change of the window ("inpainting")
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

from trajstitch.checks import check_not_negative, check_sizes
from trajstitch.models.unet import UNet, WindowValue
from trajstitch.policies.planner import ActionPlanner
from trajstitch.training.networks import Scale


@dataclass(frozen=True)
class Sampling:
    """How plans are sampled; the defaults are the published values for locomotion."""

    plan_horizon: int = 32  # Steps of a plan.
    diffusion_steps: int = 20  # Diffusion steps from noise to a plan.
    samples: int = 64  # Plans drawn; the one of the highest predicted return is used.
    guide_scale: float = 0.1  # Size of a guidance step along the return's gradient; 0: no guidance.
    guide_steps: int = 2  # Guidance steps per diffusion step.
    guide_stop: int = 2  # The last diffusion steps, which have no guidance.
    sample_noise: float = 0.5  # Std of the noise per diffusion step, in units of the posterior's std.

    def __post_init__(self) -> None:
        check_sizes(self, "plan_horizon", "diffusion_steps", "samples", "guide_steps")
        check_not_negative(self, "guide_scale", "guide_stop", "sample_noise")


class Schedule(NamedTuple):
    """Coefficients of noising and denoising at each diffusion step t [steps]; the last step is the noisiest."""

    signal: Array  # √ᾱ_t, factor of the clean window in the noised one; ᾱ_t is the share of signal left
    noise: Array  # √(1 - ᾱ_t), factor of the noise in it
    clean: Array  # factor of the clean window in the posterior mean, one step less noisy
    noisy: Array  # factor of the noised window in that mean
    variance: Array  # of the posterior; 0 at step 0


def schedule(steps: int) -> Schedule:
    """Compute the cosine schedule: ᾱ falls from 1 to 0, by at most 99.9% per step (Nichol & Dhariwal, 2021)."""
    time = (np.arange(steps + 1) / steps + 0.008) / 1.008
    squared_cosine = np.cos(time * np.pi / 2) ** 2
    beta = np.minimum(1 - squared_cosine[1:] / squared_cosine[:-1], 0.999)
    alpha_bar = np.cumprod(1 - beta)
    before = np.append(1.0, alpha_bar[:-1])
    columns = (
        np.sqrt(alpha_bar),
        np.sqrt(1 - alpha_bar),
        np.sqrt(before) * beta / (1 - alpha_bar),
        np.sqrt(1 - beta) * (1 - before) / (1 - alpha_bar),
        beta * (1 - before) / (1 - alpha_bar),
    )
    return Schedule(*(jnp.asarray(column, jnp.float32) for column in columns))


def hold(window: Array, obs: Array) -> Array:
    """Return the window with this scaled observation [..., S] as its first observation."""
    return window.at[..., 0, -obs.shape[-1] :].set(obs)


def climb(value: Callable[[Array], Array], window: Array, obs: Array, size: Array, steps: int) -> Array:
    """Do `steps` gradient steps of `size` that raise the value of a window, its first observation held."""
    gradient = jax.grad(lambda x: jnp.sum(value(x)))
    return jax.lax.fori_loop(0, steps, lambda _, x: hold(x + size * gradient(x), obs), window)


class Diffusion(ActionPlanner):
    """Planner by a denoiser and a value network of windows; it keeps no memory."""

    denoise: UNet  # predicts the clean window from a noised one
    value: WindowValue  # predicts the return of the clean window from a noised one, scaled
    scale: Scale  # of observations
    total: Scale  # of returns
    sampling: Sampling = eqx.field(static=True)

    @property
    def obs_dim(self) -> int:
        """S, the dimensions of an observation."""
        return self.scale.mean.shape[-1]

    def blank(self, episodes: int) -> tuple[()]:
        """Return an empty memory."""
        return ()

    def window(self, action: Array, obs: Array) -> Array:
        """Return windows of actions [..., H, A] and observations [..., H, S], scaled and side by side."""
        return jnp.concatenate([self.range.unit(action), self.scale(obs)], -1)

    def plan(self, memory: tuple[()], obs: Array, begun: Array, key: Array) -> tuple[Array, tuple[()]]:
        """Sample plans for each observation and return the first action of the best one."""
        windows = self.draw(obs, key)
        best = jnp.argmax(self.value(windows, jnp.zeros(())), 1)
        unit = windows[jnp.arange(len(obs)), best, 0, : self.action_dim]
        action = self.range.middle + self.range.half * unit
        return jnp.clip(action, self.range.low, self.range.high), memory

    def draw(self, obs: Array, key: Array) -> Array:
        """Sample N guided plans per observation: [B, N, H, A + S] for observations [B, S]."""
        s = self.sampling
        now = self.scale(obs)[:, None]
        shape = (len(obs), s.samples, s.plan_horizon, self.action_dim + self.obs_dim)

        def denoise_step(window: Array, inputs: tuple[Array, Array, Schedule]) -> tuple[Array, None]:
            """Do one denoising step, with guidance."""
            step, key, at = inputs
            mean = hold(at.clean * self.denoise(window, step) + at.noisy * window, now)
            if s.guide_scale:
                size = jnp.where(step < s.guide_stop, 0.0, s.guide_scale * self.total.std * at.variance)
                mean = climb(lambda x: self.value(x, jnp.maximum(step - 1, 0)), mean, now, size, s.guide_steps)
            noise = s.sample_noise * jnp.sqrt(at.variance) * jax.random.normal(key, shape)
            return hold(mean + noise, now), None

        first, key = jax.random.split(key)
        steps = jnp.arange(s.diffusion_steps)
        inputs = (steps, jax.random.split(key, s.diffusion_steps), schedule(s.diffusion_steps))
        noise = hold(jax.random.normal(first, shape), now)
        return jax.lax.scan(denoise_step, noise, inputs, reverse=True)[0]
