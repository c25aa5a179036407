"""Seams: the sections on why seams were chosen and where in the state space they lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trajstitch.data import Dataset, Int, Spread
from trajstitch.report.comparison import Facts, Real, some
from trajstitch.report.html import figure, grid, number, percent, section, table
from trajstitch.report.plots import (
    FAINT,
    INK,
    NEW,
    OLD,
    POINTS,
    bin_count,
    compare,
    count_up,
    plot,
    shares_of,
    span,
    whole,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOWER = "It is lower, and yet worth more: the state in which a trajectory was cut has a worth of its own. "
_CLOUD = 200_000  # states from which a density is drawn


def show_seams(facts: Facts, graph: Mapping[str, float]) -> str:
    """Return the section on the reasons for which seams were chosen."""
    intro = (
        "A seam is a step from one recorded state to another that never followed it in the data. Its action and "
        "reward come from the models. These figures show the reasons for which seams were chosen."
    )
    if not len(facts.step):
        return section("Seams", intro, "<p class=none>There is no seam in these data.</p>")
    per = np.bincount(facts.improved.trajectory[facts.step], minlength=len(facts.improved))[facts.replaced]
    epsilon = graph.get("epsilon")
    radius = None if facts.reachable else epsilon
    draw = partial(plot, width=330, height=215)
    figures = [
        _reason(facts, epsilon),
        figure(
            "Value gain",
            draw(partial(_draw_one, facts.gain), "% of seams", "value of landing − of old successor"),
            "How much better the new state is, by the value model. Many tiny gains may be noise of that model.",
        ),
        figure(
            "Ensemble spread",
            draw(
                partial(_draw_one, facts.spread),
                "% of seams",
                "disagreement, in typical steps" if facts.reachable else "disagreement, in predicted std",
            ),
            "The part of the landing error that is disagreement of the ensemble's members."
            if facts.reachable
            else "Below 1, the dynamics models agree within their own noise. Far above 1, they are guessing.",
        ),
        figure(
            "Seams per trajectory",
            draw(partial(_draw_counts, per), "replaced trajectories", "seams in it"),
            "Few are better: each seam adds a small error. Check trajectories with dozens of seams.",
        ),
        figure(
            "Distance bridged",
            draw(
                partial(_draw_distance, facts.strides, facts.distance, radius),
                "% of each",
                f"distance, {facts.metric} states",
            ),
            f"<b class=new>From the old successor to the landing</b>, next to <b class=old>ordinary steps</b>. "
            f"{'The dashed line is ε. ' if radius else ''}Seams much longer than ordinary steps are jumps.",
        ),
        figure(
            "When in the trajectory",
            draw(partial(_draw_moments, facts), "% of each", "step"),
            "<b class=new>Seams</b> next to <b class=old>all steps</b>. Most seams are usually where policies "
            "fail; one narrow spike may be a single state that many trajectories use.",
        ),
    ]
    return section("Seams", intro, grid(figures, "thirds") + _weakest(facts))


def _reason(facts: Facts, epsilon: float | None) -> str:
    """Return the figure on the number by which steps were found possible."""
    draw = partial(plot, width=330, height=215)
    if facts.reachable:
        within = f" Always below the tolerance of {number(epsilon)}." if epsilon else ""
        return figure(
            "Landing error",
            draw(partial(_draw_one, facts.landing_error), "% of seams", "distance, in typical steps"),
            "How far from its landing the action of a seam leads, by the world model; median "
            f"{number(float(np.nanmedian(facts.landing_error)))}.{within} An audit shows the real errors.",
        )
    return figure(
        "Plausibility margin",
        draw(partial(_draw_one, facts.margin), "% of seams", "log likelihood above the old step's"),
        f"Always above 0; median {number(float(np.median(facts.margin)))}. Seams near 0 are only just "
        "plausible; very large margins mean that the old step itself was unlikely.",
    )


def _draw_one(values: Real, ax: Axes) -> None:
    """Draw the distribution of one quantity, on a logarithmic axis where it spans orders of magnitude."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = np.quantile(values, [0.1, 0.99])
    bins = bin_count(values)
    if values.min() > 0 and high > 50 * low:
        ax.set_xscale("log")
        edges = np.geomspace(values.min() / 1.05, values.max() * 1.05, bins + 1)
    else:
        edges = np.linspace(*span(np.append(values, 0.0) if low > 0 else values, 0.02), bins + 1)
    ax.stairs(shares_of(values, edges), edges, fill=True, color=NEW, alpha=0.85)
    ax.set_xlim(edges[0], edges[-1])


