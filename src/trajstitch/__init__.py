"""trajstitch: better demonstration data by composing and weighing what was recorded.

Names are imported when first used, so that `import trajstitch` stays light.
"""

from __future__ import annotations

import importlib

from trajstitch.version import __version__
from trajstitch.xla import avoid_wrong_sums

avoid_wrong_sums()

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:  # "X as X" tells type checkers that X is public
    from typing import Any

    from trajstitch.conditions import where as where
    from trajstitch.data import Dataset as Dataset
    from trajstitch.data import Seams as Seams
    from trajstitch.data import Trajectory as Trajectory
    from trajstitch.data import concatenate as concatenate
    from trajstitch.data import from_trajectories as from_trajectories
    from trajstitch.episodes import Episodes as Episodes
    from trajstitch.episodes import episode_table as episode_table
    from trajstitch.errors import InputError as InputError
    from trajstitch.evaluation.audit import Audit as Audit
    from trajstitch.evaluation.audit import audit as audit
    from trajstitch.evaluation.audit import drop_seams as drop_seams
    from trajstitch.evaluation.collect import collect as collect
    from trajstitch.evaluation.collect import collect_mixture as collect_mixture
    from trajstitch.evaluation.scores import Scores as Scores
    from trajstitch.evaluation.scores import evaluate as evaluate
    from trajstitch.formats import load as load
    from trajstitch.formats import save as save
    from trajstitch.formats.features import Features as Features
    from trajstitch.jobs.improve import improve as improve
    from trajstitch.jobs.improve import improve_run as improve_run
    from trajstitch.jobs.improve import write_report as write_report
    from trajstitch.jobs.score import ScoreConfig as ScoreConfig
    from trajstitch.jobs.train import train_run as train_run
    from trajstitch.jobs.weigh import weigh as weigh
    from trajstitch.jobs.weigh import weigh_run as weigh_run
    from trajstitch.methods.train import train as train
    from trajstitch.methods.weigh import WEIGH_PRESETS as WEIGH_PRESETS
    from trajstitch.methods.weigh import Weigh as Weigh
    from trajstitch.models.dynamics import DynamicsConfig as DynamicsConfig
    from trajstitch.models.inverse import InverseConfig as InverseConfig
    from trajstitch.models.reward import RewardConfig as RewardConfig
    from trajstitch.models.value import ValueConfig as ValueConfig
    from trajstitch.policies.onnx_files import export_onnx as export_onnx
    from trajstitch.policies.planner import ActionPlanner as ActionPlanner
    from trajstitch.policies.policy import Policy as Policy
    from trajstitch.policies.policy_files import load_policy as load_policy
    from trajstitch.policies.policy_files import save_policy as save_policy
    from trajstitch.stitching.graph import GraphConfig as GraphConfig
    from trajstitch.stitching.improve import Improve as Improve
    from trajstitch.stitching.improve import Models as Models
    from trajstitch.stitching.improve import Result as Result
    from trajstitch.stitching.presets import PRESETS as PRESETS
    from trajstitch.training.loop import Fit as Fit

_HOME = {
    "Dataset": "data",
    "Seams": "data",
    "Trajectory": "data",
    "concatenate": "data",
    "from_trajectories": "data",
    "where": "conditions",
    "Episodes": "episodes",
    "episode_table": "episodes",
    "InputError": "errors",
    "load": "formats",
    "save": "formats",
    "Features": "formats.features",
    "Fit": "training.loop",
    "DynamicsConfig": "models.dynamics",
    "InverseConfig": "models.inverse",
    "RewardConfig": "models.reward",
    "ValueConfig": "models.value",
    "GraphConfig": "stitching.graph",
    "Improve": "stitching.improve",
    "Models": "stitching.improve",
    "Result": "stitching.improve",
    "PRESETS": "stitching.presets",
    "Policy": "policies.policy",
    "ActionPlanner": "policies.planner",
    "load_policy": "policies.policy_files",
    "save_policy": "policies.policy_files",
    "export_onnx": "policies.onnx_files",
    "Audit": "evaluation.audit",
    "audit": "evaluation.audit",
    "drop_seams": "evaluation.audit",
    "Scores": "evaluation.scores",
    "evaluate": "evaluation.scores",
    "collect": "evaluation.collect",
    "collect_mixture": "evaluation.collect",
    "train": "methods.train",
    "WEIGH_PRESETS": "methods.weigh",
    "Weigh": "methods.weigh",
    "weigh": "jobs.weigh",
    "weigh_run": "jobs.weigh",
    "improve": "jobs.improve",
    "improve_run": "jobs.improve",
    "write_report": "jobs.improve",
    "train_run": "jobs.train",
    "ScoreConfig": "jobs.score",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trajstitch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trajstitch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
