"""Mazes against the packages they come from, their tasks, and the walker that records in them."""

import dataclasses
import json
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation import envs, mazes
from trajstitch.evaluation.collect import collect
from trajstitch.evaluation.envs import env_named_in, env_options
from trajstitch.evaluation.mazes import IDS, OWN, build_model, floor_plan, make_maze, set_task
from trajstitch.evaluation.mujoco_batch import ModelBatch
from trajstitch.evaluation.normalise import reference_scores
from trajstitch.evaluation.scores import Scores, evaluate
from trajstitch.evaluation.walker import find_ways, walk
from trajstitch.formats import load, save
from trajstitch.policies.policy import Policy
from trajstitch.training.networks import Range, Scale
from worlds import random_dataset

GIANT = "pointmaze-giant-singletask-task1-v0"
POINT = [GIANT, "pointmaze-medium-singletask-task3-v0"]
BALL = {"maze2d-umaze-v1": "PointMaze_UMaze-v3", "maze2d-large-v1": "PointMaze_Large-v3"}


class Theirs:
    """The package's own environment behind the same few methods."""

    def __init__(self, env_id):
        make_maze(env_id, 1).close()  # registers it
        self.env = gymnasium.make(BALL.get(env_id, env_id), disable_env_checker=True).unwrapped
        self.env.reset()
        self.ball = env_id in BALL

    def set_state(self, qpos, qvel):
        (self.env.point_env if self.ball else self.env).set_state(qpos, qvel)

    def step(self, action):
        obs = self.env.step(action)[0]
        return obs["observation"] if self.ball else obs


def spread(env, rng):
    """States all over the maze, many of them about to hit a wall."""
    free = np.argwhere(~env.map)
    centre = env.centre_of(free[rng.integers(len(free), size=env.count)])
    room = abs(env.maze.pitch[0]) - (0.21 if env.maze.ball else 1.41)
    qpos = centre + rng.uniform(-0.5, 0.5, (env.count, 2)) * room
    return qpos, rng.normal(0, 4, (env.count, 2)) * env.maze.ball


@pytest.mark.parametrize("env_id", [*POINT, *BALL])
def test_each_step_is_the_packages(env_id):
    rng = np.random.default_rng(0)
    env, theirs = make_maze(env_id, 60), Theirs(env_id)
    env.set_state(np.arange(60), *spread(env, rng))
    action = rng.uniform(-1.3, 1.3, (60, 2))
    hits = 0
    for _ in range(12):  # in one direction, so that walls are met
        qpos, qvel = env.state()
        step = env.step(action)
        for i in range(60):
            theirs.set_state(qpos[i], qvel[i])
            np.testing.assert_allclose(step.obs[i], theirs.step(action[i]), rtol=0, atol=1e-4)
            if not theirs.ball:
                assert step.terminal[i] == theirs.env.compute_success()
        free = qpos + 0.2 * action if not theirs.ball else qpos + 0.01 * np.clip(qvel, -5, 5)
        hits += (np.abs(step.obs[:, :2] - free).max(1) > 0.01).sum()
    assert hits > 20
    assert not env.map[tuple(env.cell_of(env.state()[0]).T)].any()
    assert env.horizon == {"maze2d-umaze-v1": 300, "maze2d-large-v1": 800}.get(env_id, 1000)


@pytest.mark.parametrize("env_id", [GIANT, "maze2d-large-v1"])
def test_forty_free_steps_stay_with_the_package(env_id):
    rng = np.random.default_rng(1)
    env, many = make_maze(env_id, 4), [Theirs(env_id) for _ in range(4)]
    state = spread(env, rng)
    env.set_state(np.arange(4), *state)
    for one, qpos, qvel in zip(many, *state, strict=True):
        one.set_state(qpos, qvel)
    for _ in range(40):
        action = np.clip(0.6 + 0.4 * rng.normal(size=(4, 2)), -1, 1)
        step = env.step(action)
        theirs = [one.step(row) for one, row in zip(many, action, strict=True)]
        np.testing.assert_allclose(step.obs, theirs, rtol=0, atol=1e-4)


def test_our_own_physics_is_ogbenchs():
    env = make_maze(GIANT, 40)
    env.set_state(np.arange(40), *spread(env, np.random.default_rng(2)))
    ours = ModelBatch(build_model(env.map, env.maze.origin, env.maze.pitch, radius=0.7), 40, env.maze.skip)
    action = np.random.default_rng(3).uniform(-1, 1, (40, 2))
    for _ in range(20):
        qpos = env.state()[0]
        after = ours.advance(np.concatenate([qpos + 0.2 * action, np.zeros((40, 2))], 1), np.zeros((40, 2)))
        np.testing.assert_allclose(env.step(action).obs, after[:, :2], rtol=0, atol=1e-6)


