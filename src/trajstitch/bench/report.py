"""Report of a suite: report.md and report.html, from the records that are on disk."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.bench.cell_figures import cell_section
from trajstitch.bench.published import SOURCES
from trajstitch.bench.suite_figures import fraction_sections, maze_sections, reward_sections, section
from trajstitch.bench.suite_tables import fraction_tables, maze_tables, reward_tables
from trajstitch.bench.suites import SUITES
from trajstitch.bench.tables import (
    BASELINES,
    PUBLISHED,
    THRESHOLDS,
    WHICH,
    Estimate,
    Results,
    Table,
    Which,
    aggregate_table,
    by_iteration,
    cell_table,
    data_table,
    estimate,
    failure_table,
    improvement_estimates,
    improvement_table,
    profile_table,
    read_results,
    score_table,
    summary,
    title,
)
from trajstitch.errors import InputError
from trajstitch.evaluation.stats import iqm, profile, stratified_interval
from trajstitch.report import html
from trajstitch.report.page import whole_page
from trajstitch.report.plots import NEW, OLD, interval_bar, plot, plot_style, whole
from trajstitch.storage.atomic import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_reports(out: Path) -> tuple[str, dict[str, Any]]:
    """Write report.md and report.html into a folder of bench; return the Markdown and the numbers in it."""
    results = read_results(out)
    if not results.records and not results.rewards:
        raise InputError(f"{out} has no finished cell yet; run trajstitch bench {results.grid.suite} --out {out}")
    text = markdown(results)
    write_text(out / "report.md", text)
    write_text(out / "report.html", page(results))
    return text, summary(results) | {"report": [str(out / "report.md"), str(out / "report.html")]}


def tables(results: Results) -> list[Table]:
    """Return all tables in the order of the report; those without a row are left out."""
    found = [*fraction_tables(results), *reward_tables(results), *maze_tables(results)]
    for which in _shown(results):
        found += [
            score_table(results, which),
            aggregate_table(results, which),
            improvement_table(results, which),
            *([profile_table(results, which)] if results.unit == "normalised" else []),
        ]
    found += [data_table(results), cell_table(results), failure_table(results)]
    return [table for table in found if table.rows]


def sizes(results: Results) -> dict[str, str]:
    """Return what was run, and how much of it is finished."""
    grid, finished = results.grid, len(results.records) + len(results.rewards)
    return {
        "finished cells": f"{finished} of {len(grid.cells)}",
        "policies per cell": f"{grid.seeds}",
        "stitching seeds": f"{grid.stitch_seeds}",
        "gradient steps": "each method's own" if grid.steps is None else f"{grid.steps:,}",
        "episodes per checkpoint": f"{grid.episodes}",
        "preset": grid.preset,
    }


def units(results: Results) -> str:
    """Return a sentence on what scores are, and where published ones come from if any are shown."""
    names = {
        "normalised": "normalised (0 is a random policy, 100 an expert)",
        "success": "success in % of episodes",
    }
    scores = f"Scores are {names.get(results.unit, 'raw returns')}."
    found = [*reward_tables(results), *(score_table(results, which) for which in _shown(results))]
    beside = any(name.endswith(PUBLISHED) for table in found for name in table.head)
    return f"{scores} {SOURCES}" if beside else scores


# -- Markdown ----------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    """Return the report as Markdown."""
    run = "; ".join(f"{name}: {size}" for name, size in sizes(results).items()).capitalize()
    parts = [f"# {results.grid.suite}", SUITES[results.grid.suite].summary, f"{run}.", units(results)]
    for table in tables(results):
        parts += [f"## {table.title}", _markdown_table(table), table.reading]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    rows = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


# -- the page ----------------------------------------------------------------------------------------------------


def page(results: Results) -> str:
    """Return the report as one self-contained page; the same records give the same bytes."""
    suite, run = results.grid.suite, {name: escape(size) for name, size in sizes(results).items()}
    if results.grid.steps is None:
        run["gradient steps"] = f"<small>{run['gradient steps']}</small>"
    if results.failures:
        run["finished cells"] += f" <small>{len(results.failures)}&nbsp;failed</small>"
    header = (
        f"<header><p class=kicker>Benchmark report</p><h1>{escape(suite)}</h1>"
        f"<p class=lede>{escape(SUITES[suite].summary)}</p>{html.tiles(list(run.items()), 'many')}"
        f"<p class=note>{escape(units(results))}</p></header>"
    )
    sections = []
    with plot_style():
        sections.append(_iterations(results))
        sections += [fraction_sections(results), reward_sections(results), maze_sections(results)]
        for which in _shown(results):
            sections += [section(score_table(results, which), kind="data"), _aggregates(results, which)]
            sections += [_improvements(results, which), _profiles(results, which)]
    sections += [section(data_table(results), kind="data named"), cell_section(results)]
    sections += [section(failure_table(results), kind="plain")]
    return whole_page(f"{suite}: benchmark report", header + "".join(sections))


def _shown(results: Results) -> tuple[Which, ...]:
    """Return the checkpoints that have tables: of one alone, the last is the best."""
    return WHICH if results.grid.checkpoints > 1 else WHICH[:1]


def _aggregates(results: Results, which: Which) -> str:
    """Return the statistics over data sets, with the IQM drawn."""
    table = aggregate_table(results, which)
    found = [estimate(iqm, results.scores(method, which, results.tasks(method))) for method in results.methods]
    return _with_bars(table, found, 0.0)


def _improvements(results: Results, which: Which) -> str:
    """Return the probability of improvement over the first baseline, drawn from 0.5."""
    table, found = improvement_table(results, which), improvement_estimates(results, which)
    if not table.rows:
        return ""
    drawn = next(iter(found.values()))
    bars = [drawn.get(method) for method in results.methods if any(method in one for one in found.values())]
    return _with_bars(table, bars, 0.5, (0.0, 1.0))


def _with_bars(
    table: Table,
    drawn: list[Estimate | None] | list[Estimate],
    zero: float,
    axis: tuple[float, float] | None = None,
) -> str:
    """Return a table with a bar and an interval in each row's second column; nothing if it has no row."""
    if not table.rows:
        return ""
    ends = [end for one in drawn if one for end in (one.low, one.high)]
    low, high = axis or (min(zero, *ends), max(zero, *ends, zero + 1e-9))
    rows = []
    for row, one in zip(table.rows, drawn, strict=True):
        bar = interval_bar(one.value, (one.low, one.high), low, high, NEW, zero) if one else "–"
        rows.append([escape(row[0]), bar, *map(escape, row[1:])])
    named = "IQM, drawn" if axis is None else f"{table.head[1]}, drawn from 0.5"
    body = html.table([table.head[0], named, *table.head[1:]], rows, escaped=True, kind="scores")
    return html.section(escape(table.title), escape(table.reading), body)


