"""Card: the README of a data set on the hub, made from what inspect says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajstitch.report.html import number

_SHOWN = 20  # unusual episodes that are named


def dataset_card(name: str, summary: Mapping[str, Any], *, lerobot: bool, licence: str | None = None) -> str:
    """Return the card as Markdown.

    Arguments:
        name: USER/NAME of the data set.
        summary: what `trajstitch inspect --json` prints.
        lerobot: whether the data set is a LeRobotDataset.
        licence: the hub's name of a licence.
    """
    head = ["---", "tags:", "- trajstitch", *(["- LeRobot"] if lerobot else []), "task_categories:"]
    head += ["- robotics" if lerobot else "- reinforcement-learning"]
    head += [f"license: {licence}"] if licence else []
    if lerobot:
        head += ["configs:", "- config_name: default", "  data_files: data/*/*.parquet"]
    return "\n".join(
        [*head, "---", "", f"# {name.rpartition('/')[2]}", "", *_facts(summary), *_unusual(summary), *_use(name)]
    )


def _facts(summary: Mapping[str, Any]) -> list[str]:
    info = summary["info"]
    rows = [
        ("environment", info.get("env_id") or info.get("robot_type") or "not named"),
        ("task", info.get("task", "not named")),
        ("episodes", f"{summary['episodes']:,} ({summary['terminals']:,} really ended)"),
        ("steps", f"{summary['transitions']:,}"),
        ("numbers per observation and action", f"{summary['obs_dim']} and {summary['action_dim']}"),
        ("length", _spread(summary["length"])),
        ("return", _spread(summary["return"]) if summary["has_rewards"] else "no rewards"),
    ]
    if weights := summary["weights"]:
        rows.append(("weights", f"worth {weights['effective_share']:.1%} of the steps"))
    for name in ("filtered_by", "reward_from", "obs_features", "action_features"):
        if name in info:
            rows.append((name.replace("_", " "), f"`{info[name]}`"))
    rows.append(("fingerprint", f"`{summary['fingerprint']}`"))
    return ["| | |", "|---|---|", *(f"| {label} | {_text(value)} |" for label, value in rows), ""]


def _unusual(summary: Mapping[str, Any]) -> list[str]:
    found = summary["outliers"]
    if not found:
        return ["No episode is unusual.", ""]
    rows = [f"| {entry['episode']} | {'; '.join(entry['why'])} |" for entry in found[:_SHOWN]]
    more = [f"and {len(found) - _SHOWN:,} more.", ""] if len(found) > _SHOWN else []
    return ["## Unusual episodes", "", "| episode | why |", "|---|---|", *rows, "", *more]


def _use(name: str) -> list[str]:
    return ["## Use", "", "```python", "import trajstitch as ts", "", f'data = ts.load("hf:{name}")', "```", ""]


def _spread(d: Mapping[str, float]) -> str:
    return f"{number(d['mean'])} on average, {number(d['min'])} to {number(d['max'])}"


def _text(value: Any) -> str:
    """Return text for a cell: no line breaks, no bars, no markup."""
    return " ".join(str(value).split()).replace("|", "/").replace("<", "&lt;")
