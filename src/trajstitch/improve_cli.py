"""The command `trajstitch improve`, whose options are all settings of all models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from trajstitch.cli import Command
from trajstitch.compiled import keep_compiled
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.improving import ENDINGS, improve_run
from trajstitch.progress import bar, bars
from trajstitch.stitch import PRESETS, Improve, Result


@dataclass(frozen=True, kw_only=True)
class ImproveCommand(Command):
    """Make a data set better by stitching its trajectories."""

    data: Positional[str]
    """A file (.hdf5, .npz, .traj), d4rl:NAME, minari:ID or demo."""
    out: str
    """The run directory; the same command goes on with a run that was stopped."""
    preset: Literal["quick", "standard", "paper"] = "standard"
    """quick: minutes on two cores; standard: our trade-off on one GPU; paper: its models and step counts."""
    overwrite: bool = False
    """Begin anew where the directory holds another run."""
    episode_horizon: int | None = None
    """Time limit of the data's episodes, for a file that records no time-outs."""
    flatten: bool = False
    """Put Minari's Dict observations into one vector."""
    settings: Annotated[Improve, tyro.conf.arg(name="")]
    """Each can be set over what the preset says."""

    def run(self) -> dict[str, Any]:
        """See the class."""
        keep_compiled()
        with bar("loading", self.quiet) as loading:
            data = load(self.data, horizon=self.episode_horizon, flatten=self.flatten, tell=loading)
        ending = Path(self.data).suffix
        with bars(self.quiet) as tell:
            run, result = improve_run(
                data,
                self.settings,
                self.out,
                seed=self.seed,
                ending=ending if ending in ENDINGS else ".hdf5",
                overwrite=self.overwrite,
                tell=tell,
            )
        self.say(verdict(data.returns.mean(), result))
        self.say(f"{run.path}/report.html shows what was done")
        return {
            "out": self.out,
            "return_before": float(data.returns.mean()),
            "return_after": float(result.dataset.returns.mean()),
            "accepted": [entry["accepted"] for entry in result.history],
            "stitched_share": float(result.seams.stitched.mean()),
            "model_errors": result.errors,
            "graph": result.graph,
            "fingerprint": result.dataset.fingerprint,
        }


def verdict(before: float, result: Result) -> str:
    """What came of it, in a sentence."""
    replaced = int((result.dataset.returns != result.seams.return_before).sum())
    if not replaced:
        why = "no plausible stitch was found" if not result.graph["edges"] else "no new trajectory was better"
        return f"nothing to stitch: {why}; the data are unchanged"
    after = result.dataset.returns.mean()
    return (
        f"{replaced:,} of {len(result.dataset):,} trajectories replaced by better ones: mean return "
        f"{before:.1f} → {after:.1f}, {result.seams.stitched.mean():.2%} of the steps are stitched"
    )


def parse(arguments: list[str]) -> ImproveCommand:
    """The command with its preset's settings under those that were given."""
    preset = "standard"
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word.startswith("--preset"):
            preset = word.partition("=")[2] or following
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset!r}; known are {', '.join(PRESETS)}")
    missing: Any = tyro.MISSING
    return tyro.cli(
        ImproveCommand,
        default=ImproveCommand(data=missing, out=missing, settings=PRESETS[preset]),
        prog="trajstitch improve",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
