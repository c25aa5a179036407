"""Model-based offline RL: SAC on rollouts in a world model learnt from the data, mixed with some of the data.

The methods differ in how they treat the model's uncertainty: each has its own `penalise`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.checks import check_choice, check_sizes
from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.evaluation.envs import env_bounds
from trajstitch.methods.sac import SAC, SoftActorCritic, draw
from trajstitch.models.dynamics import DynamicsConfig, GaussianStep
from trajstitch.models.world_model import Prediction, World, make_world, train_members
from trajstitch.policies.policy import Policy
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import Activation

Batch = Mapping[str, Any]  # columns of a batch, and the world model


@dataclass(frozen=True)
class ModelBased(SAC):
    """Settings of MOPO and MOReL."""

    actor_schedule: Literal["constant", "cosine"] = "cosine"  # With cosine the actor's rate falls to 0.
    rollout_steps: int = 5  # Steps per rollout.
    # Rollouts side by side. 50,000 transitions every 200 steps are as many per step as published (250,000 every
    # 1,000), in a smaller store.
    rollouts: int = 10_000
    rollout_interval: int = 200  # Gradient steps between rollouts; new ones replace the old.
    continue_prob: float = 0.9  # Chance that a rollout goes on where the last one ended, not from the data.
    dataset_share: float = 0.05  # Share of each batch that comes from the data set.
    terminate: Literal["never", "env"] = "never"  # With env a rollout ends by the rule of the data's environment.
    world_steps: int = 200_000  # Gradient steps of the world model, which is trained first.
    world_rate: float = 1e-3  # Learning rate of the world model.
    world_width: int = 200  # Units per hidden layer of the world model.
    world_depth: int = 4  # Hidden layers of the world model.
    world_activation: Activation = "silu"  # Activation function of the world model.
    world_seed: int = 0  # Random seed of the world model, which serves all seeds of the policy.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(
            self, "rollout_steps", "rollouts", "rollout_interval", "world_steps", "world_width", "world_depth"
        )
        for name in ("dataset_share", "continue_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be from 0 to below 1, not {getattr(self, name):g}")
        check_choice(self, "terminate", "never", "env")
        check_choice(self, "world_activation", *get_args(Activation))
        if not self.world_rate > 0 or self.world_seed < 0:
            raise InputError("world_rate must be above 0 and world_seed not below 0")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where no trajectory is left for validation, or the termination rule is not known."""
        super().check(data, improved)
        if len(data) < 2:
            raise InputError("the world model is validated on a held-out part; give at least two trajectories")
        if self.terminate == "env":
            env_bounds(data)

    def prepare(self, data: Dataset, tell: Tell = silent) -> GaussianStep:
        """Train the members of the world model."""
        schedule = Fit(self.world_steps, 256, self.world_rate)
        config = DynamicsConfig(
            width=self.world_width, depth=self.world_depth, activation=self.world_activation, fit=schedule
        )
        member, _ = train_members(data, config, self.world_seed, tell)
        return member

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the data's transitions, and the world model with the data's states as start states."""
        bounds = env_bounds(data) if self.terminate == "env" else None
        return {**super().table(data), "world": make_world(prepared, data, bounds)}

    def begin(self, model: SoftActorCritic) -> Any:
        """Return Adam's initial state, and an empty buffer for imagined transitions."""
        count, obs, action = self.rollout_steps * self.rollouts, model.actor.obs_dim, model.actor.action_dim
        imagined = {name: jnp.zeros((count, size)) for name, size in (("obs", obs), ("next_obs", obs))}
        imagined |= {"action": jnp.zeros((count, action))}
        imagined |= {"reward": jnp.zeros(count), "done": jnp.ones(count)}
        imagined |= {"model_uncertainty": jnp.zeros(count)}
        return {"adam": super().begin(model), "imagined": imagined}

    @property
    def refresh_interval(self) -> int:
        """Gradient steps between rollouts, which become stale as the policy changes."""
        return self.rollout_interval

    def refresh(self, model: SoftActorCritic, opt_state: Any, table: Table, key: Array) -> Any:
        """Replace the imagined transitions by new rollouts."""
        return {**opt_state, "imagined": self.imagine(model.actor, table, opt_state["imagined"], key)}

    def step(
        self, model: SoftActorCritic, opt_state: Any, batch: Batch, key: Array, phase: int
    ) -> tuple[SoftActorCritic, Any, Metrics]:
        """Do SAC's gradient step on a batch of real and imagined transitions."""
        mix_key, loss_key = jax.random.split(key)
        rows, metrics = self.mix(batch, opt_state["imagined"], mix_key)
        model, adam, more = super().step(model, opt_state["adam"], rows, loss_key, phase)
        return model, {**opt_state, "adam": adam}, metrics | more

    def imagine(self, actor: Policy, batch: Batch, before: Batch, key: Array) -> dict[str, Array]:
        """Roll out the policy from states of the data; a rollout that ends starts again in another state.

        Some rollouts continue where those `before` them stopped: a state that is only ever the last of a rollout
        gets a target value, but never a transition that trains it.
        """
        world: World = batch["world"]
        count, (elites, size) = self.rollouts, world.member.change.mean.shape

        def advance(obs: Array, key: Array) -> tuple[Array, dict[str, Array]]:
            # Sampled for all rollouts at once: a key per rollout would take several times as long to compile.
            begin_key, which_key, noise_key = jax.random.split(key, 3)
            which = jax.random.randint(which_key, (count,), 0, elites)
            noise = jax.random.normal(noise_key, (count, actor.action_dim + size))
            rows = jax.vmap(partial(self.imagine_one, actor, batch))(obs, which, noise)
            ended = rows["done"][:, None] > 0
            return jnp.where(ended, world.begin(count, begin_key), rows["next_obs"]), rows

        first_key, continue_key, key = jax.random.split(key, 3)
        goes_on = jax.random.bernoulli(continue_key, self.continue_prob, (count,)) & (before["done"][-count:] == 0)
        first = jnp.where(goes_on[:, None], before["next_obs"][-count:], world.begin(count, first_key))
        _, rows = jax.lax.scan(advance, first, jax.random.split(key, self.rollout_steps))
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in rows.items()}

    def imagine_one(self, actor: Policy, batch: Batch, obs: Array, which: Array, noise: Array) -> dict[str, Array]:
        """Sample one transition from this state: the policy's action, and the outcome by member `which`."""
        world: World = batch["world"]
        action, _ = draw(actor, obs, noise[: actor.action_dim])
        prediction = world.predict(obs, action)
        next_obs, reward, ended = world.step(prediction, which, noise[actor.action_dim :])
        reward, halted, uncertainty = self.penalise(batch, prediction, reward)
        done = (halted | ended).astype(jnp.float32)
        row = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        return {**row, "done": done, "model_uncertainty": uncertainty}

    @abstractmethod
    def penalise(self, batch: Batch, prediction: Prediction, reward: Array) -> tuple[Array, Array, Array]:
        """Return the penalised reward, whether the rollout halts, and the uncertainty of the step."""

    def mix(self, batch: Batch, imagined: Batch, key: Array) -> tuple[dict[str, Array], Metrics]:
        """Return a batch of real and imagined rows, and metrics of the imagined ones."""
        size = self.fit.batch
        real = min(round(self.dataset_share * size), size - 1)
        index = jax.random.randint(key, (size - real,), 0, len(imagined["obs"]))
        drawn = {name: column[index] for name, column in imagined.items()}
        names = ("obs", "action", "reward", "next_obs", "done")
        rows = {name: jnp.concatenate([batch[name][:real], drawn[name]]) for name in names}
        metrics = {
            "imagined_reward": drawn["reward"],
            "ended": drawn["done"],
            "uncertainty": drawn["model_uncertainty"],
        }
        return rows, {name: jnp.mean(value) for name, value in metrics.items()}
