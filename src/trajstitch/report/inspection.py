"""Inspection: the page of `trajstitch inspect --html`, which shows every episode and what is unusual about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.episodes import Episodes
from trajstitch.report.html import figure, grid, number, percent, section, table
from trajstitch.report.page import whole_page
from trajstitch.report.plots import NEW, bin_count, count_up, plot, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHARES = ("idle", "saturation")
_DRAWN = ("return", "length", "jerk", "jumps", "idle", "saturation", "distance", "weight")


def render_inspection(name: str, summary: Mapping[str, Any], episodes: Episodes) -> str:
    """Return the page as self-contained HTML.

    Arguments:
        name: what the data set is called.
        summary: what `trajstitch inspect --json` prints.
        episodes: what `episode_table` says of the data.
    """
    with plot_style():
        body = _header(name, summary) + _outliers(episodes) + _distributions(episodes) + _table(episodes)
    return whole_page(f"{name}: inspection", body)


def cell(name: str, value: Any) -> str:
    """Return a value of the table as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return percent(value) if name in _SHARES else number(value)


def _header(name: str, summary: Mapping[str, Any]) -> str:
    tiles = [
        ("episodes", number(summary["episodes"])),
        ("transitions", number(summary["transitions"])),
        ("mean return", number(summary["return"]["mean"]) if summary["has_rewards"] else "no rewards"),
        ("unusual episodes", number(len(summary["outliers"]))),
    ]
    shown = "".join(f"<div><span>{label}</span><b>{value}</b></div>" for label, value in tiles)
    return f"<p class=kicker>Inspection</p><h1>{escape(name)}</h1><div class=tiles>{shown}</div>"


def _outliers(episodes: Episodes) -> str:
    intro = "Episodes that are far from the median of all, or the same as another. Unusual need not be bad."
    rows = [[str(m), "; ".join(why)] for m, why in episodes.outlier.items()]
    body = table(["episode", "why"], rows, kind="plain") if rows else "<p class=none>None.</p>"
    return section("Unusual episodes", intro, body)


def _distributions(episodes: Episodes) -> str:
    figures = []
    for name in _DRAWN:
        values = episodes.column[name]
        values = values[~np.isnan(values)]
        if len(values) and np.ptp(values) > 0:
            figures.append(figure(name, plot(partial(_histogram, values), "episodes", name), ""))
    return section("Distributions", "One number per episode.", grid(figures, "thirds"))


def _histogram(values: Any, ax: Axes) -> None:
    ax.hist(values, bins=bin_count(values), color=NEW, alpha=0.8)
    count_up(ax)


def _table(episodes: Episodes) -> str:
    names = [name for name in episodes.column if episodes.known(name)]
    rows = [[cell(name, row[name]) for name in names] for row in episodes.rows()]
    intro = (
        "Jerk: mean third difference of the actions, in half-ranges. Jumps: steps in which an action changes by "
        "more than half of its range. Idle: share of steps in which the state hardly moves. Saturation: share of "
        "actions at the ends of their range. Distance: to the nearest states of other episodes, 1 being typical."
    )
    return section("All episodes", intro, table(names, rows))
