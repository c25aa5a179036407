"""Presets: complete settings of an improvement, from minutes on two cores to the paper's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.inverse import InverseConfig
from trajstitch.models.reward import RewardConfig
from trajstitch.models.value import ValueConfig
from trajstitch.stitching.graph import GraphConfig
from trajstitch.stitching.improve import WORLD, Improve
from trajstitch.training.loop import Fit


def _sized(
    dynamics: int,
    inverse: int,
    reward: int,
    value: int,
    world: dict[str, Any],
    rate: float,
    width: int = 0,
    **more: Any,
) -> Improve:
    """Return our settings with these numbers of gradient steps and this learning rate."""
    return Improve(
        dynamics=DynamicsConfig(fit=Fit(dynamics, 256, rate)),
        inverse=InverseConfig(width=width, fit=Fit(inverse, 256, rate)),
        reward=RewardConfig(fit=Fit(reward, 256, rate)),
        value=ValueConfig(fit=Fit(value, 256, rate)),
        world=replace(WORLD, **world),
        **more,
    )


_SMALL_WORLD = {"members": 4, "elites": 3, "width": 128, "depth": 3, "fit": Fit(8_000, 256, 1e-3)}

PRESETS: dict[str, Improve] = {
    # Minutes on two cores.
    "quick": _sized(6_000, 8_000, 2_000, 5_000, _SMALL_WORLD, 1e-3),
    # Our trade-off on one GPU.
    "standard": _sized(50_000, 50_000, 20_000, 30_000, {}, 3e-4, width=750),
    # The paper's neighbourhoods, models and step counts; docs/method.md lists what still differs.
    "paper": Improve(
        max_repeats=None,
        value_cut_ends=False,
        graph=GraphConfig(metric="raw", choose_epsilon="paper", nearest=0),
        dynamics=DynamicsConfig(fit=Fit(1_000_000, 256, 3e-4), patience=2),
        inverse=InverseConfig(kind="cvae", latent="sample", fit=Fit(400_000, 100, 1e-4), patience=0),
        reward=RewardConfig(kind="wgan", penalty=0.0, fit=Fit(500_000, 256, 1e-4), patience=0),
        value=ValueConfig(warm=False, fit=Fit(1_000_000, 256, 3e-4)),
    ),
}
