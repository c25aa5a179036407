"""Model-based offline RL: SAC on rollouts in a world learnt from the data, mixed with some of the data.

How far the world is to be trusted is where methods differ: `weigh` is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.data import Dataset
from trajstitch.dynamics import DynamicsConfig, GaussianStep
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table, check_choice, check_sizes
from trajstitch.nets import Activation
from trajstitch.policy import Policy
from trajstitch.progress import Tell, silent
from trajstitch.sac import SAC, SoftActorCritic, draw
from trajstitch.world import Belief, World, env_bounds, make_world, train_members

Batch = Mapping[str, Any]  # columns of a batch, and the world


@dataclass(frozen=True)
class ModelBased(SAC):
    """Settings of both methods."""

    actor_schedule: Literal["constant", "cosine"] = "cosine"
    rollout_steps: int = 5  # of each rollout, between one renewal and the next
    # 50,000 transitions every 200 steps: as many a step as published (250,000 every 1,000), in a smaller store.
    rollouts: int = 10_000  # side by side
    refresh: int = 200  # steps between rollouts, which replace the last ones
    onward: float = 0.9  # chance that a rollout goes on where its last one was; else it begins in the data
    real: float = 0.05  # share of a batch that is data
    terminate: Literal["never", "env"] = "never"  # env: a rollout ends by the rule of the data's environment
    world_steps: int = 200_000  # gradient steps of the world, before all others
    world_rate: float = 1e-3
    world_width: int = 200
    world_depth: int = 4
    world_activation: Activation = "silu"
    world_seed: int = 0  # one world serves all seeds of a policy

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "rollout_steps", "rollouts", "refresh", "world_steps", "world_width", "world_depth")
        for name in ("real", "onward"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be from 0 to below 1, not {getattr(self, name):g}")
        check_choice(self, "terminate", "never", "env")
        check_choice(self, "world_activation", *get_args(Activation))
        if not self.world_rate > 0 or self.world_seed < 0:
            raise InputError("world_rate must be above 0 and world_seed not below 0")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """The world needs a trajectory to be judged by; a rule to end rollouts needs its environment."""
        super().check(data, improved)
        if len(data) < 2:
            raise InputError("a world is judged by trajectories it has not seen; give at least two trajectories")
        if self.terminate == "env":
            env_bounds(data)

    def prepare(self, data: Dataset, tell: Tell = silent) -> GaussianStep:
        """The world's members."""
        schedule = Fit(self.world_steps, 256, self.world_rate, patience=5)
        config = DynamicsConfig(
            width=self.world_width, depth=self.world_depth, activation=self.world_activation, fit=schedule
        )
        member, _ = train_members(data, config, self.world_seed, tell)
        return member

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """The data's transitions, and the world with the states of the data to begin in."""
        bounds = env_bounds(data) if self.terminate == "env" else None
        return {**super().table(data), "world": make_world(prepared, data, bounds)}

    def begin(self, model: SoftActorCritic) -> Any:
        """Adam's first state, and room for what is imagined."""
        count, obs, action = self.rollout_steps * self.rollouts, model.actor.obs_dim, model.actor.action_dim
        imagined = {name: jnp.zeros((count, size)) for name, size in (("obs", obs), ("next_obs", obs))}
        imagined |= {"action": jnp.zeros((count, action))}
        imagined |= {"reward": jnp.zeros(count), "done": jnp.ones(count), "doubt": jnp.zeros(count)}
        return {"adam": super().begin(model), "imagined": imagined}

    @property
    def renewal(self) -> int:
        """Rollouts become stale."""
        return self.refresh

    def renew(self, model: SoftActorCritic, memory: Any, table: Table, key: Array) -> Any:
        """New rollouts in place of the last ones."""
        return {**memory, "imagined": self.imagine(model.actor, table, memory["imagined"], key)}

    def step(
        self, model: SoftActorCritic, memory: Any, batch: Batch, key: Array, kind: int
    ) -> tuple[SoftActorCritic, Any, Metrics]:
        """SAC's step on a mixed batch."""
        mix_key, loss_key = jax.random.split(key)
        rows, metrics = self.mix(batch, memory["imagined"], mix_key)
        model, adam, more = super().step(model, memory["adam"], rows, loss_key, kind)
        return model, {**memory, "adam": adam}, metrics | more

    def imagine(self, actor: Policy, batch: Batch, before: Batch, key: Array) -> dict[str, Array]:
        """Transitions of rollouts from states of the data; one that ends begins anew in another state.

        Some go on where those `before` them were: a state that is only ever the last of a rollout has a value that
        nothing but guesses make.
        """
        world: World = batch["world"]
        count, (elites, size) = self.rollouts, world.member.change.mean.shape

        def advance(obs: Array, key: Array) -> tuple[Array, dict[str, Array]]:
            # Drawn for all rollouts at once: a key for each would take several times as long to compile.
            begin_key, which_key, noise_key = jax.random.split(key, 3)
            which = jax.random.randint(which_key, (count,), 0, elites)
            noise = jax.random.normal(noise_key, (count, actor.action_dim + size))
            rows = jax.vmap(partial(self.imagine_one, actor, batch))(obs, which, noise)
            ended = rows["done"][:, None] > 0
            return jnp.where(ended, world.begin(count, begin_key), rows["next_obs"]), rows

        first_key, onward_key, key = jax.random.split(key, 3)
        goes_on = jax.random.bernoulli(onward_key, self.onward, (count,)) & (before["done"][-count:] == 0)
        first = jnp.where(goes_on[:, None], before["next_obs"][-count:], world.begin(count, first_key))
        _, rows = jax.lax.scan(advance, first, jax.random.split(key, self.rollout_steps))
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in rows.items()}

    def imagine_one(self, actor: Policy, batch: Batch, obs: Array, which: Array, noise: Array) -> dict[str, Array]:
        """One transition from this state: the policy's action, and what member `which` makes of it."""
        world: World = batch["world"]
        action, _ = draw(actor, obs, noise[: actor.action_dim])
        belief = world.believe(obs, action)
        next_obs, reward, ended = world.happen(belief, which, noise[actor.action_dim :])
        reward, halted, doubt = self.weigh(batch, belief, reward)
        done = (halted | ended).astype(jnp.float32)
        row = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        return {**row, "done": done, "doubt": doubt}

    def weigh(self, batch: Batch, belief: Belief, reward: Array) -> tuple[Array, Array, Array]:
        """The reward that counts, whether the rollout halts, and how doubtful the step is."""
        raise AssertionError("every method has its own")

    def mix(self, batch: Batch, imagined: Batch, key: Array) -> tuple[dict[str, Array], Metrics]:
        """A batch of both kinds, and what the imagined rows of it are like."""
        size = self.fit.batch
        real = min(round(self.real * size), size - 1)
        index = jax.random.randint(key, (size - real,), 0, len(imagined["obs"]))
        drawn = {name: column[index] for name, column in imagined.items()}
        names = ("obs", "action", "reward", "next_obs", "done")
        rows = {name: jnp.concatenate([batch[name][:real], drawn[name]]) for name in names}
        metrics = {"imagined_reward": drawn["reward"], "ended": drawn["done"], "doubt": drawn["doubt"]}
        return rows, {name: jnp.mean(value) for name, value in metrics.items()}
