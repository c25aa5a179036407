"""MPPI: a plan made anew at every step, an average of imagined futures that counts better ones more (MBOP).

N samples play a prior (a cloned policy) in a model of the world for H steps. A sample keeps one of the model's E
heads for all its steps, so samples are laid out by head, and each layer of each head is one dense product:

    obs, action    [E, B, n, ·]    B episodes, n = N / E samples a head, rounded up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.errors import InputError
from trajstitch.fit import check_sizes
from trajstitch.nets import MLP, Range, Scale
from trajstitch.planner import Planner
from trajstitch.policy import Policy
from trajstitch.value import Value


@dataclass(frozen=True)
class Search:
    """How plans are sought."""

    horizon: int = 2  # H, steps imagined
    samples: int = 100  # N, at least so many futures
    kappa: float = 1.0  # how much more a better future counts: e^(κ·return)
    sigma: float = 0.2  # std of the noise on the prior's actions, in half-ranges of the action
    beta: float = 0.0  # share of the last plan in the new one

    def __post_init__(self) -> None:
        check_sizes(self, "horizon", "samples")
        if not self.kappa >= 0 or not self.sigma >= 0 or not 0 <= self.beta < 1:
            raise InputError("kappa and sigma must not be below 0, and beta must be from 0 to below 1")


# -- parts -----------------------------------------------------------------------------------------------------


class StepModel(eqx.Module):
    """f_m: what a step does to a state and pays; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range
    change: Scale
    reward: Scale

    def scaled(self, obs: Array, action: Array) -> Array:
        """Every head's change and reward [E, ..., S + 1], in units of their std."""
        return every_head(self.net, _joined(self.scale(obs), self.range.unit(action)))

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """The next states [E, B, n, S], each by its own head, and the rewards [E, B, n], a mean over all heads."""
        obs = jnp.broadcast_to(obs, (*action.shape[:-1], obs.shape[-1]))
        out = self.scaled(obs, action)
        own = jnp.stack([out[e, e, ..., :-1] for e in range(len(out))])
        return (
            obs + self.change.mean + self.change.std * own,
            self.reward.mean + self.reward.std * jnp.mean(out[..., -1], 0),
        )


class ActionModel(eqx.Module):
    """f_b: the action the data would take, given the one before; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range

    def guesses(self, obs: Array, last: Array) -> Array:
        """Every head's action [E, ..., A]."""
        return self.range(every_head(self.net, _joined(self.scale(obs), self.range.unit(last))))

    def __call__(self, obs: Array, last: Array) -> Array:
        """Actions [E, B, n, A], each by its own head."""
        return self.range(own_head(self.net, _joined(self.scale(obs), self.range.unit(last))))


class ReturnModel(eqx.Module):
    """f_R: what an action and some more earn, undiscounted; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range
    total: Scale

    def scaled(self, obs: Array, action: Array) -> Array:
        """Every head's return [E, ...], in units of its std."""
        return every_head(self.net, _joined(self.scale(obs), self.range.unit(action)))[..., 0]

    def __call__(self, obs: Array, action: Array) -> Array:
        """Returns [E, B, n], a mean over all heads."""
        return self.total.mean + self.total.std * jnp.mean(self.scaled(obs, action), 0)


class Cloned(eqx.Module):
    """A policy in f_b's place: one network, and the action before does not matter."""

    policy: Policy

    def __call__(self, obs: Array, last: Array) -> Array:
        """Actions [E, B, n, A]."""
        return self.policy.act(obs)


class StateEnd(eqx.Module):
    """A state's value in f_R's place."""

    value: Value

    def __call__(self, obs: Array, action: Array) -> Array:
        """Values [E, B, n]."""
        return self.value.value(obs.reshape(-1, obs.shape[-1])).reshape(obs.shape[:-1])


def every_head(net: MLP, x: Array) -> Array:
    """What each of E networks says of all rows, [E, ..., out]."""
    return jnp.stack([head(x) for head in _heads(net)])


def own_head(net: MLP, x: Array) -> Array:
    """What each of E networks says of its own rows x[e], [E, ..., out]."""
    return jnp.stack([head(x[e]) for e, head in enumerate(_heads(net))])


