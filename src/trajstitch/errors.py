"""InputError: the one exception for errors that a user can cause and correct."""


class InputError(Exception):
    """Its one sentence names the file, the field and the remedy; commands print it and exit with code 2."""

    def within(self, place: object) -> "InputError":
        """Return the same error with `place`, such as a file name, in front of its message."""
        return InputError(f"{place}: {self}")
