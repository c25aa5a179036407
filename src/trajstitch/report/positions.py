"""Positions: pictures of recorded and composed trajectories, for data whose state is a place in a plane."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trajstitch.data import Dataset, Float, Int
from trajstitch.report.comparison import Facts, some
from trajstitch.report.html import figure, grid, section
from trajstitch.report.plots import INK, NEW, plot, span
from trajstitch.stitching.improve import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trajstitch.evaluation.mazes import Maze  # which loads the simulator

_SHOWN = 60  # trajectories in a picture
_ARROWS = 34  # cells of the grid of best steps, along the longer side
_GREYS = ("#6b737a", "#868e95", "#a0a7ad", "#b7bdc2", "#cbd0d4")


def are_positions(data: Dataset) -> bool:
    """Whether the first two observations are a place: those of a maze, or the only ones."""
    return data.obs_dim == 2 or (data.obs_dim > 2 and "maze" in str(data.info.get("env_id", "")))


def show_positions(facts: Facts, result: Result, maze: Maze | None = None) -> str:
    """Return the section with both pictures; nothing for data whose states are no places."""
    original, improved = facts.original, facts.improved
    if not are_positions(original):
        return ""
    window = window_of(original, maze)
    wide, high = (end - begin for begin, end in window)
    draw = partial(
        plot, up="", along="", width=490, height=int(np.clip(472 * high / wide, 120, 600)) + 8, bare=True
    )
    shown = min(_SHOWN, len(original))
    figures = [
        figure(
            "Recorded",
            draw(partial(draw_recorded, original, maze, window)),
            f"{shown:,} of {len(original):,} trajectories, each in its shade of grey; a dot is where one starts.",
        )
    ]
    if result.plan is not None:
        figures.append(
            figure(
                "Planned",
                draw(partial(draw_plan, result.plan, improved, maze, window)),
                "<b class=new>Arrows</b> are best steps, of one state for each square of a grid. The dark line is "
                "the longest composed trajectory, which starts at the dot.",
            )
        )
    elif facts.replaced.any():
        figures.append(
            figure(
                "Composed",
                draw(partial(_draw_composed, improved, np.flatnonzero(facts.replaced), maze, window)),
                f"{min(_SHOWN, int(facts.replaced.sum())):,} of {facts.replaced.sum():,} new trajectories.",
            )
        )
    return section("Before and after", "Trajectories in the plane of the first two observations.", grid(figures))


def window_of(data: Dataset, maze: Maze | None) -> list[tuple[float, float]]:
    """Return the range of x and of y: that of the maze, or else of the data."""
    if maze is None:
        return [span(data.obs[:, k], 0.04) for k in range(2)]
    corners = maze.origin + np.array([[-0.5, -0.5], np.array(maze.map.shape[::-1]) - 0.5]) * maze.pitch
    return [(float(column.min()), float(column.max())) for column in corners.T]


def _draw_walls(maze: Maze | None, window: list[tuple[float, float]], ax: Axes) -> None:
    if maze is not None:
        x, y = (maze.origin[k] + maze.pitch[k] * np.array([-0.5, maze.map.shape[1 - k] - 0.5]) for k in range(2))
        ax.imshow(
            np.where(maze.map, 0.9, np.nan),
            cmap="gray",
            vmin=0,
            vmax=1,
            extent=(*x, y[1], y[0]),
            interpolation="nearest",
            aspect="auto",
            zorder=0,
        )
    ax.set(xlim=window[0], ylim=window[1])


def draw_recorded(data: Dataset, maze: Maze | None, window: list[tuple[float, float]], ax: Axes) -> None:
    """Draw some recorded trajectories."""
    for k, m in enumerate(some(np.arange(len(data)), _SHOWN)):
        _draw_path(data[int(m)].obs, _GREYS[k % len(_GREYS)], 1.2, ax)
    _draw_walls(maze, window, ax)


def _draw_composed(
    data: Dataset, which: Int, maze: Maze | None, window: list[tuple[float, float]], ax: Axes
) -> None:
    for m in some(which, _SHOWN):
        _draw_path(data[int(m)].obs, NEW, 0.9, ax)
    _draw_walls(maze, window, ax)


def draw_plan(
    plan: Dataset, composed: Dataset, maze: Maze | None, window: list[tuple[float, float]], ax: Axes
) -> None:
    """Draw best steps as arrows, and the longest composed trajectory."""
    place, after = plan.obs[plan.row, :2], plan.obs[plan.row + 1, :2]
    low = np.array([begin for begin, _ in window])
    size = max(end - begin for begin, end in window) / _ARROWS
    cell = np.floor((place - low) / size).astype(np.int64)
    _, first = np.unique(cell, axis=0, return_index=True)
    length = np.linalg.norm(after[first] - place[first], axis=1)
    moves = first[length > 0]
    way = (after[moves] - place[moves]) / length[length > 0][:, None] * 0.8 * size
    ax.quiver(
        *place[moves].T,
        *way.T,
        angles="xy",
        scale_units="xy",
        scale=1,
        color=NEW,
        width=0.0032,
        headwidth=4,
        headlength=4.5,
        headaxislength=4,
        zorder=2,
    )
    _draw_path(composed[int(composed.length.argmax())].obs, INK, 1.4, ax)
    _draw_walls(maze, window, ax)


def _draw_path(obs: Float, colour: str, width: float, ax: Axes) -> None:
    x, y = some(obs[:, :2], 400).T
    ax.plot(x, y, color=colour, linewidth=width, solid_capstyle="round", zorder=3)
    ax.scatter(x[0], y[0], s=10, color=colour, linewidths=0, zorder=4)
