"""Markup: the pieces of HTML that sections are made of, and numbers as a reader wants them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np


def section(title: str, intro: str, body: str) -> str:
    """A part of the page; all three are HTML."""
    return f"<section><h2>{title}</h2><p class=intro>{intro}</p>{body}</section>\n"


def figure(title: str, picture: str, caption: str) -> str:
    """A picture with its title and what to look for in it; all three are HTML."""
    return f"<figure><h4>{title}</h4>{picture}<figcaption>{caption}</figcaption></figure>"


def grid(items: Sequence[str], kind: str = "") -> str:
    """Items side by side, as many as fit."""
    return f'<div class="grid {kind}">{"".join(items)}</div>' if items else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False, kind: str = "") -> str:
    """Cells are text, or HTML where `escaped` says that their text has been."""
    shown = (lambda cell: cell) if escaped else escape
    top = f"<thead><tr>{''.join(f'<th>{escape(cell)}' for cell in head)}</thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{shown(cell)}' for cell in row)}" for row in rows)
    return f'<div class=wide><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def number(value: Any) -> str:
    """As many digits as a reader wants."""
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
    """A share in percent, never 0% unless it is none."""
    value = 100 * float(share)
    if not np.isfinite(value):
        return "–"
    if 0 < value < 0.01:
        return "less than 0.01%"
    digits = 0 if value >= 99.95 or value == 0 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}%"


def change(old: float, new: float) -> str:
    """(+37%), or the difference where a percentage of the old would mislead."""
    if old == new:
        return " (no change)"
    if old > 0:
        text = f"{100 * (new - old) / old:+,.{0 if abs(new - old) >= 0.1 * old else 1}f}%"
    else:
        text = f"{'+' if new >= old else ''}{number(new - old)}"
    return f" ({text.replace('-', '−')})"


def compact(x: float) -> str:
    """For axes: 12k, 3M."""
    unit, letter = next(((u, c) for u, c in ((1e6, "M"), (1e3, "k")) if abs(x) >= 10 * u), (1, ""))
    return f"{x / unit:,.5g}{letter}".replace("-", "−")
