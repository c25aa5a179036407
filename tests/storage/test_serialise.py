"""Stored objects: stable names, files of version 0.1.0, and files that name what they must not."""

import dataclasses
import importlib
import inspect
import json
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.jobs.run_dir import Run
from trajstitch.methods.morel import MOReL
from trajstitch.models.dynamics import Dynamics
from trajstitch.policies.diffusion import Diffusion
from trajstitch.policies.mppi import MPPI, Cloned
from trajstitch.policies.planner import plan_all
from trajstitch.policies.policy import act_all, stack
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.stitching.graph import Graph
from trajstitch.storage import serialise
from trajstitch.storage.serialise import DESCRIPTION, NAMES, read_note, restore, store
from trajstitch.training.loop import History
from trajstitch.training.networks import MLP, Scale

OLD = Path(__file__).parent / "v0_1_0"  # made by version 0.1.0


# -- names --------------------------------------------------------------------------------------------------------


def test_every_stable_name_stands_for_a_class():
    for place in NAMES.values():
        module, _, name = place.partition(":")
        kind = getattr(importlib.import_module(f"trajstitch.{module}"), name)
        assert inspect.isclass(kind)
        assert kind.__module__ == f"trajstitch.{module}"  # defined there, not imported
    assert len(set(NAMES.values())) == len(NAMES)


def test_names_are_what_files_have():
    """A stable name is never changed: files have it. Add to this list, take nothing off."""
    assert set(NAMES) >= {
        *("scale", "range", "linear", "mlp", "history", "dynamics", "gaussian-step", "graph", "policy", "value"),
        *("inverse-inputs", "inverse-regression", "inverse-cvae"),
        *("reward-inputs", "reward-mean", "reward-gaussian", "reward-vae", "reward-wgan"),
        *("unet", "unet-conv", "unet-norm", "unet-layer", "unet-block", "unet-blocks", "unet-down", "unet-value"),
        *("mppi", "mppi-search", "mppi-step", "mppi-action", "mppi-return", "mppi-policy", "mppi-value"),
        *("diffusion", "diffusion-sampling"),
    }


@pytest.mark.parametrize("module", ["models.reward", "models.inverse", "models.unet", "policies.mppi"])
def test_every_model_has_a_name(module):
    loaded = importlib.import_module(f"trajstitch.{module}")
    own = [
        name
        for name, kind in vars(loaded).items()
        if inspect.isclass(kind) and issubclass(kind, eqx.Module) and kind.__module__ == loaded.__name__
    ]
    abstract = {"RewardNetwork"}
    assert {f"{module}:{name}" for name in own if name not in abstract} <= set(NAMES.values())


def test_what_is_stored_comes_back(tmp_path):
    net = MLP.init([3, 5, 2], jax.random.key(0), "silu")
    history = History([1], [[0.5]], [[0.25]])
    store((net, history, {"a": [1, None, "x"]}), tmp_path / "x.npz", "note")
    again, log, rest = restore(tmp_path / "x.npz")
    assert (log, rest, read_note(tmp_path / "x.npz")) == (history, {"a": [1, None, "x"]}, "note")
    assert jax.tree.structure(again) == jax.tree.structure(net)
    jax.tree.map(np.testing.assert_array_equal, again, net)
    with np.load(tmp_path / "x.npz") as file:
        described = str(file[DESCRIPTION])
    assert '"class": "mlp"' in described
    assert "trajstitch." not in described


