"""Policies: files, heads, ranges."""

import json

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.policies.policy import HEADS, Policy, act_all, stack, stacked
from trajstitch.policies.policy_files import load_policy, policy_info, save_policy
from trajstitch.training.networks import MLP, Range, Scale


def fresh(head="tanh", seed=0, obs=4, low=(-1.0, 0.0), high=(2.0, 0.5)):
    scale = Scale(jnp.arange(obs, dtype=jnp.float32), jnp.full(obs, 2.0))
    return Policy.init(scale, Range(jnp.array(low), jnp.array(high)), jax.random.key(seed), head, width=16)


@pytest.mark.parametrize("head", HEADS)
def test_saves_and_loads_to_the_same_actions(tmp_path, head):
    policy = stack([fresh(head, seed) for seed in range(3)])
    save_policy(policy, tmp_path / "p.npz", {"env_id": "X"})
    again = load_policy(tmp_path / "p.npz")
    obs = jax.random.normal(jax.random.key(1), (3, 7, 4))
    for key in (None, jax.random.key(2)):
        np.testing.assert_array_equal(act_all(again, obs, key), act_all(policy, obs, key))
    assert again.head == head
    assert again.count == 3
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:  # no pickle inside
        assert json.loads(str(archive["info_json"])) == {"env_id": "X"}


@pytest.mark.parametrize("head", HEADS)
def test_actions_stay_in_range(head):
    policy = stacked(fresh(head))
    obs = 1e3 * jax.random.normal(jax.random.key(1), (1, 500, 4))
    for key in (None, jax.random.key(2)):
        action = np.asarray(act_all(policy, obs, key))[0]
        assert (action >= [-1.0, 0.0]).all()
        assert (action <= np.float32([2.0, 0.5])).all()


def test_a_stack_plays_as_its_members_alone():
    members = [fresh("tanh-gaussian", seed) for seed in range(3)]
    obs = jax.random.normal(jax.random.key(1), (3, 5, 4))
    together = act_all(stack(members), obs, None)
    for member, rows, actions in zip(members, obs, together, strict=True):
        np.testing.assert_allclose(actions, jax.vmap(member.act)(rows), rtol=1e-5, atol=1e-6)


def test_the_scale_is_inside():
    """The same network on raw numbers and, with the scale's inverse, on scaled ones."""
    policy = fresh()
    plain = Policy(Scale.unit(4), policy.net, policy.range, policy.head)
    obs = jnp.array([3.0, -1.0, 0.5, 8.0])
    np.testing.assert_allclose(policy.act(obs), plain.act((obs - jnp.arange(4)) / 2), rtol=1e-6)


def test_a_constant_column_is_only_centred():
    rows = np.random.default_rng(0).normal(size=(50, 3))
    rows[:, 1] = 7
    scaled = np.asarray(jax.vmap(Scale.of(rows))(jnp.asarray(rows, jnp.float32)))
    assert np.isfinite(scaled).all()
    np.testing.assert_allclose(scaled[:, 1], 0, atol=1e-5)
    np.testing.assert_allclose(scaled[:, [0, 2]].std(0), 1, rtol=1e-3)


def plain_tanh_gaussian(arrays, obs):
    h = np.maximum(arrays["fc0_w"] @ obs + arrays["fc0_b"], 0)
    h = np.maximum(arrays["fc1_w"] @ h + arrays["fc1_b"], 0)
    return np.tanh(arrays["mean_w"] @ h + arrays["mean_b"])


def sac_arrays(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"fc0": (8, 4), "fc1": (8, 8), "mean": (2, 8), "logstd": (2, 8)}
    return {f"{k}_w": rng.normal(size=s) / 3 for k, s in shapes.items()} | {
        f"{k}_b": rng.normal(size=s[0]) / 3 for k, s in shapes.items()
    }


def test_tanh_gaussian_files_agree_with_a_plain_forward_pass(tmp_path):
    arrays = sac_arrays()
    np.savez(tmp_path / "sac.npz", **arrays)
    policy = load_policy(tmp_path / "sac.npz")
    obs = np.array([0.3, -2.0, 1.0, 0.1])
    np.testing.assert_allclose(policy.act(jnp.asarray(obs)), plain_tanh_gaussian(arrays, obs), rtol=1e-5)
    drawn = jax.vmap(policy.act, (None, 0))(jnp.asarray(obs), jax.random.split(jax.random.key(0), 4000))
    pre = np.arctanh(np.clip(np.asarray(drawn, np.float64), -0.9999999, 0.9999999))
    hidden = np.maximum(arrays["fc0_w"] @ obs + arrays["fc0_b"], 0)
    hidden = np.maximum(arrays["fc1_w"] @ hidden + arrays["fc1_b"], 0)
    std = np.exp(arrays["logstd_w"] @ hidden + arrays["logstd_b"])
    np.testing.assert_allclose(pre.std(0), std, rtol=0.1)


