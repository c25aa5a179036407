"""Tables of a suite: what the records say, as arrays scores[runs, tasks] and as rows of text; missing cells show.

A run is one policy: a stitching seed and a policy seed. A task is a data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from trajstitch.bench.grid import Cell, Grid, read_failure, read_records, stored_grid
from trajstitch.bench.published import published_score
from trajstitch.bench.suites import RECIPES
from trajstitch.evaluation.stats import (
    STATISTICS,
    Scores,
    iqm,
    mean,
    probability_of_improvement,
    profile,
    std,
    stratified_interval,
)
from trajstitch.report.html import number

Which = Literal["last", "best"]
WHICH: tuple[Which, ...] = ("last", "best")
BASELINES = ("bc", "percent-bc", "gaussian-bc")
THRESHOLDS = np.linspace(0, 125, 126)  # of normalised scores in a performance profile
MISSING = "missing"
PUBLISHED = ", published"  # ends the name of a column that stands beside ours


class Table(NamedTuple):
    """A table of text, with one sentence on how to read it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    reading: str


@dataclass(frozen=True)
class Results:
    """What is in a folder of bench."""

    grid: Grid
    records: dict[Cell, dict[str, Any]]  # of policies
    rewards: dict[Cell, dict[str, Any]]  # of reward models
    failures: dict[Cell, str]

    @cached_property
    def unit(self) -> str:
        """What scores are: success where there are goals, normalised where there are references, else raw."""
        scores = [record["last"] for record in self.records.values()]
        units = ("success", "normalised") if scores else ()
        return next((unit for unit in units if all(one.get(unit) for one in scores)), "raw")

    @property
    def asked(self) -> list[str]:
        """The methods that train policies, finished or not, in one order whichever call asked for them first."""
        return [method for method in RECIPES if method in self.grid.methods and RECIPES[method].method is not None]

    @property
    def methods(self) -> list[str]:
        """The methods of which some policies are finished."""
        done = {cell.method for cell in self.records}
        return [method for method in self.asked if method in done]

    def of(self, method: str, data: str) -> list[Cell]:
        """Return the cells of a method on a data set, finished or not."""
        return [cell for cell in self.grid.cells if (cell.method, cell.data) == (method, data)]

    def runs(self, method: str, data: str, which: Which) -> list[float]:
        """Return the score of every policy of a method on a data set."""
        found = [self.records[cell] for cell in self.of(method, data) if cell in self.records]
        return [score for record in found for score in record[which][self.unit]["per_seed"]]

    def scores(self, method: str, which: Which, data: Sequence[str]) -> Scores:
        """Return the scores [runs, tasks] of a method on these data sets; nan where a run is missing."""
        columns = [self.runs(method, name, which) for name in data]
        made = np.full((max(map(len, columns), default=0), len(columns)), np.nan)
        for task, column in enumerate(columns):
            made[: len(column), task] = column
        return made

    def tasks(self, *methods: str) -> list[str]:
        """Return the data sets on which all of these methods have runs."""
        return [name for name in self.grid.data if all(self.runs(method, name, "last") for method in methods)]

    def state(self, method: str, data: str) -> str:
        """Return a word on what is missing of a method on a data set; empty if nothing is."""
        cells = self.of(method, data)
        left = [cell for cell in cells if cell not in self.records]
        if not left:
            return ""
        failed = any(cell in self.failures for cell in left)
        if len(left) == len(cells):
            return "failed" if failed else MISSING
        return f"{len(cells) - len(left)} of {len(cells)} cells{', some failed' if failed else ''}"


def read_results(out: Path) -> Results:
    """Read everything that is in a folder of bench."""
    grid = stored_grid(out)
    records = read_records(out, grid.cells)
    left = {cell: read_failure(out, cell) for cell in grid.cells if cell not in records}
    failures = {cell: why for cell, why in left.items() if why is not None}
    rewards = {cell: record for cell, record in records.items() if cell.recipe.method is None}
    policies = {cell: record for cell, record in records.items() if cell not in rewards}
    return Results(grid, policies, rewards, failures)


def title(method: str) -> str:
    """Return the name of a method in tables."""
    return RECIPES[method].title


# -- the suite's table -------------------------------------------------------------------------------------------


