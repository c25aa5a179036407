"""Tables that belong to one suite: expert-fraction, reward-models and mazes; empty for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.bench.datasets import FRACTIONS, MAZES, PERCENTS, maze_parts
from trajstitch.bench.published import published_reward_error
from trajstitch.bench.suites import REWARD_DATA, REWARD_MODELS
from trajstitch.bench.tables import MISSING, PUBLISHED, Estimate, Results, Table, estimate, title
from trajstitch.evaluation.stats import mean

# -- expert-fraction ---------------------------------------------------------------------------------------------

Measure = Literal["score", "kl", "action_error"]
MEASURES: tuple[Measure, ...] = ("score", "kl", "action_error")
CLONES = ("gaussian-bc", "ts-gaussian-bc")  # before and after stitching


def fraction_runs(results: Results, method: str, data: str, measure: Measure) -> list[float]:
    """Return a measure of every policy's last checkpoint."""
    if measure == "score":
        return results.runs(method, data, "last")
    found = [results.records[cell] for cell in results.of(method, data) if cell in results.records]
    return [value for record in found for value in record["expert"][measure][-1]]


class Point(NamedTuple):
    """A measure at one percentage of expert episodes."""

    percent: float
    estimate: Estimate


def fraction_curve(results: Results, method: str, env: str, measure: Measure) -> list[Point]:
    """Return a measure by the percentage of expert episodes, where there are policies."""
    points = []
    for percent in PERCENTS:
        name = f"{env}-fraction-{percent}"
        if name in results.grid.data and (runs := fraction_runs(results, method, name, measure)):
            points.append(Point(float(percent), estimate(mean, np.array(runs)[:, None])))
    return points


def fraction_envs(results: Results) -> list[str]:
    """Return the environments of which there are noisy data with experts."""
    return list(dict.fromkeys(name.partition("-")[0] for name in FRACTIONS if name in results.grid.data))


def fraction_tables(results: Results) -> list[Table]:
    """Return one table per environment: score, KL divergence to the expert and action error, before and after."""
    return [_fraction_table(results, env) for env in fraction_envs(results)]


def _fraction_table(results: Results, env: str) -> Table:
    curves = {(c, m): dict(fraction_curve(results, c, env, m)) for c in CLONES for m in MEASURES}
    closer = kl_gain(*({x: one.value for x, one in curves[clone, "kl"].items()} for clone in CLONES))
    rows = []
    for percent in map(float, PERCENTS):
        if f"{env}-fraction-{percent:g}" not in results.grid.data:
            continue
        row = [f"{percent:g}%"]
        for measure in MEASURES:
            row += [_shown(curves[clone, measure].get(percent), measure) for clone in CLONES]
        rows.append([*row, f"{closer[percent]:+.2f}".replace("-", "−") if percent in closer else "–"])
    names = {"score": "score", "kl": "KL to the expert", "action_error": "action error"}
    head = ["experts", *(f"{title(clone)}, {name}" for name in names.values() for clone in CLONES), "closer by"]
    reading = (
        "By the share of expert episodes among noisy ones, at the last checkpoint, with bootstrap 95% intervals: "
        "a higher score is better, a lower divergence and action error are; the last column is how much nearer "
        "stitching brings the clone in KL divergence, in units of the range of all divergences in this table, as "
        "in the paper, which shows these results in figures alone, without numbers."
    )
    return Table(f"Expert fraction, {env}", head, rows, reading)


def kl_gain(before: dict[float, float], after: dict[float, float]) -> dict[float, float]:
    """Return KL before minus KL after, scaled so that the divergences of both together reach from 0 to 1."""
    both = [*before.values(), *after.values()]
    span = max(both) - min(both) if both else 0.0
    return {x: (before[x] - after[x]) / span for x in before if x in after and span > 0}


def _shown(one: Estimate | None, measure: Measure) -> str:
    if one is None:
        return MISSING
    if measure == "score":
        return one.as_score
    return f"{one.value:.3g} [{one.low:.3g}, {one.high:.3g}]"