def test_the_policy_inside_a_d4rl_file(shared, tmp_path):
    inside = load_policy(shared / "d4rl-excerpts" / "hopper_medium-v2.hdf5")
    beside = load_policy(shared / "policies" / "d4rl-hopper-medium-v2.npz")
    obs = jax.random.normal(jax.random.key(0), (1, 9, 11))
    np.testing.assert_array_equal(act_all(stacked(inside), obs, None), act_all(stacked(beside), obs, None))


def test_weights_must_be_finite_numbers_of_fitting_shapes(tmp_path):
    arrays = sac_arrays()
    np.savez(tmp_path / "nan.npz", **{**arrays, "fc1_w": np.full((8, 8), np.nan)})
    with pytest.raises(InputError, match=r"nan\.npz: fc1_w\[0, 0\] is nan"):
        load_policy(tmp_path / "nan.npz")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"layer1_weight": np.full((8, 8), np.nan)}, r"layer1_weight\[0, 0\] is nan"),
        ({"layer1_weight": np.full((8, 8), 1e300)}, r"layer1_weight\[0, 0\] is inf"),
        ({"scale_std": np.zeros(4)}, "each std must be above 0"),
        ({"scale_std": np.ones(3)}, "as many means as stds"),
        (
            {"scale_mean": np.zeros(5), "scale_std": np.ones(5)},
            r"layer 0 has weights of shape \(8, 4\) .*not \(8, 5\)",
        ),
        ({"layer1_bias": np.zeros(7)}, r"layer 1 has weights of shape \(8, 8\) .*not \(7, 8\)"),
        ({"layer2_bias": np.float32(0)}, "do not fit each other"),
        ({"low": np.array([3.0, 0.0])}, "must not exceed the highest"),
        ({"low": np.zeros(3), "high": np.ones(3)}, "3 actions for the head 'tanh'"),
        ({"layer0_weight": np.array([["a"]])}, "damaged"),
    ],
)
def test_a_policy_that_cannot_act_is_not_loaded(tmp_path, arrays, sentence):
    policy = fresh()
    policy = Policy(policy.scale, MLP.init([4, 8, 8, 2], jax.random.key(0)), policy.range, "tanh")
    save_policy(policy, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as archive:
        np.savez(tmp_path / "q.npz", **{**archive, **arrays})
    load_policy(tmp_path / "p.npz")
    with pytest.raises(InputError, match=rf"q\.npz: .*{sentence}"):
        load_policy(tmp_path / "q.npz")
    assert main(["evaluate", str(tmp_path / "q.npz"), "--env", "Hopper-v5"]) == 2


def test_a_policy_inside_a_d4rl_file_must_be_finite(tmp_path):
    names = {"fc0": "fc0", "fc1": "fc1", "last_fc": "mean", "last_fc_log_std": "logstd"}
    arrays = sac_arrays()
    arrays["fc0_b"] = np.full_like(arrays["fc0_b"], np.inf)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for theirs, ours in names.items():
            file[f"metadata/policy/{theirs}/weight"] = arrays[f"{ours}_w"]
            file[f"metadata/policy/{theirs}/bias"] = arrays[f"{ours}_b"]
    with pytest.raises(InputError, match=r"fc0_b\[0, 0\] is inf"):
        load_policy(tmp_path / "x.hdf5")


def test_a_policy_file_knows_its_data(tmp_path):
    save_policy(fresh(), tmp_path / "p.npz", {"env_id": "Hopper-v4", "physics": "d4rl"})
    assert policy_info(tmp_path / "p.npz") == {"env_id": "Hopper-v4", "physics": "d4rl"}
    assert policy_info(tmp_path / "none.npz") == {}


def test_what_is_no_policy_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such policy"):
        load_policy(tmp_path / "none.npz")
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="'head' is missing"):
        load_policy(tmp_path / "x.npz")
    arrays = sac_arrays()
    del arrays["mean_b"]
    np.savez(tmp_path / "y.npz", **arrays)
    with pytest.raises(InputError, match="'mean_b' is missing"):
        load_policy(tmp_path / "y.npz")
    save_policy(fresh(), tmp_path / "z.npz")
    with np.load(tmp_path / "z.npz") as archive:
        np.savez(tmp_path / "w.npz", **{**archive, "head": np.array("relu")})
    with pytest.raises(InputError, match="head 'relu'"):
        load_policy(tmp_path / "w.npz")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.zeros(3)
    with pytest.raises(InputError, match="carries no policy"):
        load_policy(tmp_path / "a.hdf5")
