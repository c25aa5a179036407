"""Serialise: store any of our dataclasses (models, graphs, policies) in one npz file, without pickle.

The file holds the arrays and a JSON description of the objects they belong to. The description names classes by
the stable names below, so code can move without breaking files, and a file can only create listed classes.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.errors import InputError
from trajstitch.storage.archive import read_arrays
from trajstitch.storage.atomic import replacing

DESCRIPTION = "description"  # its key in the file

# Stable name: the module and class it stands for today. A name is never reused; a class that moves keeps its name.
NAMES: dict[str, str] = {
    "scale": "training.networks:Scale",
    "range": "training.networks:Range",
    "linear": "training.networks:Linear",
    "mlp": "training.networks:MLP",
    "history": "training.loop:History",
    "dynamics": "models.dynamics:Dynamics",
    "gaussian-step": "models.dynamics:GaussianStep",
    "inverse-inputs": "models.inverse:InverseInputs",
    "inverse-regression": "models.inverse:Regression",
    "inverse-cvae": "models.inverse:CVAE",
    "reward-inputs": "models.reward:RewardInputs",
    "reward-mean": "models.reward:Mean",
    "reward-gaussian": "models.reward:Gaussian",
    "reward-vae": "models.reward:VAE",
    "reward-wgan": "models.reward:WGAN",
    "value": "models.value:Value",
    "unet": "models.unet:UNet",
    "unet-conv": "models.unet:Conv",
    "unet-norm": "models.unet:Norm",
    "unet-layer": "models.unet:Layer",
    "unet-block": "models.unet:Block",
    "unet-blocks": "models.unet:Blocks",
    "unet-down": "models.unet:Down",
    "unet-value": "models.unet:WindowValue",
    "action-dynamics": "models.world_model:ActionDynamics",
    "graph": "stitching.graph:Graph",
    "policy": "policies.policy:Policy",
    "mppi": "policies.mppi:MPPI",
    "mppi-search": "policies.mppi:PlanSearch",
    "mppi-step": "policies.mppi:StepModel",
    "mppi-action": "policies.mppi:ActionModel",
    "mppi-return": "policies.mppi:ReturnModel",
    "mppi-policy": "policies.mppi:Cloned",
    "mppi-value": "policies.mppi:StateEnd",
    "diffusion": "policies.diffusion:Diffusion",
    "diffusion-sampling": "policies.diffusion:Sampling",
}

# Their names in files of version 0.1.0, without the leading "trajstitch.".
_FORMER: dict[str, str] = {
    "nets:Scale": "scale",
    "nets:Range": "range",
    "nets:Linear": "linear",
    "nets:MLP": "mlp",
    "fit:History": "history",
    "dynamics:Dynamics": "dynamics",
    "dynamics:GaussianStep": "gaussian-step",
    "inverse:Reach": "inverse-inputs",
    "inverse:Regression": "inverse-regression",
    "inverse:CVAE": "inverse-cvae",
    "reward:Given": "reward-inputs",
    "reward:Mean": "reward-mean",
    "reward:Gaussian": "reward-gaussian",
    "reward:VAE": "reward-vae",
    "reward:WGAN": "reward-wgan",
    "value:Value": "value",
    "unet:UNet": "unet",
    "unet:Conv": "unet-conv",
    "unet:Norm": "unet-norm",
    "unet:Layer": "unet-layer",
    "unet:Block": "unet-block",
    "unet:Blocks": "unet-blocks",
    "unet:Down": "unet-down",
    "unet:WindowValue": "unet-value",
    "graph:Graph": "graph",
    "policy:Policy": "policy",
    "mppi:MPPI": "mppi",
    "mppi:Search": "mppi-search",
    "mppi:StepModel": "mppi-step",
    "mppi:ActionModel": "mppi-action",
    "mppi:ReturnModel": "mppi-return",
    "mppi:Cloned": "mppi-policy",
    "mppi:StateEnd": "mppi-value",
    "diffusion:Diffusion": "diffusion",
    "diffusion:Sampling": "diffusion-sampling",
}
_NAME_OF = {f"trajstitch.{place}": name for name, place in NAMES.items()}


def store(thing: Any, target: str | Path, note: str = "") -> None:
    """Write `thing` (dataclasses, named tuples, lists, dicts, arrays, numbers, strings) and a note."""
    with replacing(target, overwrite=True) as part, part.open("wb") as file:
        np.savez(file, **to_arrays(thing, note))


def restore(path: str | Path) -> Any:
    """Read back what `store` wrote."""
    arrays = read_arrays(Path(path))
    if DESCRIPTION not in arrays:
        raise InputError(f"{path}: this is not a file stored by trajstitch")
    try:
        return from_arrays(arrays)
    except InputError as error:
        raise error.within(str(path)) from error


def read_note(path: Path) -> str:
    """Return the note in a stored file; empty if there is no such file."""
    if not path.exists():
        return ""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # closed also where it is damaged
        return str(json.loads(str(archive[DESCRIPTION]))["note"]) if DESCRIPTION in archive.files else ""


def to_arrays(thing: Any, note: str = "") -> dict[str, Any]:
    """Return the arrays and the description that a file holds for `thing`."""
    arrays: dict[str, Any] = {}
    shape = _describe(thing, arrays)
    return {**arrays, DESCRIPTION: np.array(json.dumps({"note": note, "shape": shape}))}


def from_arrays(arrays: dict[str, Any]) -> Any:
    """Rebuild the object from its arrays and description."""
    try:
        return _rebuild(json.loads(str(arrays[DESCRIPTION]))["shape"], arrays, jnp.asarray)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError("the description in this file does not fit its arrays; the file is damaged") from error


def _describe(thing: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(thing, (np.ndarray, jax.Array)):
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(thing)
        return {"array": name}
    if thing is None or isinstance(thing, bool | int | float | str):
        return {"value": thing}
    if isinstance(thing, dict):
        return {"dict": {key: _describe(value, arrays) for key, value in thing.items()}}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        names = [field.name for field in dataclasses.fields(thing)]
    elif hasattr(thing, "_fields"):
        names = list(thing._fields)
    elif isinstance(thing, list | tuple):
        return {type(thing).__name__: [_describe(value, arrays) for value in thing]}
    else:
        raise TypeError(f"{type(thing).__name__} cannot be stored")
    kind = type(thing)
    place = f"{kind.__module__}:{kind.__qualname__}"
    if place not in _NAME_OF:
        raise TypeError(f"{place} has no stable name; give it one in trajstitch.storage.serialise.NAMES")
    fields = {name: _describe(getattr(thing, name), arrays) for name in names}
    return {"class": _NAME_OF[place], "fields": fields}


def _rebuild(shape: dict[str, Any], arrays: dict[str, Any], wrap: Any) -> Any:
    if "array" in shape:
        return wrap(arrays[shape["array"]])
    if "value" in shape:
        return shape["value"]
    if "dict" in shape:
        return {key: _rebuild(value, arrays, wrap) for key, value in shape["dict"].items()}
    if "list" in shape:
        return [_rebuild(value, arrays, wrap) for value in shape["list"]]
    if "tuple" in shape:
        return tuple(_rebuild(value, arrays, wrap) for value in shape["tuple"])
    kind = _class_of(str(shape["class"]))
    # Models compute with JAX's arrays, everything else with NumPy's.
    wrap = jnp.asarray if issubclass(kind, eqx.Module) else np.asarray
    return kind(**{key: _rebuild(value, arrays, wrap) for key, value in shape["fields"].items()})


def _class_of(name: str) -> type[Any]:
    """Return the class for a stable name or a name of version 0.1.0."""
    known = _FORMER.get(name.removeprefix("trajstitch."), name)
    if known not in NAMES:
        raise InputError(f"the file names {name!r}, which trajstitch does not know; is it from a newer version?")
    module, _, kind = NAMES[known].partition(":")
    found: type[Any] = getattr(importlib.import_module(f"trajstitch.{module}"), kind)
    return found
