"""Policy files: one npz file per policy, in our format or a tanh-Gaussian's, or the policy inside a D4RL file.

A file of ours needs no pickle and no settings: layer sizes are the shapes of its arrays, and it names the head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from trajstitch.data import Info, check_finite
from trajstitch.errors import InputError
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import HEADS, Policy
from trajstitch.storage.archive import read_arrays, reading, write_arrays
from trajstitch.storage.serialise import DESCRIPTION, from_arrays, to_arrays
from trajstitch.training.networks import MLP, Linear, Range, Scale


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


def load_policy(source: str | Path) -> Policy | ActionPlanner:
    """Read a file of ours, a tanh-Gaussian npz (fc0_w, …) or the policy inside a D4RL HDF5 file."""
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: there is no such policy file")
    with reading(path):
        if path.suffix in (".hdf5", ".h5"):
            return _from_d4rl(path)
        arrays = read_arrays(path)
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                check_finite(name, array.reshape(len(array), -1) if array.ndim else array.reshape(1))
        if DESCRIPTION in arrays:
            return _planner(arrays)
        return _from_sac(arrays) if "fc0_w" in arrays else _from_own(arrays)


def policy_info(source: str | Path) -> dict[str, Any]:
    """Return what a file of ours records of the training data: environment, physics, reference scores."""
    path = Path(source)
    if path.suffix != ".npz" or not path.exists():
        return {}
    with reading(path):
        return dict(json.loads(str(read_arrays(path).get("info_json", "{}"))))


def _planner(arrays: dict[str, Any]) -> ActionPlanner:
    restored = from_arrays(arrays)
    if not isinstance(restored, ActionPlanner):
        raise InputError(f"this file holds a {type(restored).__name__}, not a policy or planner")
    return restored


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
    return Policy(scale, MLP(layers), Range(low, high), head)  # type: ignore[arg-type]  # checked above


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
    return Policy(Scale.unit(layers[0].weight.shape[1]), MLP(layers), Range(-ones, ones), "tanh-gaussian")


def _from_d4rl(path: Path) -> Policy:
    """Read the behaviour policy that D4RL's v2 files carry under metadata/policy."""
    import h5py

    if not h5py.is_hdf5(path):
        raise InputError("this is not an HDF5 file; check the download")
    names = {"fc0": "fc0", "fc1": "fc1", "mean": "last_fc", "logstd": "last_fc_log_std"}
    with h5py.File(path, "r") as file:
        group = file.get("metadata/policy")
        if group is None:
            raise InputError("this file carries no policy (metadata/policy is missing)")
        arrays = {f"{ours}_w": group[f"{theirs}/weight"][()] for ours, theirs in names.items()}
        arrays |= {f"{ours}_b": group[f"{theirs}/bias"][()] for ours, theirs in names.items()}
    return _from_sac(arrays)
