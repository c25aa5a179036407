"""TD3+TS+BC: TD3+BC on the original, then the stitched data (paper, Model-free offline RL; appendix)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trajstitch.data import Dataset, repeated
from trajstitch.errors import InputError
from trajstitch.methods.method import Method, check_two, paper_rule
from trajstitch.methods.td3bc import TD3BC, FrozenCritic
from trajstitch.training.loop import Table


class Switch(NamedTuple):
    """When training switches to the improved data."""

    step: int  # first step on the improved data, of 1,000,000
    freeze_critic: bool = False  # whether only the actor is trained from then on


DEFAULT = Switch(800_000)

# The paper's choice for each data set.
SWITCH: dict[tuple[str, str], Switch] = {
    **{
        (env, kind): DEFAULT
        for env in ("hopper", "halfcheetah", "walker2d")
        for kind in ("medium", "medium-expert", "medium-replay", "expert")
    },
    ("hopper", "medium"): Switch(600_000),
    ("hopper", "medium-replay"): Switch(600_000),
    ("hopper", "expert"): Switch(600_000),
    ("walker2d", "medium-replay"): Switch(900_000, freeze_critic=True),
}


@dataclass(frozen=True)
class TD3TSBC(TD3BC):
    """TD3+BC that starts on the original data, which show the critic bad actions too."""

    rule: str | None = None  # The paper's switch for this data set, such as hopper-medium-replay.
    # First step on the improved data; unless given the rule's, or 80% of all steps.
    switch: int | None = None
    freeze_critic: bool = False  # Train only the actor after the switch; some rules say so themselves.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.switched.step < self.fit.steps:
            raise InputError(
                f"the switch at step {self.switched.step} must lie between the first and the last of "
                f"{self.fit.steps} steps"
            )

    @property
    def switched(self) -> Switch:
        """The rule's or the given switch, in steps of this run."""
        rule = paper_rule(SWITCH, self.rule) if self.rule else DEFAULT
        step = round(rule.step * self.fit.steps / 1_000_000) if self.switch is None else self.switch
        return Switch(step, self.freeze_critic or rule.freeze_critic)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError unless there are two data sets of equal dimensions, with rewards."""
        super().check(data)
        check_two("td3tsbc", data, improved)

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """Yield the original data until the switch, then the improved data; the scale of observations stays."""
        assert improved is not None  # checked in `check`
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(TD3BC)}
        switch, freeze = self.switched
        yield TD3BC(**shared), self.table(data), switch
        later = FrozenCritic(**shared) if freeze else TD3BC(**shared)
        yield later, without_repeats(self.table(improved)), self.fit.steps


def without_repeats(table: Table) -> Table:
    """Keep each transition once: stitched trajectories share many, which would otherwise get more weight."""
    columns = [np.reshape(column, (len(column), -1)) for column in table.values()]
    keep = ~repeated(np.concatenate(columns, 1, dtype=np.float32))
    return {name: column[keep] for name, column in table.items()}
