"""Methods: what can be trained on a data set. A new method is a module in this folder and an entry in METHODS."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajstitch.errors import InputError

if TYPE_CHECKING:
    from trajstitch.methods.method import Method


@dataclass(frozen=True)
class Entry:
    """A method by name; its module is imported when it is first used, so that listing methods is fast."""

    module: str  # module in this package
    kind: str  # class in that module
    summary: str  # one line for --help and the docs
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the class's defaults
    improved: bool = False  # takes the improved data as well as the original
    paper: Mapping[str, Any] = field(default_factory=dict)  # settings of the preset paper that differ from those


_CONSTANT = {"schedule": "constant", "steps": 100_000}


METHODS: dict[str, Entry] = {
    "bc": Entry("bc", "BC", "Behaviour cloning by squared error.", paper=_CONSTANT),
    "percent-bc": Entry(
        "bc", "BC", "Cloning of the best 10% of trajectories.", {"percent": 10.0}, paper=_CONSTANT
    ),
    "gaussian-bc": Entry("bc", "BC", "Cloning by maximum likelihood.", {"head": "gaussian"}, paper=_CONSTANT),
    "weighted-bc": Entry(
        "bc", "WeightedBC", "Cloning weighted by state values (paper).", paper={**_CONSTANT, "weights": "paper"}
    ),
    "td3bc": Entry("td3bc", "TD3BC", "TD3+BC: offline RL that stays near the data."),
    "td3tsbc": Entry("td3tsbc", "TD3TSBC", "TD3+BC on the original, then the improved data.", improved=True),
    "rebrac": Entry("rebrac", "ReBRAC", "TD3+BC with a cloning term in the critic's targets too."),
    "iql": Entry("iql", "IQL", "Implicit Q-learning."),
    "cql": Entry("cql", "CQL", "Conservative Q-learning."),
    "mbop": Entry("mbop", "MBOP", "Model-based offline planning."),
    "tsmbop": Entry("tsmbop", "TSMBOP", "MBOP with policy and value of the improved data.", improved=True),
    "diffuser": Entry("diffuser", "Diffuser", "Planning by guided diffusion."),
    "mopo": Entry("mopo", "MOPO", "Model-based offline RL with a penalty on uncertainty."),
    "morel": Entry("morel", "MOReL", "Model-based offline RL in a pessimistic world model."),
}


def defaults(method: str) -> Method:
    """Return the method of this name with its default settings."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    entry = METHODS[method]
    module = importlib.import_module(f"trajstitch.methods.{entry.module}")
    made: Method = getattr(module, entry.kind)(**entry.settings)
    return made


def configure(method: str | Method, **settings: Any) -> Method:
    """Return a method, by name or given, with these settings; steps, batch and rate go to its `fit`."""
    config = defaults(method) if isinstance(method, str) else method
    fit_settings = {name: settings.pop(name) for name in ("steps", "batch", "rate") if name in settings}
    if unknown := settings.keys() - {item.name for item in dataclasses.fields(config)}:
        raise InputError(f"{name_of(method)} has no setting {sorted(unknown)[0]!r}")
    if fit_settings:
        settings["fit"] = dataclasses.replace(config.fit, **fit_settings)
    return dataclasses.replace(config, **settings)


def name_of(method: str | Method) -> str:
    """Return the name of a method, for run directories and messages."""
    return method if isinstance(method, str) else type(method).__name__
