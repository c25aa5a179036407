"""Policy files: one npz file per policy, in our format or a tanh-Gaussian's, or the policy inside a D4RL file.

A file of ours needs no pickle and no settings: layer sizes are the shapes of its arrays, and it names the head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset, Info, as_float32, check_finite
from trajstitch.errors import InputError
from trajstitch.policies.planner import ActionPlanner, plan_all
from trajstitch.policies.policy import HEADS, Policy, stacked
from trajstitch.storage.archive import INFO, read_arrays, reading, reason, write_arrays
from trajstitch.storage.serialise import DESCRIPTION, from_arrays, to_arrays
from trajstitch.training.networks import MLP, Linear, Range, Scale, pick


def save_policy(
    policy: Policy | ActionPlanner, target: str | Path, info: Info | None = None, overwrite: bool = False
) -> None:
    """Write a policy or planner to one npz file.

    Arguments:
        policy: the policy or planner, single or stacked.
        target: path of the file.
        info: facts to store with it, such as environment and physics.
        overwrite: whether an existing file may be replaced.
    """
    if not isinstance(policy, Policy):
        write_arrays(target, to_arrays(policy), info or {}, overwrite)
        return
    arrays = {"head": np.array(policy.head), "low": policy.range.low, "high": policy.range.high}
    arrays |= {"scale_mean": policy.scale.mean, "scale_std": policy.scale.std}
    for i, layer in enumerate(policy.net.layers):
        arrays |= {f"layer{i}_weight": layer.weight, f"layer{i}_bias": layer.bias}
    write_arrays(target, {k: np.asarray(v) for k, v in arrays.items()}, info or {}, overwrite)


def policies_for(data: Dataset, source: str | Path, seed: int | None = None) -> Policy:
    """Return the policies of a file or run, or the one of this number; InputError unless they act on such data."""
    found = stacked(load_policy(Path(source) / "policy.npz" if Path(source).is_dir() else source))
    if not isinstance(found, Policy):
        raise InputError(f"{source} holds a planner, not a policy; give a policy, such as that of bc or rebrac")
    have, want = (found.obs_dim, found.action_dim), (data.obs_dim, data.action_dim)
    check_same_sizes(f"{source} takes", have, "the data have", want, "give a policy of the same environment")
    if seed is None:
        return found
    many = found.count or 1
    if not 0 <= seed < many:
        raise InputError(f"{source} holds {many} policies, so there is no number {seed}; count from 0")
    return pick(found, seed)


def load_policy(source: str | Path) -> Policy | ActionPlanner:
    """Read a file of ours, a tanh-Gaussian npz (fc0_w, …) or the policy inside a D4RL HDF5 file."""
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: there is no such policy file")
    with reading(path):
        if path.suffix in (".hdf5", ".h5"):
            return _from_sac(_checked(_d4rl_arrays(path)))
        arrays = _checked(read_arrays(path))
        if DESCRIPTION in arrays:
            return _planner(arrays)
        return _from_sac(arrays) if "fc0_w" in arrays else _from_own(arrays)


def policy_info(source: str | Path) -> dict[str, Any]:
    """Return what a file of ours records of the training data: environment, physics, reference scores."""
    path = Path(source)
    if path.suffix != ".npz" or not path.exists():
        return {}
    with reading(path):
        return dict(json.loads(str(read_arrays(path, [INFO]).get(INFO, "{}"))))


def _checked(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays with floats as float32; InputError if a number is nan or inf, or too large to be one."""
    checked = {}
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            array = as_float32(array)
            check_finite(name, array.reshape(len(array), -1) if array.ndim else array.reshape(1))
        checked[name] = array
    return checked


def _planner(arrays: dict[str, Any]) -> ActionPlanner:
    restored = from_arrays(arrays)
    if not isinstance(restored, ActionPlanner):
        raise InputError(f"this file holds a {type(restored).__name__}, not a policy or planner")
    for part in jax.tree.leaves(restored, is_leaf=lambda node: isinstance(node, Scale)):
        if isinstance(part, Scale):
            _check_scale(part)
    _check_range(restored.range)
    planners = stacked(restored)
    count = planners.range.low.shape[0]
    try:  # nothing is computed: only whether all shapes fit is found out
        memory = eqx.filter_eval_shape(planners.blank, 1)
        obs, begun = jnp.zeros((count, 1, planners.obs_dim)), jnp.ones((count, 1), bool)
        action, _ = eqx.filter_eval_shape(plan_all, planners, memory, obs, begun, jax.random.key(0))
    except Exception as error:
        raise InputError(f"the arrays of this planner do not fit each other ({reason(error)})") from error
    if action.shape != (count, 1, planners.action_dim):
        raise InputError(f"this planner gives actions of shape {action.shape[2:]}, not of its range")
    return restored


