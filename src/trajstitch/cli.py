"""The command line: a command is a dataclass, its fields the options; a user's mistake ends with exit code 2."""

from __future__ import annotations

import dataclasses
import io
import json as json_module
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from trajstitch.errors import InputError
from trajstitch.progress import bar
from trajstitch.train_options import (
    CQL,
    IQL,
    MBOP,
    MOPO,
    TD3,
    Cloning,
    Count,
    Diffuser,
    ModelBased,
    MOReL,
    Number,
    Offline,
    Several,
    Text,
    given,
)

if TYPE_CHECKING:
    from trajstitch.data import Dataset

# What a command needs is imported in its `run`, so that --help answers at once.

Physics = Literal["gymnasium", "d4rl"]
Maybe = Annotated[Physics | None, tyro.conf.arg(metavar="{gymnasium,d4rl}", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Options of every command."""

    seed: int = 0
    """Of everything random."""
    json: bool = False
    """End with one line of JSON."""
    quiet: bool = False
    """Print nothing else."""

    def run(self) -> dict[str, Any]:
        """Do it; what is returned is the line of JSON."""
        raise AssertionError("every command has its own")

    def say(self, text: object) -> None:
        """Print for a person."""
        if not self.quiet:
            from rich.console import Console

            Console().print(text, highlight=False, markup=False)


@dataclass(frozen=True, kw_only=True)
class Inspect(Command):
    """Show what is in a data set and how good it is."""

    data: Positional[str]
    """A file (.hdf5, .npz, .traj), d4rl:NAME, minari:ID or demo."""
    horizon: Count = None
    """Time limit of the episodes, for a file that records no time-outs."""
    flatten: bool = False
    """Put Minari's Dict observations into one vector."""
    env: Text = None
    """The data's Gymnasium id, where the file names none; for normalised scores."""
    physics: Maybe = None
    """The data's simulator, where the file names none: d4rl, or gymnasium's."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.formats import load
        from trajstitch.summary import show, summarise

        with bar("loading", self.quiet) as tell:
            data = load(self.data, horizon=self.horizon, flatten=self.flatten, tell=tell)
        data = _named(data, self.env, self.physics)
        summary = summarise(data)
        if not self.quiet:
            show(data, summary, self.data)
        return summary


@dataclass(frozen=True, kw_only=True)
class Convert(Command):
    """Copy a data set into another format."""

    source: Positional[str]
    """What to read: a file, d4rl:NAME, minari:ID or demo."""
    target: Positional[str]
    """What to write: its ending (.hdf5, .npz, .traj) or minari:ID chooses the format."""
    horizon: Count = None
    """Time limit of the episodes, for a file that records no time-outs."""
    flatten: bool = False
    """Put Minari's Dict observations into one vector."""
    env: Text = None
    """The data's Gymnasium id, to be written down in the target."""
    physics: Maybe = None
    """The data's simulator, likewise: d4rl, or gymnasium's."""
    overwrite: bool = False
    """Replace the target if it exists."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.formats import load, save

        if Path(self.source).resolve() == Path(self.target).resolve():
            raise InputError(f"{self.source} cannot be converted into itself; choose another name")
        with bar("converting", self.quiet) as tell:
            data = load(self.source, horizon=self.horizon, flatten=self.flatten, tell=tell)
            data = _named(data, self.env, self.physics)
            save(data, self.target, overwrite=self.overwrite)
        self.say(f"{data!r} written to {self.target}")
        return {"source": self.source, "target": self.target, "fingerprint": data.fingerprint}


@dataclass(frozen=True, kw_only=True)
class Collect(Command):
    """Roll a policy out into a data set of whole episodes."""

    policy: Positional[str | None] = None
    """A policy file, or random; or leave it out and give --mix."""
    env: str
    """Gymnasium id, such as Hopper-v5."""
    steps: int
    """At least this many steps."""
    out: str
    """Where to write; the ending chooses the format."""
    mix: tuple[str, ...] = ()
    """FILE:SHARE of several policies, such as medium.npz:0.9 expert.npz:0.1."""
    physics: Physics = "gymnasium"
    """d4rl: the masses of the simulator that recorded D4RL's data."""
    deterministic: bool = False
    """Take the most likely action instead of drawing one."""
    noise: float = 0.0
    """Add Gaussian noise of this std, in half-ranges of the action."""
    horizon: Count = None
    """Time limit, where the environment has none of its own."""
    overwrite: bool = False
    """Replace the output if it exists."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.files import check_target
        from trajstitch.formats import save, writer
        from trajstitch.recording import collect, collect_mixture

        if bool(self.policy) == bool(self.mix):
            raise InputError("give either one POLICY or --mix FILE:SHARE FILE:SHARE …")
        writer(self.out)  # knows the ending, or says so now
        if not self.out.startswith("minari:"):
            check_target(Path(self.out), self.overwrite)
        options: dict[str, Any] = {
            "physics": self.physics,
            "deterministic": self.deterministic,
            "noise": self.noise,
            "horizon": self.horizon,
            "seed": self.seed,
        }
        with bar("collecting", self.quiet) as tell:
            if self.policy:
                data = collect(self.policy, self.env, self.steps, tell=tell, **options)
            else:
                data = collect_mixture(list(map(_share, self.mix)), self.env, self.steps, tell=tell, **options)
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


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a method on a data set."""

    method: Positional[
        Literal[
            "bc",
            "percent-bc",
            "gaussian-bc",
            "weighted-bc",
            "td3bc",
            "td3tsbc",
            "iql",
            "cql",
            "mbop",
            "tsmbop",
            "diffuser",
            "mopo",
            "morel",
        ]
    ]
    """bc: squared error; percent-bc: on the best trajectories; gaussian-bc: likelihood; weighted-bc: by value;
    td3bc, iql, cql: offline RL; td3tsbc: td3bc on the original, then on the improved data; mbop: planning at every
    step; tsmbop: mbop with policy and value of the improved data; diffuser: planning by guided diffusion; mopo,
    morel: offline RL in a learnt world."""
    data: Annotated[Positional[str], tyro.conf.arg(metavar="DATA")]
    """A file (.hdf5, .npz, .traj), d4rl:NAME, minari:ID or demo."""
    improved: Annotated[Positional[str | None], tyro.conf.arg(metavar="[IMPROVED]", help_behavior_hint="")] = None
    """td3tsbc, tsmbop: the improved data, such as RUN/improved.hdf5."""
    out: str
    """The run directory; the same command goes on with a run that was stopped."""
    seeds: int = 3
    """Trained side by side, from --seed on."""
    steps: Count = None
    """Gradient steps (bc methods, mbop, tsmbop: 100000; others 1000000)."""
    batch: Count = None
    """Transitions a step (256; mbop, tsmbop: 512; diffuser: 64 windows)."""
    rate: Number = None
    """Adam's learning rate (bc methods, mbop, tsmbop: 1e-3; diffuser: 2e-4; others 3e-4)."""
    width: Count = None
    """Units of a hidden layer (256; mbop, tsmbop: 500); diffuser: channels of the finest level (32)."""
    depth: Count = None
    """Hidden layers (2; cql: 3); diffuser: levels, each half as fine as the one before (4)."""
    raw: bool = False
    """Feed observations as they are, not scaled to mean 0 and std 1."""
    every: Count = None
    """Steps between checkpoints; a twentieth of all unless given."""
    env: Text = None
    """Evaluate every checkpoint here; the data set's own environment unless given."""
    physics: Maybe = None
    """Of the simulator; the data set's own unless given."""
    episodes: int = 10
    """A seed and checkpoint."""
    env_horizon: Count = None
    """Time limit, where the environment has none of its own."""
    no_evaluation: bool = False
    """Only train."""
    horizon: Count = None
    """Time limit of the episodes, for a file that records no time-outs."""
    flatten: bool = False
    """Put Minari's Dict observations into one vector."""
    overwrite: bool = False
    """Begin anew where the directory holds another run."""
    several: tyro.conf.OmitArgPrefixes[Several] = Several()
    cloning: tyro.conf.OmitArgPrefixes[Cloning] = Cloning()
    offline: tyro.conf.OmitArgPrefixes[Offline] = Offline()
    td3: tyro.conf.OmitArgPrefixes[TD3] = TD3()
    iql: tyro.conf.OmitArgPrefixes[IQL] = IQL()
    cql: tyro.conf.OmitArgPrefixes[CQL] = CQL()
    mbop: tyro.conf.OmitArgPrefixes[MBOP] = MBOP()
    diffuser: tyro.conf.OmitArgPrefixes[Diffuser] = Diffuser()
    model_based: tyro.conf.OmitArgPrefixes[ModelBased] = ModelBased()
    mopo: tyro.conf.OmitArgPrefixes[MOPO] = MOPO()
    morel: tyro.conf.OmitArgPrefixes[MOReL] = MOReL()

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.compiled import keep_compiled
        from trajstitch.formats import load
        from trajstitch.judge import Judge
        from trajstitch.methods import configure, train_run

        keep_compiled()
        names = ("steps", "batch", "rate", "width", "depth")
        settings = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        groups = (
            *(self.several, self.cloning, self.offline, self.td3, self.iql, self.cql),
            *(self.mbop, self.diffuser, self.model_based, self.mopo, self.morel),
        )
        for group in groups:
            settings |= given(group)
        configure(self.method, **settings)  # says what is wrong before anything is loaded
        two = self.method in ("td3tsbc", "tsmbop")
        if two and not self.improved:
            raise InputError(
                f"{self.method} takes two data sets: trajstitch train {self.method} ORIGINAL IMPROVED"
            )
        if not two and self.improved:
            raise InputError(
                f"{self.method} takes one data set, so leave {self.improved} out; td3tsbc and tsmbop take two"
            )
        with bar("loading", self.quiet) as tell:
            data = load(self.data, horizon=self.horizon, flatten=self.flatten, tell=tell)
            # Improved data are files of ours, which know where their episodes end.
            improved = load(self.improved, tell=tell) if self.improved else None
        env = self.env or data.info.get("env_id")
        physics = self.physics or data.info.get("physics", "gymnasium")
        judge = None
        if env and not self.no_evaluation:
            judge = Judge(str(env), str(physics), self.episodes, horizon=self.env_horizon)
            try:
                judge.check(data)
            except InputError as error:
                raise error.within(self.data) from error
        with bar(f"training {self.method}", self.quiet) as tell:
            run, judged = train_run(
                self.method,
                data,
                self.out,
                improved=improved,
                seed=self.seed,
                seeds=self.seeds,
                every=self.every,
                judge=judge,
                overwrite=self.overwrite,
                tell=tell,
                scale=not self.raw,
                **settings,
            )
        result: dict[str, Any] = {"out": self.out, "loss": run.metrics()[-1]["loss"]}
        if judged:
            self.say(_score_table(self.out, {"last": judged.last.summary(), "best": judged.best.summary()}))
            result |= judged.summary()
        else:
            where = "" if env else " --env ID"
            self.say(f"{self.out}/policy.npz: trained; score it with trajstitch evaluate {self.out}{where}")
        return result


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Score a run's checkpoints, or one policy file, in the simulator."""

    policy: Positional[str]
    """A run directory of train, or a policy file."""
    env: Text = None
    """Gymnasium id; for a run, the environment of its data unless given."""
    physics: Maybe = None
    """d4rl: the masses of the simulator that recorded D4RL's data."""
    episodes: int = 10
    """A seed and checkpoint."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely; for a policy file."""
    env_horizon: Count = None
    """Time limit, where the environment has none of its own."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.judge import Judge, judge_run
        from trajstitch.policy import load_policy, policy_info
        from trajstitch.run import Run
        from trajstitch.scores import evaluate

        if not Path(self.policy).is_dir():
            policy, known = load_policy(self.policy), policy_info(self.policy)
            env = self.env or known.get("env_id")
            if not env:
                raise InputError(f"{self.policy} names no environment; give --env, such as --env Hopper-v5")
            physics = self.physics or known.get("physics", "gymnasium")
            with bar("evaluating", self.quiet) as tell:
                scores = evaluate(
                    policy,
                    env,
                    episodes=self.episodes,
                    physics=physics,
                    seed=self.seed,
                    stochastic=self.stochastic,
                    info=known,
                    horizon=self.env_horizon,
                    tell=tell,
                )
            self.say(_score_table(self.policy, {"policy": scores.summary()}))
            return scores.summary()
        if self.stochastic:
            raise InputError("--stochastic is for a policy file; give RUN/policy.npz")
        run = Run.existing(self.policy)
        if run.job != "train":
            raise InputError(
                f"{self.policy} is a run of {run.job}; train on the data in it, then evaluate that run"
            )
        info = run.settings()["data"]["info"]
        env = self.env or info.get("env_id")
        if not env:
            raise InputError(f"{self.policy}: its data name no environment; give --env, such as --env Hopper-v5")
        physics = self.physics or info.get("physics", "gymnasium")
        judge = Judge(env, physics, self.episodes, 10_000 + self.seed, self.env_horizon)
        with bar("evaluating", self.quiet) as tell:
            judged = judge_run(run, judge, tell)
        reached, steps = judged.step[-1], run.settings()["config"]["fit"]["steps"]
        title = self.policy if reached == steps else f"{self.policy}, unfinished at step {reached:,} of {steps:,},"
        self.say(_score_table(title, {"last": judged.last.summary(), "best": judged.best.summary()}))
        return judged.summary()


@dataclass(frozen=True, kw_only=True)
class Improve(Command):
    """Make a data set better by stitching its trajectories; see trajstitch improve --help."""


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """The whole story on embedded data, in minutes."""

    out: str = "runs/demo"
    """Where its runs go."""
    steps: int = 6_000
    """Gradient steps of each policy."""
    seeds: int = 3
    """Of each policy."""
    episodes: int = 10
    """A seed."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.demo import DemoConfig, demo
        from trajstitch.formats import load
        from trajstitch.improve_cli import verdict
        from trajstitch.summary import show, summarise

        begin = time.monotonic()
        data = load("demo")
        if not self.quiet:
            show(data, summarise(data), "the embedded data")
        scores, result, report = demo(
            DemoConfig(self.steps, self.seeds, self.episodes), self.out, self.seed, self.quiet
        )
        self.say(verdict(data.returns.mean(), result))
        titles = {"bc": "BC", "percent_bc": "10% BC", "ts_bc": "TS + BC"}
        self.say(_score_table("cloned", {titles[name]: score.summary() for name, score in scores.items()}))
        self.say(f"{report} shows what was changed and why to believe it")
        means = {name: round(score.normalised, 2) for name, score in scores.items()}
        return {**means, "seconds": round(time.monotonic() - begin, 1)}


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Measure trajstitch itself on this machine."""

    suite: Positional[Literal["speed"]]
    """speed: every stage's throughput, beside a plain baseline in the same run."""
    data: str = "demo"
    """What to measure with: a file (.hdf5, .npz, .traj), d4rl:NAME, minari:ID or demo."""
    transitions: int = 100_000
    """The data are cut to about so many, or repeated with noise."""
    steps: int = 300
    """Training steps timed of each model."""
    states: int = 500
    """For the plain loop."""
    nearest: Count = None
    """Neighbours of a state; as improve has it unless given."""
    epsilon: Number = None
    """Radius of the neighbourhood; as improve has it unless given."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        from trajstitch.formats import load
        from trajstitch.graph import GraphConfig
        from trajstitch.progress import bars
        from trajstitch.speed import Speed, measure, table

        graph = GraphConfig(nearest=self.nearest, epsilon=self.epsilon)
        config = Speed(self.transitions, self.steps, self.states, graph=graph)
        with bars(self.quiet) as tell:
            result: dict[str, Any] = measure(load(self.data), config, self.seed, tell)
        self.say(table(result))
        return result


def _named(data: Dataset, env: str | None, physics: Physics | None) -> Dataset:
    """The data set with what was said of it; InputError where it cannot be of that environment."""
    said = {name: value for name, value in (("env_id", env), ("physics", physics)) if value}
    if env:
        from trajstitch.judge import Judge

        Judge(env, physics or "gymnasium").check(data)
    return dataclasses.replace(data, info={**data.info, **said}) if said else data


def _share(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition(":")
    try:
        value = float(share)
    except ValueError:
        raise InputError(f"--mix {text}: write FILE:SHARE, such as medium.npz:0.9") from None
    return _policy_file(name), value


def _policy_file(name: str) -> str:
    """The file itself, or the file of that name with .npz."""
    return name if name == "random" or Path(name).suffix or Path(name).exists() else f"{name}.npz"


def _score_table(title: str, rows: dict[str, dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    first = next(iter(rows.values()))
    table = Table(
        title=Text(
            f"{title} on {first['env']}, physics {first['physics']}: "
            f"{_count(first['seeds'], 'seed')} × {_count(first['episodes'], 'episode')}"
        ),
        title_justify="left",
    )
    for name in ("", "return", "95% interval", "std over seeds", "normalised", "95% interval", "length"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in rows.items():
        raw, normalised = row["raw"], row["normalised"]
        single = row["seeds"] * row["episodes"] == 1  # of which nothing is known but itself
        table.add_row(
            name,
            f"{raw['mean']:.1f}",
            "–" if single else "{:.1f} – {:.1f}".format(*raw["interval95"]),
            "–" if raw["std_over_seeds"] is None else f"{raw['std_over_seeds']:.1f}",
            f"{normalised['mean']:.1f}" if normalised else "no reference",
            "–" if single or not normalised else "{:.1f} – {:.1f}".format(*normalised["interval95"]),
            f"{row['length']:.0f}",
        )
    return table


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"


COMMANDS: dict[str, Callable[..., Command]] = {
    "demo": Demo,
    "inspect": Inspect,
    "improve": Improve,
    "train": Train,
    "evaluate": Evaluate,
    "collect": Collect,
    "convert": Convert,
    "bench": Bench,
}


def main(arguments: list[str] | None = None) -> int:
    """The command; a reader of its output may leave early, as `head` does."""
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        return 141  # as a shell says it


def _run(arguments: list[str]) -> int:
    """Parse, run, and say a user's mistake in one sentence."""
    if arguments == ["--version"]:
        from trajstitch import __version__

        print(f"trajstitch {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × still gets its table
    try:
        command = _parse(arguments)
        if command.seed < 0:
            raise InputError(f"--seed must not be negative, as {command.seed} is")
        result = command.run()
    except InputError as error:
        print(f"trajstitch: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("trajstitch: there is not enough memory for this; give smaller sizes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("trajstitch: stopped", file=sys.stderr)
        return 130
    if command.json:
        print(json_module.dumps(result), flush=True)
    return 0


def _parse(arguments: list[str]) -> Command:
    if arguments[:1] == ["improve"]:
        # Its options are the settings of every model, whose modules take a second to import.
        from trajstitch.improve_cli import parse

        return parse(arguments[1:])
    return tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="trajstitch",
        description="Better demonstration data by trajectory stitching.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


if __name__ == "__main__":
    sys.exit(main())
