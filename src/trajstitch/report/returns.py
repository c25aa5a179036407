"""Returns: the sections on what was gained, per trajectory and per iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.data import Dataset
from trajstitch.report.comparison import Facts, Real, some
from trajstitch.report.html import compact, figure, grid, number, section, table
from trajstitch.report.plots import FAINT, INK, NEW, OLD, POINTS, bin_count, compare, count_up, plot, span, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def show_returns(facts: Facts) -> str:
    """Return the section on returns before and after: their distributions, and each trajectory."""
    intro = "The return of a trajectory is the sum of its rewards. A trajectory is replaced only by a better one."
    right, below = "The <b class=new>new</b> returns should lie to the right of the <b class=old>old</b> ones.", ""
    if longer := int(facts.longer.sum()):
        intro = (
            "The return of a trajectory is the sum of its rewards. When one is replaced, what a cut end is "
            f"still worth counts too. {longer:,} go on where the recording was cut: where steps cost something, a "
            "better trajectory may have a lower return."
        )
        right, below = "", ", or goes on where the recording was cut"
    figures = [
        figure(
            "How returns are distributed",
            plot(partial(_draw_returns, facts.original.returns, facts.after), "% of trajectories", "return"),
            f"Dashed lines mark the means. {right} A single spike at the far right means that many trajectories "
            "became copies of a few.",
        )
    ]
    if facts.known:
        shown = "" if len(facts.before) <= POINTS else f" At most {POINTS:,} of each colour are drawn."
        figures.append(
            figure(
                "Each trajectory, before and after",
                plot(partial(_draw_pairs, facts), "return after", "return before"),
                "Points on the diagonal did not change. The height above it is the gain by stitching. A point "
                f"below it is a trajectory that became worse{below}.{shown}",
            )
        )
    return section("Returns", intro, grid(figures))


def _draw_returns(old: Real, new: Real, ax: Axes) -> None:
    edges = np.linspace(*span(np.concatenate([old, new])), bin_count(new) + 1)
    compare(ax, edges, old, new)
    for values, colour in ((old, OLD), (new, NEW)):
        ax.axvline(values.mean(), color=colour, linewidth=1.5, linestyle=(0, (4, 2)))


def _draw_pairs(facts: Facts, ax: Axes) -> None:
    low, high = span(np.concatenate([facts.before, facts.after]))
    ax.plot([low, high], [low, high], color=FAINT, linewidth=1.5, zorder=0)
    for which, colour, size in ((~facts.replaced, OLD, 20), (facts.replaced, NEW, 26)):
        m = some(np.flatnonzero(which), POINTS)
        alpha = 0.75 if len(m) < 500 else 0.4
        ax.scatter(
            facts.before[m], facts.after[m], s=size, c=colour, alpha=alpha, linewidths=0, rasterized=len(m) > 300
        )
    ax.set(xlim=(low, high), ylim=(low, high))


def show_iterations(original: Dataset, history: Sequence[Mapping[str, Any]]) -> str:
    """Return the section on what each iteration gained."""
    intro = (
        "Each iteration fits the value function to the current data, proposes a new version of each "
        "trajectory, and accepts those that are better. Iterations end when none is accepted."
    )
    if not history:
        return section("Iterations", intro, "<p class=none>There was no iteration: the graph has no edge.</p>")
    entries = [dict(entry) for entry in history]
    iteration = [int(entry.get("iteration", k + 1)) for k, entry in enumerate(entries)]
    means = np.array([original.returns.mean(), *(float(entry.get("return_mean", np.nan)) for entry in entries)])
    accepted = np.array([float(entry.get("accepted", 0)) for entry in entries])
    figures = [
        figure(
            "Mean return",
            plot(partial(_draw_progress, iteration, means), "mean return", "iteration (0: original)"),
            "It should rise and then level off. If it is still steep at the end, more iterations may gain more.",
        ),
        figure(
            "Trajectories accepted",
            plot(partial(_draw_bars, iteration, accepted), "trajectories", "iteration"),
            "It should fall towards zero. A count that grows again suggests that value estimates diverge.",
        ),
    ]
    names = {
        "accepted": "accepted",
        "return_mean": "mean return",
        "return_std": "std",
        "steps": "steps",
        "stitched_steps": "stitched",
        "seams": "distinct seams",
        "repeated_states": "repeats",
        "at_max_length": "at maximum length",
    }
    given = [original.returns.mean(), original.returns.std(), original.transitions]
    rows = [["original", "", *map(number, given), *[""] * 4]]
    rows += [
        [str(k), *(number(entry.get(name, "")) for name in names)]
        for k, entry in zip(iteration, entries, strict=True)
    ]
    note = (
        "<p class=note><b>Repeats</b> are steps from a state in which their trajectory has been before; <b>at "
        "maximum length</b> counts trajectories of the greatest allowed length. If both grow together, there are "
        "loops.</p>"
    )
    return section("Iterations", intro, grid(figures) + table(["iteration", *names.values()], rows) + note)


def _draw_progress(iteration: list[int], means: Real, ax: Axes) -> None:
    at = np.array([0, *iteration])
    ax.plot(at, means, color=NEW, linewidth=2)
    ax.scatter(at, means, s=36, c=[OLD] + [NEW] * len(iteration), zorder=3)
    ax.set_xlim(-0.3, at[-1] + 0.3)
    ax.set_ylim(*span(means, 0.15))
    ax.set_xticks(whole(0, at[-1]))


def _draw_bars(iteration: list[int], counts: Real, ax: Axes) -> None:
    ax.bar(iteration, counts, width=0.55, color=NEW)
    ax.set_xlim(iteration[0] - 0.8, iteration[-1] + 0.8)
    ax.set_ylim(0, max(counts.max(), 1) * 1.15)
    ax.set_xticks(whole(iteration[0], iteration[-1]))
    count_up(ax)
    if len(iteration) <= 12:
        for x, y in zip(iteration, counts, strict=True):
            ax.annotate(
                compact(y), (x, y), (0, 3), textcoords="offset points", ha="center", color=INK, fontsize=10
            )
