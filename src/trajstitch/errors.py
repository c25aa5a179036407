"""Errors: InputError for what a user can cause and correct, InvariantError for results that must not be."""


class InputError(Exception):
    """Its one sentence names the file, the field and the remedy; commands print it and exit with code 2."""

    def within(self, place: object) -> "InputError":
        """Return the same error with `place`, such as a file name, in front of its message."""
        return InputError(f"{place}: {self}")


class InvariantError(Exception):
    """A result breaks what must always hold: a defect of trajstitch or of a caller's own model; exit code 1."""
