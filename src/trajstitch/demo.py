"""Demo: the whole story on the embedded data, as `trajstitch demo` and `make demo` tell it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajstitch.formats import load
from trajstitch.judge import Judge
from trajstitch.methods import train_run
from trajstitch.progress import bar
from trajstitch.scores import Scores


@dataclass(frozen=True)
class DemoConfig:
    """Sizes that take minutes on two cores."""

    steps: int = 8_000  # gradient steps of each policy
    seeds: int = 3
    episodes: int = 10  # a seed


def demo(
    config: DemoConfig, out: str | Path, seed: int = 0, quiet: bool = False
) -> tuple[dict[str, Scores], float]:
    """Clone the embedded data whole and its best tenth: last-checkpoint scores by method, and the seconds."""
    begin = time.monotonic()
    data = load("demo")
    judge = Judge(str(data.info["env_id"]), str(data.info["physics"]), config.episodes)
    scores = {}
    for method in ("bc", "percent-bc"):
        with bar(method, quiet) as tell:
            _, judged = train_run(
                method,
                data,
                Path(out) / method,
                seed=seed,
                seeds=config.seeds,
                every=config.steps,
                judge=judge,
                overwrite=True,
                tell=tell,
                steps=config.steps,
            )
        assert judged is not None
        scores[method] = judged.last
    return scores, time.monotonic() - begin


def line(scores: dict[str, Scores], seconds: float) -> dict[str, Any]:
    """What `trajstitch demo --json` ends with."""
    means = {name.replace("-", "_"): round(score.normalised, 2) for name, score in scores.items()}
    return {**means, "seconds": round(seconds, 1)}
