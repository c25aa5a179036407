"""Weights: the section on which steps and trajectories the weights of the improved data prefer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trajstitch.data import Dataset
from trajstitch.report.html import figure, grid, number, percent, section, table
from trajstitch.report.plots import NEW, POINTS, plot, span
from trajstitch.weight_facts import mean_weights, weight_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARTS = 20  # of an episode, in the plot along it


def show_weights(data: Dataset) -> str:
    """Return the section on the weights; nothing where the data have none."""
    facts = weight_facts(data)
    if facts is None:
        return ""
    intro = (
        "Each step has a weight: how often it is drawn when the data are cloned. A step of weight 2 counts twice "
        "as much as the average one."
    )
    rank = facts["return_spearman"]
    rows = [
        ["effective number of steps", f"{facts['effective_steps']:,.0f} ({percent(facts['effective_share'])})"],
        ["largest weight", number(facts["max"])],
        ["weight on the best tenth of trajectories by return", percent(facts["best_tenth_share"])],
        ["correlation of weight and return of trajectories, of ranks", "–" if rank is None else f"{rank:.2f}"],
    ]
    trajectories = [
        [f"{name} trajectory", f"{one['trajectory']:,}", number(one["return"]), number(one["mean_weight"])]
        for name in ("heaviest", "lightest")
        for one in facts[name]
    ]
    numbers = table([], rows) + table(["", "number", "return", "mean weight"], trajectories)
    figures = [
        figure(
            "Trajectories",
            plot(partial(draw_by_return, data), "mean weight", "return"),
            "Each dot is a trajectory. Weights that only rise with the return would be cloning the best tenth.",
        ),
        figure(
            "Along the episode",
            plot(partial(draw_along, data), "mean weight", "share of the episode, %"),
            "The mean weight of the steps in each twentieth of their trajectory.",
        ),
    ]
    return section("Weights", intro, grid([*figures, f"<div>{numbers}</div>"]))


def draw_by_return(data: Dataset, ax: Axes) -> None:
    """Draw the mean weight of each trajectory by its return."""
    assert data.weight is not None
    mean = mean_weights(data, data.weight)
    shown = np.unique(np.linspace(0, len(data) - 1, POINTS).astype(np.int64))
    ax.scatter(data.returns[shown], mean[shown], s=9, color=NEW, alpha=0.5, linewidths=0)
    ax.set(xlim=span(data.returns), ylim=(0, 1.05 * max(float(mean.max()), 1e-9)))


def draw_along(data: Dataset, ax: Axes) -> None:
    """Draw the mean weight by the place in the episode."""
    place = 1 - (data.steps_left - 0.5) / np.repeat(data.length, data.length)
    part = (place * _PARTS).astype(np.int64)
    count = np.bincount(part, minlength=_PARTS)
    total = np.bincount(part, data.weight, minlength=_PARTS)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    ax.plot(100 * (np.arange(_PARTS) + 0.5) / _PARTS, mean, color=NEW, linewidth=1.8)
    ax.set(xlim=(0, 100), ylim=(0, 1.08 * max(float(np.nanmax(mean)), 1e-9)))
