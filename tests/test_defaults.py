"""Defaults are those that the docs promise: every plain entry of their tables of settings."""

import re
from pathlib import Path

import pytest

from trajstitch.methods import defaults
from trajstitch.methods.weigh import WEIGH_PRESETS
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.value import ValueConfig
from trajstitch.stitching.improve import Improve
from trajstitch.stitching.optimal import OptimalConfig

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \|", re.MULTILINE)


def promised(text):
    """Yield names and defaults as they stand in tables: `a`, `b` | 1, 2 | or `--a-b` | 1 |."""
    for names, values in ROW.findall(text):
        name = re.findall(r"`-{0,2}([a-z0-9_-]+)`", names.split(" (")[0])
        value = [values.replace("the rule's, else ", "")] if len(name) == 1 else values.split(", ")
        if len(name) == len(value):
            yield from zip((one.replace("-", "_") for one in name), value, strict=True)


def number(text):
    """The number or word of an entry; None where it is a sentence."""
    words = {"on": True, "none": None}
    if text in words:
        return words[text]
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text if re.fullmatch("[a-z]+", text) else ...


def default(config, name):
    """The setting of this name; ... where there is none. What a planner is not given, its search has."""
    if name in ("steps", "batch", "rate"):
        return getattr(config.fit, name)
    own = getattr(config, name, ...)
    return (
        getattr(config.search, name.removeprefix("plan_"), None)
        if own is None and hasattr(config, "search")
        else own
    )


PAGES = {
    "td3bc": (["td3bc", "td3tsbc"], 12),
    "rebrac": (["rebrac"], 12),
    "iql": (["iql"], 11),
    "cql": (["cql"], 13),
    "mbop": (["mbop", "tsmbop"], 18),
    "diffuser": (["diffuser"], 18),
    "mopo": (["mopo"], 23),
    "morel": (["morel"], 1),
}


@pytest.mark.parametrize("page", PAGES)
def test_settings_of_methods(page):
    """Also how many there are, so that a table which is written otherwise is noticed."""
    methods, least = PAGES[page]
    text = (DOCS / "methods" / f"{page}.md").read_text()
    configs = [defaults(method) for method in methods]
    found = 0
    for name, entry in promised(text):
        has = [config for config in configs if default(config, name) is not ...]
        if has and (value := number(entry)) is not ...:
            found += 1
            assert [default(config, name) for config in has] == [value] * len(has), name
    assert found >= least


def test_settings_of_commands():
    text = (DOCS / "reference" / "command-line.md").read_text()
    found = set()
    for config, section in ((Improve(), "improve"), (WEIGH_PRESETS["standard"], "weigh")):
        part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
        for name, entry in promised(part):
            if hasattr(config, name) and (value := number(entry)) is not ...:
                found.add(name)
                assert getattr(config, name) == value, name
    assert found >= {
        "iterations",
        "accept",
        "max_repeats",
        "max_changes",
        "planner",
        "effective_share",
        "gae_lambda",
    }


def test_settings_that_only_sentences_tell():
    """Of the ensemble, the value and the weights; and the caution, in docs/planning.md."""
    dynamics, value, weigh = DynamicsConfig(), ValueConfig(), WEIGH_PRESETS["standard"]
    assert (dynamics.members, dynamics.elites, dynamics.patience) == (7, 5, 5)
    assert (value.discount, value.target_rate, value.warm) == (0.99, 0.005, True)
    assert (weigh.members, weigh.expectile, weigh.discount) == (5, 0.7, 0.99)
    assert "(`--optimal.caution`, 2)" in (DOCS / "planning.md").read_text()
    assert (OptimalConfig().caution, OptimalConfig().discount) == (2, 0.995)
