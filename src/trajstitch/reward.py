"""Reward models r(s,a,s'): WGAN, VAE, MLP and Gaussian (paper, Value and reward estimation; reward ablation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from trajstitch.data import Dataset
from trajstitch.dynamics import step_table
from trajstitch.errors import InputError
from trajstitch.fit import Fit, History, Learner, Metrics, Table, check_sizes, descend, mean_loss, train_best
from trajstitch.nets import MLP, Scale
from trajstitch.progress import Tell, silent

KINDS = ("mlp", "gaussian", "vae", "wgan")


@dataclass(frozen=True)
class RewardConfig(Learner):
    """Reward."""

    kind: Literal["mlp", "gaussian", "vae", "wgan"] = "mlp"
    width: int = 512
    latent: int = 2  # of vae and wgan
    critic_steps: int = 5  # wgan: a generator step
    penalty: float = 1.0  # wgan: on the critic's slope; 0 for the paper's, which has L2 only; 10 runs away
    decay: float = 1e-4  # wgan: L2 on the critic's weights
    fit: Fit = Fit(steps=50_000, batch=256, rate=1e-4, patience=5)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"the reward model is one of {', '.join(KINDS)}, not {self.kind!r}")
        check_sizes(self, "width", "latent", "critic_steps")

    def init(self, table: Table, key: Array) -> Any:
        """A fresh model."""
        obs, action, reward = table["obs"], table["action"], table["reward"]
        given = Given(
            Scale.of(obs), Scale.of(action), Scale.of(table["next_obs"] - obs), Scale.of(reward[:, None])
        )
        inputs = 2 * obs.shape[1] + action.shape[1]
        hidden = [self.width, self.width]
        first, second = jax.random.split(key)
        if self.kind == "mlp":
            return Mean(given, MLP.init([inputs, *hidden, 1], first))
        if self.kind == "gaussian":
            return Gaussian(given, MLP.init([inputs, *hidden, 2], first))
        generator = MLP.init([inputs + self.latent, *hidden, 1], first)
        if self.kind == "vae":
            return VAE(given, generator, MLP.init([inputs + 1, *hidden, 2 * self.latent], second))
        return WGAN(given, generator, MLP.init([inputs + 1, *hidden, 1], second))

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> Array:
        """Of one transition; for the WGAN, whose own losses mean nothing alone, the squared error of a draw."""
        x = model.given(row["obs"], row["action"], row["next_obs"])
        return model.error(x, model.given.reward(row["reward"][None]), key)

    def begin(self, model: Any) -> Any:
        """The WGAN has an optimiser for each of its two networks."""
        if self.kind != "wgan":
            return super().begin(model)
        return {name: self._adam(name).init(getattr(model, name)) for name in ("generator", "critic")}

    def step(
        self, model: Any, memory: Any, batch: Mapping[str, Array], key: Array, kind: int
    ) -> tuple[Any, Any, Metrics]:
        """One step; a WGAN's is several of the critic on the batch, then one of the generator."""
        if self.kind != "wgan":
            return super().step(model, memory, batch, key, kind)

        def improve(model: WGAN, memory: Any, name: str, loss: Any, key: Array) -> tuple[WGAN, Any]:
            def of_part(part: MLP) -> Array:
                whole = eqx.tree_at(lambda m: getattr(m, name), model, part)
                return mean_loss(loss, whole, batch, key)

            part, memory, _ = descend(of_part, getattr(model, name), memory, self._adam(name))
            return eqx.tree_at(lambda m: getattr(m, name), model, part), memory

        keys = jax.random.split(key, self.critic_steps + 2)
        for critic_key in keys[: self.critic_steps]:
            model, memory["critic"] = improve(model, memory["critic"], "critic", self._critic_loss, critic_key)
        model, memory["generator"] = improve(model, memory["generator"], "generator", _generator_loss, keys[-2])
        return model, memory, {"loss": mean_loss(self.loss, model, batch, keys[-1])}

    def _adam(self, name: str) -> optax.GradientTransformation:
        decay = self.decay if name == "critic" else 0.0
        return optax.chain(optax.add_decayed_weights(decay), optax.adam(self.fit.rate, b1=0.5))

    def _critic_loss(self, model: WGAN, row: Mapping[str, Array], key: Array) -> Array:
        """D(fake) - D(real): the critic learns to give real transitions the higher number."""
        z_key, mix_key = jax.random.split(key)
        x, real = model.transition(row)
        fake = jax.lax.stop_gradient(model.draw(x, z_key))
        score = partial(model.judge, x)
        between = real + jax.random.uniform(mix_key) * (fake - real)
        slope = jax.grad(lambda r: score(r))(between)
        return score(fake) - score(real) + self.penalty * (jnp.abs(slope).sum() - 1) ** 2