def score_table(results: Results, which: Which) -> Table:
    """Return scores of every method on every data set, beside published ones."""
    columns = [(method, _any_published(results, method, which)) for method in results.asked]
    head = ["data"]
    for method, beside in columns:
        head += [title(method), *([title(method) + PUBLISHED] if beside else [])]
    rows = []
    for data in results.grid.data if columns else ():
        row = [data]
        for method, beside in columns:
            row += [_cell(results, method, data, which), *([_published(method, data, which)] if beside else [])]
        rows.append(row)
    if len(rows) > 1:
        rows.append(["mean", *_column_means(results, columns, which)])
    checkpoint = (
        "Scores of the last checkpoint"
        if which == "last"
        else "Scores of each policy's best checkpoint, too high because the same episodes choose and score it"
    )
    beside = any(published for _, published in columns)
    reading = f"{checkpoint}: mean ± standard deviation over policies"
    reading += "; published scores come from other data, code and budgets" if beside else ""
    reading += "; a mean is shown only where no data set is missing." if len(rows) > 1 else "."
    return Table(f"{which.capitalize()} checkpoint", head, rows, reading)


def _any_published(results: Results, method: str, which: Which) -> bool:
    return any(published_score(method, data, which) is not None for data in results.grid.data)


def _published(method: str, data: str, which: Which) -> str:
    score = published_score(method, data, which)
    return "–" if score is None else f"{score:.1f}"


def _cell(results: Results, method: str, data: str, which: Which) -> str:
    runs, state = results.runs(method, data, which), results.state(method, data)
    if not runs:
        return state
    return _plus_minus(runs) + (f" ({state})" if state else "")


def _plus_minus(runs: Sequence[float]) -> str:
    spread = f" ± {_score(np.std(runs, ddof=1))}" if len(runs) > 1 else ""
    return f"{_score(np.mean(runs))}{spread}"


def _score(value: Any) -> str:
    return "–" if np.isnan(value) else f"{value:,.1f}".replace("-", "−")


def _column_means(results: Results, columns: Sequence[tuple[str, bool]], which: Which) -> list[str]:
    """Return the mean over data sets of every column that has them all."""
    cells = []
    for method, beside in columns:
        scores = results.scores(method, which, results.grid.data)
        cells.append("–" if np.isnan(scores).all(0).any() else _score(mean(scores)))
        if beside:
            known = [published_score(method, data, which) for data in results.grid.data]
            cells.append("–" if None in known else _score(np.mean([x for x in known if x is not None])))
    return cells


# -- statistics over data sets -----------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A statistic with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def as_score(self) -> str:
        """The estimate in points."""
        return f"{_score(self.value)} [{_score(self.low)}, {_score(self.high)}]"

    @property
    def as_chance(self) -> str:
        """The estimate as a probability."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def estimate(statistic: Any, *scores: Scores) -> Estimate:
    """Return a statistic and its stratified bootstrap interval."""
    low, high = stratified_interval(statistic, *scores)
    return Estimate(float(statistic(*scores)), float(low), float(high))


def aggregate_table(results: Results, which: Which) -> Table:
    """Return mean, standard deviation, median and IQM of every method over its data sets."""
    rows = []
    for method in results.methods:
        tasks = results.tasks(method)
        scores = results.scores(method, which, tasks)
        count = int((~np.isnan(scores)).sum())
        estimates = [estimate(statistic, scores).as_score for statistic in STATISTICS.values()]
        share, spread = f"{len(tasks)} of {len(results.grid.data)}", _score(std(scores))
        rows.append([title(method), share, f"{count}", spread, *estimates])
    reading = (
        f"Statistics over data sets at the {which} checkpoint, stratified bootstrap 95% intervals in brackets: "
        "compare two rows only if they have the same data sets; IQM is the mean without the lowest and highest "
        "quarter of all policies."
    )
    head = ["method", "data sets", "policies", "std over policies", *STATISTICS]
    return Table(f"Over data sets, {which} checkpoint", head, rows, reading)


def improvement_estimates(results: Results, which: Which) -> dict[str, dict[str, Estimate]]:
    """Return by baseline and method the probability of improvement over the baseline."""
    found: dict[str, dict[str, Estimate]] = {}
    for baseline in BASELINES:
        for method in results.methods:
            if method != baseline and (tasks := results.tasks(method, baseline)):
                both = (results.scores(one, which, tasks) for one in (method, baseline))
                found.setdefault(baseline, {})[method] = estimate(probability_of_improvement, *both)
    return found


def improvement_table(results: Results, which: Which) -> Table:
    """Return the probability that a policy of a method scores more than one of BC or 10%BC."""
    found = improvement_estimates(results, which)
    head = ["method", *(f"over {title(baseline)}" for baseline in found)]
    rows = [
        [title(method), *(_chance(found[baseline].get(method)) for baseline in found)]
        for method in results.methods
        if any(method in found[baseline] for baseline in found)
    ]
    reading = (
        "The chance that a policy of the method scores more than one of the baseline on the same data set, a mean "
        "over data sets: above 0.5 the method is better more often than not; an interval that holds 0.5 leaves it "
        "open."
    )
    return Table(f"Probability of improvement, {which} checkpoint", head, rows if found else [], reading)


def _chance(one: Estimate | None) -> str:
    return "–" if one is None else one.as_chance


def profile_table(results: Results, which: Which, thresholds: Sequence[float] = (20, 40, 60, 80, 100)) -> Table:
    """Return performance profiles at a few thresholds."""
    rows = []
    for method in results.methods:
        shares = profile(results.scores(method, which, results.tasks(method)), np.array(thresholds))
        rows.append([title(method), *(f"{100 * share:.0f}%" for share in shares)])
    reading = (
        "Performance profiles: the share of policies that score above each threshold, as a mean over data sets; a "
        "method is better throughout if its share is higher at every threshold."
    )
    return Table(f"Performance profiles, {which} checkpoint", ["method", *map(str, thresholds)], rows, reading)


# -- cells and data ----------------------------------------------------------------------------------------------


def cell_table(results: Results) -> Table:
    """Return every method on every data set with intervals: last and best, and what is missing."""
    rows = []
    for data in results.grid.data:
        for method in results.asked:
            state = results.state(method, data)
            cells = [cell_score(results, method, data, which) for which in WHICH]
            rows.append(
                [data, title(method), f"{len(results.runs(method, data, 'last'))}", *cells, state or "finished"]
            )
    reading = (
        "Mean over policies with its bootstrap 95% interval in brackets; with one policy there is no interval."
    )
    return Table("Every cell", ["data", "method", "policies", "last", "best", "state"], rows, reading)


def cell_score(results: Results, method: str, data: str, which: Which) -> str:
    """Return the mean over a cell's policies with its interval, if there is more than one."""
    runs = np.array(results.runs(method, data, which))[:, None]
    return estimate(mean, runs).as_score if len(runs) > 1 else _score(runs.mean()) if len(runs) else "–"


