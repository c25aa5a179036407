"""Exported policies: the same actions in onnxruntime, and what cannot be exported."""

import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.policies.onnx_files import export_onnx
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import HEADS, Policy, stack
from trajstitch.policies.policy_files import save_policy
from trajstitch.training.networks import MLP, Range, Scale

onnxruntime = pytest.importorskip("onnxruntime")


def fresh(head="tanh", seed=0, obs=5, activation="relu", actions=2):
    key = jax.random.key(seed)
    scale = Scale(jnp.arange(obs, dtype=jnp.float32), jnp.linspace(0.5, 3, obs))
    sizes = [obs, 16, 16, actions if head == "tanh" else 2 * actions]
    ends = Range(jnp.linspace(-1.0, 0.0, actions), jnp.linspace(2.0, 0.5, actions))
    return Policy(scale, MLP.init(sizes, key, activation), ends, head)


def play(path, obs):
    return onnxruntime.InferenceSession(path).run(None, {"obs": obs})[0]


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("head", HEADS)
def test_actions_are_the_same(tmp_path, head, activation):
    policy = fresh(head, activation=activation)
    export_onnx(policy, tmp_path / "p.onnx", info={"env_id": "Some-v0"})
    rng = np.random.default_rng(0)
    for batch in (1, 256):  # the batch axis is free
        obs = (rng.normal(size=(batch, 5)) * 10).astype(np.float32)
        action = play(tmp_path / "p.onnx", obs)
        assert (action.dtype, action.shape) == (np.float32, (batch, 2))
        ours = jax.vmap(policy.act)(obs)
        assert np.abs(action - ours).max() < 1e-5
        assert np.ptp(ours, axis=0).min() > 0.1 or batch == 1  # not one action for all
    notes = onnxruntime.InferenceSession(tmp_path / "p.onnx").get_modelmeta().custom_metadata_map
    assert notes["env_id"] == "Some-v0"


def test_one_of_several_seeds(tmp_path, capsys):
    members = [fresh(seed=seed) for seed in range(3)]
    save_policy(stack(members), tmp_path / "policy.npz")
    target = tmp_path / "p.onnx"
    assert main(["export", str(tmp_path), str(target), "--member", "2"]) == 0  # a run directory has policy.npz
    obs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    np.testing.assert_allclose(play(target, obs), jax.vmap(members[2].act)(obs), atol=1e-5)
    for member in ([], ["--member", "3"]):
        assert main(["export", str(tmp_path / "policy.npz"), str(target), "--overwrite", *member]) == 2
        assert "there are 3 policies; choose one by --member 0 to 2" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "policy.npz"), str(target), "--member", "0"]) == 2
    assert "exists already" in capsys.readouterr().err


class Sleeper(ActionPlanner):
    def blank(self, episodes):
        return None

    def plan(self, memory, obs, begun, key):
        return obs, memory

    @property
    def obs_dim(self):
        return 1


def test_what_cannot_be_exported(tmp_path, capsys, monkeypatch):
    with pytest.raises(InputError, match=r"a planner \(Sleeper\) plans anew at every step and cannot be exported"):
        export_onnx(Sleeper(Range(jnp.zeros(1), jnp.ones(1))), tmp_path / "p.onnx")
    with pytest.raises(InputError, match="there is one policy, so its number is 0, not 1"):
        export_onnx(fresh(), tmp_path / "p.onnx", member=1)
    save_policy(fresh(), tmp_path / "p.npz")
    assert main(["export", str(tmp_path / "p.npz"), str(tmp_path / "p.pt")]) == 2
    assert "ends in .onnx" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "q.npz"), str(tmp_path / "p.onnx")]) == 2
    assert "no such policy file" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(tmp_path / "p.npz"), str(tmp_path / "p.onnx")]) == 2
    assert "pip install 'trajstitch[onnx]'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_the_example_needs_nothing_of_ours(tmp_path, monkeypatch, capsys):
    script = Path(__file__).resolve().parents[2] / "examples" / "run_onnx.py"
    assert "import trajstitch" not in script.read_text()
    assert script.read_text().count("\n") <= 20
    export_onnx(fresh(obs=3, actions=1), tmp_path / "p.onnx")
    monkeypatch.setattr(sys, "argv", ["run_onnx.py", str(tmp_path / "p.onnx"), "Pendulum-v1"])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("return -") == 3
