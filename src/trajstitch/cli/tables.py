"""Tables: scores for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


def score_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """Return a table of scores by name; each row is a `Scores.summary()`.

    Success is shown for environments with a goal; they have no normalised scores unless a reference is known.
    """
    first = next(iter(rows.values()))
    has_goal = first.get("success") is not None
    scores = ["normalised"] * (not has_goal or first["normalised"] is not None) + ["success"] * has_goal
    table = Table(
        title=Text(
            f"{title} on {first['env']}, physics {first['physics']}: "
            f"{_count(first['seeds'], 'seed')} × {_count(first['episodes'], 'episode')}"
        ),
        title_justify="left",
    )
    columns = ["return", "95% interval", "std over seeds"]
    columns += [word for name in scores for word in (name, "95% interval")]
    for name in ("", *columns, *(["steps to goal"] if has_goal else []), "length"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in rows.items():
        raw = row["raw"]
        single = row["seeds"] * row["episodes"] == 1  # one episode has no interval
        table.add_row(
            name,
            f"{raw['mean']:.1f}",
            "–" if single else "{:.1f} – {:.1f}".format(*raw["interval95"]),
            "–" if raw["std_over_seeds"] is None else f"{raw['std_over_seeds']:.1f}",
            *(cell for score in scores for cell in _score_cells(row[score], " %" * (score == "success"), single)),
            *([_steps(row["steps_to_goal"])] if has_goal else []),
            f"{row['length']:.0f}",
        )
    return table


def _score_cells(score: dict[str, Any] | None, unit: str, single: bool) -> tuple[str, str]:
    """Return mean and interval."""
    if score is None:
        return "no reference", "–"
    low, high = score["interval95"]
    return f"{score['mean']:.1f}{unit}", "–" if single else f"{low:.1f} – {high:.1f}{unit}"


def _steps(steps: float | None) -> str:
    return "–" if steps is None else f"{steps:.0f}"


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"
