"""MPPI: at every step, the average of sampled plans, weighted by their predicted return (MBOP).

N samples roll out a prior (a cloned policy) in a dynamics model for H steps. Each sample uses one of the model's E
heads (ensemble members) for all its steps, so samples are grouped by head, and each layer of each head is one
dense product:

    obs, action    [E, B, n, ·]    B episodes, n = N / E samples per head, rounded up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.checks import check_sizes
from trajstitch.errors import InputError
from trajstitch.models.value import Value
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy
from trajstitch.training.networks import MLP, Range, Scale, pick


@dataclass(frozen=True)
class PlanSearch:
    """How plans are searched for."""

    horizon: int = 2  # Steps of a plan.
    samples: int = 100  # Plans sampled per step, at least.
    kappa: float = 1.0  # Weight of a plan is e^(kappa * return).
    sigma: float = 0.2  # Std of the noise on actions, in half-ranges of the action.
    beta: float = 0.0  # Share of the last plan in the new one.

    def __post_init__(self) -> None:
        check_sizes(self, "horizon", "samples")
        if not self.kappa >= 0 or not self.sigma >= 0 or not 0 <= self.beta < 1:
            raise InputError("kappa and sigma must not be below 0, and beta must be from 0 to below 1")


# -- parts -----------------------------------------------------------------------------------------------------


class StepModel(eqx.Module):
    """f_m: predicts the change of state and the reward of a step; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range
    change: Scale
    reward: Scale

    def scaled(self, obs: Array, action: Array) -> Array:
        """Predict change and reward by every head [E, ..., S + 1], in units of their std."""
        return every_head(self.net, _joined(self.scale(obs), self.range.unit(action)))

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """Predict next states [E, B, n, S] by each row's own head, and rewards [E, B, n] as mean over heads."""
        obs = jnp.broadcast_to(obs, (*action.shape[:-1], obs.shape[-1]))
        out = self.scaled(obs, action)
        own = jnp.stack([out[e, e, ..., :-1] for e in range(len(out))])
        return (
            obs + self.change.mean + self.change.std * own,
            self.reward.mean + self.reward.std * jnp.mean(out[..., -1], 0),
        )


