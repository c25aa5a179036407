"""Verdict: the headline of the page, and the checks that say whether to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from trajstitch.data import Dataset
from trajstitch.report.comparison import Facts
from trajstitch.report.html import change, number, percent, section, tiles
from trajstitch.stitching.improve import Result


def show_header(original: Dataset, facts: Facts, result: Result) -> str:
    """Return the header: name, headline, and the most important numbers."""
    name = escape(str(original.info.get("env_id", "Your data")))
    old, new = facts.means
    found: list[tuple[str, ...]] = [
        ("mean return", number(old), number(new)),
        ("trajectories replaced", "", f"{facts.replaced.sum():,} <small>of {len(facts.improved):,}</small>"),
        ("steps stitched", "", f"{len(facts.step):,} <small>of {facts.improved.transitions:,}</small>"),
        ("distinct seams", "", f"{_distinct(facts):,}"),
    ]
    if facts.normalised:
        found[3:] = [("normalised score", *(f"{score:.1f}" for score in facts.normalised))]
    if values := planned_values(result):
        found[0] = ("value of the starts", *map(number, values))
        found[3:] = [("trajectories that really end", *(f"{count:,}" for count in facts.ends))]
    if facts.imagined:
        found[1] = ("trajectories", f"{len(original):,}", f"{len(facts.improved):,}")
        found[2] = ("steps imagined", "", f"{facts.imagined:,} <small>of {facts.improved.transitions:,}</small>")
    cells = [(label, f"{f'<i>{was}</i> → ' if was else ''}{now}") for label, was, now in found]
    shape = (
        f"{len(original):,} trajectories, {original.transitions:,} steps, {original.obs_dim} observations, "
        f"{original.action_dim} actions, fingerprint <code>{original.fingerprint[:12]}</code>"
    )
    return (
        f"<header><p class=kicker>Trajectory stitching report</p><h1>{name}</h1>"
        f"<p class=lede>{headline(facts, result)}</p>{tiles(cells)}"
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
    if facts.imagined:
        return _of_the_imagined(facts, result)
    if not len(facts.step):
        return f"<b>Nothing was stitched:</b> the data are unchanged. {_why_nothing(result)}"
    replaced, share = int(facts.replaced.sum()), len(facts.step) / facts.improved.transitions
    were = "was" if replaced == 1 else "were"
    text = f"<b>{replaced:,} of {many:,}</b> trajectories {were} replaced; "
    if values := planned_values(result):
        text += _of_the_plan(facts, *values)
    else:
        text += f"mean return {number(old)}\u00a0→\u00a0<b>{number(new)}</b>{change(old, new)}"
        if facts.normalised:
            text += ", normalised {:.1f}\u00a0→\u00a0<b>{:.1f}</b>".format(*facts.normalised)
    doubtful = int((facts.margin <= 0).sum())
    fine = (
        "each by an action that leads there"
        if facts.reachable
        else "each more plausible than the step it replaced"
    )
    text += f". {percent(share)} of steps are stitched, {f'{doubtful:,} of them doubtful' if doubtful else fine}."
    return text + (f" <b>But</b> {_cut_short(facts)}" if _many_cut_short(facts) else "")


def planned_values(result: Result) -> tuple[float, float] | None:
    """Return what the start states are worth as recorded and by the plan; None unless there is a plan."""
    keys = ("recorded_value", "planned_value")
    return (result.graph[keys[0]], result.graph[keys[1]]) if all(key in result.graph for key in keys) else None


def _of_the_imagined(facts: Facts, result: Result) -> str:
    text = (
        f"<b>{len(facts.improved):,} trajectories</b> were imagined: a policy was followed in a world model, from "
        "recorded states on. All states after the first are the model's, so believe them as far as the model."
    )
    if values := planned_values(result):
        text += " By the plan, the states in which the recording starts are worth <b>{}</b> instead of {}.".format(
            *map(number, values[::-1])
        )
    return text


def _of_the_plan(facts: Facts, recorded: float, planned: float) -> str:
    """Return what the plan gains; returns of trajectories that go on do not say it, so they come last."""
    (old, new), (was, now) = facts.means, facts.ends
    text = (
        f"by the plan, the states they start in are worth <b>{number(planned)}</b> instead of {number(recorded)}, "
        f"and {now:,} trajectories instead of {was:,} really end"
    )
    if not (longer := int(facts.longer.sum())):
        return f"{text}; mean return {number(old)}\u00a0→\u00a0{number(new)}"
    return (
        f"{text}. {longer:,} go on where the recording was cut, so their returns sum up more steps "
        f"(mean {number(old)}\u00a0→\u00a0{number(new)})"
    )


_FEW = 0.05  # of trajectories may become shorter without ending


def _many_cut_short(facts: Facts) -> bool:
    return bool(facts.cut_short.mean() > _FEW)


def _cut_short(facts: Facts) -> str:
    many, share = int(facts.cut_short.sum()), percent(facts.cut_short.mean())
    return (
        f"{many:,} of {len(facts.improved):,} trajectories ({share}) became shorter than recorded without really "
        "ending. Their returns sum up fewer steps, so a higher one does not mean that they are better."
    )


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
    if facts.imagined:
        found.append(_check_imagined(facts, result))
    if len(facts.step):
        found += [_check_reached(facts, result) if facts.reachable else _check_plausible(facts)]
        found += [_check_worse(facts), _check_cut(facts), _check_rewards(facts)]
        found += [_check_loops(facts), _check_horizon(facts), _check_variety(facts, result)]
        if (error := result.errors.get("reward_root_mean_square_of_std")) is not None:
            text = f"The reward model's error is {percent(error)} of the spread of held-out rewards."
            found.append(Check(error < 0.25, text))
    return found


def _check_imagined(facts: Facts, result: Result) -> Check:
    """Compare how much the model's members disagree with what it misses recorded steps by."""
    seams = facts.improved.seams
    assert seams is not None
    assert seams.landing_error is not None
    median, usual = float(np.nanmedian(seams.landing_error)), result.errors.get("usual_landing_error", np.nan)
    text = (
        f"The members of the world model disagree about an imagined step by {number(median)} typical steps in the "
        f"median. Of recorded steps the model predicts nine of ten to within {number(usual)}. Errors add up along "
        "a trajectory: an audit replays single steps, only a scored policy shows the sum."
    )
    return Check(bool(median <= usual), text)


