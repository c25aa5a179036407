"""Terminal: mazes drawn with characters, for those who have not opened the page yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Float, Int

if TYPE_CHECKING:
    from trajstitch.evaluation.mazes import Maze  # which loads the simulator

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WALL, STEP = "█", "•"
_ACROSS = 2  # characters per cell; a character is about twice as high as it is wide


def draw_maze(maze: Maze, paths: Sequence[Float], marks: str = STEP) -> list[str]:
    """Return the lines of a picture of paths [T, 2+] in a maze, with S at its start and G at its goal.

    Path k is drawn with character k of `marks`, the last one for all that follow; where paths meet, the first is
    seen. Walls at the left and right edge are one character wide.
    """
    picture = np.where(np.repeat(maze.map, _ACROSS, axis=1), WALL, " ")
    for k in reversed(range(len(paths))):
        picture[_spots(maze, paths[k])] = marks[min(k, len(marks) - 1)]
    centre = maze.origin + maze.start[0][::-1] * maze.pitch
    for letter, place in (("S", centre), ("G", maze.goal)):
        picture[_spots(maze, place[None])] = letter
    return ["".join(row) for row in picture[:, _ACROSS - 1 : 1 - _ACROSS]]


def _spots(maze: Maze, path: NDArray[np.floating]) -> tuple[Int, Int]:
    """Return rows and columns of the characters at these places [T, 2+]."""
    column, row = ((path[:, :2] - maze.origin) / maze.pitch + 0.5).T
    rows, columns = maze.map.shape
    down = np.floor(row).astype(np.int64).clip(0, rows - 1)
    return down, np.floor(_ACROSS * column).astype(np.int64).clip(0, _ACROSS * columns - 1)


def spread_out(maze: Maze, data: Dataset, count: int) -> list[Float]:
    """Return up to `count` trajectories that together pass as many places as possible, the longest way first."""
    width = _ACROSS * maze.map.shape[1]
    passed = [set((row * width + column).tolist()) for row, column in (_spots(maze, t.obs) for t in data)]
    seen: set[int] = set()
    chosen: list[Float] = []
    for _ in range(count):
        new = [len(spots - seen) for spots in passed]
        best = int(np.argmax(new))
        if not new[best]:
            break
        seen |= passed[best]
        chosen.append(data[best].obs)
    return chosen


def side_by_side(pictures: dict[str, list[str]], gap: int = 4) -> str:
    """Return pictures beside each other, each under its title."""
    blocks = [[title, *lines] for title, lines in pictures.items()]
    widths = [max(map(len, block)) for block in blocks]
    rows = zip_longest(*blocks, fillvalue="")
    return "\n".join(
        (" " * gap).join(line.ljust(width) for line, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