def test_a_seed_starts_as_in_ogbench():
    env, theirs = make_maze(GIANT, 2), Theirs(GIANT)
    np.random.seed(11)  # noqa: NPY002 - the generator OGBench uses
    expected = theirs.env.reset()[0]
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    obs = env.reset([1, 0], [11, 12])
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.testing.assert_allclose(obs[0], expected)
    assert (obs[0] != obs[1]).all()
    np.testing.assert_allclose(env.goal, theirs.env.cur_goal_xy)
    np.testing.assert_array_equal(env.cell_of(obs), [[1, 1], [1, 1]])


def test_a_ball_starts_in_any_cell_but_the_goals():
    env = make_maze("maze2d-umaze-v1", 300)
    obs = env.reset(np.arange(300), np.arange(300))
    cells = {tuple(cell) for cell in env.cell_of(obs[:, :2])}
    assert cells == {tuple(cell) for cell in np.argwhere(~env.map)} - {(1, 1)}
    assert np.abs(obs[:, :2] - env.centre_of(env.cell_of(obs[:, :2]))).max() <= 0.1
    np.testing.assert_array_equal(obs, env.reset(np.arange(300), np.arange(300)))


@pytest.mark.parametrize("env_id", [OWN, GIANT, "maze2d-medium-v1"])
def test_the_goal_pays_and_ends_a_point_maze(env_id):
    env = envs.make(env_id, 3, horizon=2)
    ball = env_id.startswith("maze2d")
    qpos = env.goal + np.array([[0, 0], [0.9 * env.tolerance, 0], [0, 1.3 * env.tolerance]])
    obs = env.set_state([0, 1, 2], qpos, np.zeros((3, 2)))
    np.testing.assert_array_equal(env.state_of(obs)[0], qpos)
    step = env.step(np.zeros((3, 2)), np.array([True, True, True]))
    np.testing.assert_array_equal(step.reward, [1, 1, 0] if ball else [0, 0, -1])
    np.testing.assert_array_equal(step.terminal, [False] * 3 if ball else [True, True, False])
    step = env.step(np.zeros((3, 2)), np.array([False, False, True]))
    np.testing.assert_array_equal(step.timeout, [False, False, True])
    np.testing.assert_array_equal(step.reward[:2], 0)


def test_our_own_maze_is_a_long_way_round():
    env = make_maze(OWN, 1)
    ways = find_ways(env.map)
    assert (ways.distance >= 0).all()
    first, goal = ways.number[tuple(env.maze.start[0])], ways.number[tuple(env.cell_of(env.goal))]
    obs = env.reset([0], [0])
    for steps in range(1, 500):  # noqa: B007
        ahead = env.centre_of(ways.cell[ways.onward[goal, ways.number[tuple(env.cell_of(obs[0]))]]]) - obs[0]
        step = env.step(np.clip(10 * ahead, -1, 1)[None])
        obs = step.obs
        if step.terminal[0]:
            break
    assert ways.distance[goal, first] == 22
    assert 150 <= steps <= 250
    assert len(ways.cell) == (~env.map).sum() == 43


def test_names_and_references():
    assert env_named_in({"env_id": GIANT}) == GIANT
    assert env_options(GIANT, {"env_id": GIANT, "env_horizon": 7}) == {"horizon": 7}
    assert envs.make(OWN, 1, horizon=7).horizon == 7
    assert reference_scores("maze2d-umaze-v1") == (23.85, 161.86)
    assert reference_scores(GIANT) is None
    with pytest.raises(InputError, match="mazes take no arguments, but size was given"):
        envs.make(OWN, 1, size=3)
    with pytest.raises(InputError, match="D4RL's physics is known for"):
        envs.make(OWN, 1, physics="d4rl")


@pytest.mark.parametrize(
    ("env_id", "package", "modules"),
    [
        (GIANT, "ogbench", ("ogbench", "ogbench.locomaze")),
        ("maze2d-umaze-v1", "gymnasium-robotics", ("gymnasium_robotics",)),
    ],
)
def test_a_missing_package_is_one_sentence(env_id, package, modules, monkeypatch):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"^{env_id} needs {package}, .* run pip install 'trajstitch\[mazes\]'$"):
        envs.make(env_id, 1)
    envs.make(OWN, 1).close()


