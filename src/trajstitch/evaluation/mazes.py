"""Mazes: a point has to find a goal, many at a time; OGBench's, D4RL's and one of our own that needs no package.

pointmaze-{medium,large,giant}-singletask-task{1..5}-v0   OGBench's: a step costs 1, the goal ends the episode
maze2d-{umaze,medium,large}-v1                            D4RL's: 1 for every step that ends at the goal, no end
trajstitch-maze-v0                                        ours: OGBench's rules in a maze of 9 × 13 cells

OGBench asks before a step whether the point is at the goal, so an episode takes one more step there; we ask after
the step, so that an episode ends in the state that reached the goal. Its return is 1 higher than OGBench's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.d4rl_physics import quiet
from trajstitch.evaluation.env import Bool, Float, Step, checked_action
from trajstitch.evaluation.mujoco_batch import ModelBatch

Int = NDArray[np.int64]

OWN = "trajstitch-maze-v0"
_POINT_MAZES = {
    f"pointmaze-{size}-singletask-task{task}-v0" for size in ("medium", "large", "giant") for task in range(1, 6)
}
# D4RL's mazes: the environment of Gymnasium-Robotics with the same walls, and the cell of the goal.
_MAZE2D = {
    "maze2d-umaze-v1": ("PointMaze_UMaze-v3", (1, 1)),
    "maze2d-medium-v1": ("PointMaze_Medium-v3", (6, 6)),
    "maze2d-large-v1": ("PointMaze_Large-v3", (7, 9)),
}
IDS = frozenset({OWN, *_POINT_MAZES, *_MAZE2D})

_STRIDE = 0.2  # how far an action of 1 moves the point of a point maze
_TOP_SPEED = 5.0  # the velocity of a ball of maze2d is clipped to it before every step


@dataclass(frozen=True, eq=False)
class Maze:
    """Walls, physics and task of a maze; cells are (row, column)."""

    id: str
    ball: bool  # maze2d: the action pushes, the goal pays; else: the action moves, a step costs, the goal ends
    model: mujoco.MjModel
    skip: int  # MuJoCo steps per step
    horizon: int
    map: Bool  # [rows, columns], true: wall
    origin: Float  # [2], x and y of the centre of cell (0, 0)
    pitch: Float  # [2], change of x per column and of y per row
    start: Int  # [C, 2], the cells where episodes start
    noise: float  # of the first position: uniform, at most so far from the cell's centre in x and y
    goal: Float  # [2]
    tolerance: float  # the goal is reached within this distance


class MazeEnv:
    """B mazes of one kind, which advance in one call of MuJoCo's rollout.

    An observation is the whole state: x and y, in maze2d also their velocities; elsewhere a step begins at rest.
    """

    action_low, action_high = np.full(2, -1.0), np.full(2, 1.0)

    def __init__(self, maze: Maze, count: int, threads: int | None = None) -> None:
        self.maze, self.count = maze, count
        self.id, self.horizon = maze.id, maze.horizon
        self.map, self.goal, self.tolerance = maze.map, maze.goal, maze.tolerance
        self.obs_dim = 4 if maze.ball else 2
        self.goal_reward = 1.0 if maze.ball else 0.0  # of a step that ends at the goal; any other has 1 less
        self._state = np.zeros((count, 4))
        self._clock = np.zeros(count, dtype=np.int64)
        self._batch = ModelBatch(maze.model, count, maze.skip, threads)

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """See `Env.reset`."""
        index = np.asarray(index, dtype=np.int64)
        draw = _draw_ball if self.maze.ball else _draw_point
        state = np.array([draw(self, int(one)) for one in seed]).reshape(-1, 4)
        return self.set_state(index, state[:, :2], state[:, 2:])

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """See `Env.step`; rows that are not running cost no time."""
        action = checked_action(action, (self.count, 2))
        index = np.arange(self.count) if running is None else np.flatnonzero(running)
        reward, terminal, timeout = np.zeros(self.count), *np.zeros((2, self.count), dtype=bool)
        if len(index):
            self._state[index] = self._advance(self._state[index], action[index])
            reached = self.at_goal(self._state[index])
            reward[index] = self.goal_reward - ~reached
            terminal[index] = reached & (not self.maze.ball)
            self._clock[index] += 1
            timeout[index] = self._clock[index] >= self.horizon
        return Step(self._state[:, : self.obs_dim].copy(), reward, terminal, timeout)

    def state(self) -> tuple[Float, Float]:
        """Return positions [B, 2] and velocities [B, 2]."""
        return self._state[:, :2].copy(), self._state[:, 2:].copy()

    def set_state(self, index: ArrayLike, qpos: ArrayLike, qvel: ArrayLike) -> Float:
        """Set the state of the environments `index` and their clocks to 0; return obs[len(index), S]."""
        index = np.asarray(index, dtype=np.int64)
        self._state[index] = np.concatenate([qpos, qvel], axis=1)
        self._clock[index] = 0
        obs: Float = self._state[index, : self.obs_dim]
        return obs

    def state_of(self, obs: NDArray[Any]) -> tuple[Float, Float]:
        """Return positions and velocities of obs[B, S]; where no velocity is observed it is 0."""
        state = np.zeros((len(obs), 4))
        state[:, : self.obs_dim] = obs
        return state[:, :2], state[:, 2:]

    def at_goal(self, obs: NDArray[Any]) -> Bool:
        """Whether observations or positions [..., 2+] are at the goal."""
        near: Bool = np.linalg.norm(obs[..., :2] - self.goal, axis=-1) <= self.tolerance
        return near

    def cell_of(self, xy: ArrayLike) -> Int:
        """Return the cells (row, column) [..., 2] of positions [..., 2]; outside the map, the nearest one."""
        cell = np.rint((np.asarray(xy) - self.maze.origin) / self.maze.pitch).astype(np.int64)[..., ::-1]
        return np.clip(cell, 0, np.array(self.map.shape) - 1)

    def centre_of(self, cell: ArrayLike) -> Float:
        """Return the centres [..., 2] of cells (row, column) [..., 2]."""
        return self.maze.origin + np.asarray(cell)[..., ::-1] * self.maze.pitch

    def close(self) -> None:
        """See `Env.close`."""
        self._batch.close()

    def _advance(self, state: Float, action: NDArray[Any]) -> Float:
        if self.maze.ball:
            state[:, 2:] = np.clip(state[:, 2:], -_TOP_SPEED, _TOP_SPEED)
            return self._batch.advance(state, np.clip(action, -1, 1))
        state[:, :2] += _STRIDE * action
        state[:, 2:] = 0
        return self._batch.advance(state, np.zeros((len(state), 2)))


def _draw_point(env: MazeEnv, seed: int) -> Float:
    """Draw a first state: what OGBench draws from NumPy's global generator after np.random.seed(seed)."""
    noise = np.random.RandomState(seed % 2**32).uniform(-env.maze.noise, env.maze.noise, 2)
    return np.concatenate([env.centre_of(env.maze.start[0]) + noise, np.zeros(2)])


