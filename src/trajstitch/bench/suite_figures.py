"""Sections of the page that belong to one suite: expert-fraction, reward-models, mazes; empty for all others."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.bench.suite_tables import (
    CLONES,
    Curve,
    Measure,
    Point,
    fraction_curve,
    fraction_envs,
    fraction_tables,
    maze_estimate,
    maze_groups,
    maze_tables,
    reward_curves,
    reward_tables,
)
from trajstitch.bench.tables import MISSING, PUBLISHED, Results, Table, title
from trajstitch.report import html
from trajstitch.report.plots import NEW, OLD, interval_bar, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def section(table: Table, figures: str = "", kind: str = "") -> str:
    """Return a table as a section, with figures above it; nothing if it has no row."""
    if not table.rows:
        return ""
    body = figures + html.table(*table_html(table), escaped=True, kind=kind)
    return html.section(escape(table.title), escape(table.reading), body)


def table_html(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows as HTML: published numbers are small, below ours, rather than in a column."""
    head: list[str] = []
    rows: list[list[str]] = [[] for _ in table.rows]
    for name, *cells in zip(table.head, *table.rows, strict=True):
        if name.endswith(PUBLISHED):
            for row, text in zip(rows, cells, strict=True):
                row[-1] += "" if text == "–" else f"<small>published {escape(text)}</small>"
        else:
            head.append(name)
            for row, text in zip(rows, cells, strict=True):
                row.append(cell_html(text))
    return head, rows


def cell_html(text: str) -> str:
    """Return a cell as HTML: what is missing looks like nothing, what is missing in part is said in small."""
    if text in (MISSING, "failed"):
        return f"<span class=none>{text}</span>"
    if some := re.fullmatch(r"(.+) \((\d+ of \d+ cells.*)\)", text):
        return f"{escape(some[1])}<small><b>{escape(some[2])}</b></small>"
    return escape(text)


# -- expert-fraction ---------------------------------------------------------------------------------------------

_MEASURES: dict[Measure, tuple[str, str]] = {
    "score": ("score", "Higher is better."),
    "kl": ("KL divergence to the expert", "Lower is better; the axis is logarithmic."),
    "action_error": ("squared action error", "Lower is better; the axis is logarithmic."),
}


def fraction_sections(results: Results) -> str:
    """Return for every environment three plots and the table of what they show."""
    made = []
    for env, table in zip(fraction_envs(results), fraction_tables(results), strict=True):
        figures = []
        for measure, (label, reading) in _MEASURES.items():
            curves = [fraction_curve(results, clone, env, measure) for clone in CLONES]
            if any(curves):
                picture = plot(_draw_fractions(curves, measure != "score"), label, "% expert episodes", 330, 230)
                caption = f"Grey: {title(CLONES[0])}. Teal: {title(CLONES[1])}. Bands are 95% intervals. {reading}"
                figures.append(html.figure(f"{env}, {label}", picture, escape(caption)))
        made.append(section(table, html.grid(figures, "thirds")))
    return "".join(made)


def _draw_fractions(curves: list[list[Point]], logarithmic: bool) -> Any:
    def draw(ax: Axes) -> None:
        for points, colour in zip(curves, (OLD, NEW), strict=True):
            at, found = [point.percent for point in points], [point.estimate for point in points]
            low, high = [one.low for one in found], [one.high for one in found]
            ax.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(at, [one.value for one in found], color=colour, linewidth=1.8, marker="o", markersize=4)
        if logarithmic:
            log_axis(ax, [end for points in curves for p in points for end in (p.estimate.low, p.estimate.high)])

    return draw


def log_axis(ax: Axes, values: Any) -> None:
    """Make the vertical axis logarithmic, between two round numbers, unless a value is not positive."""
    known = [value for value in values if np.isfinite(value) and value > 0]
    if len(known) < len(values) or not known:
        return
    first, last = (int(np.floor(np.log10(end))) for end in (min(known), max(known)))
    round_ones = [float(f"{digit}e{power}") for power in range(first, last + 2) for digit in (1, 2, 5)]
    low = max(x for x in round_ones if x <= min(known))
    high = min(x for x in round_ones if x >= max(known) and x > low)
    ticks = [x for x in round_ones if low <= x <= high]
    if len(ticks) > 7:
        ticks = [float(f"1e{power}") for power in range(first, last + 2, 1 + (last - first) // 6)]
    ax.set_yscale("log")
    ax.set_yticks(ticks)
    ax.set_ylim(low, high)


# -- reward-models -----------------------------------------------------------------------------------------------


def reward_sections(results: Results) -> str:
    """Return for every data set one plot per reward model, and the table of errors."""
    made = []
    with_models = [data for data in results.grid.data if reward_curves(results, data)]
    for data, table in zip(with_models, reward_tables(results), strict=True):
        curves = reward_curves(results, data)
        ends = np.concatenate([np.ravel((curve.train, curve.test)) for curve in curves.values()])
        figures = []
        for model, curve in curves.items():
            picture = plot(_draw_errors(curve, ends), "squared error of rewards", "gradient steps", 330, 230)
            caption = (
                "Grey: transitions learned from. Teal: held-out ones. Bands: from the best to the worst model."
            )
            figures.append(html.figure(escape(f"{title(model)} on {data}"), picture, caption))
        made.append(section(table, html.grid(figures, "thirds")))
    return "".join(made)


def _draw_errors(curve: Curve, ends: Any) -> Any:
    """Return a function that draws a curve on an axis that all models share."""

    def draw(ax: Axes) -> None:
        for errors, colour in ((curve.train, OLD), (curve.test, NEW)):
            ax.fill_between(curve.step, errors.min(1), errors.max(1), color=colour, alpha=0.18, linewidth=0)
            ax.plot(curve.step, errors.mean(1), color=colour, linewidth=1.8)
        log_axis(ax, ends)

    return draw


# -- mazes -------------------------------------------------------------------------------------------------------


def maze_sections(results: Results) -> str:
    """Return the table of mazes, and below it one small table with bars per size and number of walks."""
    made = []
    for table in maze_tables(results):
        figures = []
        for (size, walks), tasks in maze_groups(results).items():
            rows = []
            for method in results.asked:
                bar, success = "", cell_html(results.state(method, tasks[0]) or MISSING)
                if found := maze_estimate(results, method, tasks):
                    bar = interval_bar(found.value, (found.low, found.high), 0.0, 100.0, NEW, 0.0)
                    success = f"{found.value:.0f}"
                rows.append([escape(title(method)), bar, success])
            body = html.table(["method", "success, drawn", "%"], rows, escaped=True, kind="scores")
            caption = "The mean over tasks and policies, from 0 to 100%, with its 95% interval."
            figures.append(html.figure(f"{size}, {walks:,} walks", body, caption))
        made.append(section(table, html.grid(figures)))
    return "".join(made)
