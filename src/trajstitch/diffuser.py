"""Diffuser: windows of the data denoised, and their returns predicted, to plan with (Janner et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset
from trajstitch.diffusion import Diffusion, Sampling, hold, schedule
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table, check_sizes
from trajstitch.method import Method, check_rewards
from trajstitch.nets import Range, Scale, follow
from trajstitch.unet import GROUPS, Sizes, UNet, WindowValue


class Columns(eqx.Module):
    """The data's own arrays, of which windows are cut when they are drawn, and their scales."""

    obs: Array  # [N + M, S]
    action: Array  # [N, A]
    scale: Scale
    range: Range
    total: Scale

    def windows(self, rows: Mapping[str, Array], horizon: int) -> dict[str, Array]:
        """Actions [B, H, A] and observations [B, H, S] from these starts on.

        Past a trajectory's end its last state is repeated, with the middle of the range for an action.
        """
        ahead, left = jnp.arange(horizon), rows["left"][:, None]
        action = self.action[rows["start"][:, None] + jnp.minimum(ahead, left - 1)]
        obs = self.obs[rows["row"][:, None] + jnp.minimum(ahead, left)]
        return {"action": jnp.where((ahead < left)[..., None], action, self.range.middle), "obs": obs}


class Averaged(eqx.Module):
    """What is trained, and its average over the last steps, which is played."""

    now: Diffusion
    average: Diffusion


@dataclass(frozen=True)
class Diffuser(Sampling, Method):
    """Planning by guided diffusion."""

    width: int = 32  # channels of the finest level; each level has twice those of the one before
    depth: int = 4  # levels, each of half as many steps as the one before
    blocks: int = 2  # of two convolutions each, a level and way
    scale: bool = True  # train on observations of mean 0 and std 1
    discount: float = 0.997  # of rewards in the return that guides
    end_penalty: float = 100.0  # off the last reward where an episode really ended
    action_weight: float = 10.0  # of the first action in the loss, since it is the one played
    ema: float = 0.995  # how much of the average stays at a step
    fit: Fit = Fit(steps=1_000_000, batch=64, rate=2e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "width", "depth", "blocks")
        if self.width % GROUPS:
            raise InputError(f"width must be a multiple of {GROUPS}, not {self.width}")
        if self.plan_horizon % 2 ** (self.depth - 1):
            raise InputError(
                f"plan_horizon {self.plan_horizon} cannot be halved {self.depth - 1} times; give a multiple of "
                f"{2 ** (self.depth - 1)}, or another depth"
            )
        if not 0 <= self.discount <= 1 or not 0 <= self.ema < 1:
            raise InputError("discount must be from 0 to 1 and ema from 0 to below 1")
        if not self.action_weight > 0 or not np.isfinite(self.end_penalty):
            raise InputError("action_weight must be above 0 and end_penalty a number")

    @property
    def sampling(self) -> Sampling:
        """The part of the settings a planner needs."""
        return Sampling(**{field.name: getattr(self, field.name) for field in fields(Sampling)})

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Without a reward no future is better than another, without a second step there is none."""
        super().check(data, improved)
        check_rewards(data)
        if data.length.max() < 2:
            raise InputError("all trajectories have one step, so there is no future to plan; give longer ones")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Where windows start, what is earned from there on, and the columns they are cut of."""
        total = discounted_return(data, self.discount, self.end_penalty)
        start = np.flatnonzero(is_start(data, self.plan_horizon))
        scale = Scale.of(data.obs[data.row]) if self.scale else Scale.unit(data.obs_dim)
        columns: Any = (data.obs, data.action, scale, Range.of(data.action), Scale.of(total))
        left = data.steps_left[start]
        places = {"start": start, "row": data.row[start], "left": left}
        return {
            **{name: place.astype(np.int32) for name, place in places.items()},
            "total": total[start],
            "columns": Columns(*columns),
        }

    def init(self, table: Table, key: Array) -> Averaged:
        """Fresh networks."""
        columns: Columns = table["columns"]
        size = columns.obs.shape[1] + columns.action.shape[1]
        sizes = Sizes(size, self.width, self.depth, self.blocks)
        denoise_key, value_key = jax.random.split(key)
        model = Diffusion(
            columns.range,
            UNet.init(sizes, denoise_key),
            WindowValue.init(sizes, self.plan_horizon, value_key),
            columns.scale,
            columns.total,
            self.sampling,
        )
        return Averaged(model, model)

    def step(
        self, model: Averaged, memory: Any, batch: Mapping[str, Any], key: Array, kind: int
    ) -> tuple[Averaged, Any, Metrics]:
        """A step on the windows that start there."""
        windows = batch["columns"].windows(batch, self.plan_horizon)
        return super().step(model, memory, {**windows, "total": batch["total"]}, key, kind)

    def loss(self, model: Averaged, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Two squared errors of one window, noised to a random step, each of its own network.

        The denoiser predicts the clean window, as published; the first observation is given and costs nothing.
        """
        net = model.now
        clean = net.window(row["action"], row["obs"])
        now = clean[0, net.action_dim :]
        step_key, noise_key = jax.random.split(key)
        step, plan = jax.random.randint(step_key, (), 0, self.diffusion_steps), schedule(self.diffusion_steps)
        noise = jax.random.normal(noise_key, clean.shape)
        noised = hold(plan.signal[step] * clean + plan.noise[step] * noise, now)

        error = (hold(net.denoise(noised, step), now) - clean) ** 2
        action_loss = jnp.mean(error[0, : net.action_dim])
        denoising_loss = jnp.mean(error.at[0, : net.action_dim].multiply(self.action_weight))
        value_loss = (net.value(noised, step) - net.total(row["total"])) ** 2
        metrics = {"denoising_loss": denoising_loss, "action_loss": action_loss, "value_loss": value_loss}
        return denoising_loss + value_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Adam; the average only follows."""
        labels: Any = Averaged
        kinds = {"adam": optax.adam(self.fit.rate), "still": optax.set_to_zero()}
        return optax.multi_transform(kinds, labels("adam", "still"))

    def after(self, model: Averaged) -> Averaged:
        """The average follows."""
        return Averaged(model.now, follow(model.average, model.now, 1 - self.ema))

    def policy(self, model: Averaged) -> Diffusion:
        """The average."""
        return model.average


def is_start(data: Dataset, horizon: int) -> Bool:
    """Where windows start [N]: everywhere, unless the trajectory was cut and what follows in the window unknown.

    One that was cut before it filled a single window is used all the same.
    """
    cut = ~data.terminal & (data.length >= horizon)
    return ~np.repeat(cut, data.length) | (data.steps_left >= horizon)


def discounted_return(data: Dataset, discount: float, end_penalty: float) -> NDArray[np.float32]:
    """Σ γ^k·r_{t+k} until the trajectory ends [N], less the penalty where the episode really ended."""
    total = data.reward.astype(np.float64)
    total[data.start[1:][data.terminal] - 1] -= end_penalty
    for back in range(2, data.length.max() + 1):
        at = data.start[1:][data.length >= back] - back
        total[at] += discount * total[at + 1]
    return total.astype(np.float32)