def _generator_loss(model: WGAN, row: Mapping[str, Array], key: Array) -> Array:
    """-D(fake): the generator learns to be taken for real."""
    x, _ = model.transition(row)
    return -model.judge(x, model.draw(x, key))


class Given(eqx.Module):
    """What a reward model is told: state, action and change of state, scaled; and the scale of rewards."""

    scale: Scale
    action: Scale
    change: Scale
    reward: Scale

    def __call__(self, obs: Array, action: Array, next_obs: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.action(action), self.change(next_obs - obs)])


class RewardModel(eqx.Module):
    """What all four share: a scaled reward [1] for scaled inputs, drawn with a key."""

    given: Given

    def draw(self, x: Array, key: Array) -> Array:
        """A scaled reward [1]."""
        raise AssertionError("every reward model has its own")

    @eqx.filter_jit
    def rewards(self, obs: Array, action: Array, next_obs: Array, key: Array) -> Array:
        """Rewards [B] of transitions, raw units."""

        def one(obs: Array, action: Array, next_obs: Array, key: Array) -> Array:
            scaled = self.draw(self.given(obs, action, next_obs), key)[0]
            return self.given.reward.mean[0] + self.given.reward.std[0] * scaled

        return jax.vmap(one)(obs, action, next_obs, jax.random.split(key, len(obs)))


class Mean(RewardModel):
    """MLP: the mean reward, by squared error."""

    net: MLP

    def draw(self, x: Array, key: Array) -> Array:
        return self.net(x)

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Squared error."""
        return jnp.sum((self.net(x) - reward) ** 2)


class Gaussian(RewardModel):
    """Mean and variance, by maximum likelihood; the mean is what is used."""

    net: MLP

    def draw(self, x: Array, key: Array) -> Array:
        return self.net(x)[:1]

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """-log N(r; μ, σ)."""
        mean, log_std = jnp.split(self.net(x), 2)
        log_std = jnp.clip(log_std, -10, 2)
        return jnp.sum(0.5 * ((reward - mean) * jnp.exp(-log_std)) ** 2 + log_std)


class VAE(RewardModel):
    """A conditional VAE; a draw takes z from the prior."""

    generator: MLP
    encoder: MLP

    def draw(self, x: Array, key: Array) -> Array:
        z = jax.random.normal(key, (self.generator.layers[0].weight.shape[-1] - len(x),))
        return self.generator(jnp.concatenate([x, z]))

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Squared error plus KL."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([x, reward])), 2)
        log_std = jnp.clip(log_std, -10, 2)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        divergence = jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std)
        return jnp.sum((self.generator(jnp.concatenate([x, z])) - reward) ** 2) + divergence


class WGAN(RewardModel):
    """A conditional Wasserstein GAN."""

    generator: MLP
    critic: MLP

    def transition(self, row: Mapping[str, Array]) -> tuple[Array, Array]:
        """Scaled inputs and the scaled real reward [1] of one row."""
        return self.given(row["obs"], row["action"], row["next_obs"]), self.given.reward(row["reward"][None])

    def draw(self, x: Array, key: Array) -> Array:
        z = jax.random.normal(key, (self.generator.layers[0].weight.shape[-1] - len(x),))
        return self.generator(jnp.concatenate([x, z]))

    def judge(self, x: Array, reward: Array) -> Array:
        """The critic's number for one transition."""
        return self.critic(jnp.concatenate([x, reward]))[0]

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Squared error of a draw."""
        return jnp.sum((self.draw(x, key) - reward) ** 2)


def train_reward(
    train: Dataset, held_out: Dataset, config: RewardConfig, seed: int, tell: Tell = silent
) -> tuple[RewardModel, History]:
    """Train one reward model."""
    model, history = train_best(config, step_table(train), step_table(held_out), [seed], tell)
    return jax.tree.map(lambda leaf: leaf[0], model), history
