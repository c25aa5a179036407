"""The command line: each command is a dataclass in its own file.

Exit codes: 0 done, 1 a result broke an invariant, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import importlib
import io
import os
import sys

from trajstitch.cli.signals import watch
from trajstitch.errors import InputError, InvariantError, unknown
from trajstitch.version import __version__
from trajstitch.xla import use_one_thread

TYPE_CHECKING = False  # as in `typing`; what is imported here comes before Ctrl-C is heard, so it is little
if TYPE_CHECKING:
    from trajstitch.cli.command import Command

# Name: the module of this package with its `parse`, and a line for --help. A module is imported when it is needed.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Run all stages in a maze, in about a minute."),
    "inspect": ("data", "Show what is in a data set and how good it is."),
    "improve": ("improve", "Make a data set better by stitching its trajectories."),
    "weigh": ("weigh", "Give each step a weight: how much it is worth cloning."),
    "train": ("train", "Train a method on a data set."),
    "evaluate": ("evaluate", "Score a run's checkpoints, or one policy file, in the simulator."),
    "audit": ("audit", "Replay the seams of improved data in the simulator."),
    "collect": ("data", "Roll a policy out into a data set of whole episodes."),
    "convert": ("data", "Copy a data set into another format."),
    "filter": ("episodes", "Keep the episodes that meet a condition."),
    "merge": ("episodes", "Put data sets together."),
    "push": ("push", "Put a data set on Hugging Face's hub, with a card."),
    "export": ("export", "Write a policy as ONNX, to run it without trajstitch."),
    "bench": ("bench", "Run a whole table of methods and data sets, or measure speed."),
    "report": ("report", "Make tables and a page from what bench has run."),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code; the reader of its output, such as `head`, may stop early.

    Without arguments it is the program itself: it takes those of the command line, and ends at once on a signal.
    """
    if arguments is None:
        watch(sys.argv[1:])
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at exit cannot fail
        return 141  # a shell's exit code for SIGPIPE


def parse(arguments: list[str]) -> Command:
    """Return the command with its options; InputError if there is no such command."""
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = importlib.import_module(f"trajstitch.cli.{COMMANDS[name][0]}")
    command: Command = module.parse(name, rest)
    return command


def overview() -> str:
    """Return what `trajstitch --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: trajstitch COMMAND [options]",
            "",
            "Better demonstration data from the data you have.",
            "",
            *lines,
            "",
            "trajstitch COMMAND --help shows the options of a command; trajstitch --version the version.",
        ]
    )


def _run(arguments: list[str]) -> int:
    """Parse and run; print a user's mistake as one sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks × still shows the table
    if arguments == ["--version"]:
        print(f"trajstitch {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        command = parse(arguments)
        if command.seed < 0:
            raise InputError(f"--seed must be at least 0, not {command.seed}")
        if command.one_thread:
            use_one_thread()
        result = command.run()
    except InputError as error:
        print(f"trajstitch: {error}", file=sys.stderr)
        return 2
    except InvariantError as error:
        print(f"trajstitch: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("trajstitch: there is not enough memory for this; give smaller sizes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("trajstitch: stopped", file=sys.stderr)
        return 130
    if command.json:
        from trajstitch.storage.atomic import json_text

        print(json_text(result), flush=True)
    return 0
