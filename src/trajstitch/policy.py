"""Policy: a network from raw observations to actions in range, one file without pickle, P of them stacked.

Every array of a Policy may have a leading axis P: that many policies of one shape, trained or played together.
The file alone says what the policy is: layer sizes are the shapes of its arrays, the head is named in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import Info, check_finite
from trajstitch.errors import InputError
from trajstitch.formats import reading
from trajstitch.formats.npz import read_arrays, write_arrays
from trajstitch.keep import DESCRIPTION, from_arrays, to_arrays
from trajstitch.nets import MLP, Linear, Range, Scale
from trajstitch.planner import Planner

Played = TypeVar("Played", bound="Policy | Planner")
Head = Literal["tanh", "gaussian", "tanh-gaussian"]
HEADS: tuple[Head, ...] = ("tanh", "gaussian", "tanh-gaussian")
LOG_STD = (-20.0, 2.0)  # bounds of a Gaussian head, as SAC has them


class Policy(eqx.Module):
    """ReLU layers and a head.

    tanh             deterministic, squashed into [low, high]
    gaussian         mean and log std in action units, clipped to [low, high]
    tanh-gaussian    mean and log std before squashing, as SAC has it
    """

    scale: Scale
    net: MLP
    range: Range
    head: Head = eqx.field(static=True)

    @staticmethod
    def init(
        scale: Scale, range: Range, key: Array, head: Head = "tanh", width: int = 256, depth: int = 2
    ) -> Policy:
        """A fresh network of `depth` hidden layers."""
        actions = len(range.low)
        sizes = [len(scale.mean), *[width] * depth, actions if head == "tanh" else 2 * actions]
        return Policy(scale, MLP.init(sizes, key), range, head)

    def __call__(self, obs: Array) -> Array:
        """What the last layer says of one observation [S]."""
        return self.net(self.scale(obs))

    def moments(self, obs: Array) -> tuple[Array, Array]:
        """Mean and log std of a Gaussian head for one observation, before any squashing."""
        mean, log_std = jnp.split(self(obs), 2)
        return mean, jnp.clip(log_std, *LOG_STD)

    def act(self, obs: Array, key: Array | None = None) -> Array:
        """The action for one observation: drawn with a key, the most likely one without."""
        if self.head == "tanh":
            return self.range(self(obs))
        mean, log_std = self.moments(obs)
        if key is not None:
            mean = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return jnp.clip(mean, self.range.low, self.range.high) if self.head == "gaussian" else self.range(mean)

    @property
    def obs_dim(self) -> int:
        """S."""
        return self.scale.mean.shape[-1]

    @property
    def action_dim(self) -> int:
        """A."""
        return self.range.low.shape[-1]

    @property
    def count(self) -> int | None:
        """P, or None for a single policy."""
        return self.range.low.shape[0] if self.range.low.ndim == 2 else None


def stack(policies: Sequence[Played]) -> Played:
    """One Policy or Planner with a leading axis P."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)


def stacked(policy: Played) -> Played:
    """The policy or planner with its axis P, of length 1 where it had none."""
    return stack([policy]) if policy.count is None else policy


@eqx.filter_jit
def act_all(policy: Policy, obs: Array, key: Array | None) -> Array:
    """Actions [P, B, A] of P policies, each for its own observations [P, B, S]."""
    if key is None:
        return eqx.filter_vmap(lambda one, rows: jax.vmap(one.act)(rows))(policy, obs)
    keys = jax.random.split(key, obs.shape[:2])
    return eqx.filter_vmap(lambda one, rows, ks: jax.vmap(one.act)(rows, ks))(policy, obs, keys)


# -- files -----------------------------------------------------------------------------------------------------


def save_policy(
    policy: Policy | Planner, target: str | Path, info: Info | None = None, overwrite: bool = False
) -> None:
    """One npz file; `info` (environment, physics, …) goes with it."""
    if not isinstance(policy, Policy):
        write_arrays(target, to_arrays(policy), info or {}, overwrite)
        return
    arrays = {"head": np.array(policy.head), "low": policy.range.low, "high": policy.range.high}
    arrays |= {"scale_mean": policy.scale.mean, "scale_std": policy.scale.std}
    for i, layer in enumerate(policy.net.layers):
        arrays |= {f"layer{i}_weight": layer.weight, f"layer{i}_bias": layer.bias}
    write_arrays(target, {k: np.asarray(v) for k, v in arrays.items()}, info or {}, overwrite)


def load_policy(source: str | Path) -> Policy | Planner:
    """What is in a file of ours, a tanh-Gaussian npz (fc0_w, …) or the policy inside a D4RL HDF5 file."""
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
    """What a policy file of ours says of the data it was trained on: environment, physics, reference scores."""
    path = Path(source)
    if path.suffix != ".npz" or not path.exists():
        return {}
    with reading(path):
        return dict(json.loads(str(read_arrays(path).get("info_json", "{}"))))


def _planner(arrays: dict[str, Any]) -> Planner:
    kept = from_arrays(arrays)
    if not isinstance(kept, Planner):
        raise InputError(f"this file holds a {type(kept).__name__}, not a policy or planner")
    return kept


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
    """Two ReLU layers, then mean and log std side by side; weights are out x in."""
    try:
        last = (
            np.concatenate([arrays["mean_w"], arrays["logstd_w"]]),
            np.concatenate([arrays["mean_b"], arrays["logstd_b"]]),
        )
        pairs = [(arrays["fc0_w"], arrays["fc0_b"]), (arrays["fc1_w"], arrays["fc1_b"]), last]
    except KeyError as error:
        raise InputError(f"the key {error} is missing; a tanh-Gaussian policy needs it") from error
    layers = tuple(Linear(jnp.asarray(w, jnp.float32), jnp.asarray(b, jnp.float32)) for w, b in pairs)
    ends = jnp.ones(len(arrays["mean_b"]))
    return Policy(Scale.unit(layers[0].weight.shape[1]), MLP(layers), Range(-ends, ends), "tanh-gaussian")


def _from_d4rl(path: Path) -> Policy:
    """The behaviour policy that D4RL's v2 files carry under metadata/policy."""
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
