"""The command `trajstitch train METHOD`, whose options are the settings of that method and no others."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, Suppress

from trajstitch.cli.command import (
    DataCommand,
    MaybeInt,
    MaybePhysics,
    MaybeStr,
    MaybeTracker,
    parse_as,
    parse_preset,
)
from trajstitch.cli.tables import score_table
from trajstitch.data import Dataset, effective_steps
from trajstitch.errors import InputError, unknown
from trajstitch.methods import METHODS, configure
from trajstitch.progress import bar


@dataclass(frozen=True, kw_only=True)
class Train(DataCommand):
    """Options of every method."""

    method: Suppress[str]
    out: str
    """Run directory; the same command continues a run that was stopped."""
    preset: Literal["standard", "paper"] = "standard"
    """paper: the paper's training schedule, where it differs; each option replaces the preset's value."""
    seeds: int = 3
    """Number of random seeds trained side by side, from --seed on."""
    every: MaybeInt = None
    """Steps between checkpoints; unless given, a twentieth of all."""
    env: MaybeStr = None
    """Score every checkpoint in this Gymnasium environment; unless given, the data set's own."""
    physics: MaybePhysics = None
    """Physics of the simulator; unless given, the data set's own."""
    episodes: int = 10
    """Evaluation episodes per seed and checkpoint."""
    env_horizon: MaybeInt = None
    """Time limit, where the environment has none of its own."""
    no_evaluation: bool = False
    """Train only, without scores."""
    track: MaybeTracker = None
    """Also log losses and scores to a tracker, whose files go beside the run directory."""
    overwrite: bool = False
    """Start again if the directory holds a run with other settings or data."""
    settings: Any

    def improved_data(self) -> Dataset | None:
        """Load the second data set, if the method takes one."""
        return None

    @property
    def inputs(self) -> list[str]:
        """Files that are read."""
        from trajstitch.formats import place

        return [place(self.data)]

    def run(self) -> dict[str, Any]:
        """Train, score and print a table."""
        from trajstitch.jobs.score import ScoreConfig
        from trajstitch.jobs.train import train_run
        from trajstitch.storage.atomic import check_apart
        from trajstitch.storage.jax_cache import keep_compiled
        from trajstitch.tracking import tracking

        keep_compiled()
        check_apart(self.inputs, self.out)
        data, improved = self.load(), self.improved_data()
        self._say_weights(data)
        scoring = self._scoring(data)
        if isinstance(scoring, ScoreConfig):
            try:
                scoring.check(data)
            except InputError as error:
                raise error.within(self.data) from error
        with (
            bar(f"training {self.method}", self.quiet) as tell,
            tracking(self.track, self.out, dataclasses.asdict(self.settings)) as log,
        ):
            run, scored = train_run(
                self.method,
                data,
                self.out,
                improved=improved,
                seed=self.seed,
                seeds=self.seeds,
                every=self.every,
                scoring=scoring,
                overwrite=self.overwrite,
                inputs=self.inputs,
                tell=tell,
                log=log,
                **{field.name: getattr(self.settings, field.name) for field in dataclasses.fields(self.settings)},
            )
        result: dict[str, Any] = {"out": self.out, "loss": run.metrics()[-1]["loss"]}
        if scored:
            self.say(score_table(self.out, {"last": scored.last.summary(), "best": scored.best.summary()}))
            return result | scored.summary()
        where = "" if self.env or data.info.get("env_id") else " --env ID"
        self.say(f"{self.out}/policy.npz: trained; score it with trajstitch evaluate {self.out}{where}")
        return result

    def _say_weights(self, data: Dataset) -> None:
        """Say what the method does with the data's weights, if they have any."""
        if data.weight is None:
            return
        ignored = getattr(self.settings, "ignore_weights", None)
        if ignored is None:
            self.say(f"{self.method} does not use the data's weights")
        elif not ignored:
            self.say(f"steps are drawn by the data's weights: {effective_steps(data.weight):,.0f} effective steps")

    def _scoring(self, data: Dataset) -> Any:
        """Return how checkpoints are scored, or None."""
        from trajstitch.evaluation.envs import env_named_in
        from trajstitch.jobs.score import ScoreConfig

        if self.no_evaluation:
            return None
        env = self.env or env_named_in(data.info)
        physics = self.physics or str(data.info.get("physics", "gymnasium"))
        return ScoreConfig(env, physics, self.episodes, env_horizon=self.env_horizon) if env else None


@dataclass(frozen=True, kw_only=True)
class TrainOnTwo(Train):
    """Options of the methods that take the improved data beside the original."""

    improved: Annotated[Positional[str], tyro.conf.arg(metavar="IMPROVED")]
    """The improved data, such as RUN/improved.hdf5."""

    def improved_data(self) -> Dataset:
        """Load the improved data, whose files always record where episodes end."""
        from trajstitch.formats import load

        with bar("loading", self.quiet) as tell:
            return load(self.improved, tell=tell)

    @property
    def inputs(self) -> list[str]:
        """Files that are read."""
        return [self.data, self.improved]


def command_of(method: str, preset: Mapping[str, Any] | None = None) -> tuple[type[Train], Train]:
    """Return the command class of one method, `Train` with the method's own settings, and its defaults."""
    config = configure(method, **(preset or {}))
    base = TrainOnTwo if METHODS[method].improved else Train
    settings: Any = Annotated[OmitArgPrefixes[type(config)], tyro.conf.arg(name="")]  # type: ignore[misc]
    kind = dataclasses.make_dataclass(
        f"Train_{method.replace('-', '_')}",
        [("settings", settings)],
        bases=(base,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": METHODS[method].summary, "__module__": __name__},
    )
    missing: dict[str, Any] = {"data": tyro.MISSING, "out": tyro.MISSING}
    if base is TrainOnTwo:
        missing["improved"] = tyro.MISSING
    return kind, kind(method=method, settings=config, **missing)


def parse(name: str, arguments: list[str]) -> Train:
    """Return the command of the method that is named first."""
    method = _method(arguments)
    if method is None:
        print(overview())
        sys.exit(0)
    rest = list(arguments)
    rest.remove(method)
    kind, default = command_of(method, parse_preset(rest, {"standard": {}, "paper": METHODS[method].paper}))
    return parse_as(kind, f"{name} {method}", rest, default)


def overview() -> str:
    """Return what `trajstitch train --help` prints."""
    width = max(map(len, METHODS))
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in METHODS.items()]
    return "\n".join(
        [
            "usage: trajstitch train METHOD DATA --out RUN [options]",
            "       trajstitch train METHOD DATA IMPROVED --out RUN [options]   (td3tsbc, tsmbop)",
            "",
            "Train a method on a data set.",
            "",
            *lines,
            "",
            "trajstitch train METHOD --help shows the options of a method.",
        ]
    )


def _method(arguments: list[str]) -> str | None:
    """Return the method among the arguments, or None if only help is asked for."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word in METHODS and not before.startswith("--"):
            return word
    words = [word for word in arguments if not word.startswith("-")]
    if not words:
        if not {"-h", "--help"} & set(arguments):
            raise InputError(f"name a method: {', '.join(METHODS)}")
        return None
    raise unknown("method", words[0], METHODS)