class ActionModel(eqx.Module):
    """f_b: clones the data's actions given the previous action; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range

    def guesses(self, obs: Array, last: Array) -> Array:
        """Predict the action by every head [E, ..., A]."""
        return self.range(every_head(self.net, _joined(self.scale(obs), self.range.unit(last))))

    def __call__(self, obs: Array, last: Array) -> Array:
        """Predict actions [E, B, n, A], each by its own head."""
        return self.range(own_head(self.net, _joined(self.scale(obs), self.range.unit(last))))


class ReturnModel(eqx.Module):
    """f_R: predicts the undiscounted return of the next steps; the arrays of `net` have the leading axis E."""

    net: MLP
    scale: Scale
    range: Range
    total: Scale

    def scaled(self, obs: Array, action: Array) -> Array:
        """Predict the return by every head [E, ...], in units of its std."""
        return every_head(self.net, _joined(self.scale(obs), self.range.unit(action)))[..., 0]

    def __call__(self, obs: Array, action: Array) -> Array:
        """Predict returns [E, B, n], averaged over all heads."""
        return self.total.mean + self.total.std * jnp.mean(self.scaled(obs, action), 0)


class Cloned(eqx.Module):
    """A policy in place of f_b: one network, which ignores the previous action."""

    policy: Policy

    def __call__(self, obs: Array, last: Array) -> Array:
        """Compute actions [E, B, n, A]."""
        return self.policy.act(obs)


class StateEnd(eqx.Module):
    """A state value in place of f_R, which ignores the action."""

    value: Value

    def __call__(self, obs: Array, action: Array) -> Array:
        """Compute values [E, B, n]."""
        return self.value.value(obs.reshape(-1, obs.shape[-1])).reshape(obs.shape[:-1])


def every_head(net: MLP, x: Array) -> Array:
    """Apply each of E networks to all rows; return [E, ..., out]."""
    return jnp.stack([head(x) for head in _heads(net)])


def own_head(net: MLP, x: Array) -> Array:
    """Apply each of E networks to its own rows x[e]; return [E, ..., out]."""
    return jnp.stack([head(x[e]) for e, head in enumerate(_heads(net))])


def _heads(net: MLP) -> list[MLP]:
    # One after another, so that each layer of each head is one dense product without a transposition.
    return [pick(net, e) for e in range(len(net.layers[0].bias))]


def _joined(obs: Array, action: Array) -> Array:
    return jnp.concatenate([obs, action], -1)


# -- the planner -----------------------------------------------------------------------------------------------


class MPPI(ActionPlanner):
    """The planner; its arrays have a leading axis P where P planners are stacked."""

    step: StepModel
    prior: ActionModel | Cloned
    end: ReturnModel | StateEnd
    search: PlanSearch = eqx.field(static=True)

    def blank(self, episodes: int) -> Memory:
        """Return the memory before the first action and plan: zeros."""
        shape = (self.count, episodes, self.action_dim)
        plan = jnp.zeros((*shape[:2], self.search.horizon, shape[2]))
        return Memory(jnp.zeros(shape), plan)

    def plan(self, memory: Memory, obs: Array, begun: Array, key: Array) -> tuple[Array, Memory]:
        """Return the first actions of new plans, and the new memory."""
        plan = search_plan(self, memory, obs, begun, jax.random.normal(key, noise_shape(self, len(obs))))
        action = plan[:, 0]
        return action, Memory(action, jnp.concatenate([plan[:, 1:], plan[:, -1:]], 1))

    @property
    def scale(self) -> Scale:
        """Scale of observations."""
        return self.step.scale

    @property
    def obs_dim(self) -> int:
        """S, the dimensions of an observation."""
        return self.scale.mean.shape[-1]

    @property
    def heads(self) -> int:
        """E, the number of heads."""
        return self.step.net.layers[0].bias.shape[-2]


class Memory(NamedTuple):
    """A planner's memory of B episodes; its arrays have a leading axis P where the planner's have."""

    action: Array  # [B, A], the last action taken
    plan: Array  # [B, H, A], the last plan from its second step on, with its last action repeated


def noise_shape(planner: MPPI, episodes: int) -> tuple[int, ...]:
    """Return the shape of the noise for `search_plan`, [H, E, B, n, A]."""
    per_head = -(-planner.search.samples // planner.heads)
    return planner.search.horizon, planner.heads, episodes, per_head, planner.action_dim


def search_plan(planner: MPPI, memory: Memory, obs: Array, begun: Array, noise: Array) -> Array:
    """Compute plans [B, H, A] for observations [B, S]; where `begun` [B] an episode starts and has no past.

    a_t = f_b(s_t, A_{t-1}) + σ·noise,  W_t = (1 - β)·a_t + β·T_t of the last plan,  A_t = W_t within the range,
    s_{t+1} and r_t by f_m,  R = Σ r_t + f_R(s_H, f_b(s_H, A_{H-1})),  T_t = Σ e^{κR}·W_t / Σ e^{κR}, clipped.

    The plan T is the mean of the actions W before clipping: at the edge of the range noise can go one way only, so
    a mean of clipped actions would never reach the edge.
    """
    search, span = planner.search, planner.range
    mix = jnp.where(begun, 0.0, search.beta)[:, None, None]
    heads = (planner.heads, len(obs), 1)
    # All samples of a head are equal until the first noise is added, so at first there is one row per head.
    state = jnp.broadcast_to(obs[:, None], (*heads, planner.obs_dim))
    last = jnp.where(begun[:, None], span.middle, memory.action)
    action = jnp.broadcast_to(last[:, None], (*heads, planner.action_dim))
    total, unclipped = jnp.zeros(()), []
    for t in range(search.horizon):
        noisy = planner.prior(state, action) + search.sigma * span.half * noise[t]
        mixed = (1 - mix) * noisy + mix * memory.plan[:, t, None]
        action = jnp.clip(mixed, span.low, span.high)
        state, reward = planner.step(state, action)
        total = total + reward
        unclipped.append(mixed)
    total = total + planner.end(state, planner.prior(state, action))
    weight = jax.nn.softmax(search.kappa * total, (0, 2))  # subtracts the maximum, so it cannot overflow
    plan = jnp.stack([jnp.sum(weight[..., None] * mixed, (0, 2)) for mixed in unclipped], 1)
    return jnp.clip(plan, span.low, span.high)
