"""The command `trajstitch export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeInt, parse_as


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a policy as ONNX, to run it without trajstitch."""

    policy: Annotated[Positional[str], tyro.conf.arg(metavar="POLICY")]
    """A policy file, or a run directory of train, whose last policies are taken."""
    target: Annotated[Positional[str], tyro.conf.arg(metavar="TARGET")]
    """Output (.onnx): float32 observations [batch, S] in, actions [batch, A] out, scale and range inside."""
    member: MaybeInt = None
    """Which one, from 0, of several policies in the file, such as those of several seeds."""
    overwrite: bool = False
    """Replace the output if it exists."""

    def run(self) -> dict[str, Any]:
        """Load and export."""
        from trajstitch.errors import InputError
        from trajstitch.policies.onnx_files import check_onnx, export_onnx
        from trajstitch.policies.policy_files import load_policy, policy_info
        from trajstitch.storage.atomic import check_apart, check_target

        check_onnx(self.target)
        source = self.policy if not Path(self.policy).is_dir() else str(Path(self.policy) / "policy.npz")
        check_apart([source], self.target)
        check_target(Path(self.target), self.overwrite)
        policy, info = load_policy(source), policy_info(source)
        try:
            export_onnx(policy, self.target, member=self.member, info=info, overwrite=self.overwrite)
        except InputError as error:
            raise error.within(source) from error
        self.say(f"{self.target}: written, {policy.obs_dim} numbers in and {policy.action_dim} out")
        return {"target": self.target, "obs_dim": policy.obs_dim, "action_dim": policy.action_dim}


def parse(name: str, arguments: list[str]) -> Export:
    """Return the command with its options."""
    return parse_as(Export, name, arguments)
