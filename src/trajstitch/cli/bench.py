"""The command `trajstitch bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeFloat, MaybeInt, parse_as


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Measure the speed of trajstitch on this machine."""

    suite: Positional[Literal["speed"]]
    """speed: throughput of every stage, compared with a plain baseline in the same run."""
    data: str = "demo"
    """Data set to measure with: a file (.hdf5, .npz, .traj), d4rl:NAME, minari:ID or demo."""
    transitions: int = 100_000
    """About this many transitions: the data are cut, or repeated with noise."""
    steps: int = 300
    """Training steps timed per model."""
    states: int = 500
    """States timed in the plain loop."""
    nearest: MaybeInt = None
    """Neighbours per state; unless given, as in improve."""
    epsilon: MaybeFloat = None
    """Radius of the neighbourhood; unless given, as in improve."""

    def run(self) -> dict[str, Any]:
        """Measure and print a table."""
        from trajstitch.bench.speed import Speed, measure, table
        from trajstitch.formats import load
        from trajstitch.progress import bars
        from trajstitch.stitching.graph import GraphConfig

        graph = GraphConfig(nearest=self.nearest, epsilon=self.epsilon)
        config = Speed(self.transitions, self.steps, self.states, graph=graph)
        with bars(self.quiet) as tell:
            result: dict[str, Any] = measure(load(self.data), config, self.seed, tell)
        self.say(table(result))
        return result


def parse(name: str, arguments: list[str]) -> Bench:
    """Return the command with its options."""
    return parse_as(Bench, name, arguments)
