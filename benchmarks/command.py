"""Command lines: settings as NAME=VALUE, the command that a result file records, and how to run trajstitch."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

TRAJSTITCH = [sys.executable, "-m", "trajstitch.cli"]  # the command `trajstitch`, in a process of its own


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, where VALUE is JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def command(script: str, arguments: Sequence[str] | None = None) -> str:
    """The command that runs a script of this package with these arguments; those of this process by default."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", f"benchmarks.{script}", *arguments])
