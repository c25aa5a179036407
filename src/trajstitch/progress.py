"""Progress: long work calls `tell(done, total, note)`; the command line draws it as a bar with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

Tell = Callable[[int, int, str], None]


def silent(done: int, total: int, note: str = "") -> None:
    """Say nothing."""


@contextmanager
def bar(label: str, quiet: bool = False) -> Iterator[Tell]:
    """A progress bar on stderr, drawn once work has told of itself; on a terminal only."""
    if quiet:
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(label, total=None, note="")

        def tell(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note)

        yield tell


@contextmanager
def bars(quiet: bool = False) -> Iterator[Callable[[str], Tell]]:
    """A bar for each stage of a longer work, one after another: `tell = bars(name)`."""
    with ExitStack() as stack:

        def begin(name: str) -> Tell:
            stack.close()
            return stack.enter_context(bar(name, quiet))

        yield begin
