"""Summary: what is in a data set and how good it is, as plain numbers and as a table for the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, repeated
from trajstitch.episodes import Episodes, episode_table, saturated
from trajstitch.evaluation.normalise import normalise, reference_scores
from trajstitch.weight_facts import weight_facts

# What loading leaves in `info`: how many of these there were.
_LEFT_OUT = {
    "dropped_steps": "last steps whose successor was not recorded, or was the start of another episode",
    "dropped_episodes": "episodes of one such step",
    "unmarked_cuts": "jumps inside episodes, split there",
    "moved_timeouts": "time-outs moved by ROWS rows, to where the states jump",
    "wrong_successors": "next_observations that are the start of another episode",
    "split_terminations": "terminations inside episodes, split there",
}
EPISODE_COLUMNS = (
    *("episode", "length", "return", "success", "jerk", "jumps", "idle", "saturation", "duplicate", "distance"),
    "weight",
)
_BARS = " ▁▂▃▄▅▆▇█"


def summarise(data: Dataset, episodes: Episodes | None = None) -> dict[str, Any]:
    """Return everything that `trajstitch inspect` shows."""
    low, high = data.action.min(0), data.action.max(0)
    constant = np.flatnonzero(data.obs.min(0) == data.obs.max(0))
    episodes = episodes or episode_table(data)
    return {
        "episodes": len(data),
        "transitions": data.transitions,
        "obs_dim": data.obs_dim,
        "action_dim": data.action_dim,
        "length": _describe(data.length),
        "return": _describe(data.returns),
        "normalised_return": _normalised(data),
        "return_histogram": _histogram(data.returns),
        "has_rewards": bool(data.reward.any()),
        "terminals": int(data.terminal.sum()),
        "timeouts": int((~data.terminal).sum()),
        "duplicate_states": int(repeated(data.obs).sum()),
        "constant_columns": constant.tolist(),
        "nonfinite_columns": [],  # a Dataset holds only finite numbers; loading refuses others
        "action_low": low.tolist(),
        "action_high": high.tolist(),
        "action_saturation": saturated(data).mean(0).tolist(),
        "dropped_steps": _count(data, "dropped_steps"),
        "megabytes": data.nbytes / 1e6,
        "fingerprint": data.fingerprint,
        "info": dict(data.info),
        "seams": _seams(data),
        "weights": weight_facts(data),
        "outliers": [{"episode": m, "why": why} for m, why in episodes.outlier.items()],
        "per_episode": episodes.rows(),
    }


def show(data: Dataset, summary: dict[str, Any], name: str) -> None:
    """Print the summary as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title=Text(name), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    add = table.add_row
    s = summary
    if "env_id" in data.info:
        add("environment", f"{data.info['env_id']}, physics {data.info.get('physics', 'gymnasium')}")
    else:
        add("environment", "not named in the data; --env ID gives normalised scores")
    add("episodes", f"{s['episodes']:,} ({s['terminals']:,} terminal, {s['timeouts']:,} cut by a time limit)")
    add("transitions", f"{s['transitions']:,} of {s['obs_dim']} observations and {s['action_dim']} actions")
    add("length", _line(s["length"]))
    add("return", _line(s["return"]) if s["has_rewards"] else "all rewards are 0")
    if s["normalised_return"]:
        add("normalised", _line(s["normalised_return"]))
    if s["has_rewards"]:
        add("", _draw(s["return_histogram"]))
    add("duplicate states", f"{s['duplicate_states']:,}")
    add("constant columns", ", ".join(f"obs {c}" for c in s["constant_columns"]) or "none")
    add("non-finite columns", "none")
    spans = zip(s["action_low"], s["action_high"], strict=True)
    add("action range", "  ".join(f"[{a:.3g}, {b:.3g}]" for a, b in spans))
    add("saturated actions", "  ".join(f"{share:.1%}" for share in s["action_saturation"]))
    add("steps dropped", _dropped(data))
    if seams := s["seams"]:
        add("stitched", f"{seams['stitched_share']:.2%} of the steps, {seams['replaced']:,} trajectories replaced")
        if seams["imagined_share"]:
            add("imagined", f"{seams['imagined_share']:.2%} of the steps: a world model predicted their states")
        add("seams per trajectory", _line(seams["per_trajectory"]))
        add("return before", _line(seams["return_before"]))
    if weights := s["weights"]:
        _add_weights(table, weights)
    add("memory", f"{s['megabytes']:.1f} MB")
    add("fingerprint", s["fingerprint"])
    console.print(table)


_SHOWN = 20  # episodes in the table for the terminal


