"""Train a method on a data set: in memory here, into a run directory in jobs/train.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from trajstitch.data import Dataset, check_dataset
from trajstitch.errors import InputError
from trajstitch.methods import configure
from trajstitch.methods.method import Method
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy
from trajstitch.progress import Tell, silent
from trajstitch.training import loop
from trajstitch.training.networks import pick


def train(
    method: str | Method,
    data: Dataset,
    *,
    improved: Dataset | None = None,
    seed: int = 0,
    seeds: int | None = None,
    tell: Tell = silent,
    **settings: Any,
) -> Policy | ActionPlanner:
    """Train in memory and return the policy, or the planner where the method plans.

    Arguments:
        method: its name, a key of `trajstitch.methods.METHODS`, or your own `Method`.
        data: the data set to learn from.
        improved: the improved data set, for td3tsbc and tsmbop only.
        seed: the random seed, or the first of several.
        seeds: how many seeds to train side by side; the result then has a leading axis of that length.
        tell: a callback for progress.
        settings: fields of the method's dataclass; also steps, batch and rate of its `fit`.
    """
    if seeds is not None:
        check_seeds(seeds)
    check_given(data, improved)
    config = configure(method, **settings)
    config.check(data, improved)
    policy: Any = None
    for state, mean in train_steps(config, data, improved, range(seed, seed + (seeds or 1)), chunk(config), tell):
        policy = config.policy(state.model)
        tell(int(state.step), config.fit.steps, f"loss {mean['loss'].mean():.4g}")
    return policy if seeds else pick(policy, 0)


def train_steps(
    config: Method,
    data: Dataset,
    improved: Dataset | None,
    seeds: range,
    every: int,
    tell: Tell,
    stored: Callable[[Callable[[], Any]], Any] = lambda make: make(),
    resume: Callable[[loop.State], loop.State] = lambda fresh: fresh,
) -> Iterator[tuple[loop.State, dict[str, NDArray[Any]]]]:
    """Train, and yield the state and the mean metrics every `every` steps.

    `stored(make)` returns the model that the method prepares first, by calling `make` or from a file;
    `resume(fresh)` returns the state to continue from.
    """

    def prepare() -> Any:
        return config.prepare(data, lambda done, total, note: tell(done, total, f"first model, {note}"))

    state: loop.State | None = None
    prepared = stored(prepare)
    for learner, table, until in config.stages(data, improved, prepared):
        if state is None:
            state = resume(loop.start(config, table, seeds))
        for reached, mean in loop.run(learner, state, table, seeds, every, until):
            state = reached
            yield state, mean


def check_given(data: Dataset, improved: Dataset | None) -> None:
    """Raise InputError unless these are data sets; the second may be None."""
    check_dataset("data", data)
    if improved is not None:
        check_dataset("improved", improved)


def check_seeds(seeds: int) -> None:
    """Raise InputError if there are fewer seeds than one."""
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")


def chunk(config: Method) -> int:
    """Return the default number of steps between checkpoints: a twentieth of all steps."""
    return max(1, config.fit.steps // 20)
