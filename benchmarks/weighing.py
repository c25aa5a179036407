"""Cloning by weights, beside cloning everything, the best tenth, stitched data and IQL, all by one recipe.

    python -m benchmarks.weighing hopper-medium hopper-replay --methods bc percent-bc iql weighted --shared FOLDER
    python -m benchmarks.weighing --table

FOLDER and the data sets are described in benchmarks/datasets.py; those of one call must have observations of one
size and actions of one size. The critics of all data sets are members of one training run, in which each draws
batches from the rows of its own data set; this takes a GPU little longer than one data set alone. Their numbers
are those of `trajstitch weigh`, up to rounding.

    bc, percent-bc      the data, and the tenth of their trajectories with the highest return
    iql                 IQL's own policy, with the steps of the critics
    weighted            the data by their weights; weighted:effective_share=0.2 with another setting of `Weigh`
    greedy, optimal     data composed by either planner; greedy-percent, optimal-percent the best tenth of them
    greedy-weighted, optimal-weighted      composed data by weights of their own

One JSON file for each data set is written to --out, after every score; what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.command import command, setting
from benchmarks.datasets import data_parser, scoring_of, stored_data, stored_reports
from trajstitch.data import Dataset
from trajstitch.evaluation.scores import evaluate
from trajstitch.jobs.improve import improve
from trajstitch.jobs.together import Part, train_parts
from trajstitch.methods import configure
from trajstitch.methods.iql import scaled_steps
from trajstitch.methods.train import train
from trajstitch.methods.weigh import WEIGH_PRESETS, Appraisal, appraise, weigh_by
from trajstitch.stitching.improve import Result
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.training import loop
from trajstitch.training.loop import Learner, State

Sets = Mapping[str, Dataset]
PLANNERS = ("greedy", "optimal")


def train_together(learner: Learner, sets: Sequence[Dataset], many: int) -> list[Any]:
    """Train so many members for each data set in one run; return the stack of members of each data set."""
    seeds, tables = range(many), [scaled_steps(data) for data in sets]
    states = [loop.start(learner, table, seeds) for table in tables]

    def keep(i: int, state: State, _: Any) -> None:
        states[i] = state

    def tell(step: int, *_: Any) -> None:
        print(f"{type(learner).__name__}: {step:,} steps", flush=True)

    parts = [Part(learner, tables[i], states[i], partial(keep, i)) for i in range(len(sets))]
    train_parts(parts, seeds, -(-learner.fit.steps // 10), tell)
    return [state.model for state in states]


class Measurement:
    """All data sets, what is made of them, and the files of their results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.sets = {name: stored_data(name, args) for name in args.names}
        self.report: dict[str, dict[str, Any]] = {}
        for name, data in self.sets.items():
            file = self._file(name)
            self.report[name] = json.loads(file.read_text()) if file.exists() else {"scores": {}, "facts": {}}
            self.report[name] |= {"name": name, "fingerprint": data.fingerprint, "transitions": data.transitions}
        self.composed: dict[str, dict[str, Result]] = {}
        self.appraised: dict[str, dict[str, Appraisal]] = {}

    def _file(self, name: str) -> Path:
        return Path(self.args.out / f"{name}.json")

    def keep(self, name: str, part: str, label: str, value: dict[str, Any]) -> None:
        """Add something to a data set's report, and write it."""
        self.report[name][part][label] = value | {"command": command("weighing")}
        write_json(self._file(name), self.report[name])

    def score(self, name: str, label: str, policy: Any) -> None:
        """Score a policy in the environment of its data set."""
        info = self.sets[name].info
        scoring = scoring_of(info, self.args.episodes)
        scores = evaluate(policy, scoring.env_id, physics=scoring.physics, episodes=scoring.episodes, info=info)
        self.keep(name, "scores", label, scores.summary())
        print(table_row(self.report[name], label), flush=True)

    def clone(self, name: str, label: str, source: Dataset, method: str = "bc") -> None:
        """Clone `source` and score the last checkpoint."""
        options = {"steps": self.args.clone_steps} if self.args.clone_steps else {}
        self.score(name, label, train(method, source, seeds=self.args.seeds, **options))

    def missing(self, label: str) -> list[str]:
        """Return the data sets that have no such score yet."""
        return [name for name in self.sets if label not in self.report[name]["scores"]]

    def compose(self, planner: Any) -> Sets:
        """Return the data sets composed by a planner."""
        if planner not in self.composed:
            self.composed[planner] = {}
            for name, data in self.sets.items():
                begin = time.monotonic()
                config = replace(PRESETS[self.args.preset], planner=planner)
                result = improve(data, config, out=self.args.runs / name / planner)  # goes on where it was
                self.composed[planner][name] = result
                facts = {**result.graph, **result.errors, **result.history[-1]} if result.history else {}
                self.keep(name, "facts", planner, facts | {"seconds": time.monotonic() - begin})
        return {name: result.dataset for name, result in self.composed[planner].items()}

    def weigh(self, kind: str, sets: Sets, settings: Sequence[tuple[str, Any]]) -> Sets:
        """Return the data sets with weights; settings that need other critics are not possible."""
        config = WEIGH_PRESETS[self.args.weigh_preset]
        if kind not in self.appraised:
            begin = time.monotonic()
            models = train_together(config, list(sets.values()), config.members)
            seconds = time.monotonic() - begin
            self.appraised[kind] = {
                name: appraise(model, data) for (name, data), model in zip(sets.items(), models, strict=True)
            }
            for name, one in self.appraised[kind].items():
                self.keep(name, "facts", kind, {"agreement": one.agreement, "seconds_together": seconds})
        config = replace(config, **dict(settings))
        return {name: weigh_by(sets[name], one, config) for name, one in self.appraised[kind].items()}

    def source(self, label: str) -> Sets:
        """Return the data sets that a label clones, before choosing the best tenth."""
        kind, _, words = label.partition(":")
        settings = [setting(word) for word in words.split(",") if word]
        planner = next((one for one in PLANNERS if label.startswith(one)), None)
        sets = self.compose(planner) if planner else self.sets
        return self.weigh(kind, sets, settings) if kind.endswith("weighted") else sets

    def measure(self, label: str) -> None:
        """Measure one method on all data sets that lack it."""
        if not (names := self.missing(label)):
            return
        if label == "iql":
            config = configure("iql", steps=WEIGH_PRESETS[self.args.weigh_preset].fit.steps)
            models = train_together(config, [self.sets[name] for name in names], self.args.seeds)
            for name, model in zip(names, models, strict=True):
                self.score(name, label, config.policy(model))
            return
        source = self.source(label)
        for name in names:
            self.clone(name, label, source[name], "percent-bc" if "percent" in label else "bc")


