"""Weigh: how much each step of a data set is worth cloning, as one number per step.

    A(s, a) = min Q(s, a) - V(s)                       what the action is worth, by IQL's critics and values
    G_t     = Σ_k (γλ)^k·(r + γ·V(s') - V(s))_{t+k}    what came of it, as recorded
    R       = Σ r over the whole trajectory; one that was cut goes on at the pace (1 - γ)·V of its last state
    score   = A/std(A) + G/std(G) + R/std(R)
    weight  = e^(temperature · score)                  then scaled to mean 1

A sees what the action does on average, also where its own trajectory had bad luck, but single actions matter
little and critics are noisy. G sees a stretch that went well, R a whole trajectory that did, for reasons too slow
to show in either. A and the values are means over several members, which differ in their first weights and
batches: steps that one member flatters by chance would be drawn a hundred times as often. Critics and values are
learned in-sample, by an expectile, so no action outside the data is ever valued.

The temperature is chosen so that the weights are worth a given share of the steps; so the units of rewards do not
matter, nor how much good and bad steps differ. Scores above their 99.9% quantile count as that.

IQL: Kostrikov et al. (2021). G is the generalised advantage of Schulman et al. (2016).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from trajstitch.checks import check_sizes
from trajstitch.data import Dataset, Float, effective_steps, normalised_weight
from trajstitch.errors import InputError
from trajstitch.methods.actor_critic import Critic
from trajstitch.methods.iql import StateValue, Values, advantage_of, check_returns, scaled_steps, value_losses
from trajstitch.stitching.followed import ActAll, checked_actions
from trajstitch.stitching.optimal import discounted_sums
from trajstitch.training import loop
from trajstitch.training.loop import Fit, Learner, Metrics, Table
from trajstitch.training.networks import MLP, Range, Scale, polyak_update

_BLOCK = 8192  # steps asked about per call
_CLIP = 0.999  # quantile of the scores that larger ones count as


class Critics(eqx.Module):
    """One member: the networks that say what a step is worth."""

    value: StateValue
    critic: Critic
    critic_target: Critic


@dataclass(frozen=True)
class Weigh(Learner):
    """Settings of weighing."""

    members: int = 5  # Critics and values trained side by side; their mean is used.
    # Effective number of steps that the weights leave, as a share of all: small is picky, 1 weighs all alike.
    effective_share: float = 0.1
    # Inverse temperature: the weight is e^(temperature * score); unless given, it follows from effective_share.
    temperature: float | None = None
    # How far the recorded outcome of a step looks ahead: the λ of generalised advantage estimation.
    gae_lambda: float = 0.9
    expectile: float = 0.7  # Expectile of the value; above 0.5 it leans to the best actions in the data.
    discount: float = 0.99  # Discount of future rewards.
    width: int = 256  # Units per hidden layer.
    depth: int = 2  # Hidden layers.
    target_rate: float = 0.005  # Rate at which the target critics follow the trained ones.
    fit: Fit = Fit(steps=250_000, batch=256, rate=3e-4)  # Training schedule.

    def __post_init__(self) -> None:
        check_sizes(self, "members", "width", "depth")
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must be above 0 and below 1, not {self.expectile:g}")
        if not 0 <= self.discount < 1 or not 0 < self.target_rate <= 1:
            raise InputError("discount must be from 0 to below 1 and target_rate above 0 and at most 1")
        if not 0 < self.effective_share <= 1 or not 0 <= self.gae_lambda <= 1:
            raise InputError("effective_share must be above 0 and at most 1, gae_lambda from 0 to 1")
        if self.temperature is not None and not 0 <= self.temperature < np.inf:
            raise InputError(f"temperature must be finite and not below 0, not {self.temperature:g}")

    def check(self, data: Dataset) -> None:
        """Raise InputError where no step of these data can be better than another."""
        if not data.reward.any():
            raise InputError("all rewards are 0, so no step is worth more than another; weights need rewards")
        check_returns(data)

    def init(self, table: Table, key: Array) -> Critics:
        """Initialise the networks."""
        value_key, critic_key = jax.random.split(key)
        scale, span = Scale.of(table["obs"]), Range.of(table["action"])
        value = MLP.init([len(scale.mean), *[self.width] * self.depth, 1], value_key)
        critic = Critic.init(scale, span, critic_key, self.width, self.depth)
        return Critics(StateValue(value, scale), critic, critic)

    def loss(self, model: Critics, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the losses of V and Q of one transition."""
        return value_losses(model, row, self.expectile, self.discount)

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam; the target gets no gradient steps."""
        labels: Any = Critics(value="adam", critic="adam", critic_target="frozen")  # type: ignore[arg-type]
        return optax.multi_transform({"adam": optax.adam(self.fit.rate), "frozen": optax.set_to_zero()}, labels)

    def after(self, model: Critics) -> Critics:
        """Move the target critic towards the critic."""
        target = polyak_update(model.critic_target, model.critic, self.target_rate)
        return eqx.tree_at(lambda m: m.critic_target, model, target)


WEIGH_PRESETS: dict[str, Weigh] = {
    # Minutes on two cores.
    "quick": Weigh(width=128, fit=Fit(steps=40_000, batch=256, rate=1e-3)),
    # Minutes on a GPU.
    "standard": Weigh(),
}


@dataclass(frozen=True, eq=False)
class Appraisal:
    """What the members say of a data set, in thousandths of the spread of returns."""

    advantage: Float  # [P, N] of every step by each member
    value: Float  # [rows] of every state, the mean over members

    @property
    def agreement(self) -> float | None:
        """The mean correlation between the advantages of two members; None with one member."""
        if len(self.advantage) < 2:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            between = np.atleast_2d(np.corrcoef(self.advantage))
        between = np.nan_to_num(between)  # a member whose advantages are all the same agrees with none
        return float(between[np.triu_indices(len(between), 1)].mean())


def start_critics(table: Table, config: Weigh, seed: int) -> loop.State:
    """Initialise the members for the steps of a data set (`scaled_steps`)."""
    return loop.start(config, table, member_seeds(config, seed))


def train_critics(
    table: Table, config: Weigh, state: loop.State, seed: int, every: int
) -> Iterator[tuple[loop.State, dict[str, NDArray[Any]]]]:
    """Train the members from this state on, and yield the state and the mean metrics every `every` steps."""
    yield from loop.run(config, state, table, member_seeds(config, seed), every)


def member_seeds(config: Weigh, seed: int) -> range:
    """Return the seeds of the members."""
    return range(1000 * seed, 1000 * seed + config.members)


def appraise(model: Critics, data: Dataset) -> Appraisal:
    """Ask all P members about every step and state."""
    rows, steps = len(data.obs), data.transitions
    advantage = np.empty((len(jax.tree.leaves(model)[0]), steps), np.float32)
    value = np.empty(rows, np.float32)
    for a in range(0, rows, _BLOCK):  # always whole blocks, so that one shape is compiled
        some = np.arange(a, a + _BLOCK)
        value[a : a + _BLOCK] = np.asarray(_values(model, data.obs[some % rows]))[: rows - a]
        if a < steps:
            step = some % steps
            found = np.asarray(_advantages(model, data.obs[data.row[step]], data.action[step]))
            advantage[:, a : a + _BLOCK] = found[:, : steps - a]
    return Appraisal(advantage, value)


@jax.jit
def _values(model: Values, obs: Array) -> Array:
    return eqx.filter_vmap(lambda one: jax.vmap(one.value)(obs))(model).mean(0)


@jax.jit
def _advantages(model: Values, obs: Array, action: Array) -> Array:
    return eqx.filter_vmap(lambda one: jax.vmap(lambda s, a: advantage_of(one, s, a))(obs, action))(model)


def weigh_by(data: Dataset, appraisal: Appraisal, config: Weigh) -> Dataset:
    """Return the data with the weights that follow from an appraisal."""
    return _weighed(data, _score(data, appraisal, config), config)


def weigh_towards(data: Dataset, act: ActAll, config: Weigh, appraisal: Appraisal | None = None) -> Dataset:
    """Return the data with weights that lead a clone towards a policy: steps near its action count more.

    Where the recorded actions of a place spread around the policy's, their weighted mean is close to it.
    """
    near = -distances(data, act)
    return _weighed(data, near if appraisal is None else _score(data, appraisal, config) + _in_stds(near), config)


def distances(data: Dataset, act: ActAll) -> NDArray[np.float64]:
    """Compute |a - π(s)|² [N] of every step, in half-ranges of the action, for a policy that acts by `act`."""
    rows = np.arange(0, data.transitions + _BLOCK, _BLOCK)
    half = np.asarray(Range.of(data.action).half)
    parts = []
    for a, b in itertools.pairwise(np.minimum(rows, data.transitions)):
        action = checked_actions(act(data.obs[data.row[a:b]]), (b - a, data.action_dim))
        parts.append(np.sum(((data.action[a:b] - action) / half) ** 2, 1, dtype=np.float64))
    return np.concatenate(parts)


def _score(data: Dataset, appraisal: Appraisal, config: Weigh) -> NDArray[np.float64]:
    critics = appraisal.advantage.mean(0, dtype=np.float64)
    value = appraisal.value.astype(np.float64)
    whole = np.repeat(worths(data, value, config), data.length)
    return _in_stds(critics) + _in_stds(outcomes(data, value, config)) + _in_stds(whole)


def _weighed(data: Dataset, score: NDArray[np.float64], config: Weigh) -> Dataset:
    """Return the data with weights that grow with the score."""
    score = np.minimum(score - np.quantile(score, _CLIP), 0)
    if (temperature := config.temperature) is None:
        temperature = temperature_for(score, config.effective_share)
    return replace(data, weight=normalised_weight(np.exp(temperature * score)))


def outcomes(data: Dataset, value: NDArray[np.float64], config: Weigh) -> NDArray[np.float64]:
    """Compute G [N]: the discounted sum of what each step and those after it gained over the values [rows]."""
    table = scaled_steps(data)
    after = value[data.row + 1] * (1 - table["done"])
    gain = table["reward"] + config.discount * after - value[data.row]
    following = np.append(np.arange(1, data.transitions + 1), data.transitions)
    following[data.start[1:] - 1] = data.transitions  # after the last step of a trajectory nothing is gained
    return discounted_sums(np.append(gain, 0.0), following, config.discount * config.gae_lambda)[:-1]


def worths(data: Dataset, value: NDArray[np.float64], config: Weigh) -> NDArray[np.float64]:
    """Compute R [M]: the return of each trajectory, as if those that were cut were as long as the longest.

    A state worth V earns (1 - γ)·V per step. So it does not matter where a trajectory was cut.
    """
    table, last = scaled_steps(data), data.start[1:] - 1
    pace: NDArray[np.float64] = (1 - config.discount) * value[data.row[last] + 1] * (1 - table["done"][last])
    missing = data.length.max() - data.length
    return missing * pace + np.add.reduceat(table["reward"].astype(np.float64), data.start[:-1])


def temperature_for(score: NDArray[np.float64], share: float) -> float:
    """Return the temperature at which e^(temperature · score) is worth this share of the steps, by bisection."""
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        worth = effective_steps(np.exp(middle * score)) / len(score)
        low, high = (middle, high) if worth > share else (low, middle)
    return high


def _in_stds(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values in units of their std; all 0 where they are all the same."""
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
