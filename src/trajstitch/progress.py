"""Progress: long-running code calls `tell(done, total, note)`; commands show it as a bar with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

Tell = Callable[[int, int, str], None]


def silent(done: int, total: int, note: str = "") -> None:
    """Report nothing."""


@contextmanager
def bar(label: str, quiet: bool = False) -> Iterator[Tell]:
    """Show a progress bar on stderr; if stderr is not a terminal, print one line per minute instead."""
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
    if not console.is_terminal:
        yield lines(label)
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None, note="")

        def tell(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note)

        yield tell


def lines(label: str, every: float = 60.0) -> Tell:
    """Return a `Tell` for logs: it prints progress and time left to stderr, at most once per `every` seconds."""
    begin = last = time.monotonic()

    def tell(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every:
            return
        last = now
        left = (now - begin) * (total - done) / max(done, 1) / 60
        words = f"{label}: {done:,} of {total:,}, about {left:.0f} min left"
        print(f"{words}, {note}" if note else words, file=sys.stderr, flush=True)

    return tell


@contextmanager
def bars(quiet: bool = False) -> Iterator[Callable[[str], Tell]]:
    """Yield a function that starts the bar of the next stage: `tell = begin(name)`."""
    with ExitStack() as stack:

        def begin(name: str) -> Tell:
            stack.close()
            return stack.enter_context(bar(name, quiet))

        yield begin