def table_row(report: Mapping[str, Any], label: str) -> str:
    """One row of the table."""
    score = report["scores"][label]["normalised"]
    return f"| {report['name']} | {label} | {score['mean']:.1f} ± {score['std_over_seeds'] or 0:.1f} |"


def foretold(reports: Sequence[Mapping[str, Any]], beside: Sequence[str]) -> float:
    """Rank correlation, over data sets, of critics' agreement with what weights gain over the best of others."""

    def mean(report: Mapping[str, Any], label: str) -> float:
        return float(report["scores"][label]["normalised"]["mean"])

    gains = [mean(one, "weighted") - max(mean(one, label) for label in beside) for one in reports]
    return float(spearmanr([one["facts"]["weighted"]["agreement"] for one in reports], gains).statistic)


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "weighing")
    parser.add_argument("--methods", nargs="+", default=["bc", "percent-bc", "iql", "weighted"], help="See above.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="Preset of composing.")
    parser.add_argument("--weigh-preset", choices=tuple(WEIGH_PRESETS), default="standard", help="Of weighing.")
    parser.add_argument("--clone-steps", type=int, help="Gradient steps of clones; unless given, the default.")
    args = parser.parse_args()
    if args.names:
        measurement = Measurement(args)
        for label in args.methods:
            measurement.measure(label)
    if args.table:
        reports = stored_reports(args.out)
        for report in reports:
            print("\n".join(table_row(report, label) for label in report["scores"]))
        for beside in (["bc"], ["bc", "percent-bc"]):
            found = foretold(reports, beside)
            print(
                f"agreement of critics with the gain over {' and '.join(beside)}, {len(reports)} sets: {found:.2f}"
            )


if __name__ == "__main__":
    main()
