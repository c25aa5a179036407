"""Models: the sections on the quality of models and policies, and on settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.report.html import figure, grid, number, percent, section, table
from trajstitch.report.plots import INK, NEW, OLD, interval_bar, plot, span
from trajstitch.stitching.improve import Result
from trajstitch.training.loop import History
from trajstitch.version import versions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trajstitch.evaluation.scores import Scores  # which loads the simulator

# Key of the result: its label, a note, and how the number is formatted.
_ERRORS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "inverse_mean_absolute_action": (
        "Inverse dynamics: the action between two states is off by",
        "on average, per action dimension, in the units of actions",
        number,
    ),
    "reward_root_mean_square": (
        "Reward: the predicted reward is off by",
        "(root mean square), in units of reward",
        number,
    ),
    "reward_root_mean_square_of_std": (
        "Reward: as a share of the rewards' own standard deviation",
        "0% is perfect, 100% is no better than always predicting the mean",
        percent,
    ),
    "usual_landing_error": (
        "World model: nine of ten recorded steps are predicted to within",
        "in typical steps, the median length of a recorded step; of all steps, those it was trained on too",
        number,
    ),
}
_SIZES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "epsilon": (
        "ε, the radius of a neighbourhood",
        "unless given: the median step length of the data, or half of it from 300,000 states on",
        number,
    ),
    "candidates": ("candidate steps", "", number),
    "edges": ("edges", "candidates that are more plausible than the recorded step", number),
    "share_of_states_with_an_edge": ("share of steps with at least one edge", "", percent),
    "tried": ("edges that the plan tried", "it takes no other; those that it did not try promised less", number),
    "rounds": ("rounds of policy iteration", "until no step is better", number),
    "residual": ("residual", "the most by which a step is better than the chosen one", number),
    "recorded_value": ("value of the start states, as recorded", "discounted", number),
    "planned_value": ("value of the start states, by the plan", "discounted", number),
}
# Where steps are possible because an action leads there, two sizes mean something else.
_SIZES_OF_REACH = _SIZES | {
    "epsilon": (
        "tolerance of landing errors",
        "in typical steps; unless given, nine of ten recorded steps are below, within bounds",
        number,
    ),
    "edges": ("edges", "candidates that an action leads to, or promises to before it is tried", number),
    "share_of_states_with_an_edge": ("share of states with a way on that was not recorded", "", percent),
}


# Colour of a policy's bar, by a word in its name; other names are drawn in a neutral grey.
_COLOURS = {"original": OLD, "improved": NEW}


def show_models(result: Result) -> str:
    """Return the section on models: errors, sizes of the graph, and training curves."""
    intro = "Errors are of trajectories the models were not trained on, unless it says otherwise."
    tables = []
    sizes = _SIZES_OF_REACH if "usual_landing_error" in result.errors else _SIZES
    for title, words, values in (("Errors", _ERRORS, result.errors), ("Graph", sizes, result.graph)):
        rows = []
        for key, value in values.items():
            label, note, shown = words.get(key, (key.replace("_", " "), "", number))
            rows.append([f"{escape(label)}<small>{escape(note)}</small>", shown(value)])
        if rows:
            tables.append(f"<div><h3>{title}</h3>{table([], rows, escaped=True)}</div>")
    if not result.training:
        curves = "<p class=none>No model was trained here: the caller gave the models, so there are no curves.</p>"
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
            "<p class=note>Dark lines are held-out losses, light lines training losses, one per ensemble member. "
            "They should fall and flatten together; a dark line that rises again shows overfitting. The weights "
            "at the lowest held-out loss are kept. The value model keeps its last weights: its targets move, so "
            f"its loss need not fall.{more}</p>"
        )
    return section("Models", intro, grid(tables) + curves)


def _draw_training(past: History, ax: Axes) -> None:
    for losses, colour, width in ((past.train, "#b9c0c6", 1.2), (past.held_out, INK, 1.5)):
        ax.plot(past.step, np.asarray(losses, float), color=colour, linewidth=width, alpha=0.85)
    values = np.concatenate([np.asarray(past.train, float), np.asarray(past.held_out, float)], 1)
    settled = values[1:] if len(values) > 4 else values  # the first losses would flatten the rest
    ax.set_ylim(*span(settled, 0.12))
    ax.set_xlim(0, max(past.step) * 1.02)
    if len(past.step) == 1:
        ax.scatter(past.step * values.shape[1], values[0], s=14, color=INK)


def _last(past: History) -> str:
    members = len(past.held_out[-1])
    lowest = np.asarray(past.held_out, float).min(0).mean()
    return f"Lowest held-out loss {number(float(lowest))}, {members} member{'s' if members > 1 else ''}."


def show_policies(scores: Mapping[str, Scores]) -> str:
    """Return the section on policies: scores as bars and numbers."""
    intro = (
        "Scores of policies in the simulator, at their last checkpoint. Bars are means, whiskers 95% bootstrap "
        "intervals over seeds and episodes; if whiskers overlap, the order is not certain. With one seed they do "
        "not show how much training itself varies."
    )
    if not scores:
        return ""
    said = {name: score.summary() for name, score in scores.items()}
    kind = "normalised" if all(entry["normalised"] for entry in said.values()) else "raw"
    ends = [end for entry in said.values() for end in entry[kind]["interval95"]]
    low, high = min(0.0, *ends), max(0.0, *ends, 1e-9)
    rows = []
    for name, entry in said.items():
        colour = next((_COLOURS[word] for word in _COLOURS if word in name.lower()), "#5c6770")
        cells = [_with_interval(entry[key]) for key in ("raw", "normalised")]
        where = f"{entry['env']}, {entry['physics']}"
        rows.append(
            [
                f"{escape(name)}<small>{escape(where)}</small>",
                interval_bar(entry[kind]["mean"], entry[kind]["interval95"], low, high, colour),
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


def show_settings(settings: Mapping[str, Any]) -> str:
    """Return the section on settings and versions, collapsed."""
    rows = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in _flat(settings)]
    made = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in versions().items()]
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
