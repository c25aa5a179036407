"""TD3+BC: climb the critic, stay near the data's actions (Fujimoto & Gu, 2021); and the paper's TD3+TS+BC."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import Dataset, repeated
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table, check_sizes, descend, mean_loss
from trajstitch.method import Method, check_two, paper_rule
from trajstitch.nets import follow
from trajstitch.offline import Critic, OfflineRL
from trajstitch.policy import Policy

Batch = Mapping[str, Array]


class ActorCritic(eqx.Module):
    """What TD3 trains."""

    actor: Policy
    critic: Critic
    actor_target: Policy
    critic_target: Critic


@dataclass(frozen=True)
class TD3BC(OfflineRL):
    """TD3 with a cloning term in the actor's loss."""

    alpha: float = 2.5  # how much the critic counts against cloning
    noise: float = 0.2  # std on the target's action, in half-ranges of the action
    noise_clip: float = 0.5
    delay: int = 2  # critic steps an actor step
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "delay")
        if self.alpha < 0 or self.noise < 0 or self.noise_clip < 0:
            raise InputError("alpha, noise and noise_clip must not be below 0")

    def init(self, table: Table, key: Array) -> ActorCritic:
        """Fresh networks, their targets equal to them."""
        actor, critic = self.nets(table, key, "tanh")
        return ActorCritic(actor, critic, actor, critic)

    def begin(self, model: ActorCritic) -> Any:
        """Adam for the actor and for the critic."""
        return {name: self.optimiser().init(getattr(model, name)) for name in ("actor", "critic")}

    def critic_loss(self, model: ActorCritic, critic: Critic, row: Batch, key: Array) -> tuple[Array, Metrics]:
        """(Q_k(s,a) - r - γ·(1 - done)·min_k Q'_k(s', π'(s') + noise))², summed over the twins."""
        span = model.actor.range
        noise = jnp.clip(self.noise * jax.random.normal(key, span.low.shape), -self.noise_clip, self.noise_clip)
        next_action = jnp.clip(model.actor_target.act(row["next_obs"]) + span.half * noise, span.low, span.high)
        future = (1 - row["done"]) * jnp.min(model.critic_target(row["next_obs"], next_action))
        q = critic(row["obs"], row["action"])
        loss = jnp.sum((q - row["reward"] - self.discount * future) ** 2)
        return loss, {"critic_loss": loss, "q": jnp.mean(q)}

    def actor_terms(self, critic: Critic, actor: Policy, row: Batch) -> tuple[Array, Array]:
        """Q_1(s, π(s)), and (π(s) - a)² averaged over action dimensions, in half-ranges."""
        action = actor.act(row["obs"])
        error = jnp.mean(((action - row["action"]) / actor.range.half) ** 2)
        return critic.first(row["obs"], action), error

    def actor_loss(self, critic: Critic, batch: Batch, actor: Policy) -> tuple[Array, Metrics]:
        """-λ·Q_1 + (π - a)² with λ = α / mean |Q_1|, which makes it a loss of the whole batch."""
        q, error = jax.vmap(partial(self.actor_terms, critic, actor))(batch)
        weight = self.alpha / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
        loss = jnp.mean(error) - weight * jnp.mean(q)
        metrics = {"actor_loss": loss, "policy_q": jnp.mean(q), "cloning": jnp.mean(error), "lambda": weight}
        return loss, metrics

    @property
    def turn(self) -> int:
        """The actor learns at the last of these."""
        return self.delay

    def step(
        self, model: ActorCritic, memory: Any, batch: Batch, key: Array, kind: int
    ) -> tuple[ActorCritic, Any, Metrics]:
        """A step of the critic, then, at every `delay`-th, one of the actor and of the targets."""
        model, memory, metrics = self.learn_critic(model, memory, batch, key)
        if kind < self.delay - 1:
            return model, memory, metrics
        model, memory, more = self.learn_actor(model, memory, batch)
        return model, memory, metrics | more

    def learn_critic(
        self, model: ActorCritic, memory: Any, batch: Batch, key: Array
    ) -> tuple[ActorCritic, Any, Metrics]:
        """One step of the critic."""
        loss = partial(mean_loss, partial(self.critic_loss, model), batch=batch, key=key)
        critic, of_critic, metrics = descend(loss, model.critic, memory["critic"], self.optimiser())
        return eqx.tree_at(lambda m: m.critic, model, critic), {**memory, "critic": of_critic}, metrics

    def learn_actor(self, model: ActorCritic, memory: Any, batch: Batch) -> tuple[ActorCritic, Any, Metrics]:
        """One step of the actor; targets follow."""
        loss = partial(self.actor_loss, model.critic, batch)
        actor, of_actor, metrics = descend(loss, model.actor, memory["actor"], self.optimiser())
        model = ActorCritic(
            actor,
            model.critic,
            follow(model.actor_target, actor, self.target_rate),
            follow(model.critic_target, model.critic, self.target_rate),
        )
        del metrics["loss"]  # the critic's is the one of every step
        return model, {**memory, "actor": of_actor}, metrics


