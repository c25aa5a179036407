"""The command `trajstitch improve`, whose options are all settings of all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from trajstitch.blocks import Mapper, RayMapper, in_process
from trajstitch.cli.command import DataCommand, MaybeStr, MaybeTracker, parse_as, parse_preset
from trajstitch.cluster import connected
from trajstitch.data import Dataset
from trajstitch.formats import ENDINGS, place
from trajstitch.jobs.improve import improve_run
from trajstitch.methods.weigh import WEIGH_PRESETS
from trajstitch.policies.policy_files import policies_for
from trajstitch.progress import bars
from trajstitch.stitching.improve import Improve, Result
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import check_apart
from trajstitch.storage.jax_cache import keep_compiled
from trajstitch.tracking import tracking


@dataclass(frozen=True, kw_only=True)
class ImproveCommand(DataCommand):
    """Make a data set better by stitching its trajectories."""

    out: str
    """Run directory; the same command continues a run that was stopped."""
    preset: Literal["quick", "standard", "paper"] = "standard"
    """quick: minutes on two cores; standard: our trade-off on one GPU; paper: the paper's settings."""
    policy: str | None = None
    """What the planner policy follows: a run directory of train, or any policy file that evaluate takes."""
    policy_seed: int | None = None
    """Which of several policies in that file; unless given, the median of their actions."""
    weigh: bool = False
    """Also give each step of the improved data a weight, by the critics of the preset of trajstitch weigh."""
    ray: MaybeStr = None
    """Find neighbours and edges of very large data on the Ray cluster of this address; local: on this machine."""
    track: MaybeTracker = None
    """Also log losses and what each iteration did to a tracker, whose files go beside the run directory."""
    overwrite: bool = False
    """Start again if the directory holds a run with other settings or data."""
    settings: Annotated[Improve, tyro.conf.arg(name="")]
    """Each option replaces the preset's value."""

    def run(self) -> dict[str, Any]:
        """Improve into the run directory and print the verdict."""
        keep_compiled()
        inputs = [self.data, *([self.policy] if self.policy else [])]
        check_apart([place(name) for name in inputs], self.out)
        data = self.load()
        ending = Path(self.data).suffix
        with (
            bars(self.quiet) as tell,
            blocks_on(self.ray) as mapper,
            tracking(self.track, self.out, dataclasses.asdict(self.settings)) as log,
        ):
            run, result = improve_run(
                data,
                self.settings,
                self.out,
                seed=self.seed,
                weigh=WEIGH_PRESETS["quick" if self.preset == "quick" else "standard"] if self.weigh else None,
                ending=ending if ending in ENDINGS else ".hdf5",
                overwrite=self.overwrite,
                policy=policies_for(data, self.policy, self.policy_seed) if self.policy else None,
                inputs=inputs,
                mapper=mapper,
                tell=tell,
                log=log,
            )
        self.say(verdict(data, result))
        self.say(f"{run.path}/report.html shows what was done")
        return {
            "out": self.out,
            "return_before": float(data.returns.mean()),
            "return_after": float(result.dataset.returns.mean()),
            "accepted": [entry["accepted"] for entry in result.history],
            "really_end": [int(data.terminal.sum()), int(result.dataset.terminal.sum())],
            "cut_short": [entry.get("cut_short", 0) for entry in result.history],
            "stitched_share": float(result.seams.stitched.mean()),
            "model_errors": result.errors,
            "graph": result.graph,
            "fingerprint": result.dataset.fingerprint,
        }


_FEW = 0.05  # of the trajectories may become shorter without ending, before the verdict warns of it


def verdict(data: Dataset, result: Result) -> str:
    """Return the outcome in a sentence or two; a higher return is not praised where trajectories were only cut."""
    new = result.dataset
    if "imagined" in new.info:
        text = f"{len(new):,} trajectories imagined, {new.transitions:,} steps: their states are a world model's"
        if result.plan is not None:
            return f"{text}; plan.* has the policy's step from each of {len(result.plan):,} states: clone that"
        recorded, planned = result.graph["recorded_value"], result.graph["planned_value"]
        return f"{text}; recorded starts are worth {planned:.1f} by the plan, {recorded:.1f} as recorded"
    replaced = int((new.returns != result.seams.return_before).sum())
    if not replaced:
        why = "no plausible stitch was found" if not result.graph["edges"] else "no new trajectory was better"
        return f"nothing to stitch: {why}; the data are unchanged"
    cut = int(result.history[-1].get("cut_short", 0)) if result.history else 0
    many_cut = cut > _FEW * len(new)
    by = "" if many_cut else " by better ones"
    returns = f"mean return {data.returns.mean():.1f} → {new.returns.mean():.1f}"
    stitched = f"{result.seams.stitched.mean():.2%} of the steps are stitched"
    text = f"{replaced:,} of {len(new):,} trajectories replaced{by}: "
    if "planned_value" in result.graph:
        recorded, planned = result.graph["recorded_value"], result.graph["planned_value"]
        text += (
            f"their starts are worth {planned:.1f} by the plan, {recorded:.1f} as recorded; "
            f"{data.terminal.sum():,} → {new.terminal.sum():,} really end; {stitched}"
        )
    else:
        text += f"{returns}, {stitched}"
    if many_cut:
        text += (
            f". {cut:,} became shorter than recorded without really ending, so do not take a higher return for a "
            "better trajectory"
        )
    return text


@contextmanager
def blocks_on(address: str | None) -> Iterator[Mapper]:
    """Yield what maps blocks: on the Ray cluster of this address, or in this process."""
    if address is None:
        yield in_process
        return
    with connected(address) as ray:
        yield RayMapper(ray)


def parse(name: str, arguments: list[str]) -> ImproveCommand:
    """Return the command; options that are not given have the preset's values."""
    missing: Any = tyro.MISSING
    default = ImproveCommand(data=missing, out=missing, settings=parse_preset(arguments, PRESETS))
    return parse_as(ImproveCommand, name, arguments, default)
