"""Commands on data sets: inspect, convert, collect."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import (
    Command,
    DataCommand,
    MaybeFloat,
    MaybeInt,
    MaybePhysics,
    MaybeStr,
    Physics,
    parse_as,
)
from trajstitch.errors import InputError
from trajstitch.progress import bar
from trajstitch.sources import TARGETS

if TYPE_CHECKING:
    from trajstitch.data import Dataset
    from trajstitch.evaluation.collect import Share


@dataclass(frozen=True, kw_only=True)
class Inspect(DataCommand):
    """Show what is in a data set and how good it is."""

    env: MaybeStr = None
    """Gymnasium id of the data, if the file names none; needed for normalised scores."""
    physics: MaybePhysics = None
    """Physics of the data, if the file names none: gymnasium or d4rl."""
    html: MaybeStr = None
    """Also write a page with every episode and what is unusual about it to this file (.html)."""
    overwrite: bool = False
    """Replace the page if it exists."""

    def run(self) -> dict[str, Any]:
        """Print a summary, and write the page."""
        from trajstitch.cli.summary import show, show_episodes, summarise
        from trajstitch.episodes import episode_table

        self._check_page()
        data = _named(self.load(), self.env, self.physics)
        episodes = episode_table(data)
        summary = summarise(data, episodes)
        if not self.quiet:
            show(data, summary, self.data)
            show_episodes(summary)
        if self.html:
            from trajstitch.report.inspection import render_inspection
            from trajstitch.storage.atomic import write_text

            write_text(Path(self.html), render_inspection(self.data, summary, episodes))
            self.say(f"{self.html}: written")
        return summary

    def _check_page(self) -> None:
        """Raise InputError now, before the work, if the page cannot be written."""
        from trajstitch.formats import place
        from trajstitch.storage.atomic import check_apart, check_target

        if self.html is None:
            return
        if Path(self.html).suffix != ".html":
            raise InputError(f"--html {self.html}: give a name that ends in .html")
        check_apart([place(self.data)], self.html)
        check_target(Path(self.html), self.overwrite)


@dataclass(frozen=True, kw_only=True)
class Convert(DataCommand):
    """Copy a data set into another format, or set the rewards of a maze's task."""

    target: Annotated[
        Positional[str], tyro.conf.arg(metavar="TARGET", help=f"Output, whose name chooses the format: {TARGETS}.")
    ]
    env: MaybeStr = None
    """Gymnasium id of the data, to be stored in the target."""
    physics: MaybePhysics = None
    """Physics of the data, to be stored in the target: gymnasium or d4rl."""
    set_task: bool = False
    """Set rewards and ends for the task of the environment, which must be a maze."""
    overwrite: bool = False
    """Replace the target if it exists."""

    def run(self) -> dict[str, Any]:
        """Load and save."""
        from trajstitch.formats import place, save
        from trajstitch.storage.atomic import check_apart

        check_apart([place(self.data)], place(self.target))
        recorded = self.load()
        data = _named(recorded, self.env, self.physics)
        self._check_walls(str(recorded.info.get("env_id", "")))
        if self.set_task:
            if data.weight is not None:
                self.say("the weights are left out: they were made for other rewards")
            data = _with_task(data)
        save(data, self.target, overwrite=self.overwrite)
        self.say(f"{data!r} written to {self.target}")
        return {"source": self.data, "target": self.target, "fingerprint": data.fingerprint}

    def _check_walls(self, recorded: str) -> None:
        """Raise InputError where a task is set in a maze with other walls than the recorded one; else, say so."""
        if not self.env:
            return
        from trajstitch.evaluation.mazes import floor_plan

        before, after = floor_plan(recorded), floor_plan(self.env)
        if before is None or after is None or before == after:
            return
        different = f"the data were recorded in {recorded}, whose walls are not those of {self.env}"
        if self.set_task:
            raise InputError(f"{different}; give --env a task of the maze they were recorded in")
        self.say(f"{different}; the name is stored all the same")


