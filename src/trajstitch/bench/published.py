"""Published scores on D4RL's v2 data, normalised: the paper's Table 1 and ablation, 10%BC and ReBRAC by CORL.

They come from other data, budgets and code than ours; reports mark them so.
"""

from __future__ import annotations

from trajstitch.bench.suites import paper_name

SOURCES = (
    "Published scores are of D4RL's v2 data: of Hepburn and Montana's Table 1 and their ablations of "
    "value-weighted BC and of reward models, and 10%BC and ReBRAC as listed by CORL."
)

_METHODS = ("bc", "td3bc", "iql", "cql", "mopo", "morel", "diffuser", "mbop", "ts-bc", "td3tsbc", "tsmbop")
# In the order of _METHODS; None: not published.
_TABLE1: dict[str, tuple[float | None, ...]] = {
    "hopper-medium": (55.3, 59.3, 66.3, 58.5, 28.0, 95.4, 58.5, 56.9, 64.3, 64.1, 66.5),
    "halfcheetah-medium": (42.9, 48.3, 47.4, 44.0, 42.3, 42.1, 44.2, 51.2, 43.2, 48.4, 51.3),
    "walker2d-medium": (75.6, 83.7, 78.3, 72.5, 17.0, 77.8, 79.7, 73.5, 78.8, 84.2, 77.3),
    "hopper-medium-expert": (62.3, 98.0, 91.5, 105.4, 23.7, 108.7, 107.2, 70.7, 94.8, 109.1, 110.4),
    "halfcheetah-medium-expert": (60.7, 90.7, 86.7, 91.6, 63.3, 53.3, 79.8, 63.5, 86.9, 93.8, 94.1),
    "walker2d-medium-expert": (108.2, 110.1, 109.6, 108.8, 44.6, 95.6, 108.4, 111.0, 108.8, 110.3, 111.1),
    "hopper-medium-replay": (29.6, 60.9, 94.7, 95.0, 67.5, 93.6, 96.8, 40.5, 50.2, 77.4, 68.2),
    "halfcheetah-medium-replay": (38.5, 44.6, 44.2, 45.5, 39.0, 40.2, 42.2, 45.4, 39.8, 44.7, 46.7),
    "walker2d-medium-replay": (34.7, 81.8, 73.9, 77.2, 53.1, 49.9, 61.2, 53.8, 61.5, 82.8, 71.9),
    "hopper-expert": (111.0, 108.8, *[None] * 5, 111.3, 111.8, 110.9, 111.3),
    "halfcheetah-expert": (92.9, 96.7, *[None] * 5, 98.2, 93.2, 97.6, 98.7),
    "walker2d-expert": (109.0, 110.2, *[None] * 5, 109.0, 108.9, 110.3, 109.5),
}
# CORL's last and best checkpoint.
_TENTH: dict[str, tuple[float, float]] = {
    "hopper-medium": (55.5, 73.8),
    "halfcheetah-medium": (42.5, 43.9),
    "walker2d-medium": (67.3, 82.1),
    "hopper-medium-expert": (111.2, 113.1),
    "halfcheetah-medium-expert": (90.1, 94.1),
    "walker2d-medium-expert": (108.7, 109.9),
    "hopper-medium-replay": (70.4, 90.6),
    "halfcheetah-medium-replay": (23.6, 42.3),
    "walker2d-medium-replay": (54.4, 76.1),
}
# CORL's last checkpoint.
_REBRAC = {
    "hopper-medium": 102.3,
    "halfcheetah-medium": 64.0,
    "walker2d-medium": 85.8,
    "hopper-medium-expert": 109.5,
    "halfcheetah-medium-expert": 103.8,
    "walker2d-medium-expert": 111.9,
    "hopper-medium-replay": 95.0,
    "halfcheetah-medium-replay": 51.2,
    "walker2d-medium-replay": 84.3,
}
# TS+BC with an MLP for rewards; with a WGAN it is Table 1's.
_TS_MLP = {
    "hopper-medium": 63.7,
    "halfcheetah-medium": 43.2,
    "walker2d-medium": 77.6,
    "hopper-medium-expert": 97.7,
    "halfcheetah-medium-expert": 86.7,
    "walker2d-medium-expert": 109.0,
    "hopper-medium-replay": 51.9,
    "halfcheetah-medium-replay": 40.0,
    "walker2d-medium-replay": 58.8,
    "hopper-expert": 111.5,
    "halfcheetah-expert": 92.9,
    "walker2d-expert": 108.8,
}
# Squared errors of reward models that were trained on hopper-medium: mean and standard deviation over the data.
_REWARD_ERRORS = {
    "reward-wgan": ((0.013, 0.059), (0.00019, 0.0037), (0.0039, 0.050)),
    "reward-vae": ((0.011, 0.055), (0.000021, 0.00011), (0.0019, 0.032)),
    "reward-mlp": ((0.011, 0.061), (0.000024, 0.00014), (0.0022, 0.047)),
    "reward-gaussian": ((5.18, 2.05), (0.60, 0.68), (1.59, 1.79)),
}
_VALUE_WEIGHTED = {"hopper-medium": 59.2, "hopper-medium-expert": 66.0}


def published_score(method: str, data: str, which: str = "last") -> float | None:
    """Return the published score of a method on a data set, or None; best checkpoints are CORL's alone."""
    name = paper_name(data)
    if method == "percent-bc" and name in _TENTH:
        return _TENTH[name][which == "best"]
    if which == "best":
        return None
    if method == "rebrac":
        return _REBRAC.get(name)
    if method == "value-weighted-bc":
        return _VALUE_WEIGHTED.get(name)
    if method == "ts-mlp-bc":
        return _TS_MLP.get(name)
    method = "ts-bc" if method == "ts-wgan-bc" else method
    if method not in _METHODS or name not in _TABLE1:
        return None
    return _TABLE1[name][_METHODS.index(method)]


def published_reward_error(model: str, trained_on: str, data: str) -> tuple[float, float] | None:
    """Return the published squared error of a reward model on other data, and its standard deviation, or None."""
    others = ("hopper-random", "hopper-expert", "hopper-medium-replay")
    if trained_on != "hopper-medium" or data not in others or model not in _REWARD_ERRORS:
        return None
    return _REWARD_ERRORS[model][others.index(data)]
