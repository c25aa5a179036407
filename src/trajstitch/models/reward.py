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

from trajstitch.checks import check_not_negative, check_sizes
from trajstitch.data import Dataset, step_table
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Fit, History, Learner, Metrics, Table, gradient_step, mean_loss, train_best
from trajstitch.training.networks import MLP, Scale, pick

KINDS = ("mlp", "gaussian", "vae", "wgan")


@dataclass(frozen=True)
class RewardConfig(Learner):
    """Reward."""

    kind: Literal["mlp", "gaussian", "vae", "wgan"] = "mlp"  # Reward model; wgan is the paper's.
    width: int = 512  # Units per hidden layer.
    latent: int = 2  # Latent dimensions of vae and wgan.
    critic_steps: int = 5  # For wgan: critic steps per generator step.
    # For wgan: weight of the gradient penalty. The paper has 0 (only L2); 10 diverges.
    penalty: float = 1.0
    decay: float = 1e-4  # For wgan: this times the critic's squared weights is added to its loss (L2).
    fit: Fit = Fit(steps=50_000, batch=256, rate=1e-4)  # Training schedule.
    patience: int = 5  # Stop after this many of 20 checks without a lower held-out loss; 0: never.

    def __post_init__(self) -> None:
        check_not_negative(self, "patience")
        if self.kind not in KINDS:
            raise InputError(f"the reward model is one of {', '.join(KINDS)}, not {self.kind!r}")
        check_sizes(self, "width", "latent", "critic_steps")

    def init(self, table: Table, key: Array) -> Any:
        """Initialise the model."""
        obs, action, reward = table["obs"], table["action"], table["reward"]
        inputs = RewardInputs(
            Scale.of(obs),
            Scale.of(action),
            Scale.of_change(table["next_obs"] - obs, obs),
            Scale.of_target(reward[:, None]),
        )
        size = 2 * obs.shape[1] + action.shape[1]
        hidden = [self.width, self.width]
        first, second = jax.random.split(key)
        if self.kind == "mlp":
            return Mean(inputs, MLP.init([size, *hidden, 1], first))
        if self.kind == "gaussian":
            return Gaussian(inputs, MLP.init([size, *hidden, 2], first))
        generator = MLP.init([size + self.latent, *hidden, 1], first)
        if self.kind == "vae":
            return VAE(inputs, generator, MLP.init([size + 1, *hidden, 2 * self.latent], second))
        return WGAN(inputs, generator, MLP.init([size + 1, *hidden, 1], second))

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> Array:
        """Compute the loss of one transition.

        For the WGAN, whose own losses do not measure its quality, it is the squared error of a sample.
        """
        x = model.given(row["obs"], row["action"], row["next_obs"])
        return model.error(x, model.given.reward(row["reward"][None]), key)

    def begin(self, model: Any) -> Any:
        """Return the initial optimiser state; the WGAN has one per network."""
        if self.kind != "wgan":
            return super().begin(model)
        return {name: self._adam(name).init(getattr(model, name)) for name in ("generator", "critic")}

    def step(
        self, model: Any, opt_state: Any, batch: Mapping[str, Array], key: Array, phase: int
    ) -> tuple[Any, Any, Metrics]:
        """Do one step; for the WGAN, `critic_steps` steps of the critic, then one of the generator."""
        if self.kind != "wgan":
            return super().step(model, opt_state, batch, key, phase)

        def train_part(model: WGAN, opt_state: Any, name: str, loss: Any, key: Array) -> tuple[WGAN, Any]:
            def part_loss(part: MLP) -> Array:
                whole = eqx.tree_at(lambda m: getattr(m, name), model, part)
                return mean_loss(loss, whole, batch, key)

            part, opt_state, _ = gradient_step(part_loss, getattr(model, name), opt_state, self._adam(name))
            return eqx.tree_at(lambda m: getattr(m, name), model, part), opt_state

        keys = jax.random.split(key, self.critic_steps + 2)
        for critic_key in keys[: self.critic_steps]:
            model, opt_state["critic"] = train_part(
                model, opt_state["critic"], "critic", self._critic_loss, critic_key
            )
        model, opt_state["generator"] = train_part(
            model, opt_state["generator"], "generator", _generator_loss, keys[-2]
        )
        return model, opt_state, {"loss": mean_loss(self.loss, model, batch, keys[-1])}

    def _adam(self, name: str) -> optax.GradientTransformation:
        decay = self.decay if name == "critic" else 0.0
        return optax.chain(optax.add_decayed_weights(2 * decay), optax.adam(self.fit.rate, b1=0.5))

    def _critic_loss(self, model: WGAN, row: Mapping[str, Array], key: Array) -> Array:
        """Compute D(fake) - D(real) plus the penalty: the critic D learns to score real transitions higher."""
        z_key, mix_key = jax.random.split(key)
        x, real = model.transition(row)
        fake = jax.lax.stop_gradient(model.draw(x, z_key))
        score = partial(model.scoring, x)
        if not self.penalty:  # the slope would take a third of the time, for nothing
            return score(fake) - score(real)
        mixed = real + jax.random.uniform(mix_key) * (fake - real)
        gradient = jax.grad(lambda r: score(r))(mixed)
        return score(fake) - score(real) + self.penalty * (jnp.abs(gradient).sum() - 1) ** 2