# -- reward-models -----------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """Squared errors of P reward models during training."""

    step: list[int]  # [C]
    train: NDArray[np.float64]  # [C, P]
    test: NDArray[np.float64]  # [C, P]


def reward_curves(results: Results, data: str) -> dict[str, Curve]:
    """Return by model the errors during training on one data set."""
    found = {cell.method: record for cell, record in results.rewards.items() if cell.data == data}
    return {
        model: Curve(found[model]["step"], _array(found[model]["train"]), _array(found[model]["test"]))
        for model in REWARD_MODELS
        if model in found
    }


def _array(rows: Any) -> NDArray[np.float64]:
    return np.array(rows, np.float64)  # None, a number that was not finite, becomes nan


def reward_tables(results: Results) -> list[Table]:
    """Return one table per data set: errors of reward models at the end of training, and on other data."""
    return [_reward_table(results, data) for data in results.grid.data if reward_curves(results, data)]


def _reward_table(results: Results, data: str) -> Table:
    records = {cell.method: record for cell, record in results.rewards.items() if cell.data == data}
    others = REWARD_DATA[data]
    known = [name for name in others if published_reward_error("reward-mlp", data, name)]
    rows = []
    for model, curve in reward_curves(results, data).items():
        row = [title(model), _small(curve.train[-1].mean()), _small(curve.test[-1].mean())]
        for name in others:
            found = records[model]["others"][name]
            row.append(" ± ".join(_small(_array(found[part]).mean()) for part in ("mse", "std")))
            if name in known:
                published = published_reward_error(model, data, name)
                row.append(" ± ".join(map(_small, published)) if published else "–")
        rows.append(row)
    head = ["model", "train", "test"]
    for name in others:
        head += [name, *([name + PUBLISHED] if name in known else [])]
    count = max(curve.test.shape[1] for curve in reward_curves(results, data).values())
    reading = (
        f"Squared errors of rewards in raw units after training on {data}, means over {count} models: of "
        "transitions learned from, of held-out trajectories, and of other data of the same environment, there "
        "with the standard deviation over the data; smaller is better."
    )
    if known:
        reading += (
            " The published Gaussian's large errors are likely those of broadcasting a column of predictions "
            "against a row of rewards."
        )
    return Table(f"Reward models, trained on {data}", head, rows, reading)


def _small(value: Any) -> str:
    """Format a number of any size with two digits, without an exponent."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:#.2g}"
    return np.format_float_positional(float(text), trim="-") if "e" in text else text.rstrip(".")


# -- mazes -------------------------------------------------------------------------------------------------------


def maze_groups(results: Results) -> dict[tuple[str, int], list[str]]:
    """Return the data sets of every size and number of walks, one per task."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in results.grid.data:
        if name in MAZES:
            size, walks, _ = maze_parts(name)
            groups.setdefault((size, walks), []).append(name)
    return groups


def maze_tables(results: Results) -> list[Table]:
    """Return one table: success of every method in every maze, over tasks."""
    groups = maze_groups(results)
    rows = []
    for (size, walks), tasks in groups.items():
        rows.append([f"{size}, {walks:,} walks", *(_success(results, method, tasks) for method in results.asked)])
    reading = (
        "Success in % of episodes, the mean over tasks with its bootstrap 95% interval, then each task; no "
        "recorded walk leads from a start to its goal, so that only composing walks can."
    )
    return [Table("Mazes", ["maze", *map(title, results.asked)], rows, reading)] if rows else []


def maze_estimate(results: Results, method: str, tasks: Sequence[str]) -> Estimate | None:
    """Return the mean success of a method over the tasks that have runs; None if none has."""
    done = [task for task in tasks if results.runs(method, task, "last")]
    return estimate(mean, results.scores(method, "last", done)) if done else None


def _success(results: Results, method: str, tasks: Sequence[str]) -> str:
    found = maze_estimate(results, method, tasks)
    if found is None:
        return results.state(method, tasks[0])
    each = [results.runs(method, task, "last") for task in tasks]
    shown = " / ".join(f"{np.mean(runs):.0f}" if runs else "–" for runs in each)
    return f"{found.as_score}: {shown}"
