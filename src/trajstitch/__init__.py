"""trajstitch: better demonstration data by trajectory stitching.

Names are imported when first used, so that `import trajstitch` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajstitch.data import Dataset, Trajectory, concatenate, from_trajectories
    from trajstitch.dynamics import DynamicsConfig
    from trajstitch.errors import InputError
    from trajstitch.fit import Fit
    from trajstitch.formats import load, save
    from trajstitch.graph import GraphConfig
    from trajstitch.improving import improve, improve_run, write_report
    from trajstitch.inverse import InverseConfig
    from trajstitch.methods import train
    from trajstitch.planner import Planner
    from trajstitch.policy import Policy, load_policy, save_policy
    from trajstitch.recording import collect, collect_mixture
    from trajstitch.reward import RewardConfig
    from trajstitch.scores import Scores, evaluate
    from trajstitch.stitch import PRESETS, Improve, Models, Result
    from trajstitch.value import ValueConfig

__version__ = "0.1.0"

_HOME = {
    "Dataset": "data",
    "Trajectory": "data",
    "concatenate": "data",
    "from_trajectories": "data",
    "InputError": "errors",
    "Scores": "scores",
    "collect": "recording",
    "collect_mixture": "recording",
    "evaluate": "scores",
    "Planner": "planner",
    "Policy": "policy",
    "load_policy": "policy",
    "save_policy": "policy",
    "train": "methods",
    "DynamicsConfig": "dynamics",
    "GraphConfig": "graph",
    "Improve": "stitch",
    "InverseConfig": "inverse",
    "Models": "stitch",
    "PRESETS": "stitch",
    "Result": "stitch",
    "RewardConfig": "reward",
    "ValueConfig": "value",
    "improve": "improving",
    "improve_run": "improving",
    "write_report": "improving",
    "Fit": "fit",
    "load": "formats",
    "save": "formats",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trajstitch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trajstitch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