def data_table(results: Results) -> Table:
    """Return where the data come from, and their mean return before and after stitching."""
    stitching = [method for method in results.methods if RECIPES[method].planner is not None]
    rows = []
    for data in results.grid.data:
        everything = {**results.records, **results.rewards}
        found = [record for cell, record in everything.items() if cell.data == data]
        if not found:
            rows.append([data, MISSING, *["–"] * (2 + len(stitching))])
            continue
        facts = found[0]["data"]
        after = [_stitched_return(results, method, data) for method in stitching]
        before = number(facts["return_mean"])
        rows.append([data, facts["source"], f"{facts['transitions']:,}", before, *after])
    head = ["data", "source", "transitions", "mean return", *(f"after {title(method)}" for method in stitching)]
    reading = (
        "Where each data set comes from, and the mean return of its trajectories as recorded and as methods have "
        "stitched them, over stitching seeds; a return that models promise is not a return that a policy earns."
    )
    return Table("Data", head, rows, reading)


def _stitched_return(results: Results, method: str, data: str) -> str:
    found = [results.records[cell]["stitched"] for cell in results.of(method, data) if cell in results.records]
    return _plus_minus([facts["return_mean"] for facts in found]) if found else MISSING


def by_iteration(results: Results, data: str) -> list[tuple[int, Estimate, float]]:
    """Return the last score and the data's mean return after each iteration; 0 is BC on recorded data."""
    found = []
    for method in results.methods:
        iteration = 0 if method == "bc" else RECIPES[method].iterations
        runs = results.runs(method, data, "last")
        if iteration is None or not runs:
            continue
        records = [results.records[cell] for cell in results.of(method, data) if cell in results.records]
        facts = [record["stitched" if iteration else "data"]["return_mean"] for record in records]
        found.append((iteration, estimate(mean, np.array(runs)[:, None]), float(np.mean(facts))))
    return found if any(iteration for iteration, *_ in found) else []


def failure_table(results: Results) -> Table:
    """Return the cells that could not be finished, and why."""
    rows = [[cell.data, cell.name.partition("/")[2], why] for cell, why in results.failures.items()]
    return Table("Failed cells", ["data", "method", "why"], rows, "Running the suite again tries these once more.")


def summary(results: Results) -> dict[str, Any]:
    """Return the numbers of the tables, for programs."""
    return {
        "suite": results.grid.suite,
        "cells": len(results.grid.cells),
        "finished": len(results.records) + len(results.rewards),
        "unit": results.unit,
        "iqm": {
            which: {
                method: float(iqm(results.scores(method, which, results.tasks(method))))
                for method in results.methods
            }
            for which in WHICH
        },
    }
