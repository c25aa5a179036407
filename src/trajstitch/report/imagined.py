"""Imagined: the section on trajectories whose states a world model predicted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trajstitch.data import Dataset
from trajstitch.report.comparison import Facts
from trajstitch.report.html import figure, grid, section
from trajstitch.report.plots import INK, NEW, plot
from trajstitch.stitching.improve import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def show_imagined(facts: Facts, result: Result) -> str:
    """Return the section: how much the model's members disagree, along trajectories."""
    intro = (
        "No state of these trajectories but the first was recorded. A world model, an ensemble, predicted them: "
        "where its members disagree, the data say little about what would happen."
    )
    usual = result.errors.get("usual_landing_error")
    line = " The dashed line is what nine of ten recorded steps are predicted to within." if usual else ""
    picture = figure(
        "Disagreement along trajectories",
        plot(partial(_draw_errors, facts.improved, usual), "disagreement, in typical steps", "step"),
        f"<b class=new>Median</b>, and the range of eight in ten trajectories.{line} A rise means that they leave "
        "what the data know.",
    )
    return section("Imagined steps", intro, grid([picture]))


def _draw_errors(improved: Dataset, usual: float | None, ax: Axes) -> None:
    assert improved.seams is not None
    assert improved.seams.landing_error is not None
    error = improved.seams.landing_error
    shown = np.unique(np.linspace(0, improved.length.max() - 1, 100).astype(np.int64))
    parts = [error[(improved.start[:-1] + t)[improved.length > t]] for t in shown]
    low, middle, high = np.array([np.quantile(part, [0.1, 0.5, 0.9]) for part in parts]).T
    ax.fill_between(shown, low, high, color=NEW, alpha=0.2, linewidth=0)
    ax.plot(shown, middle, color=NEW, linewidth=1.8)
    if usual:
        ax.axhline(usual, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    ax.set_ylim(bottom=0)