def _draw_counts(per: Int, ax: Axes) -> None:
    top = int(per.max())
    width = -(-top // 30)
    edges = np.arange(0.5, top + width + 0.5, width)
    ax.bar((edges[1:] + edges[:-1]) / 2, np.histogram(per, edges)[0], width=0.8 * width, color=NEW, alpha=0.85)
    ax.set_xlim(edges[0] - 0.5, max(edges[-1], 5.5))
    ax.set_xticks(whole(1, max(top, 5)))
    count_up(ax)


def _draw_distance(strides: Real, distance: Real, epsilon: float | None, ax: Axes) -> None:
    top = max(float(np.quantile(strides, 0.995)), float(np.quantile(distance, 0.995)), epsilon or 0.0, 1e-9)
    compare(ax, np.linspace(0, top * 1.03, bin_count(distance) + 1), strides.clip(max=top), distance.clip(max=top))
    if epsilon:
        ax.axvline(epsilon, color=INK, linewidth=1, linestyle=(0, (3, 2)))


def _draw_moments(facts: Facts, ax: Axes) -> None:
    data = facts.improved
    longest = int(data.length.max())
    edges = np.linspace(0, longest, min(longest, bin_count(facts.step)) + 1)
    when = np.arange(data.transitions) - np.repeat(data.start[:-1], data.length)
    compare(ax, edges, when, facts.moment)


def _weakest(facts: Facts, count: int = 10) -> str:
    """Return a table of the distinct seams of lowest margin or largest landing error, to be checked by hand."""
    reason, doubt, worst, column = facts.margin, facts.margin, "least plausible", "margin"
    if facts.reachable:
        reason, doubt = facts.landing_error, -facts.landing_error
        worst, column = "farthest off", "landing error"
    pair = facts.source * len(facts.original.obs) + facts.landing
    _, first, uses = np.unique(pair, return_index=True, return_counts=True)
    order = np.argsort(doubt[first], kind="stable")[:count]
    rows = []
    for x, used in zip(first[order], uses[order], strict=True):
        place = [facts.improved.trajectory[facts.step[x]], facts.moment[x], facts.source[x], facts.landing[x]]
        reasons = [reason[x], facts.gain[x], facts.spread[x], facts.distance[x]]
        rows.append([*map(str, place), *(number(float(value)) for value in reasons), f"{used:,}"])
    head = ["trajectory", "step", "from row", "to row", column, "value gain", "spread", "distance", "uses"]
    title = f"The {len(rows)} {worst} of {len(first):,} distinct seams" if len(rows) > 1 else "The only seam"
    return f"<details><summary>{title}</summary>{table(head, rows)}</details>"


def show_places(original: Dataset, improved: Dataset, facts: Facts) -> str:
    """Return the section on where seams lie: over all states, and in three replaced trajectories."""
    if not len(facts.step):
        return ""
    flat, explained = _project(original)
    intro = (
        f"States have {original.obs_dim} dimensions; the plots show the two directions in which they vary most "
        f"({percent(explained)} of the variance of scaled states)."
    )
    overview = figure(
        "All seams over all states",
        plot(partial(_draw_overview, flat, facts), "", "", 820, 370, bare=True),
        "<b class=old>Darker grey</b>: more recorded states. <b class=new>Teal</b>: where seams start. Seams "
        "should lie where data are dense; in sparse regions the models are unreliable.",
    )
    chosen = _examples(facts)
    names = {1: ["The change"], 2: ["Highest change of return", "Lowest change"]}.get(
        len(chosen), ["Highest change of return", "Median change", "Lowest change"]
    )
    small = partial(plot, width=330, height=230)
    figures = [
        figure(
            f"{name}: trajectory {m:,}",
            small(partial(_draw_reward, original, improved, facts, m), "sum of rewards", "step"),
            f"Return {number(float(facts.before[m]))} → <b class=new>{number(float(facts.after[m]))}</b>. "
            f"{_LOWER if facts.after[m] < facts.before[m] else ''}Dots are seams.",
        )
        for name, m in zip(names, chosen, strict=True)
    ]
    figures += [
        figure(
            "Around its first seam",
            small(partial(_draw_window, flat, original, improved, facts, m), "", "", bare=True),
            "From the ring, the <b class=old>old</b> trajectory continues to its recorded successor, the "
            "<b class=new>new</b> one over the seam to the dot. The two should separate smoothly.",
        )
        for m in chosen
    ]
    rest = f"<h3>Examples</h3>{grid(figures, 'thirds' if len(chosen) != 2 else '')}"
    return section("Where in the state space", intro, overview + rest)


def _project(original: Dataset) -> tuple[Real, float]:
    """Return states [N + M, 2] on the two main axes of the scaled states, and their share of the variance."""
    spread = Spread.of(original.obs)
    weight = np.where(spread.varies, 1 / spread.unit, 0.0)
    sample = some(original.obs, _CLOUD)
    mean = sample.mean(0, dtype=np.float64)
    scaled = (sample - mean) * weight
    size, axes = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    axes = np.pad(axes[:, ::-1][:, :2], ((0, 0), (0, max(0, 2 - axes.shape[1]))))
    axes *= np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1, 1)  # the sign of an eigenvector is arbitrary
    plane = (weight[:, None] * axes).astype(np.float32)
    flat = original.obs @ plane - mean @ plane
    return flat, float(size[::-1][:2].sum() / max(size.sum(), 1e-12))


