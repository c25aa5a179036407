"""Tables: scores for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


def score_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """Return a table of scores by name; each row is a `Scores.summary()`."""
    first = next(iter(rows.values()))
    table = Table(
        title=Text(
            f"{title} on {first['env']}, physics {first['physics']}: "
            f"{_count(first['seeds'], 'seed')} × {_count(first['episodes'], 'episode')}"
        ),
        title_justify="left",
    )
    for name in ("", "return", "95% interval", "std over seeds", "normalised", "95% interval", "length"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in rows.items():
        raw, normalised = row["raw"], row["normalised"]
        single = row["seeds"] * row["episodes"] == 1  # one episode has no interval
        table.add_row(
            name,
            f"{raw['mean']:.1f}",
            "–" if single else "{:.1f} – {:.1f}".format(*raw["interval95"]),
            "–" if raw["std_over_seeds"] is None else f"{raw['std_over_seeds']:.1f}",
            f"{normalised['mean']:.1f}" if normalised else "no reference",
            "–" if single or not normalised else "{:.1f} – {:.1f}".format(*normalised["interval95"]),
            f"{row['length']:.0f}",
        )
    return table


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"