# -- tasks -------------------------------------------------------------------------------------------------------


def trajectory(env, *distances, terminal=False):
    """A walk on a line through the goal, by its distances from it."""
    obs = np.zeros((len(distances), env.obs_dim), np.float32)
    obs[:, :2] = env.goal
    obs[:, 0] += distances
    steps = len(distances) - 1
    return Trajectory(obs, np.arange(2 * steps).reshape(-1, 2), np.full(steps, 9), terminal)


def test_a_task_is_set():
    env = make_maze(OWN, 1)
    data = from_trajectories(
        [
            trajectory(env, 2, 1, 0.2, 0.1, 1, 2, 1, 0),
            trajectory(env, 2, 3, terminal=True),
            trajectory(env, 0, 0.1),
        ],
        {"env_id": "other", "ref_min_score": 0.0, "policy": "me"},
    )
    new = set_task(data, env)
    np.testing.assert_allclose(new[0].obs[:, 0] - env.goal[0], [2, 1, 0.2], atol=1e-5)
    np.testing.assert_allclose(new[1].obs[:, 0] - env.goal[0], [1, 2, 1, 0], atol=1e-5)
    assert [list(t.reward) for t in new] == [[-1, 0], [-1, -1, 0], [-1]]
    np.testing.assert_array_equal(new.terminal, [True, True, False])
    np.testing.assert_array_equal(new.action[:, 0], [0, 2, 8, 10, 12, 0])
    assert new.info == {"env_id": OWN, "env_horizon": 500, "policy": "me"}
    assert set_task(new, env).fingerprint == new.fingerprint
    with pytest.raises(InputError, match="every step of the data starts at the goal"):
        set_task(data[2:], env)


def test_a_task_of_maze2d_ends_nothing():
    env = make_maze("maze2d-umaze-v1", 1)
    new = set_task(from_trajectories([trajectory(env, 2, 1, 0.4, 0.4, 1, terminal=True)]), env)
    np.testing.assert_array_equal(new.reward, [0, 1, 1, 0])
    assert not new.terminal.any()
    with pytest.raises(InputError, match="the data have 4 observations and 2 actions, but .* has 2 and 2"):
        set_task(new, make_maze(OWN, 1))


# -- the walker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def giant():
    return walk(GIANT, 500 * 110, walk_length=110)  # long enough for the four cells


def test_shortest_ways():
    ways = find_ways(np.array([[0, 0, 0], [0, 1, 0], [0, 1, 1]], bool))
    a, b = ways.number[2, 0], ways.number[1, 2]
    assert ways.distance[a, b] == ways.distance[b, a] == 5
    assert ways.onward[a, b] == ways.number[0, 2]
    assert ways.onward[a, a] == a
    apart = find_ways(np.array([[0, 1, 0]], bool))
    assert apart.distance.tolist() == [[0, -1], [-1, 0]]
    assert apart.onward.tolist() == [[0, 1], [0, 1]]


def test_walks_follow_the_recipe():
    """Without noise a walk ends in the centre of a cell four cells away, by the shortest way."""
    env = make_maze(GIANT, 1)
    ways = find_ways(env.map)
    data = walk(GIANT, 40 * 130, walk_length=130, noise=0, seed=3)
    whole = data[data.length == 130]
    assert len(whole) >= 35
    for one in whole:
        first, last = (ways.number[tuple(env.cell_of(xy))] for xy in one.obs[[0, -1]])
        assert ways.distance[last, first] == 4
        np.testing.assert_allclose(one.obs[-1], env.centre_of(ways.cell[last]), atol=0.21)
        visited = ways.number[tuple(env.cell_of(one.obs).T)]
        assert len(dict.fromkeys(visited)) == 5


def test_walks_are_noisy_stay_in_the_maze_and_never_solve_a_task(giant):
    env = make_maze(GIANT, 1)
    cell = env.cell_of(giant.obs)
    assert not env.map[tuple(cell.T)].any()
    assert np.abs(giant.action).max() <= 1
    assert giant.transitions >= 500 * 110
    first = giant.start[:-1] + np.arange(len(giant))
    for task in range(1, 6):
        one = make_maze(f"pointmaze-giant-singletask-task{task}-v0", 1)
        from_start = np.logical_or.reduceat((cell == one.maze.start[0]).all(1), first)
        to_goal = np.logical_or.reduceat(one.at_goal(giant.obs), first)
        assert from_start.any()
        assert to_goal.any()
        assert not (from_start & to_goal).any()
    assert len({tuple(c) for c in cell}) == (~env.map).sum()  # together the walks are everywhere
    assert giant.info == {"env_id": GIANT, "env_horizon": 1000, "policy": "walker", "seed": 0}
    assert giant.terminal.any()
    np.testing.assert_array_equal(giant.reward[giant.start[1:] - 1], giant.terminal - 1.0)
    assert (giant.returns == giant.terminal - giant.length).all()