def _generator_loss(model: WGAN, row: Mapping[str, Array], key: Array) -> Array:
    """Compute -D(fake): the generator learns to raise the critic's score of its samples."""
    x, _ = model.transition(row)
    return -model.scoring(x, model.draw(x, key))


class RewardInputs(eqx.Module):
    """Inputs of a reward model: state, action and change of state, scaled; and the scale of rewards."""

    scale: Scale
    action: Scale
    change: Scale
    reward: Scale

    def __call__(self, obs: Array, action: Array, next_obs: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.action(action), self.change(next_obs - obs)])


class RewardNetwork(eqx.Module):
    """Interface of the four reward models: sample a scaled reward [1] for scaled inputs."""

    given: RewardInputs

    def draw(self, x: Array, key: Array) -> Array:
        """Sample a scaled reward [1] for scaled inputs `x`."""
        raise AssertionError("every reward model implements draw")

    @eqx.filter_jit
    def rewards(self, obs: Array, action: Array, next_obs: Array, key: Array) -> Array:
        """Predict rewards [B] of transitions, in raw units."""

        def one(obs: Array, action: Array, next_obs: Array, key: Array) -> Array:
            scaled = self.draw(self.given(obs, action, next_obs), key)[0]
            return self.given.reward.mean[0] + self.given.reward.std[0] * scaled

        return jax.vmap(one)(obs, action, next_obs, jax.random.split(key, len(obs)))


class Mean(RewardNetwork):
    """MLP: predicts the mean reward; trained by squared error."""

    net: MLP

    def draw(self, x: Array, key: Array) -> Array:
        return self.net(x)

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Compute the squared error."""
        return jnp.sum((self.net(x) - reward) ** 2)


class Gaussian(RewardNetwork):
    """Predicts mean and variance; trained by maximum likelihood. Only the mean is used as the reward."""

    net: MLP

    def draw(self, x: Array, key: Array) -> Array:
        return self.net(x)[:1]

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Compute -log N(r; μ, σ) for predicted mean μ and std σ, without the constant term."""
        mean, log_std = jnp.split(self.net(x), 2)
        log_std = jnp.clip(log_std, -10, 2)
        return jnp.sum(0.5 * ((reward - mean) * jnp.exp(-log_std)) ** 2 + log_std)


class VAE(RewardNetwork):
    """A conditional VAE; a sample takes the latent z from the prior."""

    generator: MLP
    encoder: MLP

    def draw(self, x: Array, key: Array) -> Array:
        z = jax.random.normal(key, (self.generator.layers[0].weight.shape[-1] - len(x),))
        return self.generator(jnp.concatenate([x, z]))

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Compute the squared error plus the KL divergence."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([x, reward])), 2)
        log_std = jnp.clip(log_std, -10, 2)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        divergence = jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std)
        return jnp.sum((self.generator(jnp.concatenate([x, z])) - reward) ** 2) + divergence


class WGAN(RewardNetwork):
    """A conditional Wasserstein GAN."""

    generator: MLP
    critic: MLP

    def transition(self, row: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return scaled inputs and the scaled reward [1] of one row of the data."""
        return self.given(row["obs"], row["action"], row["next_obs"]), self.given.reward(row["reward"][None])

    def draw(self, x: Array, key: Array) -> Array:
        z = jax.random.normal(key, (self.generator.layers[0].weight.shape[-1] - len(x),))
        return self.generator(jnp.concatenate([x, z]))

    def scoring(self, x: Array, reward: Array) -> Array:
        """Compute the critic's score of one transition."""
        return self.critic(jnp.concatenate([x, reward]))[0]

    def error(self, x: Array, reward: Array, key: Array) -> Array:
        """Compute the squared error of a sample."""
        return jnp.sum((self.draw(x, key) - reward) ** 2)


def train_reward(
    train: Dataset, held_out: Dataset, config: RewardConfig, seed: int, tell: Tell = silent
) -> tuple[RewardNetwork, History]:
    """Train one reward model."""
    model, history = train_best(
        config, step_table(train), step_table(held_out), [seed], tell, patience=config.patience
    )
    return pick(model, 0), history
