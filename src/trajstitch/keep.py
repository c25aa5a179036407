"""Keep: any of our dataclasses, models and graphs alike, in one npz file without pickle.

The file holds the arrays and a JSON description of what they are part of; only classes of this package are made
from it, by their fields, so reading a file runs no code of the file's.
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
from trajstitch.files import replacing
from trajstitch.formats.npz import read_arrays

DESCRIPTION = "description"  # its name in the file


def keep(thing: Any, target: str | Path, note: str = "") -> None:
    """Write `thing` (dataclasses, named tuples, lists, dicts, arrays, numbers, strings) and a note beside it."""
    with replacing(target, overwrite=True) as part, part.open("wb") as file:
        np.savez(file, **to_arrays(thing, note))


def to_arrays(thing: Any, note: str = "") -> dict[str, Any]:
    """What a file keeps of `thing`."""
    arrays: dict[str, Any] = {}
    shape = _describe(thing, arrays)
    return {**arrays, DESCRIPTION: np.array(json.dumps({"note": note, "shape": shape}))}


def note_of(path: Path) -> str:
    """The note beside what is kept there; empty where there is nothing."""
    if not path.exists():
        return ""
    with np.load(path, allow_pickle=False) as archive:
        return str(json.loads(str(archive[DESCRIPTION]))["note"]) if DESCRIPTION in archive.files else ""


def recall(path: str | Path) -> Any:
    """What was kept."""
    arrays = read_arrays(Path(path))
    if DESCRIPTION not in arrays:
        raise InputError(f"{path}: this is not a file kept by trajstitch")
    return from_arrays(arrays)


def from_arrays(arrays: dict[str, Any]) -> Any:
    """The other way round."""
    return _restore(json.loads(str(arrays[DESCRIPTION]))["shape"], arrays, jnp.asarray)


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
        raise TypeError(f"{type(thing).__name__} cannot be kept")
    kind = type(thing)
    fields = {name: _describe(getattr(thing, name), arrays) for name in names}
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


def _restore(shape: dict[str, Any], arrays: dict[str, Any], wrap: Any) -> Any:
    if "array" in shape:
        return wrap(arrays[shape["array"]])
    if "value" in shape:
        return shape["value"]
    if "dict" in shape:
        return {key: _restore(value, arrays, wrap) for key, value in shape["dict"].items()}
    if "list" in shape:
        return [_restore(value, arrays, wrap) for value in shape["list"]]
    if "tuple" in shape:
        return tuple(_restore(value, arrays, wrap) for value in shape["tuple"])
    module, _, name = shape["class"].partition(":")
    if not module.startswith("trajstitch."):
        raise InputError(f"{shape['class']} is no class of trajstitch; this file is not one of ours")
    kind = getattr(importlib.import_module(module), name)
    # Models compute with JAX's arrays, everything else with NumPy's.
    wrap = jnp.asarray if issubclass(kind, eqx.Module) else np.asarray
    return kind(**{key: _restore(value, arrays, wrap) for key, value in shape["fields"].items()})
