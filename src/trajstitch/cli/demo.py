"""The command `trajstitch demo`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trajstitch.cli.command import Command, parse_as


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Run all stages on embedded data, in minutes."""

    out: str = "runs/demo"
    """Folder for the run directories."""
    steps: int = 6_000
    """Gradient steps of each policy."""
    seeds: int = 3
    """Random seeds per policy."""
    episodes: int = 10
    """Evaluation episodes per seed."""

    def run(self) -> dict[str, Any]:
        """Improve, clone and score."""
        from trajstitch.cli.improve import verdict
        from trajstitch.cli.summary import show, summarise
        from trajstitch.cli.tables import score_table
        from trajstitch.formats import load
        from trajstitch.jobs.demo import DemoConfig, demo

        begin = time.monotonic()
        data = load("demo")
        if not self.quiet:
            show(data, summarise(data), "the embedded data")
        scores, result, report = demo(
            DemoConfig(self.steps, self.seeds, self.episodes), self.out, self.seed, self.quiet
        )
        self.say(verdict(data.returns.mean(), result))
        titles = {"bc": "BC", "percent_bc": "10% BC", "ts_bc": "TS + BC"}
        self.say(score_table("cloned", {titles[name]: score.summary() for name, score in scores.items()}))
        self.say(f"{report} shows what was changed and whether to trust it")
        means = {name: round(score.normalised, 2) for name, score in scores.items()}
        return {**means, "seconds": round(time.monotonic() - begin, 1)}


def parse(name: str, arguments: list[str]) -> Demo:
    """Return the command with its options."""
    return parse_as(Demo, name, arguments)
