"""Plots: inline SVG in the colours of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.report.comparison import Real
from trajstitch.report.html import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Grey is old and teal is new on the whole page. Text from the data goes into the HTML, escaped, never into a plot,
# whose fonts may lack its letters.
OLD, NEW, INK, FAINT = "#9aa1a8", "#00798c", "#30363c", "#e6e8ea"
POINTS = 3000  # at most, in a scatter plot


@contextmanager
def plot_style() -> Iterator[None]:
    """Use Matplotlib's defaults, whatever the caller has set, and settings for a small, reproducible SVG."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trajstitch", "font.size": 11})
        yield


def plot(
    draw: Callable[[Axes], None], up: str, along: str, width: int = 490, height: int = 290, bare: bool = False
) -> str:
    """Return an inline SVG of this size in CSS pixels; `up` and `along` label the vertical and horizontal axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figure = Figure((width / 72, height / 72), dpi=180)
    left, bottom, top = (2, 22, 4) if bare else (40, 40, 24)
    bottom = bottom if along else 2
    ax = figure.add_axes((left / width, bottom / height, 1 - (left + 18) / width, 1 - (bottom + top) / height))
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#c4c9ce")
    ax.tick_params(which="both", length=0, labelcolor="#59626a", labelsize=10, pad=5)
    round_steps = [1, 2, 2.5, 5, 10]
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=round_steps))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=round_steps))
    draw(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: compact(x)))
        axis.set_minor_formatter(NullFormatter())
    if bare:
        ax.set(xticks=[], yticks=[])
        ax.spines["bottom"].set_visible(False)
    else:
        ax.grid(axis="y", color=FAINT, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.set_title(up, loc="left", x=-(left - 6) / (width - left - 18), fontsize=10.5, color="#59626a", pad=9)
    if along:
        ax.set_xlabel(along, color="#59626a", fontsize=10.5, labelpad=5)
    page = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(page, format="svg", dpi=180, transparent=True, metadata=nothing)
    return _inline(page.getvalue(), f"{up} by {along}" if up else "states in two dimensions")


def _inline(svg: str, label: str) -> str:
    """Return an SVG file as part of a page: without header, size, and styles or ids that would affect the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"| xmlns(:xlink)?="[^"]*"', "", svg, count=4)
    svg = re.sub(r"\n\s*", "\n", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()


def compare(ax: Axes, edges: Real, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Draw two distributions: the old as a grey area, the new as a teal outline with a tint."""
    before, shares = shares_of(old, edges), shares_of(new, edges)
    ax.stairs(before, edges, fill=True, color=OLD, alpha=0.55)
    ax.stairs(shares, edges, fill=True, color=NEW, alpha=0.18)
    ax.stairs(shares, edges, color=NEW, linewidth=1.8)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.08 * max(shares.max(), before.max(), 1e-9))


def interval_bar(
    mean: float,
    ends: Sequence[float],
    low: float,
    high: float,
    colour: str,
    zero: float = 0.0,
    mark: float | None = None,
) -> str:
    """Return a bar from `zero` to the mean with its interval as whiskers, on an axis from `low` to `high`.

    A circle is drawn at `mark`, if there is one.
    """
    at, origin, *tips = (200 * (x - low) / (high - low) for x in (mean, zero, *ends))
    ring = ""
    if mark is not None:
        ring = f'<circle cx="{200 * (mark - low) / (high - low):.1f}" cy="10" r="4" fill="#fff" stroke="{INK}"/>'
    return (
        f'<svg class=bar viewBox="-5 0 210 20" preserveAspectRatio="xMinYMid" aria-hidden="true">'
        f'<rect x="{min(at, origin):.1f}" y="4" width="{abs(at - origin):.1f}" height="12" fill="{colour}"/>'
        f'<path d="M{tips[0]:.1f} 10H{tips[1]:.1f}M{tips[0]:.1f} 6v8M{tips[1]:.1f} 6v8M{origin:.1f} 1v18" '
        f'stroke="{INK}" stroke-width="1.3" fill="none"/>{ring}</svg>'
    )


def count_up(ax: Axes) -> None:
    """Put whole numbers on the vertical axis."""
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def bin_count(values: NDArray[Any]) -> int:
    """Return the number of bins for a histogram of these values."""
    return int(np.clip(3 * np.sqrt(len(values)), 10, 40))


def shares_of(values: NDArray[Any], edges: Real) -> Real:
    """Return the percentage of the values in each bin."""
    return 100 * np.histogram(values, edges)[0] / max(len(values), 1)


def span(values: NDArray[Any], margin: float = 0.03) -> tuple[float, float]:
    """Return a range around all finite numbers, never empty."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    pad = margin * (high - low) or max(abs(low), 1.0) * 0.05
    return low - pad, high + pad


def whole(first: int, last: int) -> list[int]:
    """Return at most eight whole numbers for an axis."""
    return list(range(int(first), int(last) + 1, max(1, -(-(int(last) - int(first) + 1) // 8))))