def _profiles(results: Results, which: Which) -> str:
    """Return one small plot per method: its profile with its interval, and that of a baseline in grey."""
    if results.unit != "normalised" or not results.methods:
        return ""
    table = profile_table(results, which)
    curves = {}
    for method in results.methods:
        scores = results.scores(method, which, results.tasks(method))
        curves[method] = (profile(scores, THRESHOLDS), *stratified_interval(_at_thresholds, scores, draws=500))
    items, beside = [], next((one for one in BASELINES if one in curves), None)
    for method, (share, low, high) in curves.items():

        def draw(ax: Axes, share: Any = share, low: Any = low, high: Any = high) -> None:
            if beside:
                ax.plot(THRESHOLDS, 100 * curves[beside][0], color=OLD, linewidth=1.6)
            ax.fill_between(THRESHOLDS, 100 * low, 100 * high, color=NEW, alpha=0.18, linewidth=0)
            ax.plot(THRESHOLDS, 100 * share, color=NEW, linewidth=1.8)
            ax.set(xlim=(THRESHOLDS[0], THRESHOLDS[-1]), ylim=(0, 102))

        picture = plot(draw, "% of policies above", "normalised score", 330, 210)
        caption = "The band is the 95% interval."
        if beside and method != beside:
            caption = f"Teal: this method, with its 95% interval. Grey: {title(beside)}."
        items.append(html.figure(escape(title(method)), picture, caption))
    return html.section(escape(table.title), escape(table.reading), html.grid(items, "thirds"))


def _iterations(results: Results) -> str:
    """Return two plots per data set: scores and the data's return after each stitching iteration."""
    items = []
    for data in results.grid.data:
        if not (points := by_iteration(results, data)):
            continue
        at = [iteration for iteration, *_ in points]
        scores, returns = [one for _, one, _ in points], [mean for *_, mean in points]

        def draw_scores(ax: Axes, at: Any = at, scores: Any = scores) -> None:
            ax.fill_between(
                at, [x.low for x in scores], [x.high for x in scores], color=NEW, alpha=0.18, linewidth=0
            )
            _draw_iterations(ax, at, [x.value for x in scores])

        def draw_returns(ax: Axes, at: Any = at, returns: Any = returns) -> None:
            _draw_iterations(ax, at, returns)

        grey = " Grey: recorded data." if at[0] == 0 else ""
        items += [
            html.figure(
                f"{escape(data)}, scores",
                plot(draw_scores, "score", "iteration"),
                f"Score of clones at the last checkpoint, with its 95% interval.{grey}",
            ),
            html.figure(
                f"{escape(data)}, data",
                plot(draw_returns, "mean return", "iteration"),
                f"Return of the data that are cloned.{grey}",
            ),
        ]
    reading = (
        "What policies earn and what the stitched data promise after each iteration; 0 is the recorded data. If "
        "the second curve rises and the first does not, the models promise what the simulator does not keep."
    )
    return html.section("By iteration", reading, html.grid(items)) if items else ""


def _draw_iterations(ax: Axes, at: list[int], values: list[float]) -> None:
    """Draw a curve over iterations, beside a level line where it starts on recorded data."""
    if at[0] == 0:
        ax.axhline(values[0], color=OLD, linewidth=1.2)
    ax.plot(at, values, color=NEW, linewidth=1.8, marker="o", markersize=4)
    ax.set_xticks(whole(at[0], at[-1]))


def _at_thresholds(scores: Any) -> Any:
    return np.asarray(profile(scores, THRESHOLDS))
