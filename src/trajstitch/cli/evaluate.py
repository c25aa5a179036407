"""The command `trajstitch evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeInt, MaybePhysics, MaybeStr, parse_as
from trajstitch.cli.tables import score_table
from trajstitch.errors import InputError
from trajstitch.progress import bar


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Score a run's checkpoints, or one policy file, in the simulator."""

    policy: Annotated[Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run directory of train, or a policy file."""
    env: MaybeStr = None
    """Gymnasium id; unless given, the environment of the training data."""
    physics: MaybePhysics = None
    """d4rl: the masses of the simulator that recorded D4RL's data; unless given, as the training data."""
    episodes: int = 10
    """Evaluation episodes per seed and checkpoint."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely one; only for a policy file."""
    env_horizon: MaybeInt = None
    """Time limit, where the environment has none of its own."""

    def run(self) -> dict[str, Any]:
        """Score and print a table."""
        return self._score_run() if Path(self.policy).is_dir() else self._score_policy()

    def _score_policy(self) -> dict[str, Any]:
        from trajstitch.evaluation.scores import evaluate
        from trajstitch.policies.policy_files import load_policy, policy_info

        policy, info = load_policy(self.policy), policy_info(self.policy)
        env, physics = self._simulator(info)
        with bar("evaluating", self.quiet) as tell:
            scores = evaluate(
                policy,
                env,
                episodes=self.episodes,
                physics=physics,
                seed=self.seed,
                stochastic=self.stochastic,
                info=info,
                env_horizon=self.env_horizon,
                tell=tell,
            )
        self.say(score_table(self.policy, {"policy": scores.summary()}))
        return scores.summary()

    def _score_run(self) -> dict[str, Any]:
        from trajstitch.jobs.run_dir import Run
        from trajstitch.jobs.score import ScoreConfig, score_run
        from trajstitch.storage.lock import holding

        if self.stochastic:
            raise InputError("--stochastic is for a policy file; give RUN/policy.npz")
        run = Run.existing(self.policy)
        if run.job != "train":
            raise InputError(
                f"{self.policy} is a run of {run.job}; train on the data in it, then evaluate that run"
            )
        env, physics = self._simulator(run.settings()["data"]["info"])
        scoring = ScoreConfig(env, physics, self.episodes, 10_000 + self.seed, self.env_horizon)
        with holding(run.path), bar("evaluating", self.quiet) as tell:
            scored = score_run(run, scoring, tell)
        reached, steps = scored.step[-1], run.settings()["config"]["fit"]["steps"]
        title = self.policy if reached == steps else f"{self.policy}, unfinished at step {reached:,} of {steps:,},"
        self.say(score_table(title, {"last": scored.last.summary(), "best": scored.best.summary()}))
        return scored.summary()

    def _simulator(self, info: Mapping[str, Any]) -> tuple[str, str]:
        """Return the environment and physics that were given, or those of the data."""
        from trajstitch.evaluation.envs import env_named_in

        env = self.env or env_named_in(info)
        if not env:
            raise InputError(f"{self.policy} names no environment; give --env, such as --env Hopper-v5")
        return env, self.physics or str(info.get("physics", "gymnasium"))


def parse(name: str, arguments: list[str]) -> Evaluate:
    """Return the command with its options."""
    return parse_as(Evaluate, name, arguments)