def test_a_recorded_walk_is_the_simulators(giant):
    env = make_maze(GIANT, 200)
    row = giant.row[:200]
    env.set_state(np.arange(200), *env.state_of(giant.obs[row]))
    np.testing.assert_allclose(env.step(giant.action[:200]).obs, giant.obs[row + 1], atol=1e-5)


@pytest.mark.parametrize("env_id", [OWN, "maze2d-umaze-v1"])
def test_a_seed_gives_one_recording(env_id):
    data, again, other = (walk(env_id, 700, walk_length=50, seed=seed) for seed in (0, 0, 1))
    assert data.fingerprint == again.fingerprint != other.fingerprint
    assert data.transitions >= 700
    if env_id == OWN:
        longer = walk(env_id, 7000, walk_length=50)  # more walks than are stepped at once
        assert longer[: len(data)].fingerprint == data.fingerprint


def test_walks_of_maze2d_follow_one_another():
    env = make_maze("maze2d-large-v1", 1)
    data = walk("maze2d-large-v1", 3000)
    first = data.start[:-1] + np.arange(len(data))
    joined = (data.obs[first[1:]] == data.obs[data.last_row[:-1]]).all(1)
    assert (~joined).sum() == 2  # three walkers
    arrived = np.abs(data.obs[data.last_row, :2] - env.centre_of(env.cell_of(data.obs[data.last_row, :2]))).max(1)
    assert (arrived <= 0.1).sum() >= len(data) - 3
    assert not env.map[tuple(env.cell_of(data.obs[:, :2]).T)].any()
    assert len(data) > 10
    assert not data.terminal.any()
    np.testing.assert_array_equal(data.reward, env.at_goal(data.obs[data.row + 1]))


def test_what_the_walker_refuses():
    for words, match in (({"steps": 0}, "steps must be"), ({"steps": 9, "walk_length": 0}, "walk_length must be")):
        with pytest.raises(InputError, match=match):
            collect("walker", OWN, **words)
    with pytest.raises(InputError, match="noise must be 0 or more"):
        collect("walker", OWN, 9, noise=-1.0)
    with pytest.raises(InputError, match="Hopper-v5: the walker needs a maze"):
        collect("walker", "Hopper-v5", 9)


# -- scores ------------------------------------------------------------------------------------------------------


def test_success_and_steps_to_the_goal():
    reached = np.array([[5, -1], [9, 10]])
    scores = Scores(OWN, "gymnasium", np.zeros((2, 2)), np.ones((2, 2), int), None, reached)
    assert scores.summary()["success"]["per_seed"] == [50, 100]
    assert scores.summary()["success"]["mean"] == 75
    assert scores.summary()["steps_to_goal"] == 8
    nobody = dataclasses.replace(scores, reached=np.full((2, 2), -1)).summary()
    assert (nobody["success"]["mean"], nobody["steps_to_goal"]) == (0, None)
    without = dataclasses.replace(scores, reached=None).summary()
    assert (without["success"], without["steps_to_goal"]) == (None, None)


@pytest.mark.parametrize("env_id", [OWN, "maze2d-umaze-v1"])
def test_success_is_seen_where_it_happens(env_id, monkeypatch):
    """A goal so wide that the start is in it is reached by the first step; one of no size by none."""
    size = make_maze(env_id, 1).obs_dim
    ends = Range(jnp.full(2, -1.0), jnp.full(2, 1.0))
    policy = Policy.init(Scale.unit(size), ends, jax.random.key(0), "deterministic", width=4)
    plain = mazes.make_maze
    for tolerance, reached in ((100.0, 1), (0.0, -1)):

        def widened(*words, tolerance=tolerance, **options):
            env = plain(*words, **options)
            env.tolerance = tolerance
            return env

        monkeypatch.setattr(mazes, "make_maze", widened)
        scores = evaluate(policy, env_id, episodes=2, env_horizon=5)
        assert (scores.reached == reached).all()
        assert (scores.length == (1 if reached == 1 and env_id == OWN else 5)).all()
    monkeypatch.undo()
    assert evaluate(policy, env_id, episodes=1, env_horizon=2).reached.shape == (1, 1)