@dataclass(frozen=True)
class FrozenCritic(TD3BC):
    """TD3+BC whose critic has learnt enough."""

    def learn_critic(
        self, model: ActorCritic, memory: Any, batch: Batch, key: Array
    ) -> tuple[ActorCritic, Any, Metrics]:
        """No step, only how far the critic is off on these data."""
        loss, metrics = mean_loss(partial(self.critic_loss, model), model.critic, batch, key)
        return model, memory, {"loss": loss, **metrics}


# -- TD3+TS+BC: the original data first, then the stitched ones (paper, Model-free offline RL; appendix) ---------


class Switch(NamedTuple):
    """When the improved data come in."""

    step: int  # of 1,000,000
    freeze_critic: bool = False  # from then on


DEFAULT = Switch(800_000)
SWITCH: dict[tuple[str, str], Switch] = {
    **{
        (env, kind): DEFAULT
        for env in ("hopper", "halfcheetah", "walker2d")
        for kind in ("medium", "medium-expert", "medium-replay", "expert")
    },
    ("hopper", "medium"): Switch(600_000),
    ("hopper", "medium-replay"): Switch(600_000),
    ("hopper", "expert"): Switch(600_000),
    ("walker2d", "medium-replay"): Switch(900_000, freeze_critic=True),
}


@dataclass(frozen=True)
class TD3TSBC(TD3BC):
    """TD3+BC with a warm start on the original data, which show the critic bad actions too."""

    rule: str | None = None  # the paper's for this data set, such as hopper-medium-replay
    switch: int | None = None  # first step on the improved data; the rule's in proportion to `steps` unless given
    freeze_critic: bool = False  # from the switch on; some rules say so themselves

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.switched.step < self.fit.steps:
            raise InputError(
                f"the switch at step {self.switched.step} must lie between the first and the last of "
                f"{self.fit.steps} steps"
            )

    @property
    def switched(self) -> Switch:
        """The rule with what was set over it, in steps of this training."""
        rule = paper_rule(SWITCH, self.rule) if self.rule else DEFAULT
        step = round(rule.step * self.fit.steps / 1_000_000) if self.switch is None else self.switch
        return Switch(step, self.freeze_critic or rule.freeze_critic)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Two data sets of one environment."""
        super().check(data)
        check_two("td3tsbc", data, improved)

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """The original data until the switch, then the improved ones; observations stay scaled as at first."""
        assert improved is not None  # by check
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(TD3BC)}
        switch, freeze = self.switched
        yield TD3BC(**shared), self.table(data), switch
        later = FrozenCritic(**shared) if freeze else TD3BC(**shared)
        yield later, without_repeats(self.table(improved)), self.fit.steps


def without_repeats(table: Table) -> Table:
    """Each transition once: stitched trajectories share most of theirs, and would weigh them by how often."""
    columns = [np.reshape(column, (len(column), -1)) for column in table.values()]
    keep = ~repeated(np.concatenate(columns, 1, dtype=np.float32))
    return {name: column[keep] for name, column in table.items()}
