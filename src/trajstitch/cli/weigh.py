"""The command `trajstitch weigh`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from trajstitch.cli.command import DataCommand, MaybeStr, MaybeTracker, parse_as, parse_preset
from trajstitch.data import Dataset, effective_steps
from trajstitch.errors import InputError
from trajstitch.formats import frame_weights, place, save, writer
from trajstitch.jobs.weigh import weigh_run
from trajstitch.methods.weigh import WEIGH_PRESETS, Appraisal, Weigh, weigh_towards
from trajstitch.policies.policy import acting
from trajstitch.policies.policy_files import policies_for
from trajstitch.progress import bar
from trajstitch.storage.atomic import check_apart, check_target
from trajstitch.storage.jax_cache import keep_compiled
from trajstitch.tracking import tracking

_AGREE = 0.3  # critics whose advantages correlate less than this hardly agree


@dataclass(frozen=True, kw_only=True)
class WeighCommand(DataCommand):
    """Give each step of a data set a weight: how much it is worth cloning."""

    out: str
    """Where to write the data with their weights; the ending, or minari:ID, chooses the format."""
    run_dir: MaybeStr = None
    """Directory of the critics' training, from which a stopped command continues; unless given, OUT.weigh."""
    frames: MaybeStr = None
    """Also write one row per frame, with LeRobot's index columns and the weight, to this file (.parquet)."""
    towards: MaybeStr = None
    """A run directory of train or a policy file: steps near what the policy does count more; of several, near the
    median of theirs."""
    preset: Literal["quick", "standard"] = "standard"
    """quick: minutes on two cores; standard: minutes on a GPU."""
    track: MaybeTracker = None
    """Also log losses to a tracker, whose files go beside the run directory."""
    overwrite: bool = False
    """Replace the outputs if they exist, and a run with other settings or data."""
    settings: Annotated[Weigh, tyro.conf.arg(name="")]
    """Each option replaces the preset's value."""

    def run(self) -> dict[str, Any]:
        """Weigh, save and print what the weights say."""
        keep_compiled()
        self._check_outputs()
        data = self.load()
        try:
            self.settings.check(data)
        except InputError as error:
            raise error.within(self.data) from error
        policy = policies_for(data, self.towards) if self.towards is not None else None
        with (
            bar("weighing", self.quiet) as tell,
            tracking(self.track, self._run_dir, dataclasses.asdict(self.settings)) as log,
        ):
            run, weighed, appraisal = weigh_run(
                data,
                self.settings,
                self._run_dir,
                seed=self.seed,
                overwrite=self.overwrite,
                inputs=self._inputs,
                tell=tell,
                log=log,
            )
        if policy is not None:
            weighed = weigh_towards(data, acting(policy), self.settings, appraisal)
        save(weighed, self.out, overwrite=self.overwrite)
        if self.frames:
            frame_weights.write(weighed, self.frames, self.overwrite)
        found = facts(weighed, appraisal)
        self.say(verdict(found))
        self.say(f"{self.out}: written; trajstitch train bc {self.out} clones by these weights")
        if self.frames:
            self.say(f"{self.frames}: written, one row per frame")
        return {
            "out": self.out,
            "frames": self.frames,
            "run": str(run.path),
            **found,
            "fingerprint": weighed.fingerprint,
        }

    @property
    def _inputs(self) -> list[str]:
        return [self.data, *([] if self.towards is None else [self.towards])]

    @property
    def _run_dir(self) -> str:
        return self.run_dir or f"{Path(place(self.out).removeprefix('minari:'))}.weigh"

    def _check_outputs(self) -> None:
        """Raise InputError now, before any work, if an output could not be written."""
        check_apart([place(name) for name in self._inputs], place(self.out))
        writer(self.out)
        if not self.out.startswith("minari:"):
            check_target(Path(place(self.out)), self.overwrite)
            if Path(self._run_dir).resolve().is_relative_to(Path(place(self.out)).resolve()):
                raise InputError(f"--run-dir {self._run_dir} lies in --out {self.out}; choose another directory")
        if self.frames:
            check_apart([place(name) for name in self._inputs], self.frames)
            frame_weights.check(self.frames, self.overwrite)


def facts(weighed: Dataset, appraisal: Appraisal) -> dict[str, Any]:
    """Return what is known of weights."""
    assert weighed.weight is not None
    return {
        "transitions": weighed.transitions,
        "effective_steps": effective_steps(weighed.weight),
        "max_weight": float(weighed.weight.max()),
        "agreement": appraisal.agreement,
    }


def verdict(found: dict[str, Any]) -> str:
    """Return what is known of weights, in a sentence or two."""
    share = found["effective_steps"] / found["transitions"]
    text = f"the weights are worth {found['effective_steps']:,.0f} of {found['transitions']:,} steps ({share:.1%})"
    if (agreement := found["agreement"]) is None:
        return f"{text}; one critic's weights are noisy: --members 5 averages several"
    text += f"; the critics agree by {agreement:.2f} (correlation of their advantages)"
    if agreement < _AGREE:
        text += ", which is little: train longer (--fit.steps), or do not trust these weights"
    return text


def parse(name: str, arguments: list[str]) -> WeighCommand:
    """Return the command; options that are not given have the preset's values."""
    missing: Any = tyro.MISSING
    settings = parse_preset(arguments, WEIGH_PRESETS)
    return parse_as(WeighCommand, name, arguments, WeighCommand(data=missing, out=missing, settings=settings))
