"""The command `trajstitch demo`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeInt, parse_as
from trajstitch.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from trajstitch.evaluation.scores import Scores
    from trajstitch.jobs.demo import MazeStory

_TITLES = {"bc": "BC", "percent_bc": "10% BC", "ts_bc": "TS + BC"}
_CLONED = {
    "bc": "BC: the recorded walks",
    "percent_bc": "10% BC: the best tenth of them",
    "ts_bc": "TS + BC: each state's best step",
}
_WALKS = 16  # drawn in the terminal


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Run all stages: record or load data, improve them, clone and score."""

    story: Annotated[Positional[Literal["maze", "hopper"]], tyro.conf.arg(metavar="{maze,hopper}")] = "maze"
    """maze: walks that never reach the goal, in about a minute; hopper: the embedded data, in minutes."""
    out: str = "runs/demo"
    """Folder for the run directories."""
    steps: MaybeInt = None
    """Gradient steps of each policy; unless given 4,000, of hopper 6,000."""
    seeds: int = 3
    """Random seeds per policy."""
    episodes: int = 10
    """Evaluation episodes per seed."""

    def run(self) -> dict[str, Any]:
        """Improve, clone and score."""
        for name in ("steps", "seeds", "episodes"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InputError(f"--{name} must be at least 1, not {number}")
        begin = time.monotonic()
        found = self._maze() if self.story == "maze" else self._hopper()
        return {**found, "seconds": round(time.monotonic() - begin, 1)}

    def _hopper(self) -> dict[str, Any]:
        from trajstitch.cli.improve import verdict
        from trajstitch.cli.summary import show, summarise
        from trajstitch.cli.tables import score_table
        from trajstitch.formats import load
        from trajstitch.jobs.demo import HopperDemo, demo_hopper

        data = load("demo")
        if not self.quiet:
            show(data, summarise(data), "the embedded data")
        config = HopperDemo(self.steps or HopperDemo.steps, self.seeds, self.episodes)
        scores, result, report = demo_hopper(config, self.out, self.seed, self.quiet)
        self.say(verdict(data, result))
        self.say(score_table("cloned", {_TITLES[name]: score.summary() for name, score in scores.items()}))
        self.say(f"{report} shows what was changed and whether to trust it")
        return {name: round(score.normalised, 2) for name, score in scores.items()}

    def _maze(self) -> dict[str, Any]:
        from trajstitch.cli.improve import verdict
        from trajstitch.jobs.demo import MazeDemo, demo_maze

        config = MazeDemo(self.steps or MazeDemo.steps, self.seeds, self.episodes)
        story = demo_maze(config, self.out, self.seed, self.quiet)
        if not self.quiet:
            self.say(_recorded(story))
            self.say("")
            self.say(_picture(story))
            self.say("")
            self.say(verdict(story.data, story.result))
            self.say(_success(story))
            self.say(f"{story.report} shows what was changed and whether to trust it")
        success = {name: round(_mean_success(score), 2) for name, score in story.scores.items()}
        return {
            **success,
            "steps_to_goal": story.scores["ts_bc"].steps_to_goal,
            "walks": len(story.data),
            "walks_from_start_to_goal": story.from_start_to_goal,
        }


def _recorded(story: MazeStory) -> str:
    """Return what was recorded in one sentence."""
    data, both = story.data, story.from_start_to_goal
    return (
        f"{len(data):,} walks were recorded in {data.info['env_id']}, {data.transitions:,} steps: "
        f"{story.near_start:,} pass the start S, {story.near_goal:,} reach the goal G, "
        f"{f'{both:,} do both' if both else 'none does both'}"
    )


def _picture(story: MazeStory) -> str:
    """Return three pictures: some walks, and the way of a clone of the walks and of the new trajectories."""
    from trajstitch.report.terminal import LETTERS, draw_maze, side_by_side, spread_out

    walks = spread_out(story.maze, story.data, _WALKS)
    pictures = {f"{len(walks)} recorded walks, a–{LETTERS[len(walks) - 1]}": draw_maze(story.maze, walks, LETTERS)}
    for name in ("bc", "ts_bc"):
        pictures[f"a clone: {_TITLES[name]}"] = draw_maze(story.maze, [story.paths[name]])
    return side_by_side(pictures)


def _success(story: MazeStory) -> Table:
    """Return the table of success rates."""
    from rich.table import Table
    from rich.text import Text

    one = next(iter(story.scores.values())).returns
    title = f"episodes from S that reach G: {one.shape[0]} seeds × {one.shape[1]} episodes of each clone"
    table = Table(title=Text(title), title_justify="left")
    for column in ("cloned", "success", "95% interval", "steps to goal"):
        table.add_column(column, justify="left" if column == "cloned" else "right")
    for name, score in story.scores.items():
        low, high = score.summary()["success"]["interval95"]
        steps = "–" if score.steps_to_goal is None else f"{score.steps_to_goal:.0f}"
        table.add_row(_CLONED[name], f"{_mean_success(score):.0f} %", f"{low:.0f} – {high:.0f} %", steps)
    return table


def _mean_success(score: Scores) -> float:
    mean: float = score.summary()["success"]["mean"]
    return mean


def parse(name: str, arguments: list[str]) -> Demo:
    """Return the command with its options."""
    return parse_as(Demo, name, arguments)
