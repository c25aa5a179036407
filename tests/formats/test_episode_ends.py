"""Files whose flags are wrong: where flags and states disagree, the states are believed, and it is said."""

import h5py
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import Dataset, concatenate
from trajstitch.formats import load, save
from trajstitch.formats.d4rl import from_table, to_table

LENGTH = 60


def ant_like(episodes: int, seed: int = 0, near: bool = False) -> np.ndarray:
    """Rows of episodes: a position that drifts through a wide maze, joints that swing, velocities that jump."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(episodes):
        begin = rng.normal(size=2) * (0.3 if near else 12)
        position = begin + np.cumsum(rng.normal(0.06, 0.04, size=(LENGTH, 2)), 0)
        phase = rng.uniform(0, 6.28, size=6) + 0.15 * np.arange(LENGTH)[:, None]
        velocity = rng.standard_t(3, size=(LENGTH, 6))
        rows.append(np.column_stack([position, np.sin(phase), velocity]))
    return np.concatenate(rows).astype(np.float32)


def table(obs: np.ndarray, **columns) -> dict[str, np.ndarray]:
    rows = len(obs)
    plain = {"actions": np.zeros((rows, 2), np.float32), "rewards": np.arange(rows, dtype=np.float32)}
    flags = {"terminals": np.zeros(rows, bool), "timeouts": np.zeros(rows, bool)}
    return {"observations": obs, **plain, **flags, **columns}


def marks(rows: int, shift: int = 0, every: int = LENGTH) -> np.ndarray:
    """A flag on every last row of an episode, or so many rows from it."""
    flags = np.zeros(rows, bool)
    flags[np.clip(np.arange(every - 1, rows, every) + shift, 0, rows - 1)] = True
    return flags


def starts_of(data: Dataset) -> list[int]:
    """The row of the file that each trajectory begins in; rewards are numbered by row."""
    return data.reward[data.start[:-1]].astype(int).tolist()


def largest_move(data: Dataset) -> float:
    return max(float(np.abs(np.diff(t.obs[:, :2], axis=0)).max()) for t in data)


@pytest.mark.parametrize("shift", [-2, -1, 3])
@pytest.mark.parametrize("near", [False, True])
def test_time_outs_beside_the_resets_are_moved_there(shift, near):
    """As in D4RL's antmaze-v0, also where episodes begin about where the last one ended."""
    obs = ant_like(15, near=near)
    right = from_table(table(obs, timeouts=marks(len(obs))), {})
    data = from_table(table(obs, timeouts=marks(len(obs), shift)), {})
    assert "moved_timeouts" not in right.info
    assert data.info["moved_by"] == -shift
    assert data.info["moved_timeouts"] >= 14
    assert set(starts_of(right)) <= set(starts_of(data))  # every reset is between two trajectories
    assert data.transitions >= right.transitions - 2


def test_few_flags_are_not_moved_but_far_resets_are_found():
    obs = ant_like(4)
    data = from_table(table(obs, timeouts=marks(len(obs), -2)), {})
    assert data.info["unmarked_cuts"] == 3
    assert largest_move(data) < 1
    assert {0, 60, 120, 180} <= set(starts_of(data))


def test_resets_without_any_flag_are_found():
    obs = ant_like(8)
    data = from_table(table(obs), {})
    assert starts_of(data) == [60 * m for m in range(8)]
    assert data.info == {"unmarked_cuts": 7, "dropped_steps": 8}


def test_a_changing_goal_shows_nearer_resets():
    obs = ant_like(8)
    obs[:, :2] /= 8  # resets are now about 5 to 15 times as large as other steps
    obs[:, :2] += np.cumsum(np.random.default_rng(1).normal(0.06, 0.04, size=(len(obs), 2)), 0).astype(np.float32)
    goal = np.repeat(np.arange(8.0), LENGTH)[:, None]
    without, found = (from_table(table(obs, **extra), {}) for extra in ({}, {"infos/goal": goal}))
    assert len(found) > len(without)
    assert set(starts_of(found)) <= {60 * m for m in range(8)}


def test_a_successor_from_the_next_episode_is_dropped():
    """Files whose next_observations are simply the next rows, across episodes."""
    obs = ant_like(6)
    after = np.concatenate([obs[1:], obs[-1:]])
    data = from_table(table(obs, timeouts=marks(len(obs)), next_observations=after), {})
    assert largest_move(data) < 1
    assert data.info["wrong_successors"] == 5
    assert data.length.tolist() == [59] * 5 + [60]
    unmarked = from_table(table(obs, next_observations=after), {})
    assert starts_of(unmarked) == starts_of(data)
    assert largest_move(unmarked) < 1


