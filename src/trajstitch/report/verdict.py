"""Verdict: the headline of the page, and the checks that say whether to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from trajstitch.data import Dataset
from trajstitch.report.comparison import Facts
from trajstitch.report.html import change, number, percent, section
from trajstitch.stitching.improve import Result


def show_header(original: Dataset, facts: Facts, result: Result) -> str:
    """Return the header: name, headline, and the most important numbers."""
    name = escape(str(original.info.get("env_id", "Your data")))
    old, new = facts.means
    tiles: list[tuple[str, ...]] = [
        ("mean return", number(old), number(new)),
        ("trajectories replaced", "", f"{facts.replaced.sum():,} <small>of {len(facts.improved):,}</small>"),
        ("steps stitched", "", f"{len(facts.step):,} <small>of {facts.improved.transitions:,}</small>"),
        ("distinct seams", "", f"{_distinct(facts):,}"),
    ]
    if facts.normalised:
        tiles[3:] = [("normalised score", *(f"{score:.1f}" for score in facts.normalised))]
    cells = "".join(
        f"<div><span>{label}</span><b>{f'<i>{was}</i> → ' if was else ''}{now}</b></div>"
        for label, was, now in tiles
    )
    shape = (
        f"{len(original):,} trajectories, {original.transitions:,} steps, {original.obs_dim} observations, "
        f"{original.action_dim} actions, fingerprint <code>{original.fingerprint[:12]}</code>"
    )
    return (
        f"<header><p class=kicker>Trajectory stitching report</p><h1>{name}</h1>"
        f"<p class=lede>{headline(facts, result)}</p><div class=tiles>{cells}</div>"
        f"<p class=note>Original data: {shape}. On this page <b class=old>grey is old</b> (the original data) and "
        f"<b class=new>teal is new</b> (the improved data).</p></header>"
    )


def headline(facts: Facts, result: Result) -> str:
    """Return the outcome in a few sentences, as HTML."""
    (old, new), many = facts.means, len(facts.improved)
    if not facts.known:
        return (
            f"The mean return went from {number(old)} to <b>{number(new)}</b>{change(old, new)}. The improved "
            "data have no table of seams, so this page cannot show where their steps come from."
        )
    if not len(facts.step):
        return f"<b>Nothing was stitched:</b> the data are unchanged. {_why_nothing(result)}"
    replaced, share = int(facts.replaced.sum()), len(facts.step) / facts.improved.transitions
    were = "was" if replaced == 1 else "were"
    text = (
        f"<b>{replaced:,} of {many:,}</b> trajectories {were} replaced; mean return {number(old)}\u00a0→\u00a0"
        f"<b>{number(new)}</b>{change(old, new)}"
    )
    if facts.normalised:
        text += ", normalised {:.1f}\u00a0→\u00a0<b>{:.1f}</b>".format(*facts.normalised)
    doubtful = int((facts.margin <= 0).sum())
    each = "each more plausible than the step it replaced" if not doubtful else f"{doubtful:,} of them doubtful"
    return f"{text}. {percent(share)} of steps are stitched, {each}."


def _why_nothing(result: Result) -> str:
    edges = result.graph.get("edges")
    if edges == 0:
        return (
            "No step has a more plausible alternative nearby: the graph has no edge. Neighbourhoods may be too "
            "small (a larger epsilon looks further), or the trajectories may never come close to each other."
        )
    found = f"Of {edges:,.0f} plausible edges" if edges else "Of the plausible edges"
    return (
        f"{found}, none led to a trajectory whose return exceeds the old one by the required share. The data "
        "may already be as good as their own pieces allow."
    )


def _distinct(facts: Facts) -> int:
    return len(np.unique(np.stack([facts.source, facts.landing]), axis=1).T)


@dataclass(frozen=True)
class Check:
    """One reason to trust the result, or not to trust it."""

    good: bool
    text: str


def checks(facts: Facts, result: Result) -> list[Check]:
    """Return all checks that need no simulator."""
    if not facts.known:
        return [Check(False, "The improved data have no table of seams, so nothing could be checked.")]
    found = [_check_origin(facts)]
    if len(facts.step):
        found += [_check_plausible(facts), _check_worse(facts), _check_rewards(facts)]
        found += [_check_loops(facts), _check_horizon(facts), _check_variety(facts)]
        if (error := result.errors.get("reward_root_mean_square_of_std")) is not None:
            text = f"The reward model's error is {percent(error)} of the spread of held-out rewards."
            found.append(Check(error < 0.25, text))
    return found


def _check_origin(facts: Facts) -> Check:
    if not facts.foreign:
        return Check(True, "Every state, and every step that is not stitched, is an exact copy of the original.")
    steps = facts.improved.transitions
    return Check(False, f"{facts.foreign:,} of {steps:,} steps are not the original steps they claim to be.")


def _check_plausible(facts: Facts) -> Check:
    doubtful, stitched = int((facts.margin <= 0).sum()), len(facts.step)
    if doubtful:
        return Check(
            False, f"{doubtful:,} of {stitched:,} stitched steps are no more plausible than the old ones."
        )
    which = f"Each of the {stitched:,} stitched steps is" if stitched > 1 else "The only stitched step is"
    text = "more plausible than the step it replaced, even for the ensemble member that finds it least plausible."
    return Check(True, f"{which} {text}")


def _check_worse(facts: Facts) -> Check:
    worse = int((facts.after < facts.before - 1e-6 * np.abs(facts.before)).sum())
    if worse:
        return Check(False, f"Lower return than before: {worse:,} of {len(facts.after):,} trajectories.")
    return Check(True, "No trajectory has a lower return than before.")


def _check_rewards(facts: Facts) -> Check:
    predicted = float(facts.improved.reward[facts.step].sum(dtype=np.float64))
    part = abs(predicted) / max(float(np.abs(facts.after - facts.before).sum()), 1e-12)
    text = (
        f"Rewards of stitched steps are predicted, not recorded. They add up to {number(predicted)}, which is "
        f"{percent(part)} of all changes in return. All other rewards were recorded."
    )
    return Check(part < 0.25, text)


def _check_loops(facts: Facts) -> Check:
    if not facts.repeats:
        return Check(True, "No trajectory visits the same state twice: there are no loops.")
    share = facts.repeats / facts.improved.transitions
    text = (
        f"{facts.repeats:,} steps ({percent(share)}) start from a state in which their trajectory has been "
        "before. A loop collects the same reward again and again; max_repeats prevents it."
    )
    return Check(share < 0.01, text)


def _check_horizon(facts: Facts) -> Check:
    was, now = ((data.length >= facts.horizon).mean() for data in (facts.original, facts.improved))
    text = (
        f"{percent(now)} of trajectories have the maximum length of {facts.horizon:,} steps, {percent(was)} "
        "before. Many more than before may be loops that were cut off."
    )
    return Check(bool(now - was < 0.25), text)


def _check_variety(facts: Facts) -> Check:
    text = (
        f"{percent(facts.kept)} of the original steps still occur. Below one half, many trajectories have "
        "merged into a few and the data have lost variety."
    )
    return Check(facts.kept > 0.5, text)


def show_checks(facts: Facts, result: Result) -> str:
    """Return the section on the checks, a list of ticks and warnings."""
    marks = {True: "<li class=good><span>✓</span>", False: "<li class=warning><span>!</span>"}
    items = "".join(f"{marks[check.good]}<p>{check.text}</p>" for check in checks(facts, result))
    intro = "These checks use only the data and the models. They cannot show whether the simulator agrees."
    return section("Can it be trusted?", intro, f"<ul class=checks>{items}</ul>")
