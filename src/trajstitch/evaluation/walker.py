"""Walker: records data in mazes by short walks along shortest ways, none of which need solve the task.

In point mazes it is the recipe of OGBench's `stitch` data, in maze2d the one of D4RL's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Info, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.env import Float
from trajstitch.evaluation.mazes import Int, MazeEnv, make_maze, set_task
from trajstitch.progress import Tell, silent

WALKER = "walker"  # the name under which `collect` knows it
WALK_LENGTH = 200
NOISE = 0.5  # std of the noise on actions, OGBench's and D4RL's

_AWAY = 4  # cells between the first cell of a walk in a point maze and its goal
_GAINS = 10.0, -1.0  # of D4RL's controller, on the distance to the next cell and on the velocity
_ARRIVED = 0.1  # a walk of maze2d is over this near to its goal
_TOGETHER = 100  # walks stepped at once; what is recorded does not depend on it
_STREAM = 1000  # steps of a walker of maze2d, at least; there are at most _TOGETHER of them


@dataclass(frozen=True, eq=False)
class Ways:
    """Shortest ways between the F free cells of a maze."""

    cell: Int  # [F, 2]
    number: Int  # [rows, columns], the free cell's number; -1 for a wall
    distance: Int  # [F, F], cells from the second to the first by the shortest way; -1: there is none
    onward: Int  # [F, F], onward[goal, here]: the next cell on the way to the goal; `here` itself at the goal


def find_ways(walls: NDArray[np.bool_]) -> Ways:
    """Return the shortest ways in a map of walls, by breadth-first search from every free cell."""
    cell = np.argwhere(~walls)
    number = np.full(walls.shape, -1)
    number[tuple(cell.T)] = np.arange(len(cell))
    padded = np.pad(number, 1, constant_values=-1)  # so that cells at the border of the map have neighbours too
    up, left, down, right = padded[:-2, 1:-1], padded[1:-1, :-2], padded[2:, 1:-1], padded[1:-1, 2:]
    near = np.stack([side[tuple(cell.T)] for side in (up, left, down, right)], 1)  # [F, 4], -1: wall
    distance = np.where(np.eye(len(cell), dtype=bool), 0, -1)
    for steps in range(1, len(cell)):
        reached = (distance[:, near] == steps - 1) & (near >= 0)
        new = reached.any(2) & (distance < 0)
        if not new.any():
            break
        distance[new] = steps
    closer = (distance[:, near] == distance[:, :, None] - 1) & (near >= 0) & (distance[:, :, None] > 0)
    ahead = near[np.arange(len(cell)), closer.argmax(2)]
    return Ways(cell, number, distance, np.where(closer.any(2), ahead, np.arange(len(cell))))


def walk(
    env_id: str,
    steps: int,
    *,
    walk_length: int = WALK_LENGTH,
    noise: float = NOISE,
    seed: int = 0,
    env_horizon: int | None = None,
    tell: Tell = silent,
) -> Dataset:
    """Record walks in a maze with the rewards of its task; the same seed gives the same data.

    In a point maze every walk starts in a random free cell, goes to a cell four cells away and stays there. In
    maze2d walkers go from one random cell to the next, and a trajectory ends with the arrival.

    Arguments:
        env_id: a maze, such as pointmaze-giant-singletask-task1-v0.
        steps: at least this many steps.
        walk_length: steps of a walk in a point maze.
        noise: std of the Gaussian noise on actions.
        seed: the random seed.
        env_horizon: another time limit of the environment, to be stored with the data.
        tell: a callback for progress.
    """
    for name, number in (("steps", steps), ("walk_length", walk_length)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, not {number}")
    if not noise >= 0:
        raise InputError(f"noise must be 0 or more, not {noise:g}")
    env = make_maze(env_id, _TOGETHER, horizon=env_horizon)
    try:
        ways = find_ways(env.map)
        walks: list[Trajectory] = []
        info: Info = {"policy": WALKER, "seed": seed}
        if env.maze.ball:
            return set_task(from_trajectories(_streams(env, ways, steps, noise, seed, tell), info), env)
        missing = steps
        while True:  # a second time if steps are missing, because those that start at the goal are left out
            rngs = [np.random.default_rng([seed, len(walks) + i]) for i in range(-(-missing // walk_length))]
            for i in range(0, len(rngs), env.count):
                walks += _walks(env, ways, rngs[i : i + env.count], walk_length, noise)
                tell(min(steps, len(walks) * walk_length), steps, "steps")
            data = set_task(from_trajectories(walks, info), env)
            missing = steps - data.transitions
            if missing <= 0:
                return data
    finally:
        env.close()


def _walks(
    env: MazeEnv, ways: Ways, rngs: list[np.random.Generator], length: int, noise: float
) -> list[Trajectory]:
    """Return one walk of `length` steps in a point maze per generator; it does not depend on the other walks."""
    many = len(rngs)
    here = np.array([rng.integers(len(ways.cell)) for rng in rngs])
    goal = np.array([_draw_goal(ways, first, rng) for first, rng in zip(here, rngs, strict=True)])
    place = env.centre_of(ways.cell[here])
    place += [rng.uniform(-env.maze.noise, env.maze.noise, 2) for rng in rngs]
    shake = noise * np.stack([rng.standard_normal((length, 2)) for rng in rngs], 1)
    obs, action = np.zeros((length + 1, many, 2), np.float32), np.zeros((length, env.count, 2), np.float32)
    obs[0] = env.set_state(np.arange(many), place, np.zeros((many, 2)))
    running = np.arange(env.count) < many
    for t in range(length):
        towards = _next_centre(env, ways, goal, place) - place
        towards /= np.linalg.norm(towards, axis=1, keepdims=True) + 1e-6
        action[t, :many] = np.clip(towards + shake[t], -1, 1)
        place = env.step(action[t], running).obs[:many]
        obs[t + 1] = place
    reward = np.zeros(length, np.float32)
    return [Trajectory(obs[:, b], action[:, b], reward, terminal=False) for b in range(many)]


def _streams(env: MazeEnv, ways: Ways, steps: int, noise: float, seed: int, tell: Tell) -> list[Trajectory]:
    """Return the walks of some walkers in maze2d, each of which starts where the walker's last one ended."""
    many = max(1, min(env.count, steps // _STREAM))
    length = -(-steps // many)
    rngs = [np.random.default_rng([seed, b]) for b in range(many)]
    index = np.arange(many)
    goal, here = (np.array([rng.integers(len(ways.cell)) for rng in rngs]) for _ in range(2))
    centre = env.centre_of(ways.cell[here])
    obs, action = np.zeros((length + 1, many, 4), np.float32), np.zeros((length, env.count, 2), np.float32)
    arrived = np.zeros((length, many), bool)
    now = env.set_state(index, centre, np.zeros((many, 2)))
    obs[0] = now
    running = np.arange(env.count) < many
    for t in range(length):
        push = _GAINS[0] * (_next_centre(env, ways, goal, now[:, :2]) - now[:, :2]) + _GAINS[1] * now[:, 2:]
        shake = np.array([rng.standard_normal(2) for rng in rngs])
        action[t, :many] = np.clip(push + noise * shake, -1, 1)
        now = env.step(action[t], running).obs[:many]
        obs[t + 1] = now
        arrived[t] = np.linalg.norm(env.centre_of(ways.cell[goal]) - now[:, :2], axis=1) <= _ARRIVED
        for w in np.flatnonzero(arrived[t]):
            other = int(rngs[w].integers(len(ways.cell) - 1))
            goal[w] = other + (other >= goal[w])  # any cell but this one
        if t % 100 == 99:
            tell(min(steps, (t + 1) * many), steps, "steps")
    arrived[-1] = True  # what is under way at the end is cut too
    recorded = []
    for b in range(many):
        end = np.flatnonzero(arrived[:, b]) + 1
        for i, j in zip(np.concatenate([[0], end[:-1]]), end, strict=True):
            reward = np.zeros(j - i, np.float32)
            recorded.append(Trajectory(obs[i : j + 1, b], action[i:j, b], reward, terminal=False))
    return recorded


def _draw_goal(ways: Ways, first: int, rng: np.random.Generator) -> int:
    """Draw a cell four cells from the first one; where none is, one of those that are farthest."""
    distance = ways.distance[:, first]
    goals = np.flatnonzero(distance == min(_AWAY, distance.max()))
    return int(goals[rng.integers(len(goals))])


def _next_centre(env: MazeEnv, ways: Ways, goal: Int, place: Float) -> Float:
    """Return the centre of the cell that comes next on the way to the goal."""
    here = ways.number[tuple(env.cell_of(place).T)]
    return env.centre_of(ways.cell[ways.onward[goal, here]])
