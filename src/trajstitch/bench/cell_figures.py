"""Section of the page with every cell: a small table per data set, its scores drawn beside published ones."""

from __future__ import annotations

from html import escape

import numpy as np

from trajstitch.bench.published import published_score
from trajstitch.bench.suite_figures import cell_html
from trajstitch.bench.tables import Results, cell_score, estimate, title
from trajstitch.evaluation.stats import mean
from trajstitch.report import html
from trajstitch.report.plots import NEW, interval_bar

READING = (
    "Mean over policies at the last checkpoint with its bootstrap 95% interval, drawn from 0 on an axis that all "
    "data sets share."
)
CIRCLES = " A circle is the published score."
BEST = " The best checkpoint is in report.md."


def cell_section(results: Results) -> str:
    """Return a table of all methods per data set; empty if the suite trains no policies."""
    if not results.asked:
        return ""
    every = [(method, data) for data in results.grid.data for method in results.asked]
    ends = [0.0, 1e-9, *(score for one in every for score in results.runs(*one, "last"))]
    published = [score for one in every if (score := _beside(results, *one)) is not None]
    ends += published
    reading = READING + (CIRCLES if published else "") + (BEST if results.grid.checkpoints > 1 else "")
    figures = []
    for data in results.grid.data:
        rows = [_row(results, method, data, min(ends), max(ends)) for method in results.asked]
        body = html.table(["method", "last, drawn", "last"], rows, escaped=True, kind="scores")
        figures.append(html.figure(escape(data), body, ""))
    return html.section("Every cell", reading, html.grid(figures))


def _beside(results: Results, method: str, data: str) -> float | None:
    """Return the published score, where ours is normalised too."""
    return published_score(method, data) if results.unit == "normalised" else None


def _row(results: Results, method: str, data: str, low: float, high: float) -> list[str]:
    """Return method, bar and score of one cell as HTML, with what else is known of them in small."""
    runs, state = results.runs(method, data, "last"), results.state(method, data)
    published = _beside(results, method, data)
    beside = "" if published is None else f"<small>published {published:.1f}</small>"
    if not runs:
        return [escape(title(method)), "", cell_html(state) + beside]
    found = estimate(mean, np.array(runs)[:, None])
    bar = interval_bar(found.value, (found.low, found.high), low, high, NEW, 0.0, published)
    many = f"{len(runs)} policies" if len(runs) > 1 else "1 policy"
    count = f"<small>{many}{f'<b>, {escape(state)}</b>' if state else ''}</small>"
    return [escape(title(method)) + count, bar, cell_score(results, method, data, "last") + beside]