def show_episodes(summary: dict[str, Any]) -> None:
    """Print the table of episodes, unusual ones first if there are many, and what is unusual about them."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows, unusual = summary["per_episode"], [entry["episode"] for entry in summary["outliers"]]
    order = list(range(len(rows)))
    if len(rows) > _SHOWN:
        order.sort(key=lambda m: not rows[m]["outlier"])
    names = [name for name in EPISODE_COLUMNS if any(row[name] is not None for row in rows)]
    which = "" if len(rows) <= _SHOWN else f" ({_SHOWN} of {len(rows):,}, unusual ones first; --html shows all)"
    # --where needs whole names: without frames ten columns fit into 80 characters; more are folded, not cut.
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for m in order[:_SHOWN]:
        table.add_row(*(_cell(rows[m][name]) for name in names))
    console = Console()
    console.print(f"episodes{which}", style="table.title", highlight=False)
    console.print(table)
    for entry in summary["outliers"][:_SHOWN]:
        console.print(f"episode {entry['episode']}: {'; '.join(entry['why'])}", highlight=False, markup=False)
    if (more := len(unusual) - _SHOWN) > 0:
        console.print(f"and {more:,} more unusual episodes; --json and --html name them all")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def _seams(data: Dataset) -> dict[str, Any] | None:
    """Return what stitching did to improved data; None for other data."""
    if data.seams is None:
        return None
    count = np.add.reduceat(data.seams.stitched, data.start[:-1], dtype=np.int64)
    return {
        "stitched_share": float(data.seams.stitched.mean()),
        "imagined_share": float((data.seams.target < 0).mean()),
        "replaced": int((count > 0).sum()),
        "per_trajectory": _describe(count),
        "return_before": _describe(data.seams.return_before),
        "return_after": _describe(data.returns),
    }


def _add_weights(table: Any, w: dict[str, Any]) -> None:
    effective = f"{w['effective_steps']:,.0f} effective steps, {w['effective_share']:.1%} of all"
    table.add_row("weights", f"{effective}; the largest is {w['max']:,.3g}")
    rank = "undefined" if w["return_spearman"] is None else f"{w['return_spearman']:.2f}"
    best = f"{w['best_tenth_share']:.1%} on the best tenth of trajectories by return"
    table.add_row("weight and return", f"{best}; rank correlation {rank}")
    fifths = "  ".join("–" if mean is None else f"{mean:.2f}" for mean in w["mean_by_fifth"])
    table.add_row("weight by fifth of length", fifths)
    for name in ("heaviest", "lightest"):
        each = (f"{t['trajectory']}: {t['mean_weight']:.2f} (return {t['return']:,.1f})" for t in w[name])
        table.add_row(f"{name} trajectories", "  ".join(each))


def _dropped(data: Dataset) -> str:
    notes = []
    if "split_by" in data.info:
        notes.append(f"no time-outs recorded: episodes split by {data.info['split_by']}")
    for name, what in _LEFT_OUT.items():
        if count := _count(data, name):
            notes.append(f"{count:,} {what}".replace("ROWS", str(data.info.get("moved_by"))))
    return "; ".join(notes) or "0"


def _count(data: Dataset, name: str) -> int:
    """Return a count that loading left in `info`; 0 if there is none, or if someone else wrote something there."""
    value = data.info.get(name)
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e18 else 0


def _describe(values: NDArray[Any]) -> dict[str, float]:
    names = ("min", "q10", "q25", "median", "q75", "q90", "max")
    quantiles = np.quantile(values, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
    described = {"mean": float(values.mean()), "std": float(values.std())}
    return described | {name: float(q) for name, q in zip(names, quantiles, strict=True)}


def _normalised(data: Dataset) -> dict[str, float] | None:
    reference = reference_scores(str(data.info.get("env_id", "")), data.info)
    if reference is None:
        return None
    return _describe(normalise(data.returns, reference))


def _histogram(values: NDArray[Any], bins: int = 40) -> dict[str, list[float]]:
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # all the same, up to rounding
        half = max(0.5, 0.01 * abs(low))  # seen beside the largest numbers too
        low, high = low - half, high + half
    counts, edges = np.histogram(values, bins, (low, high))
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def _line(d: dict[str, float]) -> str:
    shape = "{mean:,.1f} ± {std:,.1f}   min {min:,.1f}  ¼ {q25:,.1f}  ½ {median:,.1f}  ¾ {q75:,.1f} max {max:,.1f}"
    return shape.format(**d)


def _draw(histogram: dict[str, list[float]]) -> str:
    counts = np.array(histogram["counts"])
    height = np.ceil(counts / counts.max() * (len(_BARS) - 1)).astype(int)
    low, high = histogram["edges"][0], histogram["edges"][-1]
    return f"{low:,.0f} │{''.join(_BARS[h] for h in height)}│ {high:,.0f}"
