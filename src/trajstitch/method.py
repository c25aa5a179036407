"""Method: a learner that makes a policy of a data set; cloning and offline RL alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Learner, Table
from trajstitch.planner import Planner
from trajstitch.policy import Policy
from trajstitch.progress import Tell, silent

_Rule = TypeVar("_Rule")


@dataclass(frozen=True)
class Method(Learner):
    """What every method has; its settings are the fields of its subclass."""

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """InputError where the method can learn nothing from these data; said before any work."""
        if improved is not None:
            raise InputError("only td3tsbc and tsmbop take improved data beside the original; give one data set")

    def prepare(self, data: Dataset, tell: Tell = silent) -> Any:
        """A model the method needs before its first step, such as a world; most need none."""
        return None

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """What a step draws its batch from."""
        raise AssertionError("every method has its own")

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """Who learns, from what, and until which step, one after another."""
        yield self, self.table(data, prepared), self.schedule.steps

    def policy(self, model: Any) -> Policy | Planner:
        """What is played, out of all that is trained."""
        return model


def check_rewards(data: Dataset) -> None:
    """InputError where all rewards are 0."""
    if not data.reward.any():
        raise InputError("all rewards are 0, so there is nothing to prefer; use bc, or give data with rewards")


def check_two(method: str, data: Dataset, improved: Dataset | None) -> None:
    """InputError unless both data sets are there and of one environment."""
    if improved is None:
        raise InputError(f"{method} needs two data sets, the original and the improved one; give both")
    have, want = ((d.obs_dim, d.action_dim) for d in (improved, data))
    if have != want:
        raise InputError(
            f"the improved data have {have[0]} observations and {have[1]} actions, the original {want[0]} and "
            f"{want[1]}; give data of one environment"
        )


def paper_rule(rules: Mapping[tuple[str, str], _Rule], name: str) -> _Rule:
    """What one of the paper's tables says of a data set, such as hopper-medium-replay."""
    env, _, kind = name.partition("-")
    if (env, kind) not in rules:
        known = ", ".join("-".join(pair) for pair in rules)
        raise InputError(f"the paper has no rule {name!r}; known are {known}")
    return rules[env, kind]