@dataclass(frozen=True, kw_only=True)
class Collect(Command):
    """Roll a policy out into a data set of whole episodes."""

    policy: Annotated[Positional[str | None], tyro.conf.arg(metavar="POLICY", help_behavior_hint="")] = None
    """A policy file, random, or walker for short walks in a maze; leave it out with --mix."""
    env: str
    """Gymnasium id, such as Hopper-v5."""
    steps: MaybeInt = None
    """At least this many steps; give this or --episodes."""
    episodes: MaybeInt = None
    """Exactly this many episodes."""
    out: Annotated[str, tyro.conf.arg(help=f"Output, whose name chooses the format: {TARGETS}.")]
    mix: tuple[str, ...] = ()
    """Several policies as FILE:SHARE or FILE:SHARE:NOISE, such as medium.npz:0.9 expert.npz:0.1. Shares are of the
    steps, or of the episodes with --episodes."""
    physics: Physics = "gymnasium"
    """d4rl: the masses of the simulator that recorded D4RL's data."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one."""
    noise: MaybeFloat = None
    """Add Gaussian noise of this std, in half-ranges of the action. Default: 0; for walker 0.5."""
    walk_length: int = 200
    """Steps per walk of walker in a point maze."""
    env_horizon: MaybeInt = None
    """Time limit, where the environment has none of its own."""
    overwrite: bool = False
    """Replace the output if it exists."""

    def run(self) -> dict[str, Any]:
        """Collect and save."""
        from trajstitch.evaluation.collect import collect, collect_mixture
        from trajstitch.formats import place, save, writer
        from trajstitch.storage.atomic import check_apart, check_target

        if bool(self.policy) == bool(self.mix):
            raise InputError("give either one POLICY or --mix FILE:SHARE FILE:SHARE …")
        if (self.steps is None) == (self.episodes is None):
            raise InputError("give either --steps or --episodes")
        shares = [_share(word) for word in self.mix]
        check_apart([self.policy] if self.policy else [part.policy for part in shares], place(self.out))
        writer(self.out)  # raises InputError now if the ending is unknown
        if not self.out.startswith("minari:"):
            check_target(Path(place(self.out)), self.overwrite)
        options: dict[str, Any] = {
            "physics": self.physics,
            "deterministic": self.deterministic,
            "noise": self.noise,
            "walk_length": self.walk_length,
            "env_horizon": self.env_horizon,
            "seed": self.seed,
            "episodes": self.episodes,
        }
        with bar("collecting", self.quiet) as tell:
            if self.policy:
                data = collect(self.policy, self.env, self.steps, tell=tell, **options)
            else:
                data = collect_mixture(shares, self.env, self.steps, tell=tell, **options)
        save(data, self.out, overwrite=self.overwrite)
        self.say(f"{data!r} written to {self.out}")
        return {
            "out": self.out,
            "episodes": len(data),
            "transitions": data.transitions,
            "return_mean": float(data.returns.mean()),
            "return_std": float(data.returns.std()),
            "fingerprint": data.fingerprint,
        }


def _named(data: Dataset, env: str | None, physics: Physics | None) -> Dataset:
    """Return the data set with this environment and physics; InputError if it cannot be of that environment."""
    said = {name: value for name, value in (("env_id", env), ("physics", physics)) if value}
    if env:
        from trajstitch.jobs.score import ScoreConfig

        ScoreConfig(env, physics or "gymnasium").check(data)
    return dataclasses.replace(data, info={**data.info, **said}) if said else data


def _with_task(data: Dataset) -> Dataset:
    """Return the data with the rewards and ends of the maze they name."""
    from trajstitch.evaluation.mazes import IDS, OWN, make_maze, set_task

    env_id = str(data.info.get("env_id", ""))
    if env_id not in IDS:
        named = f"{env_id} is none" if env_id else "the data name no environment"
        raise InputError(f"--set-task needs a maze, but {named}; give --env, such as --env {OWN}")
    env = make_maze(env_id, 1)
    try:
        return set_task(data, env)
    finally:
        env.close()


def _share(text: str) -> Share:
    from trajstitch.evaluation.collect import Share

    for parts in (text.rsplit(":", 2), text.rsplit(":", 1)):
        try:
            name, (share, *noise) = parts[0], map(float, parts[1:])
        except ValueError:
            continue
        return Share(_policy_file(name), share, *noise)
    raise InputError(f"--mix {text}: write FILE:SHARE or FILE:SHARE:NOISE, such as medium.npz:0.9")


def _policy_file(name: str) -> str:
    """Return the name, with .npz added if it has no ending and no such file exists."""
    return name if name in ("random", "walker") or Path(name).suffix or Path(name).exists() else f"{name}.npz"


COMMANDS: dict[str, type[Command]] = {"inspect": Inspect, "convert": Convert, "collect": Collect}


def parse(name: str, arguments: list[str]) -> Command:
    """Return one of the three commands with its options."""
    return parse_as(COMMANDS[name], name, arguments)
