"""Published scores on D4RL's v2 data, normalised: the paper's Table 1, 10%BC by CORL, and the paper's ablation.

They come from other data, budgets and code than ours; reports mark them so.
"""

from __future__ import annotations

from trajstitch.bench.suites import paper_name

SOURCES = (
    "Published columns are scores on D4RL's v2 data: of Hepburn and Montana's Table 1 and their ablation of "
    "value-weighted BC, and 10%BC as listed by CORL."
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
_VALUE_WEIGHTED = {"hopper-medium": 59.2, "hopper-medium-expert": 66.0}


def published_score(method: str, data: str, which: str = "last") -> float | None:
    """Return the published score of a method on a data set, or None; best checkpoints are CORL's alone."""
    name = paper_name(data)
    if method == "percent-bc" and name in _TENTH:
        return _TENTH[name][which == "best"]
    if which == "best":
        return None
    if method == "value-weighted-bc":
        return _VALUE_WEIGHTED.get(name)
    if method not in _METHODS or name not in _TABLE1:
        return None
    return _TABLE1[name][_METHODS.index(method)]
