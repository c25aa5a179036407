"""Blocks: work on the rows of one very large data set, block by block, here or as tasks of a Ray cluster.

A `Mapper` is handed a function of (shared, part) that depends on nothing else, what all calls share, and the
number of rows. So where a block is computed makes no difference to what is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from trajstitch.errors import InputError

TOGETHER = 65_536  # pairs whose edges are found in one piece, for example by one task of a cluster

Work = Callable[[Any, slice], Any]


class Mapper(Protocol):
    """Calls a function for all blocks of rows."""

    def __call__(self, work: Work, shared: Any, rows: int, block: int) -> Iterator[tuple[slice, Any]]:
        """Yield each block, as a slice, and work(shared, slice); in order."""


def in_process(work: Work, shared: Any, rows: int, block: int) -> Iterator[tuple[slice, Any]]:
    """Call the function here, for one block after another."""
    for part in parts(rows, block):
        yield part, work(shared, part)


class RayMapper:
    """Calls the function in tasks of a cluster; what they share is put into Ray's object store once.

    A task whose worker dies is run again by Ray. As many wait as keep all CPUs busy, so that results of very large
    data do not pile up.
    """

    def __init__(self, ray: Any, cpus: float = 1) -> None:
        self.ray, self.cpus = ray, cpus

    def __call__(self, work: Work, shared: Any, rows: int, block: int) -> Iterator[tuple[slice, Any]]:
        """See `Mapper`."""
        task = self.ray.remote(num_cpus=self.cpus, max_retries=3, scheduling_strategy="SPREAD")(work)
        everything = self.ray.put(shared)
        waiting: deque[tuple[slice, Any]] = deque()
        for part in parts(rows, block):
            waiting.append((part, task.remote(everything, part)))
            if len(waiting) >= 2 * max(1, self.ray.cluster_resources().get("CPU", 1) / max(self.cpus, 0.01)):
                part, result = waiting.popleft()
                yield part, self._get(result)
        while waiting:
            part, result = waiting.popleft()
            yield part, self._get(result)

    def _get(self, result: Any) -> Any:
        """Return what a task found; raise what it raised itself, or InputError if it was lost."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(result)
        except errors.RayTaskError as error:
            raise (error.cause or error) from error
        except errors.RayError as error:
            kind = type(error).__name__
            raise InputError(
                f"a task of the Ray cluster was lost ({kind}); run it again, or without --ray"
            ) from error


def parts(rows: int, block: int) -> list[slice]:
    """Return the slices that cut this many rows into blocks."""
    return [slice(a, min(a + block, rows)) for a in range(0, rows, block)]
