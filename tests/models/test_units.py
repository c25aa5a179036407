"""Units: data in other units give the same models and the same stitches, up to these units.

Units are powers of two, about 1e-12 to 1e12, by which float32 multiplies exactly: the results are the same bits.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from trajstitch.data import Dataset, Spread, step_table
from trajstitch.methods.mbop import MBOP
from trajstitch.models.dynamics import DynamicsConfig, train_dynamics
from trajstitch.models.inverse import InverseConfig, train_inverse
from trajstitch.models.reward import RewardConfig, train_reward
from trajstitch.models.value import ValueConfig, train_value
from trajstitch.models.world_model import train_action_dynamics
from trajstitch.stitching.improve import Improve, improve
from trajstitch.stitching.optimal import OptimalConfig
from trajstitch.training.loop import Fit
from trajstitch.training.networks import Scale
from worlds import walk_dataset

FIT = Fit(steps=40, batch=32, rate=1e-3)
UNITS = [2.0**-40, 2.0**-21, 2.0**40]
DYNAMICS = DynamicsConfig(members=2, elites=2, width=8, depth=1, fit=FIT)


def in_units(data: Dataset, states: float = 1.0, rewards: float = 1.0) -> Dataset:
    return replace(data, obs=data.obs * np.float32(states), reward=data.reward * np.float32(rewards))


def world() -> Dataset:
    """Walks with a column that never changes and one that rounding alone changes."""
    data = walk_dataset(many=12, steps=12)
    rounded = np.float32(7) + np.float32(5e-7) * (np.arange(len(data.obs)) % 2)
    return replace(data, obs=np.column_stack([data.obs, np.full(len(data.obs), 3), rounded]).astype(np.float32))


def predictions(data: Dataset, states: float = 1.0, rewards: float = 1.0) -> list[np.ndarray]:
    """What every model says of the first steps, in units of 1."""
    data = in_units(data, states, rewards)
    table = {name: column[:50] for name, column in step_table(data).items()}
    obs, next_obs, action, key = table["obs"], table["next_obs"], table["action"], jax.random.key(0)
    dynamics, _ = train_dynamics(data, data, DYNAMICS, 0)
    model, _ = train_action_dynamics(data, data, DYNAMICS, 0)
    inverse, _ = train_inverse(data, data, InverseConfig(width=8, fit=FIT), 0)
    reward, _ = train_reward(data, data, RewardConfig(width=8, fit=FIT), 0)
    value, _ = train_value(step_table(data), ValueConfig(width=8, fit=FIT), 0)
    steps = model.steps(obs, action)
    return [
        *(np.asarray(moment) / states for moment in dynamics.moments(obs)),
        np.asarray(steps[0]) / states,
        np.asarray(steps[1]) / rewards,
        np.asarray(inverse.actions(obs, next_obs, key)),
        np.asarray(reward.rewards(obs, action, next_obs, key)) / rewards,
        np.asarray(value.value(obs)) / rewards,
    ]


@pytest.fixture(scope="module")
def plain() -> list[np.ndarray]:
    return predictions(world())


@pytest.mark.parametrize("unit", [UNITS[0], UNITS[2]])
@pytest.mark.parametrize("what", ["states", "rewards"])
def test_models_do_not_depend_on_units(plain, what, unit):
    for expected, found in zip(plain, predictions(world(), **{what: unit}), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, expected.astype(found.dtype))


@pytest.mark.parametrize("config", [{}, {"planner": "optimal", "optimal": OptimalConfig(discount=0.9)}])
def test_stitches_do_not_depend_on_units(config):
    """Rewards of a spread below 1e-6 were once taken for constant, and stitched ones came out far too large."""
    small = {"dynamics": DYNAMICS, "world": DYNAMICS, "inverse": InverseConfig(width=8, fit=FIT)}
    models = small | {"reward": RewardConfig(width=8, fit=FIT), "value": ValueConfig(width=8, fit=FIT)}
    settings = Improve(**models, iterations=1, **config)
    plain, *others = (
        improve(in_units(world(), states, rewards), settings).dataset
        for states, rewards in ((1, 1), (1, UNITS[0]), (UNITS[2], UNITS[1]))
    )
    assert plain.seams.stitched.any()
    for found, unit in zip(others, (UNITS[0], UNITS[1]), strict=True):
        np.testing.assert_array_equal(found.seams.target, plain.seams.target)
        np.testing.assert_array_equal(found.reward / np.float32(unit), plain.reward)
        assert np.abs(found.reward).max() <= 2 * unit * np.abs(world().reward).max()


@pytest.mark.parametrize("reward", [0.0, -3e-9])
def test_a_constant_reward_is_predicted_as_it_is(reward):
    data = replace(world(), reward=np.full(world().transitions, reward, np.float32))
    found = predictions(data)
    for model in (3, 5):  # the world model and the reward model
        np.testing.assert_allclose(found[model], reward, rtol=1e-5, atol=1e-29)


def test_constant_columns():
    rows = np.array([[0, 5, 1e-9, 1e9], [0, 5, 3e-9, 1e9 + 64], [0, 5, 2e-9, 1e9]], np.float32)
    assert Spread.of(rows).varies.tolist() == [False, False, True, False]
    scaled = np.asarray(jax.vmap(Scale.of(rows))(rows))
    np.testing.assert_allclose(scaled[:, [0, 1, 3]], 0, atol=1e-6)
    np.testing.assert_allclose(scaled[:, 2].std(), 1, rtol=1e-5)


@pytest.mark.parametrize("unit", UNITS)
def test_the_scales_of_planners_follow_the_units(unit):
    data = world()
    plain, other = (
        MBOP().step_model(step_table(d), jax.random.key(0)) for d in (data, in_units(data, unit, unit))
    )
    for a, b in zip(
        jax.tree.leaves((plain.change, plain.reward)), jax.tree.leaves((other.change, other.reward)), strict=True
    ):
        np.testing.assert_array_equal(a * unit, b)
