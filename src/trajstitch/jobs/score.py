"""Score a run: evaluate every checkpoint in the same way, and compare the last with the best."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset, Info
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.envs import env_options
from trajstitch.evaluation.normalise import reference_scores
from trajstitch.evaluation.scores import Scores, evaluate
from trajstitch.jobs.run_dir import Run
from trajstitch.policies.policy_files import load_policy
from trajstitch.progress import Tell, silent
from trajstitch.storage.archive import reading
from trajstitch.storage.atomic import write_json


@dataclass(frozen=True)
class ScoreConfig:
    """In which environment policies are scored, and over how many episodes."""

    env_id: str
    physics: str = "gymnasium"
    episodes: int = 10
    seed: int = 10_000  # of the episodes' first states, the same for every policy
    env_horizon: int | None = None  # time limit, where the environment has none of its own

    @property
    def name(self) -> str:
        """File name of the scores, different for different settings."""
        env = self.env_id.replace("/", "-").replace(":", "-")
        limit = f"-of-{self.env_horizon}-steps" if self.env_horizon else ""
        return f"{env}-{self.physics}-{self.episodes}-episodes-from-{self.seed}{limit}"

    def check(self, data: Dataset) -> None:
        """Raise InputError if the environment cannot be the one the data came from."""
        if self.episodes < 1:
            raise InputError(f"episodes must be at least 1, not {self.episodes}")
        env = envs.make(
            self.env_id, 1, physics=self.physics, **env_options(self.env_id, data.info, self.env_horizon)
        )
        have = (data.obs_dim, data.action_dim)
        want = (env.obs_dim, len(env.action_low))
        env.close()
        remedy = "choose the environment the data came from"
        check_same_sizes("the data have", have, f"{self.env_id} has", want, remedy)


@dataclass(frozen=True)
class RunScores:
    """Scores of C checkpoints of P seeds over E episodes."""

    scoring: ScoreConfig
    step: list[int]  # [C]
    returns: NDArray[np.float64]  # [C, P, E]
    length: NDArray[np.int64]  # [C, P, E]
    reference: tuple[float, float] | None
    reached: NDArray[np.int64] | None = None  # [C, P, E], as in Scores

    @property
    def last(self) -> Scores:
        """Scores of the last checkpoint."""
        return self._scores(np.full(self.returns.shape[1], len(self.step) - 1))

    @property
    def best(self) -> Scores:
        """Scores of each seed's best checkpoint: chosen by the same episodes, so too high for every method."""
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
        reached = None if self.reached is None else self.reached[which, seeds]
        return Scores(self.scoring.env_id, self.scoring.physics, returns, length, self.reference, reached)

    def summary(self) -> dict[str, Any]:
        """Return last and best scores as plain numbers."""
        return {"last": self.last.summary(), "best": {**self.best.summary(), "steps": self.best_steps}}


def score_run(run: Run, scoring: ScoreConfig, tell: Tell = silent) -> RunScores:
    """Score every checkpoint that has no scores with these settings yet; store each as soon as it is known."""
    steps = run.steps()
    if not steps:
        raise InputError(f"{run.path} has no checkpoint yet; continue the training until its first one")
    info: Info = run.settings()["data"]["info"]
    file = run.path / "scores" / f"{scoring.name}.json"
    known: dict[str, Any] = {}
    if file.exists():
        with reading(file):
            known = dict(json.loads(file.read_text())["checkpoints"])
    reference = reference_scores(scoring.env_id, info)
    for done, step in enumerate(steps):
        if str(step) not in known:
            scores = evaluate(
                load_policy(run.checkpoint(step)),
                scoring.env_id,
                episodes=scoring.episodes,
                physics=scoring.physics,
                seed=scoring.seed,
                info=info,
                env_horizon=scoring.env_horizon,
            )
            known[str(step)] = {"returns": scores.returns.tolist(), "length": scores.length.tolist()}
            if scores.reached is not None:
                known[str(step)]["reached"] = scores.reached.tolist()
            write_json(
                file, {"scoring": dataclasses.asdict(scoring), "reference": reference, "checkpoints": known}
            )
        tell(done + 1, len(steps), "checkpoints scored")
    has_goal = all("reached" in known[str(step)] for step in steps)
    return RunScores(
        scoring,
        steps,
        np.array([known[str(step)]["returns"] for step in steps]),
        np.array([known[str(step)]["length"] for step in steps]),
        reference,
        np.array([known[str(step)]["reached"] for step in steps]) if has_goal else None,
    )