def _draw_ball(env: MazeEnv, seed: int) -> Float:
    """Draw a first state as D4RL does: a cell, noise about its centre, and a little speed."""
    rng = np.random.default_rng(seed)
    centre = env.centre_of(env.maze.start[rng.integers(len(env.maze.start))])
    place = centre + rng.uniform(-env.maze.noise, env.maze.noise, 2)
    return np.concatenate([place, rng.normal(0, 0.1, 2)])


def make_maze(env_id: str, count: int, *, horizon: int | None = None, threads: int | None = None) -> MazeEnv:
    """Create `count` mazes of one of the `IDS`; InputError if the package that has its walls is missing."""
    if env_id == OWN:
        maze = _own_maze()
    elif env_id in _MAZE2D:
        maze = _maze2d(env_id)
    else:
        maze = _point_maze(env_id)
    return MazeEnv(replace(maze, horizon=horizon) if horizon else maze, count, threads)


def floor_plan(env_id: str) -> str | None:
    """Return the name of a maze's walls, which all of its tasks share; None for what is none of these mazes."""
    return env_id.partition("-singletask-")[0] if env_id in IDS else None


def set_task(data: Dataset, env: MazeEnv) -> Dataset:
    """Return the data with the rewards and ends of this maze's task, whatever they were recorded for.

    In a point maze a trajectory ends with the step that reaches the goal. Steps that start at the goal are left
    out, and what follows after leaving it is a trajectory of its own. In maze2d a step that ends at the goal has
    reward 1, and nothing ends. Weights are left out: they were made for other rewards.
    """
    sizes = (data.obs_dim, data.action_dim)
    remedy = "choose the maze the data came from"
    check_same_sizes("the data have", sizes, f"{env.id} has", (env.obs_dim, 2), remedy)
    old = {k: v for k, v in data.info.items() if k not in ("env_spec", "ref_min_score", "ref_max_score")}
    info = {**old, "env_id": env.id, "env_horizon": env.horizon}
    at_goal = env.at_goal(data.obs)
    begins, ends = at_goal[data.row], at_goal[data.row + 1]
    reward = (env.goal_reward - ~ends).astype(np.float32)
    if env.maze.ball:
        return replace(data, reward=reward, terminal=np.zeros(len(data), bool), info=info, weight=None)
    kept = np.flatnonzero(~begins)
    if not len(kept):
        raise InputError(f"every step of the data starts at the goal of {env.id}; choose another task")
    # A piece ends where the next kept step is not the next step, or belongs to the next trajectory.
    cut = (np.diff(kept) > 1) | (np.diff(data.trajectory[kept]) > 0)
    first = kept[np.concatenate([[True], cut])]
    last = kept[np.concatenate([cut, [True]])]
    pieces = [
        Trajectory(data.obs[row : row + b - a + 2], data.action[a : b + 1], reward[a : b + 1], bool(ends[b]))
        for a, b, row in zip(first, last, data.row[first], strict=True)
    ]
    return from_trajectories(pieces, info)