# -- the command line --------------------------------------------------------------------------------------------


def test_collect_convert_train_and_evaluate(tmp_path, capsys):
    def result(*words):
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    out = tmp_path / "walks.npz"
    made = result("collect", "walker", "--env", OWN, "--steps", 600, "--walk-length", 100, "--out", out)
    assert made["transitions"] >= 600
    data = load(out)
    assert data.fingerprint == walk(OWN, 600, walk_length=100).fingerprint
    assert data.length.max() == 100

    # A file of the same maze without rewards, as OGBench writes them.
    last = np.zeros(len(data.obs), bool)
    last[data.last_row] = True
    action = np.zeros((len(data.obs), 2), np.float32)
    action[data.row] = data.action
    np.savez(tmp_path / "theirs.npz", observations=data.obs, actions=action, terminals=last, qpos=data.obs)
    plain = load(tmp_path / "theirs.npz")
    assert not plain.reward.any()
    assert plain.info == {}
    mine = tmp_path / "mine.hdf5"
    assert main(["convert", str(tmp_path / "theirs.npz"), str(mine), "--set-task"]) == 2
    assert "--set-task needs a maze, but the data name no environment" in capsys.readouterr().err
    done = result("convert", tmp_path / "theirs.npz", mine, "--env", OWN, "--set-task")
    assert done["fingerprint"] == data.fingerprint
    assert load(mine).info["env_horizon"] == 500

    run = tmp_path / "run"
    tiny = ("--steps", 4, "--every", 2, "--seeds", 1, "--width", 4, "--depth", 1, "--batch", 4, "--episodes", 2)
    trained = result("train", "bc", mine, "--out", run, *tiny)
    assert trained["last"]["success"]["mean"] == 0
    assert trained["last"]["steps_to_goal"] is None
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    assert "success" in shown
    assert "0.0 %" in shown
    assert "no reference" not in shown
    # Scores that were stored before success was measured are still read.
    (file,) = (run / "scores").iterdir()
    known = json.loads(file.read_text())
    for checkpoint in known["checkpoints"].values():
        assert checkpoint.pop("reached") == [[-1, -1]]
    file.write_text(json.dumps(known))
    assert result("evaluate", run, "--episodes", 2)["last"]["success"] is None


def test_walks_stay_in_the_maze_they_were_recorded_in(tmp_path, capsys):
    """Another task of the same maze is fine, another maze is not; where nothing is set, it is said."""
    data = random_dataset(0, (4, 3), obs_dim=2)
    walks, out = str(tmp_path / "walks.npz"), str(tmp_path / "out.npz")

    def convert(recorded, *words):
        save(dataclasses.replace(data, info={"env_id": recorded} if recorded else {}), walks, overwrite=True)
        code = main(["convert", walks, out, "--overwrite", *words])
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    medium = "pointmaze-medium-singletask-task1-v0"
    different = f"the data were recorded in {medium}, whose walls are not those of {OWN}; "
    code, said = convert(medium, "--env", OWN, "--set-task")
    assert (code, said) == (2, f"trajstitch: {different}give --env a task of the maze they were recorded in")
    assert not Path(out).exists()
    code, said = convert(medium, "--env", OWN)
    assert code == 0
    assert different in said
    assert load(out).info["env_id"] == OWN
    for recorded in (OWN, "Hopper-v5", None):
        code, said = convert(recorded, "--env", OWN, "--set-task")
        assert code == 0
        assert "walls" not in said
    assert floor_plan(medium) == floor_plan(medium.replace("task1", "task5"))
    assert len({floor_plan(name) for name in IDS}) == 7


def test_an_ogbench_file_says_where_episodes_end(tmp_path):
    table = {"observations": np.zeros((5, 2)), "actions": np.zeros((5, 2)), "terminals": np.array([0, 0, 1, 0, 1])}
    np.savez(tmp_path / "a.npz", **table)
    assert load(tmp_path / "a.npz").length.tolist() == [2, 1]
    with pytest.raises(InputError, match="leave --episode-horizon out"):
        load(tmp_path / "a.npz", episode_horizon=3)
    np.savez(tmp_path / "b.npz", **table, rewards=np.zeros(5))
    with pytest.raises(InputError, match="'timeouts' is missing"):
        load(tmp_path / "b.npz")
    save(load(tmp_path / "a.npz"), tmp_path / "c.hdf5")
    assert load(tmp_path / "c.hdf5").length.tolist() == [2, 1]