def _check_scale(scale: Scale) -> None:
    if scale.mean.shape != scale.std.shape or not (scale.std > 0).all():
        raise InputError("a scale must have as many means as stds, and each std must be above 0; train it again")


def _check_range(range: Range) -> None:
    if range.low.shape != range.high.shape or not (range.low <= range.high).all():
        raise InputError("the lowest actions (low) must not exceed the highest (high); train it again")


def _check_policy(policy: Policy) -> Policy:
    """Return the policy; InputError if its arrays do not fit each other or cannot give an action."""
    _check_scale(policy.scale)
    _check_range(policy.range)
    stack = policy.range.low.shape[:-1]
    outputs = policy.action_dim if policy.head == "tanh" else 2 * policy.action_dim
    sizes = [policy.obs_dim, *(layer.bias.shape[-1] if layer.bias.ndim else 0 for layer in policy.net.layers)]
    if len(stack) > 1 or policy.scale.mean.shape != (*stack, sizes[0]) or sizes[-1] != outputs:
        raise InputError(
            f"scale, layers and range do not fit each other: {sizes[0]} observations, {sizes[-1]} outputs, "
            f"{policy.action_dim} actions for the head {policy.head!r}"
        )
    for i, layer in enumerate(policy.net.layers):
        shape = (*stack, sizes[i + 1], sizes[i])
        if layer.weight.shape != shape or layer.bias.shape != shape[:-1]:
            raise InputError(
                f"layer {i} has weights of shape {layer.weight.shape} and biases of shape {layer.bias.shape}, "
                f"not {shape} and {shape[:-1]}"
            )
    return policy


def _from_own(arrays: dict[str, Any]) -> Policy:
    try:
        head = str(arrays["head"])
        count = sum(name.endswith("_weight") for name in arrays)
        layers = tuple(
            Linear(jnp.asarray(arrays[f"layer{i}_weight"]), jnp.asarray(arrays[f"layer{i}_bias"]))
            for i in range(count)
        )
        scale = Scale(jnp.asarray(arrays["scale_mean"]), jnp.asarray(arrays["scale_std"]))
        low, high = jnp.asarray(arrays["low"]), jnp.asarray(arrays["high"])
    except KeyError as error:
        raise InputError(f"the key {error} is missing; this is not a policy file of trajstitch") from error
    if head not in HEADS or not layers:
        raise InputError(f"the head {head!r} is not one of {', '.join(HEADS)}, or there is no layer")
    return _check_policy(Policy(scale, MLP(layers), Range(low, high), head))  # type: ignore[arg-type]  # checked


def _from_sac(arrays: dict[str, Any]) -> Policy:
    """Build a policy of two ReLU layers, then mean and log std side by side; weights are [out, in]."""
    try:
        last = (
            np.concatenate([arrays["mean_w"], arrays["logstd_w"]]),
            np.concatenate([arrays["mean_b"], arrays["logstd_b"]]),
        )
        pairs = [(arrays["fc0_w"], arrays["fc0_b"]), (arrays["fc1_w"], arrays["fc1_b"]), last]
    except KeyError as error:
        raise InputError(f"the key {error} is missing; a tanh-Gaussian policy needs it") from error
    layers = tuple(Linear(jnp.asarray(w, jnp.float32), jnp.asarray(b, jnp.float32)) for w, b in pairs)
    ones = jnp.ones(len(arrays["mean_b"]))
    scale = Scale.unit(layers[0].weight.shape[1])
    return _check_policy(Policy(scale, MLP(layers), Range(-ones, ones), "tanh-gaussian"))


def _d4rl_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the behaviour policy that D4RL's v2 files carry under metadata/policy."""
    from trajstitch.storage.hdf5 import check_arrays, open_hdf5

    names = {"fc0": "fc0", "fc1": "fc1", "mean": "last_fc", "logstd": "last_fc_log_std"}
    with open_hdf5(path) as file:
        group = file.get("metadata/policy")
        if group is None:
            raise InputError("this file carries no policy (metadata/policy is missing)")
        arrays = {f"{ours}_w": group[f"{theirs}/weight"] for ours, theirs in names.items()}
        arrays |= {f"{ours}_b": group[f"{theirs}/bias"] for ours, theirs in names.items()}
        check_arrays(path, arrays)
        return {name: array[()] for name, array in arrays.items()}
