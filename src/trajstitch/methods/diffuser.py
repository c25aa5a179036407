"""Diffuser: a denoiser of windows of the data and a model of their returns, for planning (Janner et al., 2022)."""

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

from trajstitch.checks import check_sizes
from trajstitch.data import Bool, Dataset
from trajstitch.errors import InputError
from trajstitch.methods.method import Method, check_rewards
from trajstitch.models.unet import GROUPS, Sizes, UNet, WindowValue
from trajstitch.policies.diffusion import Diffusion, Sampling, hold, schedule
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import Range, Scale, polyak_update


class Columns(eqx.Module):
    """The data's arrays, from which windows are cut when a batch is sampled, and their scales."""

    obs: Array  # [N + M, S]
    action: Array  # [N, A]
    scale: Scale
    range: Range
    total: Scale

    def windows(self, rows: Mapping[str, Array], horizon: int) -> dict[str, Array]:
        """Cut windows at these start positions: actions [B, H, A] and observations [B, H, S].

        Beyond a trajectory's end its last state is repeated, with the middle of the range as the action.
        """
        ahead, left = jnp.arange(horizon), rows["left"][:, None]
        action = self.action[rows["start"][:, None] + jnp.minimum(ahead, left - 1)]
        obs = self.obs[rows["row"][:, None] + jnp.minimum(ahead, left)]
        return {"action": jnp.where((ahead < left)[..., None], action, self.range.middle), "obs": obs}


class Averaged(eqx.Module):
    """The trained planner, and the moving average of its weights, which acts."""

    now: Diffusion
    average: Diffusion


@dataclass(frozen=True)
class Diffuser(Sampling, Method):
    """Planning by guided diffusion."""

    width: int = 32  # Channels of the finest level; each level has twice as many as the one before.
    depth: int = 4  # Levels; each has half as many steps as the one before.
    blocks: int = 2  # Residual blocks per level, down and up.
    scale: bool = True  # Scale observations to mean 0 and std 1; --no-scale leaves them as they are.
    discount: float = 0.997  # Discount of rewards in the return that guides.
    end_penalty: float = 100.0  # Taken off the last reward of an episode that really ended.
    action_weight: float = 10.0  # Weight of the first action in the loss, because it is the one executed.
    ema: float = 0.995  # Decay of the moving average of the weights, which is what acts.
    fit: Fit = Fit(steps=1_000_000, batch=64, rate=2e-4)  # Training schedule.

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
        """The settings that the planner needs."""
        return Sampling(**{field.name: getattr(self, field.name) for field in fields(Sampling)})

    @property
    def joins(self) -> bool:
        """See `Method.joins`: windows are cut from arrays that batches are not drawn from."""
        return False

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where all rewards are 0, or where no trajectory has two steps to plan over."""
        super().check(data, improved)
        check_rewards(data)
        if data.length.max() < 2:
            raise InputError("all trajectories have one step, so there is no future to plan; give longer ones")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return where windows start, the return from there on, and the arrays that windows are cut from."""
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
        """Initialise the networks."""
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
        self, model: Averaged, opt_state: Any, batch: Mapping[str, Any], key: Array, phase: int
    ) -> tuple[Averaged, Any, Metrics]:
        """Do one gradient step on the windows at the sampled start positions."""
        windows = batch["columns"].windows(batch, self.plan_horizon)
        return super().step(model, opt_state, {**windows, "total": batch["total"]}, key, phase)

    def loss(self, model: Averaged, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the squared errors of denoiser and value network for one window, noised to a random step.

        The denoiser predicts the clean window, as published; the first observation is given, so it adds no loss.
        """
        net = model.now
        clean = net.window(row["action"], row["obs"])
        now = clean[0, net.action_dim :]
        step_key, noise_key = jax.random.split(key)
        step, at = jax.random.randint(step_key, (), 0, self.diffusion_steps), schedule(self.diffusion_steps)
        noise = jax.random.normal(noise_key, clean.shape)
        noised = hold(at.signal[step] * clean + at.noise[step] * noise, now)

        error = (hold(net.denoise(noised, step), now) - clean) ** 2
        action_loss = jnp.mean(error[0, : net.action_dim])
        denoising_loss = jnp.mean(error.at[0, : net.action_dim].multiply(self.action_weight))
        value_loss = (net.value(noised, step) - net.total(row["total"])) ** 2
        metrics = {"denoising_loss": denoising_loss, "action_loss": action_loss, "value_loss": value_loss}
        return denoising_loss + value_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam for the trained weights; the average gets no gradient steps."""
        labels: Any = Averaged  # with the name of an optimiser in place of each part
        optimisers = {"adam": optax.adam(self.fit.rate), "frozen": optax.set_to_zero()}
        return optax.multi_transform(optimisers, labels(now="adam", average="frozen"))

    def after(self, model: Averaged) -> Averaged:
        """Update the moving average."""
        return Averaged(model.now, polyak_update(model.average, model.now, 1 - self.ema))

    def policy(self, model: Averaged) -> Diffusion:
        """Return the moving average."""
        return model.average


def is_start(data: Dataset, horizon: int) -> Bool:
    """Return where windows may start [N]: everywhere but where a trajectory was cut within the window.

    A trajectory that was cut before it filled a single window is used all the same.
    """
    cut = ~data.terminal & (data.length >= horizon)
    return ~np.repeat(cut, data.length) | (data.steps_left >= horizon)


def discounted_return(data: Dataset, discount: float, end_penalty: float) -> NDArray[np.float32]:
    """Compute Σ_k γ^k·r_{t+k} until the trajectory ends [N]; a real end of the episode costs `end_penalty`."""
    total = data.reward.astype(np.float64)
    total[data.start[1:][data.terminal] - 1] -= end_penalty
    for back in range(2, data.length.max() + 1):
        at = data.start[1:][data.length >= back] - back
        total[at] += discount * total[at + 1]
    return total.astype(np.float32)