def _check_origin(facts: Facts) -> Check:
    if not facts.foreign and facts.imagined:
        return Check(True, "Every trajectory begins in a recorded state, an exact copy of the original.")
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


def _check_reached(facts: Facts, result: Result) -> Check:
    """Compare the landing errors with the tolerance, and that with the errors of recorded steps."""
    tolerance, usual = result.graph.get("epsilon", np.nan), result.errors.get("usual_landing_error", np.nan)
    off = int((facts.landing_error >= tolerance).sum())
    if off:
        return Check(False, f"{off:,} of {len(facts.step):,} stitched steps miss by more than the tolerance.")
    text = (
        f"By the world model, the action of each stitched step leads to within {number(tolerance)} typical steps "
        f"of its landing, by median {number(float(np.median(facts.landing_error)))}. Of recorded steps the model "
        f"predicts nine of ten to within {number(usual)}."
    )
    return Check(bool(usual <= tolerance), text)


def _check_worse(facts: Facts) -> Check:
    longer = facts.longer
    worse = int(((facts.after < facts.before - 1e-6 * np.abs(facts.before)) & ~longer).sum())
    if worse:
        return Check(False, f"Lower return than before: {worse:,} of {(~longer).sum():,} trajectories.")
    if not longer.any():
        return Check(True, "No trajectory has a lower return than before.")
    text = f"{longer.sum():,} trajectories go on where the recording was cut, so their returns cannot be compared."
    return Check(True, f"{text} No other has a lower return than before." if not longer.all() else text)


def _check_cut(facts: Facts) -> Check:
    if _many_cut_short(facts):
        return Check(False, _cut_short(facts))
    many = int(facts.cut_short.sum())
    which = "No trajectory" if not many else f"Only {many:,} of {len(facts.improved):,} trajectories"
    was, now = facts.ends
    return Check(
        True,
        f"{which} became shorter than recorded without really ending. {was:,} really ended before, {now:,} now.",
    )


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


def _check_variety(facts: Facts, result: Result) -> Check:
    text = (
        f"{percent(facts.kept)} of the original steps still occur. Below one half, many trajectories have "
        "merged into a few and the data have lost variety."
    )
    if result.plan is not None:
        text += f" The plan beside them has the best step of each of {result.plan.transitions:,} states."
    return Check(facts.kept > 0.5, text)


def show_checks(facts: Facts, result: Result) -> str:
    """Return the section on the checks, a list of ticks and warnings."""
    marks = {True: "<li class=good><span>✓</span>", False: "<li class=warning><span>!</span>"}
    items = "".join(f"{marks[check.good]}<p>{check.text}</p>" for check in checks(facts, result))
    intro = "These checks use only the data and the models. They cannot show whether the simulator agrees."
    return section("Can it be trusted?", intro, f"<ul class=checks>{items}</ul>")
