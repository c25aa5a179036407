"""Audit: the section on what the simulator says about the seams; made from audit.json, not from the data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.report.comparison import Real
from trajstitch.report.html import figure, grid, number, percent, section, table
from trajstitch.report.plots import FAINT, INK, NEW, bin_count, plot, shares_of, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def show_audit(found: Mapping[str, Any]) -> str:
    """Return the section on an audit: how far from their landings the seams really lead."""
    settings, seams, of = found["settings"], found["seams"], found["scale"]["of"]
    which = f"{seams['replayed']:,} of {seams['distinct']:,} distinct seams"
    clipped = (
        f" {seams['clipped']:,} start at a clipped velocity and could not be set." if seams["clipped"] else ""
    )
    exact = "" if found["floor"]["exact"] else " Recorded steps miss too: this is not the simulator of the data."
    intro = (
        f"{which} were tried in {_name(settings)}: it was set to the state where a seam starts, and took the "
        f"action of the seam.{clipped} Distances are in typical steps, the median length of a recorded step "
        f"(states divided by their std, of the {of} data).{exact}"
    )
    rows = [[label, number(median), number(p90)] for label, median, p90 in distances(found)]
    numbers = table(["typical steps", "median", "90%"], rows)
    numbers += table([], [[label, value] for label, value in facts(found)])
    return section("Replayed in the simulator", intro, grid([_figure(found), f"<div>{numbers}</div>"]))


def distances(found: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return label, median and 90th percentile of every distance that is known, in typical steps."""
    labels = {
        "floor": "recorded steps, replayed (the floor)",
        "landing": "landing error of the seams",
        "landing_per_use": "the same, each seam as often as it is used",
        "recorded_action": "landing error of the recorded action",
        "bridged": "distance bridged",
    }
    rows = [(label, found[key]["median"], found[key]["p90"]) for key, label in labels.items() if found[key]]
    if promise := found["promise"]:
        label = "landing error, as promised by the model"
        rows.insert(3, (label, promise["promised_median"], promise["promised_p90"]))
    return rows


def facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return label and value of every other number, as text."""
    reward = found["reward"]
    rows = []
    if promise := found["promise"]:
        rows += [
            ("real / promised landing error, median", number(promise["median_ratio"])),
            ("seams within their promise", percent(promise["share_within_promise"])),
            ("correlation of promise and reality, of ranks", _correlation(promise["spearman"])),
            ("the same, of numbers", _correlation(promise["pearson"])),
        ]
    if found["bridged"]:
        rows += [
            ("landing error / distance bridged, median", number(found["bridged"]["median_ratio"])),
            (
                "seams that land closer than the recorded action",
                percent(found["recorded_action"]["seam_lands_closer"]),
            ),
        ]
    return [
        *rows,
        ("landing error in std of the states, median", number(found["landing_in_std"]["median"])),
        ("stitched steps that use the most used seam", percent(found["most_used"])),
        ("promised − real reward, mean", f"{number(reward['bias'])} ± {number(reward['standard_error'])}"),
        ("its absolute value, mean", number(reward["mean_absolute"])),
        ("rewards promised too high", percent(reward["share_too_high"])),
        ("seams at which the episode really ends", percent(found["really_ended"])),
    ]


def _name(settings: Mapping[str, Any]) -> str:
    return escape(f"{settings['env']} with physics {settings['physics']}")


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _figure(found: Mapping[str, Any]) -> str:
    """Return the picture: real landing errors by what was promised, by the distance bridged, or alone."""
    up = "real landing error"
    if found["promise"]:
        return figure(
            "Promised and real",
            plot(partial(draw_calibration, found), up, "landing error as promised by the model"),
            "Each dot is a seam, in typical steps; the line joins the medians of ten groups by promise. On the "
            "diagonal promises are right; above it seams land worse than the model said.",
        )
    if found["bridged"]:
        return figure(
            "Bridged and missed",
            plot(partial(draw_bridged, found), up, "distance bridged"),
            "Each dot is a seam, in typical steps. On the diagonal the action of the seam is no better than the "
            "recorded one; far below it the seam arrives. This planner made no promise to compare with.",
        )
    return figure(
        "Landing errors",
        plot(partial(_draw_landing, found), "% of seams", "real landing error"),
        "In typical steps. This planner made no promise to compare with.",
    )


def draw_calibration(found: Mapping[str, Any], ax: Axes) -> None:
    """Draw real by promised landing errors: seams, the medians of groups, and the diagonal."""
    _draw_pairs(ax, *_columns(found, "promised"))
    deciles = found["promise"]["deciles"]
    x, y = ([group[key] for group in deciles] for key in ("promised", "median"))
    ax.plot(x, y, color=INK, linewidth=1.6, marker="o", markersize=4, zorder=4)


def draw_bridged(found: Mapping[str, Any], ax: Axes) -> None:
    """Draw real landing errors by the distance bridged, and the diagonal."""
    _draw_pairs(ax, *_columns(found, "bridged"))


def _draw_landing(found: Mapping[str, Any], ax: Axes) -> None:
    landing = np.array(found["points"]["landing"], float)
    edges = np.linspace(*span(np.append(landing, 0.0), 0.02), bin_count(landing) + 1)
    ax.stairs(shares_of(landing, edges), edges, fill=True, color=NEW, alpha=0.85)
    ax.set_xlim(edges[0], edges[-1])


def _columns(found: Mapping[str, Any], name: str) -> tuple[Real, Real]:
    """Return this column and the landing errors, where both are known."""
    given, landing = (np.array(found["points"][key], float) for key in (name, "landing"))
    known = np.isfinite(given)
    return given[known], landing[known]


def _draw_pairs(ax: Axes, x: Real, y: Real) -> None:
    """Draw dots and the diagonal, on logarithmic axes where the dots span orders of magnitude."""
    both = np.concatenate([x, y])
    positive = both[both > 0]
    if len(positive) and np.quantile(positive, 0.98) > 20 * np.quantile(positive, 0.02):
        low, high = float(positive.min()) / 1.2, float(positive.max()) * 1.2
        ax.set(xscale="log", yscale="log")
    else:
        low, high = 0.0, max(float(both.max(initial=0)), 1e-9) * 1.05
    ax.plot([low, high], [low, high], color=FAINT, linewidth=1.5, zorder=0)
    ax.scatter(x, y, s=20, c=NEW, alpha=0.6 if len(x) < 300 else 0.3, linewidths=0, rasterized=len(x) > 300)
    ax.set(xlim=(low, high), ylim=(low, high))
