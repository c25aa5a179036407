"""Command: the options that commands share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from trajstitch.errors import InputError
from trajstitch.progress import bar
from trajstitch.sources import SOURCES

if TYPE_CHECKING:
    from trajstitch.data import Dataset

# What a command needs is imported in its `run`, so that --help answers at once.

Physics = Literal["gymnasium", "d4rl"]
# Options that default to None; --help does not show that.
MaybePhysics = Annotated[Physics | None, tyro.conf.arg(metavar="{gymnasium,d4rl}", help_behavior_hint="")]
MaybeFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
MaybeInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
MaybeTracker = Annotated[
    Literal["tensorboard", "wandb"] | None, tyro.conf.arg(metavar="{tensorboard,wandb}", help_behavior_hint="")
]
MaybeStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")]

C = TypeVar("C", bound="Command")
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """Options of every command."""

    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print the result as one line of JSON at the end."""
    quiet: bool = False
    """Print no progress, tables or messages."""
    one_thread: bool = False
    """Let XLA use one thread, so that the bytes are the same on any number of cores."""

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Run the command and return the content of the line of JSON."""

    def say(self, text: object) -> None:
        """Print text or a table, unless quiet."""
        if not self.quiet:
            from rich.console import Console

            Console().print(text, highlight=False, markup=False)


@dataclass(frozen=True, kw_only=True)
class DataCommand(Command):
    """Options of every command that reads a data set."""

    data: Annotated[Positional[str], tyro.conf.arg(metavar="DATA", help=f"The data set: {SOURCES}.")]
    episode_horizon: MaybeInt = None
    """Time limit of the data's episodes, for a file that records no time-outs."""
    flatten: bool = False
    """Put Minari's Dict observations into one vector."""
    obs: tuple[str, ...] = ()
    """Features of LeRobot's or robomimic's data that are the observation, one after another."""
    action: tuple[str, ...] = ()
    """Features of such data that are the action, one after another."""
    reward_from: MaybeStr = None
    """Feature that is the reward, or success-at-end: 1 in the last step of an episode that succeeds."""
    done_from: MaybeStr = None
    """Feature that says where an episode really ends."""
    filter_key: MaybeStr = None
    """Filter key of robomimic's data: only the demonstrations under mask/KEY."""

    def load(self) -> Dataset:
        """Load the data set, with progress."""
        return self.load_from(self.data)

    def load_from(self, source: str) -> Dataset:
        """Load another data set by the same options."""
        from trajstitch.formats import load
        from trajstitch.formats.features import Features

        features = Features(self.obs, self.action, self.reward_from, self.done_from, self.filter_key)
        with bar("loading", self.quiet) as tell:
            return load(
                source,
                episode_horizon=self.episode_horizon,
                flatten=self.flatten,
                features=features,
                tell=tell,
            )


def parse_preset(arguments: list[str], presets: Mapping[str, S], usual: str = "standard") -> S:
    """Return the preset that the arguments name with --preset."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word.startswith("--preset"):
            usual = word.partition("=")[2] or following
    if usual not in presets:
        raise InputError(f"there is no preset {usual!r}; known are {', '.join(presets)}")
    return presets[usual]


def parse_as(kind: type[C], name: str, arguments: list[str], default: C | None = None) -> C:
    """Parse the options of one command; tyro explains a mistake and exits with 2."""
    missing: Any = tyro.MISSING_NONPROP
    parsed: C = tyro.cli(
        kind,
        default=missing if default is None else default,
        prog=f"trajstitch {name}",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return parsed
