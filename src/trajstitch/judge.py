"""Judge: every checkpoint of a run scored the same way, the last and the best side by side."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch import envs
from trajstitch.data import Dataset, Info
from trajstitch.errors import InputError
from trajstitch.files import write_json
from trajstitch.policy import load_policy
from trajstitch.progress import Tell, silent
from trajstitch.run import Run
from trajstitch.scores import Scores, env_options, evaluate, reference_scores


@dataclass(frozen=True)
class Judge:
    """In which environment policies are scored, and over how many episodes."""

    env_id: str
    physics: str = "gymnasium"
    episodes: int = 10
    seed: int = 10_000  # of the episodes' first states, the same for every policy
    horizon: int | None = None  # time limit, where the environment has none of its own

    @property
    def name(self) -> str:
        """A file name that tells judges apart."""
        env = self.env_id.replace("/", "-").replace(":", "-")
        limit = f"-of-{self.horizon}-steps" if self.horizon else ""
        return f"{env}-{self.physics}-{self.episodes}-episodes-from-{self.seed}{limit}"

    def check(self, data: Dataset) -> None:
        """InputError where the environment cannot be the one the data came from."""
        if self.episodes < 1:
            raise InputError(f"episodes must be at least 1, not {self.episodes}")
        env = envs.make(self.env_id, 1, physics=self.physics, **env_options(self.env_id, data.info, self.horizon))
        have = (data.obs_dim, data.action_dim)
        want = (env.obs_dim, len(env.action_low))
        env.close()
        if have != want:
            raise InputError(
                f"the data have {have[0]} observations and {have[1]} actions, but {self.env_id} has {want[0]} and "
                f"{want[1]}; choose the environment the data came from"
            )


@dataclass(frozen=True)
class Judged:
    """Scores of C checkpoints of P seeds over E episodes."""

    judge: Judge
    step: list[int]  # [C]
    returns: NDArray[np.float64]  # [C, P, E]
    length: NDArray[np.int64]  # [C, P, E]
    reference: tuple[float, float] | None

    @property
    def last(self) -> Scores:
        """The last checkpoint's."""
        return self._scores(np.full(self.returns.shape[1], len(self.step) - 1))

    @property
    def best(self) -> Scores:
        """Each seed's best checkpoint's: chosen by these very episodes, so it flatters every method."""
        return self._scores(self._best)

    @property
    def best_steps(self) -> list[int]:
        """The step of each seed's best checkpoint."""
        return [self.step[c] for c in self._best]

    @property
    def _best(self) -> NDArray[Any]:
        return self.returns.mean(2).argmax(0)

    def _scores(self, which: NDArray[Any]) -> Scores:
        seeds = np.arange(self.returns.shape[1])
        returns, length = self.returns[which, seeds], self.length[which, seeds]
        return Scores(self.judge.env_id, self.judge.physics, returns, length, self.reference)

    def summary(self) -> dict[str, Any]:
        """Last and best, as plain numbers."""
        return {"last": self.last.summary(), "best": {**self.best.summary(), "steps": self.best_steps}}


def judge_run(run: Run, judge: Judge, tell: Tell = silent) -> Judged:
    """Score every checkpoint that this judge has not scored yet; each score is kept as soon as it is known."""
    steps = run.steps()
    if not steps:
        raise InputError(f"{run.path} has no checkpoint yet; let the training go on until its first one")
    info: Info = run.settings()["data"]["info"]
    file = run.path / "scores" / f"{judge.name}.json"
    known: dict[str, Any] = json.loads(file.read_text())["checkpoints"] if file.exists() else {}
    reference = reference_scores(judge.env_id, info)
    for done, step in enumerate(steps):
        if str(step) not in known:
            scores = evaluate(
                load_policy(run.checkpoint(step)),
                judge.env_id,
                episodes=judge.episodes,
                physics=judge.physics,
                seed=judge.seed,
                info=info,
                horizon=judge.horizon,
            )
            known[str(step)] = {"returns": scores.returns.tolist(), "length": scores.length.tolist()}
            write_json(file, {"judge": dataclasses.asdict(judge), "reference": reference, "checkpoints": known})
        tell(done + 1, len(steps), "checkpoints scored")
    return Judged(
        judge,
        steps,
        np.array([known[str(step)]["returns"] for step in steps]),
        np.array([known[str(step)]["length"] for step in steps]),
        reference,
    )