def _draw_overview(flat: Real, facts: Facts, ax: Axes) -> None:
    from scipy.ndimage import gaussian_filter

    seams = flat[some(np.unique(facts.source), POINTS)]
    most = np.concatenate([np.quantile(flat, [0.001, 0.999], axis=0), seams])  # without outliers
    (left, right), (low, high) = (span(column, 0.12) for column in most.T)
    points = some(flat, _CLOUD)
    count, x, y = np.histogram2d(points[:, 0], points[:, 1], (200, 80), ((left, right), (low, high)))
    density = gaussian_filter(count, 2.2, mode="constant")
    levels = density.max() * np.geomspace(2e-3, 1, 9)
    greys = [str(shade) for shade in np.linspace(0.965, 0.72, 8)]
    middle = [(edge[1:] + edge[:-1]) / 2 for edge in (x, y)]
    ax.contourf(*middle, density.T, levels, colors=greys, antialiased=True)
    few = len(seams) < 300
    ax.scatter(
        seams[:, 0],
        seams[:, 1],
        s=70 if few else 16,
        c=NEW,
        alpha=0.95 if few else 0.7,
        edgecolors="white",
        linewidths=0.8 if few else 0,
        rasterized=not few,
    )
    ax.set(xlim=(left, right), ylim=(low, high))


def _examples(facts: Facts) -> list[int]:
    """Return the replaced trajectories whose return rose most, by the median, and least or fell most."""
    which = np.flatnonzero(facts.replaced)
    order = which[np.argsort(-(facts.after - facts.before)[which], kind="stable")]
    return [int(order[k]) for k in sorted({0, len(order) // 2, len(order) - 1})]


def _draw_reward(original: Dataset, improved: Dataset, facts: Facts, m: int, ax: Axes) -> None:
    assert improved.seams is not None
    first = int(improved.seams.source[improved.start[m]])
    old = original[int(np.searchsorted(original.start[:-1] + np.arange(len(original)), first, side="right")) - 1]
    new = improved[m]
    sums = [np.concatenate([[0.0], np.cumsum(t.reward, dtype=np.float64)]) for t in (old, new)]
    at = facts.moment[improved.trajectory[facts.step] == m]
    for total, colour, width in zip(sums, (OLD, NEW), (4.0, 1.8), strict=True):
        shown = some(np.arange(len(total)), 400)
        ax.plot(shown, total[shown], color=colour, linewidth=width, solid_capstyle="round")
        ax.scatter(len(total) - 1, total[-1], marker="|", s=90, color=colour, linewidths=2)
    at = some(at, 200)
    ax.scatter(at, sums[1][at], s=40, color=NEW, edgecolors="white", linewidths=0.8, zorder=4)
    ax.set_xlim(0, max(map(len, sums)) * 1.02)


def _draw_window(
    flat: Real, original: Dataset, improved: Dataset, facts: Facts, m: int, ax: Axes, reach: int = 12
) -> None:
    """Draw the old and the new trajectory, `reach` steps before and after the first seam."""
    assert improved.seams is not None
    x = int(np.flatnonzero(improved.trajectory[facts.step] == m)[0])
    source, landing, step = int(facts.source[x]), int(facts.landing[x]), int(facts.step[x])
    begin = original.start + np.arange(len(original) + 1)
    k = int(np.searchsorted(begin, source, side="right")) - 1
    old = flat[max(source - reach, begin[k]) : min(source + reach + 1, begin[k + 1])]
    new = flat[np.append(source, improved.seams.target[step : min(step + reach, improved.start[m + 1])])]
    both = np.concatenate([old, new])
    (left, right), (low, high) = (span(column, 0.12) for column in both.T)
    points = some(flat, _CLOUD)
    inside = (points[:, 0] > left) & (points[:, 0] < right) & (points[:, 1] > low) & (points[:, 1] < high)
    cloud = some(points[inside], POINTS)
    ax.scatter(cloud[:, 0], cloud[:, 1], s=3, c=FAINT, linewidths=0, rasterized=True)
    ax.plot(*old.T, color=OLD, linewidth=3.2, solid_capstyle="round")
    ax.plot(*new.T, color=NEW, linewidth=1.8, solid_capstyle="round")
    ax.scatter(
        flat[source, 0], flat[source, 1], s=70, facecolors="white", edgecolors=INK, linewidths=1.4, zorder=4
    )
    ax.scatter(flat[landing, 0], flat[landing, 1], s=34, color=NEW, edgecolors="white", linewidths=0.8, zorder=5)
    ax.set(xlim=(left, right), ylim=(low, high))
