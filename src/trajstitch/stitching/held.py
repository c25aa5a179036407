"""Held: plan with actions that are held for some steps in a world model, and may land anywhere.

Where a state has a velocity, one action hardly ever leads from one recorded state to another, and the planner
`optimal` finds few edges. Held for several steps, an action leads somewhere near the data, and what that is worth
is a mean over the recorded states around it:

    V(s) = max_a  R(s, a) + γʰ · near(ŝ) · Σ_i w_i(ŝ) · V(s_i)        ŝ: h steps of action a after s
    near(ŝ) = γ^(caution · h · max(0, distance of ŝ from the data - cell))

The weights w are a Gaussian kernel on the nearest states of a net, one recorded state for each cell of a grid, so
value iteration converges. A distance of 1 is what h steps change: who lands beside the data is charged the time
that the way back would take. Rewards are those of the recorded states, with the same weights: a network's reward
errs for actions that nobody took there. They count from the least one (or 0) upwards, so that values are not
negative and a charge lowers them; where an episode really ended, a state is worth what earning 0 forever is.

The best actions are then followed in the world model from recorded states. What comes out is imagined
(`imagined.py`): a clone of it is only as good as the model, which the audit and the simulator can tell.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from trajstitch.checks import check_sizes
from trajstitch.data import Dataset, Float, Int
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.imagined import Rollouts
from trajstitch.stitching.optimal import discounted_sums
from trajstitch.stitching.reach import WorldModel, one_per_cell

_BLOCK = 16384  # holds predicted per call
_SWEEPS = 5000  # more than any plan has needed
_MOST_ACTIONS = 729  # combinations of levels: three levels of six actions


@dataclass(frozen=True)
class HeldConfig:
    """The planner held."""

    hold: int = 10  # Steps for which an action is held.
    levels: int = 3  # Values of each action dimension that are tried, from its least to its largest.
    cell: float = 0.5  # Of the net: one state for each cell of this size; 1 is what `hold` steps change.
    nearest: int = 6  # States that a landing's value is a mean of.
    width: float = 0.5  # Width of the kernel, in cells.
    caution: float = 1.0  # Share of the way back that a landing beside the data is charged.
    discount: float = 0.99  # Discount of future rewards.
    tolerance: float = 1e-5  # Sweeps end when no value changes by more than this share of the largest.
    walks: int = 500  # Trajectories that follow the plan.
    length: int = 300  # Steps of each.
    replan: int = 2  # Steps after which a new action is chosen.

    def __post_init__(self) -> None:
        check_sizes(self, "hold", "levels", "nearest", "walks", "length", "replan")
        if not 0 <= self.discount < 1 or not self.caution >= 0:
            raise InputError("discount must be from 0 to below 1 and caution not below 0")
        if not (self.cell > 0 and self.width > 0 and self.tolerance > 0):
            raise InputError("cell, width and tolerance must be above 0")


class Landing(NamedTuple):
    """Where points lie between the states of the net."""

    near: NDArray[np.int32]  # [B, K] places in the net
    weight: Float  # [B, K]; the sum is 1 near the data and falls with the distance
    distance: Float  # [B] from the nearest


class HeldPlanner:
    """The value of every state of a net, and from it the best action anywhere.

    Arguments:
        data: the data set.
        model: what an action does.
        step: how much a typical step changes each dimension of a state [S].
        config: the settings.
        tell: a callback for progress.
    """

    def __init__(
        self, data: Dataset, model: WorldModel, step: Float, config: HeldConfig, tell: Tell = silent
    ) -> None:
        self.data, self.model, self.step, self.config, self.tell = data, model, step, config, tell
        low, high = data.action.min(0), data.action.max(0)
        if (many := config.levels**data.action_dim) > _MOST_ACTIONS:
            raise InputError(
                f"{config.levels} levels of {data.action_dim} actions have {many:,} combinations; the planner "
                f"held tries at most {_MOST_ACTIONS}: take the planner optimal"
            )
        levels = [np.linspace(a, b, config.levels, dtype=np.float32) for a, b in zip(low, high, strict=True)]
        self.actions = np.array(list(itertools.product(*levels)), np.float32)  # [K, A]
        self.unit = self._unit()
        ends = data.last_row[data.terminal]
        self.net = np.union1d(one_per_cell(data.obs / self.unit, config.cell), ends)
        self.ended = np.isin(self.net, ends)
        self._tree = cKDTree(data.obs[self.net] / self.unit)
        # The reward of a state is the one of the recorded step that led to it.
        self.least = min(float(data.reward.min()), 0.0)
        reward = np.zeros(len(data.obs), np.float32)
        reward[data.row + 1] = data.reward - self.least
        first = data.row[data.start[:-1]]
        reward[first] = reward[first + 1]
        self._reward = reward[self.net]
        self.sweeps = 0

    def _unit(self) -> Float:
        """Return how much `hold` recorded steps change each dimension of a state [S]."""
        data, hold = self.data, self.config.hold
        inside = np.flatnonzero(data.steps_left >= hold)
        if not len(inside):
            raise InputError(f"no trajectory has {hold} steps, for which actions are held; give a smaller hold")
        change = data.obs[data.row[inside] + hold] - data.obs[data.row[inside]]
        moved = np.sqrt(np.square(change, dtype=np.float64).mean(0))
        unit: Float = np.where(moved > 0, moved, np.inf).astype(np.float32)  # a constant column does not count
        return unit

    @cached_property
    def value(self) -> Float:
        """Values of the net's states, by value iteration; in units in which the least reward is 0."""
        config, ended = self.config, np.float32(-self.least / (1 - self.config.discount))
        landing, reward = self._outcomes(self.data.obs[self.net])
        value = np.where(self.ended, ended, np.float32(0))
        for sweep in range(1, _SWEEPS + 1):
            last, value = value, np.where(self.ended, ended, self._worth(landing, reward, value).max(1))
            self.sweeps = sweep
            change = float(np.abs(value - last).max() / max(float(value.max()), 1e-30))
            self.tell(sweep, _SWEEPS, f"change {change:.1e}")
            if change <= config.tolerance:
                break
        return value

    def start_values(self) -> tuple[float, float]:
        """Return the mean value of the first states of trajectories as recorded and by the plan, in raw units.

        Cut trajectories go on by the plan, so that both look equally far.
        """
        data, config = self.data, self.config
        rows = len(data.obs)
        gain, following = np.zeros(rows + 1), np.full(rows + 1, rows)
        gain[data.row], following[data.row] = data.reward - self.least, data.row + 1
        gain[data.last_row] = np.where(
            data.terminal, -self.least / (1 - config.discount), self.values_of(data.obs[data.last_row])
        )
        first = data.row[data.start[:-1]]
        recorded = discounted_sums(gain, following, config.discount)[first].mean()
        shift = self.least / (1 - config.discount)
        return float(recorded + shift), float(self.values_of(data.obs[first]).mean() + shift)

    def values_of(self, obs: Float) -> Float:
        """Return the values of states [B, S]."""
        landing = self._landing(obs)
        found: Float = (landing.weight * self.value[landing.near]).sum(1)
        return found

    def best(self, obs: Float) -> Float:
        """Return the best of the actions in states [B, S]."""
        landing, reward = self._outcomes(obs)
        return self.actions[self._worth(landing, reward, self.value).argmax(1)]

    def follow(self, first: Int) -> Rollouts:
        """Follow the best actions in the world model from recorded states (rows [W])."""
        config, least = self.config, np.float32(self.least)
        state = self.data.obs[first]
        obs, actions, rewards, errors = [state], [], [], []
        length = np.full(len(first), config.length)
        terminal = np.zeros(len(first), bool)
        for step in range(config.length):
            if step % config.replan == 0:
                action = self.best(state)
            after, spread = _predict(self.model, state, action, 1)
            landing = self._landing(after)
            over = self.ended[landing.near[:, 0]] & (landing.distance <= config.cell) & ~terminal
            length[over], terminal = step + 1, terminal | over
            rewards.append((landing.weight * self._reward[landing.near]).sum(1) + least)
            errors.append(np.sqrt((spread / self.step**2).sum(1)))
            actions.append(action)
            obs.append(state := after)
        stack = partial(np.stack, axis=1)
        return Rollouts(first, stack(obs), stack(actions), stack(rewards), stack(errors), length, terminal)

    def _worth(self, landing: Landing, reward: Float, value: Float) -> Float:
        """Return what each action is worth [B, K]."""
        config = self.config
        onward = np.einsum("bk,bk->b", landing.weight, value[landing.near]).reshape(reward.shape)
        worth: Float = reward + np.float32(config.discount**config.hold) * onward
        return worth

    def _outcomes(self, obs: Float) -> tuple[Landing, Float]:
        """Return where holding each of the K actions leads [B * K], and the discounted rewards [B, K]."""
        config, many = self.config, len(self.actions)
        held = np.tile(self.actions, (len(obs), 1))
        end, _ = _predict(self.model, np.repeat(obs, many, 0), held, config.hold)
        here, there = self._landing(obs), self._landing(end)
        at_start = (here.weight * self._reward[here.near]).sum(1)[:, None]
        at_end = (there.weight * self._reward[there.near]).sum(1).reshape(-1, many)
        # On the way the reward goes over from the one to the other.
        share = np.arange(1, config.hold + 1) / config.hold
        discount = config.discount ** np.arange(config.hold)
        return there, (discount @ (1 - share) * at_start + discount @ share * at_end).astype(np.float32)

    def _landing(self, obs: Float) -> Landing:
        """Return the kernel's weights of points [B, S]."""
        config, count = self.config, min(self.config.nearest, len(self.net))
        distance, near = self._tree.query(obs / self.unit, k=range(1, count + 1), workers=-1)
        least = distance[:, :1]
        weight = np.exp(-0.5 * (distance**2 - least**2) / (config.width * config.cell) ** 2)
        beside = np.maximum(0, least - config.cell)
        weight *= config.discount ** (config.caution * config.hold * beside) / weight.sum(1, keepdims=True)
        return Landing(near.astype(np.int32), weight.astype(np.float32), least[:, 0])