# -- where the mazes come from ---------------------------------------------------------------------------------


def _load(module: str, package: str, env_id: str) -> None:
    """Import a module that registers environments, without what it prints."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{env_id} needs {package}, which is not installed; run pip install 'trajstitch[mazes]'"
        ) from error


def _template(env_id: str) -> tuple[Any, int]:
    """Return the package's own environment and its horizon."""
    spec = gymnasium.registry[env_id]
    with quiet:
        return gymnasium.make(spec, disable_env_checker=True).unwrapped, spec.max_episode_steps


def _point_maze(env_id: str) -> Maze:
    _load("ogbench.locomaze", "ogbench", env_id)
    env, horizon = _template(env_id)
    Path(env.fullpath).unlink(missing_ok=True)  # a temporary file that nobody else removes
    task = env.task_infos[env._reward_task_id - 1]
    corner = np.array(env.ij_to_xy((0, 0)), np.float64)
    return Maze(
        env_id,
        ball=False,
        model=env.model,
        skip=env.frame_skip,
        horizon=horizon,
        map=env.maze_map != 0,
        origin=corner,
        pitch=np.array(env.ij_to_xy((1, 1))) - corner,
        start=np.array([task["init_ij"]]),
        noise=env._noise * env._maze_unit / 4,
        goal=np.array(task["goal_xy"], np.float64),
        tolerance=env._goal_tol,
    )


def _maze2d(env_id: str) -> Maze:
    _load("gymnasium_robotics", "gymnasium-robotics", env_id)
    name, goal = _MAZE2D[env_id]
    env, horizon = _template(name)
    Path(env.tmp_xml_file_path).unlink(missing_ok=True)  # as above
    walls = np.array(env.maze.maze_map) == 1
    corner = env.maze.cell_rowcol_to_xy((0, 0))
    pitch = env.maze.cell_rowcol_to_xy((1, 1)) - corner
    return Maze(
        env_id,
        ball=True,
        model=env.model,
        skip=env.point_env.frame_skip,
        horizon=horizon,
        map=walls,
        origin=corner,
        pitch=pitch,
        start=np.array([cell for cell in np.argwhere(~walls) if tuple(cell) != goal]),
        noise=0.1,
        goal=corner + np.array(goal)[::-1] * pitch,
        tolerance=0.5,
    )


# S start, G goal. The one way between them is 22 cells long, about 200 steps; all else leads nowhere.
_OWN_MAP = """
#############
#...........#
#.#######.#.#
#.#...#...#.#
#.###.#.###.#
#.#...#...#.#
#.#.#######.#
#S..#####..G#
#############
"""


def _own_maze() -> Maze:
    """Return our own maze; it is OGBench's at half the size."""
    rows = np.array([list(line) for line in _OWN_MAP.split()])
    size = 2.0
    # Row 0 is at the top, so that a plot of x and y looks like the map.
    origin, pitch = np.array([0.0, size * (len(rows) - 1)]), np.array([size, -size])
    walls = rows == "#"
    return Maze(
        OWN,
        ball=False,
        model=build_model(walls, origin, pitch, radius=0.175 * size),
        skip=5,
        horizon=500,
        map=walls,
        origin=origin,
        pitch=pitch,
        start=np.argwhere(rows == "S"),
        noise=size / 4,
        goal=origin + np.argwhere(rows == "G")[0, ::-1] * pitch,
        tolerance=size / 4,
    )


def build_model(walls: Bool, origin: Float, pitch: Float, radius: float) -> mujoco.MjModel:
    """Return a sphere that slides in x and y between boxes, with the physics of OGBench's point mazes."""
    half = np.abs(pitch) / 2
    boxes = "".join(
        f'<geom type="box" pos="{x} {y} {radius}" size="{half[0]} {half[1]} {radius}" conaffinity="1"/>'
        for x, y in origin + np.argwhere(walls)[:, ::-1] * pitch
    )
    return mujoco.MjModel.from_xml_string(f"""<mujoco>
      <option timestep="0.02" integrator="RK4"/>
      <default><geom condim="3" conaffinity="0" friction="1 0.5 0.5" density="100"/></default>
      <worldbody>
        {boxes}
        <body>
          <geom type="sphere" size="{radius}" pos="0 0 {radius}"/>
          <joint name="x" type="slide" axis="1 0 0"/>
          <joint name="y" type="slide" axis="0 1 0"/>
        </body>
      </worldbody>
      <actuator><motor joint="x"/><motor joint="y"/></actuator>
    </mujoco>""")
