"""Errors: InputError for what a user can cause and correct, InvariantError for results that must not be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Its one sentence names the file, the field and the remedy; commands print it and exit with code 2."""

    def within(self, place: object) -> InputError:
        """Return the same error with `place`, such as a file name, in front of its message."""
        return InputError(f"{place}: {self}")


class InvariantError(Exception):
    """A result breaks what must always hold: a defect of trajstitch or of a caller's own model; exit code 1."""


def unknown(what: str, word: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(word, list(known), 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return InputError(f"there is no {what} {word!r}; {hint}")
