"""Checks of settings and sizes; each failure is an InputError of one sentence."""

from __future__ import annotations

from typing import Any

from trajstitch.errors import InputError


def check_sizes(config: Any, *names: str) -> None:
    """Raise InputError if one of these settings is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise InputError(f"{name} must be at least 1, not {getattr(config, name)}")


def check_settings(config: object, kind: type, presets: str) -> None:
    """Raise InputError if the settings are something else, such as the name of one of these presets."""
    if not isinstance(config, kind):
        raise InputError(
            f"config must be an object of {kind.__name__}, not {config!r}; give one such as ts.{presets}['quick']"
        )


def check_choice(config: Any, name: str, *choices: str) -> None:
    """Raise InputError if this setting is none of the choices."""
    if getattr(config, name) not in choices:
        raise InputError(f"{name} must be {' or '.join(choices)}, not {getattr(config, name)!r}")


def check_not_negative(config: Any, *names: str) -> None:
    """Raise InputError if one of these settings is below 0 or nan."""
    for name in names:
        if not getattr(config, name) >= 0:
            raise InputError(f"{name} must not be below 0, as {getattr(config, name):g} is")


def check_same_sizes(first: str, have: tuple[int, ...], second: str, want: tuple[int, ...], remedy: str) -> None:
    """Raise InputError unless two things agree in their sizes, (S,) or (S, A).

    Arguments:
        first: the beginning of the sentence, such as "the data have".
        have: sizes of the first thing.
        second: the middle of the sentence, such as "Hopper-v5 has".
        want: sizes of the second thing.
        remedy: what the user should do.
    """
    if have != want:
        names = ("observations", "actions")
        ours = " and ".join(f"{size} {name}" for size, name in zip(have, names, strict=False))
        raise InputError(f"{first} {ours}, but {second} {' and '.join(map(str, want))}; {remedy}")
