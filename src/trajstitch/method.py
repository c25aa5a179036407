"""Method: a learner that makes a policy of a data set; cloning and offline RL alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Learner, Table
from trajstitch.policy import Policy


@dataclass(frozen=True)
class Method(Learner):
    """What every method has; its settings are the fields of its subclass."""

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """InputError where the method can learn nothing from these data; said before any work."""
        if improved is not None:
            raise InputError("only td3tsbc takes improved data beside the original; give one data set")

    def table(self, data: Dataset) -> Table:
        """What a step draws its batch from."""
        raise AssertionError("every method has its own")

    def stages(self, data: Dataset, improved: Dataset | None = None) -> Iterator[tuple[Method, Table, int]]:
        """Who learns, from what, and until which step, one after another."""
        yield self, self.table(data), self.schedule.steps

    def policy(self, model: Any) -> Policy:
        """What is played, out of all that is trained."""
        return model
