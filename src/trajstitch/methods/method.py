"""Method: a learner that trains a policy or planner on a data set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Learner, Table

_Rule = TypeVar("_Rule")


@dataclass(frozen=True)
class Method(Learner):
    """Interface of all methods; a method's settings are the fields of its subclass."""

    @property
    def carried(self) -> tuple[str, ...]:
        """Settings that are part of the model, so that members of one training run may differ in them."""
        return ()

    @property
    def joins(self) -> bool:
        """Whether it can learn from several data sets in one program: in one stage, from rows of arrays alone."""
        kind = type(self)
        return all(getattr(kind, name) is getattr(Method, name) for name in ("stages", "prepare", "refresh"))

    @property
    def joint(self) -> Method:
        """The settings that all members of one training run have: those that each carries are the class's."""
        return replace(self, **{one.name: one.default for one in fields(self) if one.name in self.carried})

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where the method cannot learn from these data, before any work is done."""
        if improved is not None:
            raise InputError("only td3tsbc and tsmbop take improved data beside the original; give one data set")

    def prepare(self, data: Dataset, tell: Tell = silent) -> Any:
        """Train a model that the method needs before its first step, such as a world model; most need none."""
        return None

    @abstractmethod
    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the table from which batches are sampled."""

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """Yield the training stages in order: the learner, its table, and the step at which the stage ends."""
        yield self, self.table(data, prepared), self.fit.steps

    def policy(self, model: Any) -> Policy | ActionPlanner:
        """Return the part of the trained model that acts."""
        return model


def check_rewards(data: Dataset) -> None:
    """Raise InputError where all rewards are 0."""
    if not data.reward.any():
        raise InputError("all rewards are 0, so no action is better; use bc, or give data with rewards")


def check_two(method: str, data: Dataset, improved: Dataset | None) -> None:
    """Raise InputError unless both data sets are given and have equal dimensions."""
    if improved is None:
        raise InputError(f"{method} needs two data sets, the original and the improved one; give both")
    have, want = ((d.obs_dim, d.action_dim) for d in (improved, data))
    check_same_sizes("the improved data have", have, "the original have", want, "give data of one environment")


def paper_rule(rules: Mapping[tuple[str, str], _Rule], name: str) -> _Rule:
    """Return the entry of one of the paper's tables for a data set, such as hopper-medium-replay."""
    env, _, kind = name.partition("-")
    if (env, kind) not in rules:
        known = ", ".join("-".join(pair) for pair in rules)
        raise InputError(f"the paper has no rule {name!r}; known are {known}")
    return rules[env, kind]
