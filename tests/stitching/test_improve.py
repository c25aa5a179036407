"""Improvement whole: known worlds with hand-made models, what never changes, runs that are killed, the command."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.cli import main
from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.jobs import improve as improving
from trajstitch.jobs.improve import improve_run
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.inverse import InverseConfig
from trajstitch.models.reward import RewardConfig
from trajstitch.models.value import ValueConfig
from trajstitch.stitching import improve as stitch
from trajstitch.stitching.graph import EdgeFinder, GraphConfig
from trajstitch.stitching.improve import Improve, Models, check_data, improve
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.serialise import read_note, restore, store
from trajstitch.training.loop import Fit
from worlds import datasets, random_dataset, walk_dataset


class Anywhere:
    """Each state is most likely followed by the one a step right of it; wide, so that near ones are plausible."""

    def __init__(self, step=1.0, std=1.0):
        self.step, self.std = step, std

    def moments(self, obs):
        obs = np.asarray(obs)
        mean = np.repeat(obs[None], 2, 0).copy()
        mean[..., 0] += self.step
        return mean, np.full_like(mean, self.std)


class Difference:
    def actions(self, obs, next_obs, key):
        return np.asarray(next_obs)[:, :1] - np.asarray(obs)[:, :1]


class SecondColumn:
    """The reward of a step is the second column of where it lands."""

    def rewards(self, obs, action, next_obs, key):
        return np.asarray(next_obs)[:, 1]

    def value(self, obs):
        return np.asarray(obs)[:, 1]


OWN = Models(Anywhere(), Difference(), SecondColumn(), SecondColumn())


def line(heights, offset=0.0):
    """Steps to the right at these heights; the reward is the height landed on."""
    obs = np.stack([np.arange(len(heights)) + offset, heights], 1)
    return Trajectory(obs, np.ones((len(heights) - 1, 1)), np.array(heights[1:]), terminal=False)


def crossing() -> Dataset:
    """The first is good early, the second late; the best path takes the first's start and the second's end."""
    return from_trajectories([line([1, 1, 1, 0.1, 0.1, 0.1]), line([0.1, 0.1, 0.4, 1, 1, 1])])


def test_a_crossing_is_taken():
    result = improve(crossing(), Improve(graph=GraphConfig(epsilon=2.0)), models=OWN)
    best = max(
        sum(heights)
        for heights in ([1, 1, 0.1, 0.1, 0.1], [0.1, 0.4, 1, 1, 1], [1, 1, 1, 1, 1], [1, 0.4, 1, 1, 1])
    )
    assert result.dataset.returns[0] == pytest.approx(best)
    first = result.dataset[0]
    np.testing.assert_array_equal(first.obs[0], [0, 1])
    np.testing.assert_array_equal(first.obs[:, 0], np.arange(6))  # it never stands still or jumps
    assert result.seams.stitched[:5].sum() == 1
    assert [entry["accepted"] for entry in result.history] == [1, 0]  # until nothing is accepted


def test_seams_say_where_and_why():
    data = crossing()
    result = improve(data, Improve(graph=GraphConfig(epsilon=2.0)), models=OWN)
    seams, better = result.seams, result.dataset
    np.testing.assert_array_equal(better.obs[better.row], data.obs[seams.source])
    np.testing.assert_array_equal(better.obs[better.row + 1], data.obs[seams.target])
    at = np.flatnonzero(seams.stitched)
    assert (seams.margin[at] > 0).all()
    assert (seams.value_gain[at] > 0).all()
    np.testing.assert_allclose(better.reward[at], data.obs[seams.target[at], 1])  # the model's
    np.testing.assert_allclose(better.action[at, 0], data.obs[seams.target[at], 0] - data.obs[seams.source[at], 0])
    np.testing.assert_array_equal(seams.return_before, data.returns)


@given(
    data=datasets(max_trajectories=6, max_length=9),
    accept=st.sampled_from([0.0, 0.1]),
    ends=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_what_never_changes(data, accept, ends, seed):
    """Starts, states, unstitched steps and returns, on any data."""
    if len(data) < 2 or data.length.max() < 2 or data.obs_dim < 2:
        return
    own = Models(Anywhere(0.0, 2.0), _Actions(data.action_dim), SecondColumn(), SecondColumn())
    config = Improve(iterations=3, accept=accept, value_cut_ends=ends, graph=GraphConfig(epsilon=3.0, nearest=5))
    result = improve(data, config, seed=seed, models=own)
    better, seams = result.dataset, result.seams
    assert len(better) == len(data)
    np.testing.assert_array_equal(
        better.obs[better.start[:-1] + np.arange(len(data))], data.obs[data.start[:-1] + np.arange(len(data))]
    )
    np.testing.assert_array_equal(better.obs[better.row], data.obs[seams.source])
    plain = ~seams.stitched
    origin = seams.source[plain] - np.searchsorted(
        data.start + np.arange(len(data) + 1), seams.source[plain], "right"
    )
    np.testing.assert_array_equal(better.action[plain], data.action[origin + 1])
    np.testing.assert_array_equal(better.reward[plain], data.reward[origin + 1])
    np.testing.assert_array_equal(seams.target[plain], seams.source[plain] + 1)
    assert better.length.max() <= data.length.max()
    if ends and not data.terminal.all():
        return  # then a lower return may be better, because its cut end is worth more
    assert (better.returns >= data.returns - 1e-4 * np.abs(data.returns) - 1e-5).all()
    means = [data.returns.mean(), *(entry["return_mean"] for entry in result.history)]
    assert (np.diff(means) >= -1e-5).all()


class _Actions:
    def __init__(self, size):
        self.size = size

    def actions(self, obs, next_obs, key):
        return np.zeros((len(obs), self.size), np.float32)


def test_limits():
    base = Improve(iterations=1, accept=0.0, graph=GraphConfig(epsilon=2.0))
    free = improve(crossing(), base, models=OWN)
    assert free.seams.stitched.any()
    short = improve(crossing(), dataclasses.replace(base, max_length=2), models=OWN)
    assert short.dataset.length.max() <= 5  # a shorter one is accepted only if better
    strict = improve(crossing(), dataclasses.replace(base, accept=1e6), models=OWN)
    assert not strict.seams.stitched.any()


def test_at_most_so_many_changes():
    zigzag = [line([0.2, 1, 0.2, 1, 0.2, 1, 0.2, 1]), line([1, 0.2, 1, 0.2, 1, 0.2, 1, 0.2])]
    config = Improve(iterations=1, accept=0.0, graph=GraphConfig(metric="raw", epsilon=1.2))
    many = improve(from_trajectories(zigzag), config, models=OWN)
    assert many.seams.stitched.sum() > 4
    few = improve(from_trajectories(zigzag), dataclasses.replace(config, max_changes=1), models=OWN)
    assert np.add.reduceat(few.seams.stitched, few.dataset.start[:-1]).max() <= 1


def test_nothing_to_stitch_changes_nothing():
    data = crossing()
    for config in (Improve(graph=GraphConfig(epsilon=1e-6)), Improve(graph=GraphConfig(epsilon=2.0), accept=1e6)):
        result = improve(data, config, models=OWN)
        assert result.dataset.fingerprint == data.fingerprint
        assert not result.seams.stitched.any()


def test_own_models_into_a_run_directory(tmp_path):
    config = Improve(graph=GraphConfig(epsilon=2.0))
    in_memory = improving.improve(crossing(), config, models=OWN)
    on_disk = improving.improve(crossing(), config, models=OWN, out=tmp_path / "run")
    assert on_disk.dataset.fingerprint == in_memory.dataset.fingerprint
    assert load(tmp_path / "run" / "improved.hdf5").fingerprint == in_memory.dataset.fingerprint


def test_rewards_that_say_nothing_are_refused():
    """Zeros never do; another constant does where lengths differ, since longer is then better."""
    data = random_dataset(0, (5, 5, 5))
    for reward in (0.0, 2.0):
        with pytest.raises(InputError, match=f"all rewards are {reward:g}"):
            check_data(dataclasses.replace(data, reward=np.full(15, reward, np.float32)), Improve())
    check_data(dataclasses.replace(random_dataset(0, (5, 6)), reward=np.full(11, 2, np.float32)), Improve())


def test_what_cannot_be_stitched_is_refused():
    with pytest.raises(InputError, match="at least two trajectories"):
        improve(crossing()[:1], models=OWN)
    with pytest.raises(InputError, match="every trajectory has one step"):
        improve(from_trajectories([line([1, 2]), line([2, 1])]), models=OWN)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Models(Anywhere(), _Actions(7), SecondColumn(), SecondColumn()), "inverse model's actions have shape"),
        (Models(Anywhere(), Difference(), _Actions(1), SecondColumn()), "has no attribute|rewards"),
        (Models(Anywhere(step=np.nan), Difference(), SecondColumn(), SecondColumn()), "mean is not finite"),
        (Models(Anywhere(std=0.0), Difference(), SecondColumn(), SecondColumn()), "std must be above 0"),
    ],
)
def test_a_callers_model_that_gives_nonsense_is_refused(model, sentence):
    with pytest.raises((InputError, AttributeError), match=sentence):
        improve(crossing(), Improve(graph=GraphConfig(epsilon=2.0)), models=model)


@pytest.mark.parametrize(
    "bad",
    [
        {"iterations": 0},
        {"accept": -1.0},
        {"planner": "magic"},
        {"max_length": 0},
        {"max_changes": 0},
        {"max_repeats": -1},
    ],
)
def test_impossible_settings(bad):
    with pytest.raises(InputError):
        Improve(**bad)


def test_presets_are_the_papers_where_they_say_so():
    paper = PRESETS["paper"]
    assert (paper.inverse.kind, paper.reward.kind, paper.value.warm) == ("cvae", "wgan", False)
    assert (paper.inverse.fit.steps, paper.inverse.fit.batch) == (400_000, 100)
    assert (paper.dynamics.members, paper.dynamics.elites, paper.iterations, paper.accept) == (7, 5, 5, 0.1)
    assert (paper.max_repeats, paper.value_cut_ends, paper.inverse.latent) == (None, False, "sample")
    assert (paper.graph.metric, paper.graph.nearest, paper.reward.penalty) == ("raw", 0, 0.0)


@pytest.mark.parametrize(
    ("env_id", "epsilon"), [("Hopper-v4", 0.1), ("HalfCheetah-v5", 3.0), ("Walker2d-v2", 1.0), ("Ant-v4", None)]
)
def test_the_paper_has_an_epsilon_for_each_of_its_environments(env_id, epsilon):
    data, graph = dataclasses.replace(crossing(), info={"env_id": env_id}), PRESETS["paper"].graph
    if epsilon is None:
        with pytest.raises(InputError, match=f"{env_id}; give --graph.epsilon"):
            improve(data, PRESETS["paper"], models=OWN)
    else:
        assert EdgeFinder(data, graph).epsilon == epsilon
    assert EdgeFinder(data, dataclasses.replace(graph, epsilon=0.7)).epsilon == 0.7
    finder = EdgeFinder(data, dataclasses.replace(graph, choose_epsilon="step"))
    assert finder.epsilon == pytest.approx(1)  # the median step
    assert finder.near is None  # no cap


# -- trained models, runs, the command ---------------------------------------------------------------------------

TINY = Improve(
    iterations=2,
    accept=0.0,
    dynamics=DynamicsConfig(members=3, elites=2, width=16, fit=Fit(60, 32, 1e-2)),
    inverse=InverseConfig(width=16, fit=Fit(60, 32, 1e-2)),
    reward=RewardConfig(width=16, fit=Fit(60, 32, 1e-2)),
    value=ValueConfig(width=16, fit=Fit(60, 32, 1e-2)),
    graph=GraphConfig(epsilon=0.5, nearest=20),
)


@pytest.fixture(scope="module")
def world():
    return walk_dataset()


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    return improve_run(world, TINY, tmp_path_factory.mktemp("run") / "run")


def test_a_run_directory_holds_everything(world, finished):
    run, result = finished
    assert result.seams.stitched.any()
    assert result.dataset.returns.mean() > world.returns.mean()
    names = {path.name for path in run.path.iterdir()}
    wanted = {"config.json", "metrics.jsonl", "improved.hdf5", "seams.npz", "result.json", "report.html", "stages"}
    wanted |= {"timings.json"}
    assert wanted == names
    assert load(run.path / "improved.hdf5").fingerprint == result.dataset.fingerprint
    assert load(run.path / "improved.hdf5").seams is not None
    lines = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert {entry["model"] for entry in lines} >= {"dynamics", "inverse", "reward", "value 1"}
    assert run.settings()["data"]["fingerprint"] == world.fingerprint
    assert json.loads((run.path / "result.json").read_text())["iterations"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", ["dynamics", "inverse", "reward", "graph", "value 1"])
def test_a_killed_run_goes_on_to_the_same_bytes(world, finished, tmp_path, monkeypatch, at):
    made = []
    original = improving.store

    def dies(thing, target, note=""):
        if Path(target).stem == at.replace(" ", "-"):
            raise Killed
        original(thing, target, note)
        made.append(Path(target).stem)

    monkeypatch.setattr(improving, "store", dies)
    with pytest.raises(Killed):
        improve_run(world, TINY, tmp_path / "run")
    before = list(made)
    monkeypatch.setattr(improving, "store", lambda *a: (made.append(Path(a[1]).stem), original(*a)))
    run, _ = improve_run(world, TINY, tmp_path / "run")
    assert not set(before) & set(made[len(before) :])  # nothing was made twice
    for name in ("improved.hdf5", "seams.npz", "metrics.jsonl"):
        assert (run.path / name).read_bytes() == (finished[0].path / name).read_bytes()


def test_a_finished_run_trains_nothing_again(world, finished, monkeypatch):
    for name in ("train_dynamics", "train_inverse", "train_reward", "train_value"):
        monkeypatch.setattr(stitch, name, lambda *a, **k: pytest.fail("trained again"))
    _, result = improve_run(world, TINY, finished[0].path)
    assert result.dataset.fingerprint == finished[1].dataset.fingerprint


def test_a_kept_thing_is_recalled_whole(finished, tmp_path):
    model, history = restore(finished[0].path / "stages" / "dynamics.npz")
    store((model, history, {"a": [1, None, "x"]}), tmp_path / "x.npz", "note")
    again, log, rest = restore(tmp_path / "x.npz")
    obs = np.zeros((4, 2), np.float32)
    np.testing.assert_array_equal(again.moments(obs)[0], model.moments(obs)[0])
    assert log == history
    assert rest == {"a": [1, None, "x"]}
    assert read_note(tmp_path / "x.npz") == "note"
    assert read_note(tmp_path / "nothing.npz") == ""


def test_a_kept_file_makes_only_our_classes(tmp_path):
    description = {"note": "", "shape": {"class": "os:system", "fields": {}}}
    np.savez(tmp_path / "x.npz", description=np.array(json.dumps(description)))
    with pytest.raises(InputError, match="names 'os:system', which trajstitch does not know"):
        restore(tmp_path / "x.npz")


def test_same_seed_same_bytes_other_seed_other(world):
    one, two, other = (improve(world, TINY, seed=seed) for seed in (1, 1, 2))
    assert one.dataset.fingerprint == two.dataset.fingerprint
    assert one.training["dynamics"].held_out != other.training["dynamics"].held_out


@pytest.mark.parametrize("kind", ["gaussian", "vae", "wgan"])
def test_every_reward_model_can_stitch(world, kind):
    config = dataclasses.replace(TINY, iterations=1, reward=RewardConfig(kind, width=16, fit=Fit(60, 32, 1e-2)))
    assert improve(world, config).history


def test_the_cvae_can_stitch(world):
    config = dataclasses.replace(
        TINY, iterations=1, inverse=InverseConfig("cvae", 16, "sample", Fit(60, 32, 1e-2))
    )
    assert improve(world, config).history


def flags(config: Improve, prefix: str = "--") -> list[str]:
    words = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            words += flags(value, f"{prefix}{item.name}.")
        elif not isinstance(value, bool):
            words += [f"{prefix}{item.name.replace('_', '-')}", str(value)]
    return words


def test_the_command(world, tmp_path, capsys):
    save(world, tmp_path / "data.npz")
    out = tmp_path / "run"
    words = ["improve", str(tmp_path / "data.npz"), "--out", str(out), "--preset", "quick", *flags(TINY), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    better = load(out / "improved.npz")  # the format of the input
    assert better.fingerprint == result["fingerprint"]
    assert result["return_after"] >= result["return_before"]
    assert main(["inspect", str(out / "improved.npz")]) == 0
    assert "stitched" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--graph.epsilon", "0"], "epsilon must be above 0"),
        (["--dynamics.elites", "9"], "elites must be from 1 to"),
        (["--preset", "huge"], "no preset 'huge'"),
        (["--inverse.fit.rate", "1e30", "--inverse.fit.steps", "300"], "diverged"),
    ],
)
def test_mistakes(world, tmp_path, capsys, more, sentence):
    save(world, tmp_path / "data.npz")
    words = ["improve", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run"), *flags(TINY), *more]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_one_trajectory_is_a_mistake_that_leaves_nothing(world, tmp_path, capsys):
    save(world[:1], tmp_path / "data.npz")
    assert main(["improve", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run"), *flags(TINY)]) == 2
    assert "at least two trajectories" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
