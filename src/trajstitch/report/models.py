"""Models: the sections on how good models and policies are, and how all of it was made."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch import __version__
from trajstitch.fit import History
from trajstitch.report.draw import INK, NEW, OLD, plot, span
from trajstitch.report.markup import figure, grid, number, percent, section, table
from trajstitch.scores import Scores
from trajstitch.stitch import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PACKAGES = ("jax", "equinox", "optax", "numpy", "scipy", "matplotlib")
_ERRORS = {
    "inverse_mean_absolute_action": (
        "Inverse dynamics: the action between two states is off by",
        "on average, per action dimension, in the units of actions",
    ),
    "reward_root_mean_square": (
        "Reward: the predicted reward is off by",
        "(root mean square), in units of reward",
    ),
    "reward_root_mean_square_of_std": (
        "Reward: as a share of the rewards' own standard deviation",
        "0 is perfect, 1 no better than always guessing the mean",
    ),
}
_SIZES = {
    "epsilon": (
        "ε, the radius of a neighbourhood",
        "unless given, the median step of the data, or half of it from 300,000 states on",
    ),
    "candidates": ("candidate steps looked at", ""),
    "edges": ("of them more plausible than the recorded step", "these are the edges"),
    "share_of_states_with_an_edge": ("share of steps with at least one edge", ""),
}


def show_models(result: Result) -> str:
    """Errors, sizes of the graph, and training curves."""
    intro = "Judged on trajectories the models were not trained on."
    tables = []
    for title, words, values in (("Errors", _ERRORS, result.errors), ("Graph", _SIZES, result.graph)):
        rows = []
        for key, value in values.items():
            label, note = words.get(key, (key.replace("_", " "), ""))
            shown = percent(value) if key.startswith("share") or key.endswith("of_std") else number(value)
            rows.append([f"{escape(label)}<small>{escape(note)}</small>", shown])
        if rows:
            tables.append(f"<div><h3>{title}</h3>{table([], rows, escaped=True)}</div>")
    if not result.training:
        curves = "<p class=none>No model was trained here: they were the caller's own, so there are no curves.</p>"
    else:
        drawn = list(result.training.items())[:12]
        more = f" The first 12 of {len(result.training)} are drawn." if len(drawn) < len(result.training) else ""
        curves = "<h3>Training</h3>" + grid(
            [
                figure(escape(name), plot(partial(_draw_training, past), "loss", "step", 330, 190), _last(past))
                for name, past in drawn
                if past.step
            ],
            "thirds",
        )
        curves += (
            "<p class=note>Dark: held-out loss, light: training loss, a line for each member of the ensemble. "
            "They should fall and flatten together; dark lines that turn upwards are overfitting. Kept are the "
            "weights of the lowest point, but for values the last ones: what they are fitted to moves, so their "
            f"loss need not fall.{more}</p>"
        )
    return section("Models", intro, grid(tables) + curves)


def _draw_training(past: History, ax: Axes) -> None:
    for losses, colour, width in ((past.train, "#b9c0c6", 1.2), (past.held_out, INK, 1.5)):
        ax.plot(past.step, np.asarray(losses, float), color=colour, linewidth=width, alpha=0.85)
    values = np.concatenate([np.asarray(past.train, float), np.asarray(past.held_out, float)], 1)
    settled = values[1:] if len(values) > 4 else values  # the first check is off the chart and says little
    ax.set_ylim(*span(settled, 0.12))
    ax.set_xlim(0, max(past.step) * 1.02)
    if len(past.step) == 1:
        ax.scatter(past.step * values.shape[1], values[0], s=14, color=INK)


def _last(past: History) -> str:
    members = len(past.held_out[-1])
    lowest = np.asarray(past.held_out, float).min(0).mean()
    return f"Lowest held-out loss {number(float(lowest))}, {members} member{'s' if members > 1 else ''}."


def show_policies(scores: Mapping[str, Scores]) -> str:
    """Scores of policies, as bars and numbers."""
    intro = (
        "Policies played in the simulator, at their last checkpoint. Bars are means, whiskers 95% bootstrap "
        "intervals over seeds and episodes; whiskers that overlap leave the order open. With one seed they cannot "
        "know how much training itself varies."
    )
    if not scores:
        return ""
    said = {name: score.summary() for name, score in scores.items()}
    kind = "normalised" if all(entry["normalised"] for entry in said.values()) else "raw"
    ends = [end for entry in said.values() for end in entry[kind]["interval95"]]
    low, high = min(0.0, *ends), max(0.0, *ends, 1e-9)
    rows = []
    for name, entry in said.items():
        colour = OLD if "original" in name.lower() else NEW if "improved" in name.lower() else "#5c6770"
        cells = [_with_interval(entry[key]) for key in ("raw", "normalised")]
        where = f"{entry['env']}, {entry['physics']}"
        rows.append(
            [
                f"{escape(name)}<small>{escape(where)}</small>",
                _bar(entry[kind], low, high, colour),
                *cells,
                f"{entry['seeds']:,} × {entry['episodes']:,}",
            ]
        )
    head = [
        "policy",
        "normalised score" if kind == "normalised" else "return",
        "return",
        "normalised",
        "seeds × episodes",
    ]
    note = "<p class=note>Normalised: 0 is a random policy, 100 an expert. ± is the std over seeds.</p>"
    return section("Policies", intro, table(head, rows, escaped=True, kind="scores") + note)


def _with_interval(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "–"
    low, high = map(number, part["interval95"])
    spread = f" ± {number(part['std_over_seeds'])}" if len(part["per_seed"]) > 1 else ""
    return f"{number(part['mean'])}{spread}<small>{low} to {high}</small>"


def _bar(part: Mapping[str, Any], low: float, high: float, colour: str) -> str:
    at, zero, *ends = (200 * (x - low) / (high - low) for x in (part["mean"], 0.0, *part["interval95"]))
    return (
        f'<svg class=bar viewBox="-2 0 204 20" preserveAspectRatio="xMinYMid" aria-hidden="true">'
        f'<rect x="{min(at, zero):.1f}" y="4" width="{abs(at - zero):.1f}" height="12" fill="{colour}"/>'
        f'<path d="M{ends[0]:.1f} 10H{ends[1]:.1f}M{ends[0]:.1f} 6v8M{ends[1]:.1f} 6v8M{zero:.1f} 1v18" '
        f'stroke="{INK}" stroke-width="1.3" fill="none"/></svg>'
    )


def show_settings(settings: Mapping[str, Any]) -> str:
    """Settings and versions, folded away."""
    rows = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in _flat(settings)]
    versions = {"trajstitch": __version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    made = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in versions.items()]
    body = "".join(
        f"<details><summary>{title}</summary>{table([], lines, escaped=True, kind='plain')}</details>"
        for title, lines in (("All settings", rows), ("Versions", made))
        if lines
    )
    return section("How it was made", "The same settings, versions and kind of machine give the same data.", body)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
