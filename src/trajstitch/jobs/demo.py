"""Demo: improve the embedded data, clone old and new data, and compare the clones (`trajstitch demo`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trajstitch.evaluation.scores import Scores
from trajstitch.formats import load
from trajstitch.jobs.improve import improve_run, write_report
from trajstitch.jobs.score import ScoreConfig
from trajstitch.jobs.train import train_run
from trajstitch.progress import bars
from trajstitch.stitching.improve import Improve, Result
from trajstitch.stitching.presets import PRESETS


@dataclass(frozen=True)
class DemoConfig:
    """Sizes that take minutes on two cores."""

    steps: int = 6_000  # gradient steps of each policy
    seeds: int = 3
    episodes: int = 10  # per seed
    improve: Improve = PRESETS["quick"]


def demo(
    config: DemoConfig, out: str | Path, seed: int = 0, quiet: bool = False
) -> tuple[dict[str, Scores], Result, Path]:
    """Improve the embedded data, clone the old data, their best tenth and the new data, and score the clones.

    Return the last checkpoint's scores by policy, the improvement, and the path of its report.
    """
    data = load("demo")
    out = Path(out)
    with bars(quiet) as tell:
        run, result = improve_run(data, config.improve, out / "improve", seed=seed, overwrite=True, tell=tell)
        scoring = ScoreConfig(str(data.info["env_id"]), str(data.info["physics"]), config.episodes)
        scores = {}
        for name, method, source in (
            ("bc", "bc", data),
            ("percent_bc", "percent-bc", data),
            ("ts_bc", "bc", result.dataset),
        ):
            _, scored = train_run(
                method,
                source,
                out / name.replace("_", "-"),
                seed=seed,
                seeds=config.seeds,
                every=config.steps,
                scoring=scoring,
                overwrite=True,
                tell=tell(f"clone {name}"),
                steps=config.steps,
            )
            assert scored is not None
            scores[name] = scored.last
    named = {"original, BC": "bc", "original, 10% BC": "percent_bc", "improved, BC": "ts_bc"}
    report = write_report(run, data, result, {title: scores[name] for title, name in named.items()})
    return scores, result, report
