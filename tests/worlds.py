"""Small data sets and worlds with known answers."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from hypothesis import strategies as st

from trajstitch.data import ARRAYS, Dataset


def random_dataset(seed: int, lengths: Sequence[int], obs_dim: int = 3, action_dim: int = 2) -> Dataset:
    """Trajectories of these lengths, of numbers that mean nothing."""
    rng = np.random.default_rng(seed)
    steps, many = sum(lengths), len(lengths)
    return Dataset(
        obs=rng.normal(size=(steps + many, obs_dim)).astype(np.float32),
        action=rng.uniform(-1, 1, (steps, action_dim)).astype(np.float32),
        reward=rng.normal(size=steps).astype(np.float32),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        terminal=rng.random(many) < 0.5,
    )


def linear_dataset(seed: int = 0, many: int = 20, steps: int = 25) -> Dataset:
    """Actions are tanh of a linear function of the observation: a policy that can be cloned exactly."""
    rng = np.random.default_rng(seed)
    gain = np.array([[0.8, 0.0], [0.0, -0.6], [0.3, 0.4]])
    obs = np.zeros((many, steps + 1, 3))
    action = np.zeros((many, steps, 2))
    obs[:, 0] = rng.normal(size=(many, 3))
    for t in range(steps):
        action[:, t] = np.tanh(obs[:, t] @ gain)
        obs[:, t + 1] = obs[:, t] + 0.1 * np.concatenate([action[:, t], rng.normal(size=(many, 1))], 1)
    return Dataset(
        obs=obs.reshape(-1, 3).astype(np.float32),
        action=action.reshape(-1, 2).astype(np.float32),
        reward=action[..., 0].reshape(-1).astype(np.float32),
        start=np.arange(0, many * steps + 1, steps),
        terminal=np.zeros(many, bool),
    )


def walk_dataset(seed: int = 0, many: int = 40, steps: int = 20) -> Dataset:
    """Random walks in a plane, a third of the action a step; the reward is how far right a step lands.

    Walks cross all the time and each step could have gone elsewhere, so there is much to stitch.
    """
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (many, steps, 2))
    obs = np.concatenate([rng.normal(size=(many, 1, 2)) / 10, action / 3], 1).cumsum(1)
    return Dataset(
        obs=obs.reshape(-1, 2).astype(np.float32),
        action=action.reshape(-1, 2).astype(np.float32),
        reward=obs[:, 1:, 0].reshape(-1).astype(np.float32),
        start=np.arange(0, many * steps + 1, steps),
        terminal=np.zeros(many, bool),
    )


def aim_dataset(seed: int = 0, many: int = 3000, loop: bool = False) -> Dataset:
    """Two steps to aim: the first moves a point, the second pays for where it is and for its own action.

    An action [u, v], from -1 to 1, is recorded as 2 + 2u and v, which does nothing. The first puts the point at
    x = u and pays nothing, the second pays -20·((x - g)² + (u - g)²) with g = 0.6·s of the state [s, x, t], and
    ends the episode. So u = g is best in every state, and at first this shows in the value of the next state only.
    Actions are uniform: their mean is 0 and says nothing. With `loop` the second step leads back to the
    first state instead of ending the episode, so that who knows of no ends can learn the same.
    """
    rng = np.random.default_rng(seed)
    s, action = rng.uniform(-1, 1, many), rng.uniform(-1, 1, (many, 2, 2))
    u, goal = action[..., 0], 0.6 * s[:, None]
    obs = np.zeros((many, 3, 3))
    obs[..., 0] = s[:, None]
    obs[:, 1:, 1] = u[:, :1]
    obs[..., 2] = [0, 1, 0 if loop else 2]
    obs[:, 2, 1] = 0 if loop else obs[:, 1, 1]
    reward = np.zeros((many, 2))
    reward[:, 1] = -20 * ((u - goal) ** 2).sum(1)
    return Dataset(
        obs=obs.reshape(-1, 3).astype(np.float32),
        action=(action * [2, 1] + [2, 0]).reshape(-1, 2).astype(np.float32),
        reward=reward.reshape(-1).astype(np.float32),
        start=np.arange(0, 2 * many + 1, 2),
        terminal=np.full(many, not loop),
    )


@st.composite
def datasets(draw: st.DrawFn, max_trajectories: int = 6, max_length: int = 7) -> Dataset:
    """Any small data set."""
    lengths = draw(st.lists(st.integers(1, max_length), min_size=1, max_size=max_trajectories))
    return random_dataset(draw(st.integers(0, 2**20)), lengths, draw(st.integers(1, 4)), draw(st.integers(1, 3)))


def same(a: Dataset, b: Dataset) -> bool:
    return all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in ARRAYS)


def changed(path: Path, **arrays) -> Path:
    """Replace arrays of a D4RL file; None removes one."""
    with h5py.File(path, "a") as file:
        for name, array in arrays.items():
            del file[name]
            if array is not None:
                file[name] = array
    return path