def test_terminals_stay_with_their_episodes():
    obs = ant_like(5)
    ends = marks(len(obs))
    data = from_table(table(obs, terminals=ends, next_observations=np.concatenate([obs[1:], obs[-1:]])), {})
    assert data.terminal.all()
    assert data.info["dropped_steps"] == 4


# -- nothing is cut that belongs together --------------------------------------------------------------------


def maze_stream(rows: int, seed: int = 0) -> np.ndarray:
    """A point that goes on through a maze, bouncing off walls, from goal to goal: no reset anywhere."""
    rng = np.random.default_rng(seed)
    place, speed, goal, out = np.zeros(2), np.zeros(2), np.zeros(2), []
    for t in range(rows):
        goal = rng.uniform(-5, 5, 2) if t % 97 == 0 else goal
        out.append([*place, *speed])
        speed = np.clip(0.9 * speed + 0.1 * np.sign(goal - place) + rng.normal(0, 0.02, 2), -1, 1)
        place = place + 0.1 * speed
        wall = np.abs(place) > 4
        place, speed = np.clip(place, -4, 4), np.where(wall, -0.5 * speed, speed)
    return np.array(out, np.float32)


@pytest.mark.parametrize("every", [97, 150])
def test_a_stream_without_resets_is_cut_at_its_flags_alone(every):
    obs = maze_stream(4000)
    goal = np.repeat(np.random.default_rng(0).normal(size=(42, 2)), 97, 0)[:4000]
    data = from_table(table(obs, timeouts=marks(4000, every=every), **{"infos/goal": goal}), {})
    assert data.info == {"dropped_steps": -(-4000 // every)}
    assert from_table(table(obs, **{"infos/goal": goal}), {}).info == {"dropped_steps": 1}


def test_wrapped_angles_pushed_objects_and_changing_goals_are_no_resets():
    obs = maze_stream(3000)
    angle = (np.arange(3000) * 0.003 + 3.14) % 6.28  # wraps twice
    pushed = np.cumsum(np.where((np.arange(3000) % 1000) < 5, 0.01, 0))  # at rest for 995 of 1000 steps
    goal = np.repeat([0.0, 7.0, -3.0], 1000)
    odd = np.column_stack([obs, angle, pushed, goal]).astype(np.float32)
    assert from_table(table(odd), {}).info == {"dropped_steps": 1}


@pytest.mark.parametrize("name", ["hopper", "halfcheetah", "walker2d"])
def test_recorded_episodes_are_not_cut(shared, name):
    path = shared / "replay" / f"{name}-replay.hdf5"
    data = load(path)
    assert not {"moved_timeouts", "unmarked_cuts", "wrong_successors", "dropped_steps"} & data.info.keys()
    part = data[:200]
    rows = to_table(part)
    del rows["next_observations"]
    without = from_table(rows, {})
    assert without.length.tolist() == (part.length - 1).tolist()
    assert without.info == {"dropped_steps": len(part)}
    shifted = np.roll(rows["timeouts"] | rows["terminals"], -2)
    moved = from_table(rows | {"timeouts": shifted, "terminals": np.zeros(part.transitions, bool)}, {})
    assert moved.info["moved_by"] == 2
    assert len(moved) >= len(part)


def test_data_in_our_own_files_keep_their_steps(tmp_path):
    """A step that someone recorded as one stays one in our own layouts, however large it is."""
    obs = ant_like(3)
    whole = from_table(table(obs[:LENGTH]), {})
    data = concatenate([whole, whole])
    save(data, tmp_path / "x.npz")
    assert load(tmp_path / "x.npz").fingerprint == data.fingerprint


def test_inspect_says_what_was_done(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    obs = ant_like(15)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in table(obs, timeouts=marks(len(obs), -2)).items():
            file[name] = column
        file["infos/goal"] = np.zeros(3)  # of a shape that says nothing
    assert main(["inspect", str(tmp_path / "x.hdf5")]) == 0
    out = capsys.readouterr().out
    assert "time-outs moved by 2 rows, to where the states jump" in out
    assert "last steps whose successor was not recorded" in out
