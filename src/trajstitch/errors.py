"""InputError: the one exception for what a user can cause and can mend."""


class InputError(Exception):
    """One sentence that names the file, the field and the remedy; the command line prints it and exits with 2."""

    def within(self, place: object) -> "InputError":
        """The same sentence with the file (or other place) it is about in front."""
        return InputError(f"{place}: {self}")
