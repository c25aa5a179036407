"""Mutations for benchmarks/fuzz.py: of bytes, of JSON and of arrays; those of files are in file_mutations.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator

_NUMBERS = [0, 1, -1, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1]
_VALUES = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e300, 1e-45, 0.0, 2.0]
_JSON: list[Any] = [
    None,
    True,
    -1,
    0,
    2.5,
    1e400,
    1 << 80,
    "",
    "x",
    "../x",
    "evil:Foo-v0",
    [],
    [1, "a"],
    {},
    {"a": {}},
    "\ud800",
]


def mutate_bytes(content: bytes, rng: Rng) -> bytes:
    """Change a file in one to eight places; bits, bytes, numbers, runs, cuts and copies."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        if not data:
            return bytes(data)
        at = int(rng.integers(len(data)))
        if rng.random() < 0.5:  # headers are at the beginning of most files, and at the end of a zip
            at = min(at % 512, len(data) - 1) if rng.random() < 0.7 else max(0, len(data) - 1 - at % 512)
        size = int(2 ** rng.uniform(0, 8))
        kind = rng.integers(9)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.integers(256))
        elif kind == 2:
            width = int(rng.choice([2, 4, 8]))
            number = _NUMBERS[rng.integers(len(_NUMBERS))] % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
        elif kind == 3:
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == 4:
            data[at : at + size] = b"\xff" * len(data[at : at + size])
        elif kind == 5:
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        elif kind == 6:
            del data[at : at + size]
        elif kind == 7:
            data[at:at] = data[at : at + size]
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def mutate_json(value: Any, rng: Rng) -> Any:
    """Replace, remove or rename something at a random place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[rng.integers(len(value))]
        kind = rng.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {(k + "x" if k == key else k): v for k, v in value.items()}
        return {k: mutate_json(v, rng) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return [mutate_json(v, rng) if i == at else v for i, v in enumerate(value)]
    if isinstance(value, str) and value[:1] in "{[" and rng.random() < 0.8:
        try:
            return json.dumps(mutate_json(json.loads(value), rng))
        except ValueError:
            pass
    return _JSON[rng.integers(len(_JSON))]


def mutate_text(text: str, rng: Rng) -> str:
    """Mutate JSON, and once in a while make it no JSON, or far too deep."""
    kind = rng.random()
    if kind < 0.05:
        return text[: int(rng.integers(len(text) + 1))]
    if kind < 0.1:
        return '{"a":' * 20_000 + "[" * 20_000
    return json.dumps(mutate_json(json.loads(text), rng))


def mutate_array(array: Any, rng: Rng) -> Any:
    """Return an array of another kind, shape or content."""
    array = np.asarray(array)
    number = array.dtype.kind in "fiub"
    choices: list[Callable[[], Any]] = [
        lambda: array.astype("<f8" if array.dtype != np.float64 else "<f2") if number else np.zeros(3),
        lambda: np.nan_to_num(array).astype(int) if number else np.array(7),
        lambda: array.astype(complex) if number else np.array("text"),
        lambda: np.array(["text"] * max(1, len(np.atleast_1d(array)))),
        lambda: array[: len(array) // 2] if array.ndim else np.zeros((2, 2)),
        lambda: array[:0] if array.ndim else np.zeros(0),
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: array.T,
        lambda: np.concatenate([array, array]) if array.ndim else array,
        lambda: np.array(_NUMBERS[rng.integers(len(_NUMBERS))]),
        lambda: np.zeros(array.shape, [("a", "f4"), ("b", "i2")]),
        lambda: np.frombuffer(rng.bytes(max(1, array.size)), bool).reshape(array.shape) if array.size else array,
        lambda: np.roll(array, 1),
        lambda: np.zeros_like(array),
    ]
    if array.dtype.kind in "fiu" and array.size:
        choices += [lambda: _with_value(array, rng)] * 8
    return choices[rng.integers(len(choices))]()


def _with_value(array: Any, rng: Rng) -> Any:
    changed = array.copy().reshape(-1)
    with np.errstate(all="ignore"):
        large = _VALUES[rng.integers(len(_VALUES))] if array.dtype.kind == "f" else rng.integers(-3, 1 << 40)
        some = rng.integers(array.size) if rng.random() < 0.7 else slice(None)
        changed[some] = np.array(large).astype(array.dtype)
    return changed.reshape(array.shape)