def test_a_class_without_a_name_is_not_stored(tmp_path):
    @dataclasses.dataclass
    class Own:
        x: int = 0

    with pytest.raises(TypeError, match="has no stable name"):
        store(Own(), tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


# -- files that name what they must not ---------------------------------------------------------------------------


def described(path, shape):
    np.savez(path, **{DESCRIPTION: np.array(json.dumps({"note": "", "shape": shape}))})
    return path


@pytest.mark.parametrize(
    "name",
    [
        "trajstitch.stitching.graph:ThreadPoolExecutor",
        "trajstitch.neighbours:ThreadPoolExecutor",  # what a file of 0.1.0 could build
        "trajstitch.methods.mbop:MBOP",
        "concurrent.futures:ThreadPoolExecutor",
        "os:system",
        "newer-model",
        "trajstitch.mlp",
    ],
)
def test_an_unknown_name_is_one_sentence(tmp_path, monkeypatch, name):
    monkeypatch.setattr(serialise.importlib, "import_module", lambda *_: pytest.fail("imported"))
    path = described(tmp_path / "x.npz", {"class": name, "fields": {}})
    with pytest.raises(InputError, match=r"x\.npz: the file names .* which trajstitch does not know"):
        restore(path)


@pytest.mark.parametrize(
    "shape",
    [
        {"class": "scale", "fields": {"mean": {"value": 1}}},  # a field is missing
        {"class": "scale", "fields": {"mean": {"value": 1}, "std": {"value": 1}, "more": {"value": 1}}},
        {"class": "scale", "fields": {"mean": {"array": "gone"}, "std": {"value": 1}}},
        {"class": "scale"},
        {"nothing": 1},
        ["list"],
        {"class": "mppi-search", "fields": {"horizon": {"value": "x"}}},
    ],
)
def test_a_damaged_description_is_one_sentence(tmp_path, shape):
    with pytest.raises(InputError, match=r"x\.npz: "):
        restore(described(tmp_path / "x.npz", shape))


def test_an_unknown_name_in_a_planner_ends_the_command_with_2(tmp_path, capsys):
    path = described(tmp_path / "planner.npz", {"class": "newer-planner", "fields": {}})
    assert main(["evaluate", str(path), "--env", "Hopper-v5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "planner.npz: the file names 'newer-planner', which trajstitch does not know" in error


# -- files of version 0.1.0 ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    return load(OLD / "data.npz")


@pytest.mark.parametrize(("name", "kind"), [("mbop", MPPI), ("tsmbop", MPPI), ("diffuser", Diffusion)])
def test_an_old_planner_acts_and_is_stored_by_its_new_name(name, kind, data, tmp_path):
    planner = load_policy(OLD / f"{name}.npz")
    assert isinstance(planner, kind)
    save_policy(planner, tmp_path / "new.npz")
    again = load_policy(tmp_path / "new.npz")
    jax.tree.map(np.testing.assert_array_equal, planner, again)
    assert jax.tree.structure(planner) == jax.tree.structure(again)
    many = stack([planner])
    memory = many.blank(4) if name != "diffuser" else ()
    action, _ = plan_all(many, memory, jnp.asarray(data.obs[:4])[None], jnp.ones((1, 4), bool), jax.random.key(0))
    assert action.shape == (1, 4, 2)
    assert np.isfinite(action).all()
    if name == "tsmbop":
        assert isinstance(planner.prior, Cloned)


@pytest.mark.parametrize("damage", ["shape", "scale", "nan"])
def test_a_planner_that_cannot_plan_is_not_loaded(damage, tmp_path):
    planner = load_policy(OLD / "mbop.npz")
    change, where = {
        "shape": (lambda leaf: leaf[..., :-1], lambda p: p.step.net.layers[0].weight),
        "scale": (lambda leaf: 0 * leaf, lambda p: p.step.change.std),
        "nan": (lambda leaf: leaf + jnp.nan, lambda p: p.step.net.layers[0].weight),
    }[damage]
    save_policy(eqx.tree_at(where, planner, replace_fn=change), tmp_path / "x.npz")
    why = {"shape": "do not fit each other", "scale": "each std must be above 0", "nan": "is nan"}[damage]
    with pytest.raises(InputError, match=rf"x\.npz: .*{why}"):
        load_policy(tmp_path / "x.npz")


def test_an_old_policy_acts(data):
    policy = load_policy(OLD / "bc-run" / "policy.npz")
    action = act_all(policy, jnp.broadcast_to(data.obs[:4], (2, 4, 3)), None)
    assert action.shape == (2, 4, 2)


def test_the_stages_of_an_old_improvement_load():
    stages = {file.stem: restore(file) for file in (OLD / "improve-run" / "stages").glob("*.npz")}
    assert stages.keys() == {"dynamics", "inverse", "reward", "graph", "value-1"}
    assert isinstance(stages["graph"], Graph)
    model, history = stages["dynamics"]
    assert isinstance(model, Dynamics)
    assert isinstance(history, History)
    assert isinstance(model.member.scale, Scale)
    assert all(read_note(file) for file in (OLD / "improve-run" / "stages").glob("*.npz"))


def test_the_data_of_an_old_improvement_load():
    improved = load(OLD / "improve-run" / "improved.npz")
    assert improved.seams is not None
    assert len(improved.seams.stitched) == improved.transitions


def train_again(method, out, **settings):
    """The command that made an old run, with the names its settings have today."""
    settings = {"every": 2, "steps": 4, "batch": 8, "width": 8, "depth": 1, **settings}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words = ["train", method, str(OLD / "data.npz"), "--out", str(out), "--no-evaluation", "--quiet", *words]
    return main(words)


def test_an_old_finished_run_is_known_as_finished(tmp_path):
    shutil.copytree(OLD / "bc-run", tmp_path / "run")
    before = (tmp_path / "run" / "policy.npz").read_bytes()
    assert train_again("bc", tmp_path / "run", seeds=2, schedule="constant") == 0  # what it was trained with
    assert (tmp_path / "run" / "policy.npz").read_bytes() == before
    assert Run.existing(tmp_path / "run").steps() == [2, 4]


def test_an_old_unfinished_run_goes_on(tmp_path, monkeypatch):
    """Its settings are read by their new names, its world model and its state as they were."""
    shutil.copytree(OLD / "morel-unfinished", tmp_path / "run")
    checkpoint = (tmp_path / "run" / "checkpoints" / "000000002.npz").read_bytes()
    monkeypatch.setattr(MOReL, "prepare", lambda *_: pytest.fail("the world model was trained again"))
    world = {"world_steps": 4, "world_width": 8, "world_depth": 1}
    rollouts = {"rollouts": 4, "rollout_steps": 2, "rollout_interval": 2}
    assert train_again("morel", tmp_path / "run", seeds=1, **rollouts, **world) == 0
    run = Run.existing(tmp_path / "run")
    assert run.steps() == [2, 4]
    assert run.checkpoint(2).read_bytes() == checkpoint  # it did not begin anew
    assert [line["step"] for line in run.metrics()] == [2, 4]


def test_an_old_improvement_goes_on_under_the_new_names_of_its_settings():
    settings = Run.existing(OLD / "improve-run").settings()["config"]
    assert settings["max_length"] is None
    assert "horizon" not in settings
    assert settings["dynamics"]["patience"] == 0
    assert settings["dynamics"]["fit"] == {"steps": 4, "batch": 8, "rate": 1e-3}
