"""The planner held: its values against a plain loop, and a world with inertia that no recorded ride solves."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.cli.improve import verdict
from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.jobs.improve import improve_run
from trajstitch.stitching.held import HeldConfig, HeldPlanner
from trajstitch.stitching.imagined import Rollouts, imagined_data
from trajstitch.stitching.improve import Improve, Models, improve
from worlds import random_dataset

GOAL = 8.0  # in the cart's world the reward is 1 within half a unit of it


class Cart:
    """A cart on a track from 0 to 10: place and velocity; the action accelerates it. Two members that agree."""

    def next(self, obs, action):
        place, speed = obs[:, 0], np.clip(0.9 * obs[:, 1] + 0.1 * action[:, 0], -1, 1)
        speed = np.where((place + speed < 0) | (place + speed > 10), 0, speed)
        return np.stack([np.clip(place + speed, 0, 10), speed], 1).astype(np.float32)

    def steps(self, obs, action):
        after = self.next(np.asarray(obs), np.asarray(action))
        return np.stack([after, after]), np.zeros((2, len(after)), np.float32)


def rides(many: int, steps: int, ends: bool = False) -> Dataset:
    """Short rides with random pushes from anywhere; with `ends`, -1 per step until the goal ends them."""
    rng, world, made = np.random.default_rng(0), Cart(), []
    for _ in range(many):
        obs = [np.array([rng.uniform(0, 10), rng.normal(0, 0.3)], np.float32)]
        action, reward, over = [], [], False
        for t in range(steps):
            if t % 5 == 0:
                push = rng.uniform(-1, 1, 1)
            action.append(push)
            obs.append(world.next(obs[-1][None], push[None])[0])
            near = abs(obs[-1][0] - GOAL) < 0.5
            reward.append(-1.0 if ends else float(near))
            if over := bool(ends and near):
                break
        made.append(Trajectory(np.array(obs), np.array(action), np.array(reward), terminal=over))
    return from_trajectories(made)


@pytest.mark.parametrize("ends", [False, True])
def test_values_are_those_of_a_plain_loop(ends):
    data = random_dataset(seed=1, lengths=(9, 7, 8), obs_dim=2, action_dim=1)
    data = replace(data, terminal=np.array([ends, False, ends]))
    config = HeldConfig(hold=2, cell=0.4, nearest=3, discount=0.9, tolerance=1e-9, levels=2)
    planner = HeldPlanner(data, Cart(), np.ones(2, np.float32), config)
    state, unit = data.obs[planner.net].astype(np.float64), planner.unit.astype(np.float64)
    least = min(data.reward.min(), 0)
    reward = []  # of the step that led to each state of the net, or of the first step
    for row in planner.net:
        step = np.flatnonzero(data.row + 1 == row)
        reward.append(data.reward[step[0]] if len(step) else data.reward[data.row == row][0])
    reward = np.array(reward) - least
    over = np.isin(planner.net, data.last_row[data.terminal])
    assert over.any() == ends

    def kernel(point):
        distance = np.linalg.norm(state / unit - point / unit, axis=1)
        near = np.argsort(distance)[:3]
        weight = np.exp(-0.5 * distance[near] ** 2 / (0.5 * 0.4) ** 2)
        charge = 0.9 ** (2 * max(0, distance[near[0]] - 0.4))
        return near, charge * weight / weight.sum()

    def outcome(here, push):
        there = here[None].astype(np.float32)
        for _ in range(2):
            there = Cart().next(there, np.array([[push]]))
        near, weight = kernel(there[0])
        at, by = kernel(here)
        first, last = by @ reward[at], weight @ reward[near]
        return (first + last) / 2 + 0.9 * last, near, weight

    pushes = np.linspace(data.action.min(), data.action.max(), 2)
    known = [[outcome(here, push) for push in pushes] for here in state]
    value = np.where(over, -least / 0.1, 0.0)
    for _ in range(400):
        best = [max(now + 0.81 * weight @ value[near] for now, near, weight in row) for row in known]
        value = np.where(over, -least / 0.1, best)
    np.testing.assert_allclose(planner.value, value, rtol=1e-4)


def test_it_reaches_and_keeps_a_goal_that_no_ride_keeps():
    data = rides(many=60, steps=40)
    config = Improve(planner="held", held=HeldConfig(hold=5, discount=0.97, walks=40, length=120))
    result = improve(data, config, models=Models(world=Cart()))
    made = result.dataset
    late = made.obs[(made.start[:-1] + np.arange(40))[:, None] + np.arange(100, 121), 0]
    # Values are means over a cell, so the edge of the goal is blurred.
    assert (np.abs(late - GOAL) < 0.7).mean() > 0.95
    assert made.reward.mean() > 3 * data.reward.mean()
    assert result.graph["planned_value"] > 1.3 * result.graph["recorded_value"]
    # What it promises is what the world gives: the states are the model's own, here the world itself.
    real = Cart().next(made.obs[made.row], made.action)
    np.testing.assert_allclose(made.obs[made.row + 1], real, atol=1e-5)


def test_where_episodes_end_it_goes_to_the_end():
    data = rides(many=80, steps=40, ends=True)
    assert 0 < data.terminal.mean() < 0.8
    config = Improve(planner="held", held=HeldConfig(hold=5, discount=0.97, walks=40, length=120))
    made = improve(data, config, models=Models(world=Cart())).dataset
    assert made.terminal.mean() > 0.9
    ends = made.obs[made.last_row[made.terminal], 0]
    assert (np.abs(ends - GOAL) < 1).mean() > 0.95
    assert (made.length[made.terminal] < 120).all()


def test_a_run_says_that_its_states_are_imagined(tmp_path):
    data = rides(many=20, steps=20)
    config = Improve(planner="held", held=HeldConfig(hold=3, walks=5, length=10))
    run, result = improve_run(data, config, tmp_path / "run", models=Models(world=Cart()), ending=".npz")
    assert "5 trajectories imagined, 50 steps" in verdict(data, result)
    page = (run.path / "report.html").read_text()
    assert "5 trajectories</b> were imagined" in page
    assert "Every trajectory begins in a recorded state, an exact copy of the original." in page
    assert "Disagreement along trajectories" in page
    stored = load(run.path / "improved.npz")
    assert stored.info["imagined"]
    assert stored.seams is not None
    assert (stored.seams.target == -1).all()
    first = stored.seams.source[stored.start[:-1]]
    assert (stored.obs[stored.row[stored.start[:-1]]] == data.obs[first]).all()
    assert (np.delete(stored.seams.source, stored.start[:-1]) == -1).all()


def test_imagined_data_have_the_steps_that_count():
    data = random_dataset(seed=0, lengths=(5, 3), obs_dim=2, action_dim=1)
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(2, 5, 2)).astype(np.float32), rng.normal(size=(2, 4, 1)).astype(np.float32)
    reward, error = rng.normal(size=(2, 4)).astype(np.float32), rng.random((2, 4)).astype(np.float32)
    rollouts = Rollouts(np.array([2, 6]), obs, action, reward, error, np.array([3, 1]), np.array([True, False]))
    made = imagined_data(data, rollouts)
    assert made.start.tolist() == [0, 3, 4]
    assert made.terminal.tolist() == [True, False]
    np.testing.assert_array_equal(made.obs, np.concatenate([obs[0, :4], obs[1, :2]]))
    np.testing.assert_array_equal(made.action, np.concatenate([action[0, :3], action[1, :1]]))
    np.testing.assert_array_equal(made.reward, np.append(reward[0, :3], reward[1, 0]))
    assert made.seams is not None
    np.testing.assert_array_equal(made.seams.landing_error, np.append(error[0, :3], error[1, 0]))
    assert made.seams.source.tolist() == [2, -1, -1, 6]
    np.testing.assert_array_equal(made.seams.return_before, data.returns)


def test_what_it_cannot_do_is_refused():
    data = rides(many=4, steps=6)
    with pytest.raises(InputError, match="no trajectory has 9 steps"):
        HeldPlanner(data, Cart(), np.ones(2, np.float32), HeldConfig(hold=9))
    many = random_dataset(seed=0, lengths=(12, 12), obs_dim=3, action_dim=8)
    with pytest.raises(InputError, match="take the planner optimal"):
        HeldPlanner(many, Cart(), np.ones(3, np.float32), HeldConfig())
    with pytest.raises(InputError, match="leave edges out"):
        Improve(planner="held", edges="reachable")
    with pytest.raises(InputError, match="cell, width and tolerance"):
        HeldConfig(cell=0)