def _heads(net: MLP) -> list[MLP]:
    # One after another, so that each layer of each head is one dense product with nothing to transpose.
    return [jax.tree.map(lambda leaf, e=e: leaf[e], net) for e in range(len(net.layers[0].bias))]


def _joined(obs: Array, action: Array) -> Array:
    return jnp.concatenate([obs, action], -1)


# -- the planner -----------------------------------------------------------------------------------------------


class MPPI(Planner):
    """One planner, or P of them."""

    step: StepModel
    prior: ActionModel | Cloned
    end: ReturnModel | StateEnd
    search: Search = eqx.field(static=True)

    def blank(self, episodes: int) -> Memory:
        """Nothing done and nothing planned."""
        shape = (self.count, episodes, self.action_dim)
        plan = jnp.zeros((*shape[:2], self.search.horizon, shape[2]))
        return Memory(jnp.zeros(shape), plan)

    def plan(self, memory: Memory, obs: Array, begun: Array, key: Array) -> tuple[Array, Memory]:
        """The first actions of new plans."""
        plan = search_plan(self, memory, obs, begun, jax.random.normal(key, noise_shape(self, len(obs))))
        action = plan[:, 0]
        return action, Memory(action, jnp.concatenate([plan[:, 1:], plan[:, -1:]], 1))

    @property
    def scale(self) -> Scale:
        """Of observations."""
        return self.step.scale

    @property
    def obs_dim(self) -> int:
        """S."""
        return self.scale.mean.shape[-1]

    @property
    def heads(self) -> int:
        """E."""
        return self.step.net.layers[0].bias.shape[-2]


class Memory(NamedTuple):
    """What a planner remembers of B episodes; the arrays have a leading axis P where the planner's have."""

    action: Array  # [B, A], taken last
    plan: Array  # [B, H, A], for the steps to come; the last one is there twice


def noise_shape(planner: MPPI, episodes: int) -> tuple[int, ...]:
    """[H, E, B, n, A], for `search_plan`."""
    each = -(-planner.search.samples // planner.heads)
    return planner.search.horizon, planner.heads, episodes, each, planner.action_dim


def search_plan(planner: MPPI, memory: Memory, obs: Array, begun: Array, noise: Array) -> Array:
    """Plans [B, H, A] for observations [B, S]; where `begun` [B] an episode starts and has no past.

    a_t = f_b(s_t, A_{t-1}) + σ·noise,  W_t = (1 - β)·a_t + β·T_t of the last plan,  A_t = W_t within the range,
    s_{t+1} and r_t by f_m,  R = Σ r_t + f_R(s_H, f_b(s_H, A_{H-1})),  T_t = Σ e^{κR}·W_t / Σ e^{κR}, clipped.

    The plan is a mean of what was wished, not of what was possible: at the edge of the range noise can go one way
    only, and a mean of clipped actions would never reach the edge.
    """
    search, span = planner.search, planner.range
    mix = jnp.where(begun, 0.0, search.beta)[:, None, None]
    heads = (planner.heads, len(obs), 1)
    # Samples part at the first noise only: until then one row stands for all of a head.
    state = jnp.broadcast_to(obs[:, None], (*heads, planner.obs_dim))
    last = jnp.where(begun[:, None], span.middle, memory.action)
    action = jnp.broadcast_to(last[:, None], (*heads, planner.action_dim))
    total, wishes = jnp.zeros(()), []
    for t in range(search.horizon):
        noisy = planner.prior(state, action) + search.sigma * span.half * noise[t]
        wish = (1 - mix) * noisy + mix * memory.plan[:, t, None]
        action = jnp.clip(wish, span.low, span.high)
        state, reward = planner.step(state, action)
        total = total + reward
        wishes.append(wish)
    total = total + planner.end(state, planner.prior(state, action))
    weight = jax.nn.softmax(search.kappa * total, (0, 2))  # takes the largest off first
    plan = jnp.stack([jnp.sum(weight[..., None] * wish, (0, 2)) for wish in wishes], 1)
    return jnp.clip(plan, span.low, span.high)