def _predict(model: Any, obs: Float, action: Float, hold: int) -> tuple[Float, Float]:
    """Return the states [B, S] after holding actions [B, A], and the members' variance about the last step."""
    block = min(_BLOCK, 1 << (len(obs) - 1).bit_length())  # few shapes, so that little is compiled
    end, spread = np.empty_like(obs), np.empty_like(obs)
    for first in range(0, len(obs), block):
        part = slice(first, min(first + block, len(obs)))
        state, held = (np.resize(column[part], (block, column.shape[1])) for column in (obs, action))
        found = (_held if isinstance(model, eqx.Module) else _plain)(model, state, held, hold)
        end[part], spread[part] = (np.asarray(column)[: part.stop - first] for column in found)
    return end, spread


def _plain(model: Any, obs: Any, action: Any, hold: int) -> tuple[Any, Any]:
    """As `_held`, for a model of the caller's own, which need not be JAX."""
    for _ in range(hold):
        members = jnp.asarray(model.steps(obs, action)[0])
        obs = members.mean(0)
    return obs, members.var(0)


@eqx.filter_jit
def _held(model: Any, obs: Any, action: Any, hold: int) -> tuple[Array, Array]:
    def step(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        members = model.steps(state[0], action)[0]
        return (members.mean(0), members.var(0)), None

    first = jnp.asarray(obs)
    return jax.lax.scan(step, (first, jnp.zeros_like(first)), None, length=hold)[0]
