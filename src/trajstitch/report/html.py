"""HTML: the pieces that sections are made of, and numbers formatted for reading."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np


def section(title: str, intro: str, body: str) -> str:
    """Return a section of the page; all arguments are HTML."""
    return f"<section><h2>{title}</h2><p class=intro>{intro}</p>{body}</section>\n"


def figure(title: str, picture: str, caption: str) -> str:
    """Return a picture with its title and caption; all arguments are HTML."""
    return f"<figure><h4>{title}</h4>{picture}<figcaption>{caption}</figcaption></figure>"


def grid(items: Sequence[str], kind: str = "") -> str:
    """Put items side by side, as many as fit."""
    return f'<div class="grid {kind}">{"".join(items)}</div>' if items else ""


def tiles(items: Sequence[tuple[str, str]], kind: str = "") -> str:
    """Return a row of large numbers, each below its label; all arguments are HTML."""
    cells = "".join(f"<div><span>{label}</span><b>{value}</b></div>" for label, value in items)
    return f'<div class="tiles {kind}">{cells}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False, kind: str = "") -> str:
    """Return a table; cells are plain text, or HTML if `escaped` is true."""
    shown = (lambda cell: cell) if escaped else escape
    top = f"<thead><tr>{''.join(f'<th>{escape(cell)}' for cell in head)}</thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{shown(cell)}' for cell in row)}" for row in rows)
    return f'<div class=wide><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def number(value: Any) -> str:
    """Format a number with about three digits."""
    if not isinstance(value, int | float | np.number):
        return str(value)
    size = abs(float(value))
    if not np.isfinite(size):
        return "–"
    if isinstance(value, int | np.integer) or size >= 100_000:
        text = f"{value:,.0f}"
    elif size >= 1 or size == 0:
        text = f"{value:,.1f}" if size else "0"
    else:
        text = f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    """Format a share in percent; 0% is shown only for exactly 0."""
    value = 100 * float(share)
    if not np.isfinite(value):
        return "–"
    if 0 < value < 0.01:
        return "less than 0.01%"
    digits = 0 if value >= 99.95 or value == 0 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}%"


def change(old: float, new: float) -> str:
    """Format a change as (+37%), or as a difference where a percentage would mislead."""
    if old == new:
        return " (no change)"
    if old > 0:
        text = f"{100 * (new - old) / old:+,.{0 if abs(new - old) >= 0.1 * old else 1}f}%"
    else:
        text = f"{'+' if new >= old else ''}{number(new - old)}"
    return f" ({text.replace('-', '−')})"


def compact(x: float) -> str:
    """Format a number for an axis: 12k, 3M."""
    unit, letter = next(((u, c) for u, c in ((1e6, "M"), (1e3, "k")) if abs(x) >= 10 * u), (1, ""))
    return f"{x / unit:,.5g}{letter}".replace("e-0", "e-").replace("-", "−")
