"""Report: one HTML page that says what an improvement changed and why to believe it; numbers first, then pictures.

What is measured (`measure`) is kept apart from how it is drawn. Grey is old and teal is new on the whole page.
Strings from outside go into the HTML, escaped, never into a plot, whose fonts may lack their letters.
"""

from __future__ import annotations

import importlib.metadata
import io
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Int, Seams
from trajstitch.errors import InputError
from trajstitch.fit import History
from trajstitch.scores import Scores, reference_scores
from trajstitch.stitch import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Real = NDArray[np.float64]
OLD, NEW, INK, FAINT = "#9aa1a8", "#00798c", "#30363c", "#e6e8ea"
_POINTS = 3000  # of a scatter plot, at most
_CLOUD = 200_000  # states that make up a density
_BLOCK = 1 << 18  # steps compared together
_PACKAGES = ("trajstitch", "jax", "equinox", "optax", "numpy", "scipy", "matplotlib")


def render(
    original: Dataset,
    improved: Dataset,
    result: Result,
    settings: Mapping[str, Any],
    scores: Mapping[str, Scores] | None = None,
) -> str:
    """The page, self-contained; the same input gives the same bytes.

    `settings` are those of `Improve`, or a mapping with them as "config". `scores` are of last checkpoints, by a
    name for each policy; names with "original" in them are drawn as old, with "improved" as new.
    """
    facts = measure(original, improved, settings)
    with _plot_style():
        sections = [
            _returns(facts),
            _iterations(original, result.history),
            _seams(facts, result.graph),
            _places(original, improved, facts),
            _models(result),
            _policies(scores or {}),
            _settings(settings),
        ]
    body = _header(original, facts, result) + _checks(facts, result) + "".join(sections)
    name = escape(str(improved.info.get("env_id", "Improved data")))
    before, after = _PAGE.split("{body}")
    return before.replace("{title}", f"{name}: trajectory stitching report") + body + after


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Facts:
    """What the two data sets say about each other; X stitched steps."""

    original: Dataset
    improved: Dataset
    known: bool  # the improved data have a table of seams
    before: Real  # [M] return of the trajectory each improved one came from
    replaced: Bool  # [M] it has a stitched step
    step: Int  # [X] stitched steps of the improved data
    source: Int  # [X] original row they start from
    landing: Int  # [X] original row they land on
    margin: Real  # [X]
    spread: Real  # [X]
    gain: Real  # [X]
    moment: Int  # [X] steps since the trajectory's first
    distance: Real  # [X] from the old successor of the source to the landing, in the graph's metric
    strides: Real  # one-step distances of the original data, some of them
    metric: str  # scaled, raw
    foreign: int  # steps that are neither stitched nor the original's, or whose states are not
    repeats: int  # steps from a state their trajectory has started from before
    horizon: int
    kept: float  # share of the original's steps that still occur
    reference: tuple[float, float] | None  # (random, expert) return

    @property
    def after(self) -> Real:
        """Returns [M] of the improved trajectories."""
        return self.improved.returns

    @property
    def means(self) -> tuple[float, float]:
        """Mean return, original and improved."""
        return float(self.original.returns.mean()), float(self.after.mean())

    @property
    def normalised(self) -> tuple[float, float] | None:
        """The same as normalised scores, where the environment has reference returns."""
        if self.reference is None:
            return None
        random, expert = self.reference
        old, new = (100 * (mean - random) / (expert - random) for mean in self.means)
        return old, new


def measure(original: Dataset, improved: Dataset, settings: Mapping[str, Any]) -> Facts:
    """Compare; InputError where `improved` cannot have come from `original`."""
    config = settings.get("config", settings)
    seams = improved.seams or _unknown_seams(improved)
    if improved.obs_dim != original.obs_dim or max(seams.source.max(), seams.target.max()) >= len(original.obs):
        raise InputError("the seams of the improved data do not fit the original; give the data it was made from")
    step = np.flatnonzero(seams.stitched)
    owner = improved.trajectory[step]
    graph = config.get("graph")
    metric = str(graph.get("metric", "scaled")) if isinstance(graph, Mapping) else "scaled"
    unit = np.maximum(original.obs.std(0), 1e-6) if metric == "scaled" else np.float32(1)
    row = _some(original.row, 50_000)
    usual = (seams.source[step] + 1).clip(max=len(original.obs) - 1)
    return Facts(
        original=original,
        improved=improved,
        known=improved.seams is not None,
        before=seams.return_before,
        replaced=np.bincount(owner, minlength=len(improved)) > 0,
        step=step,
        source=seams.source[step],
        landing=seams.target[step],
        margin=seams.margin[step].astype(float),
        spread=seams.spread[step].astype(float),
        gain=seams.value_gain[step].astype(float),
        moment=step - improved.start[owner],
        distance=_length((original.obs[seams.target[step]] - original.obs[usual]) / unit),
        strides=_length((original.obs[row + 1] - original.obs[row]) / unit),
        metric=metric,
        foreign=_foreign(original, improved) if improved.seams else 0,
        repeats=_repeats(improved, seams) if improved.seams else 0,
        horizon=int(config.get("horizon") or original.length.max()),
        kept=len(np.unique(seams.source[~seams.stitched])) / original.transitions,
        reference=reference_scores(str(original.info.get("env_id", "")), original.info),
    )


def _unknown_seams(improved: Dataset) -> Seams:
    no = np.zeros(improved.transitions, np.float32)
    rows = no.astype(np.int64)
    return Seams(rows, rows, no.astype(bool), no, no, no, np.full(len(improved), np.nan))


def _length(change: NDArray[Any]) -> Real:
    return np.linalg.norm(change.astype(float), axis=1)


def _some(items: NDArray[Any], count: int) -> NDArray[Any]:
    """At most `count` of them, evenly spread, in order."""
    return items if len(items) <= count else items[np.linspace(0, len(items) - 1, count).astype(np.int64)]


def _foreign(original: Dataset, improved: Dataset) -> int:
    """Steps whose states, or whose action and reward unless stitched, are not those of the original rows."""
    assert improved.seams is not None
    owner = np.repeat(np.arange(len(original)), original.length + 1)
    wrong = 0
    for a in range(0, improved.transitions, _BLOCK):
        part = slice(a, a + _BLOCK)
        row, source, target = improved.row[part], improved.seams.source[part], improved.seams.target[part]
        same = (improved.obs[row] == original.obs[source]).all(1)
        same &= (improved.obs[row + 1] == original.obs[target]).all(1)
        plain = np.flatnonzero(~improved.seams.stitched[part])
        begin, end = source[plain], target[plain]
        old = (begin - owner[begin]).clip(max=original.transitions - 1)
        same[plain] &= (end == begin + 1) & (owner[begin] == owner[end])
        same[plain] &= (improved.action[part][plain] == original.action[old]).all(1)
        same[plain] &= improved.reward[part][plain] == original.reward[old]
        wrong += int((~same).sum())
    return wrong


def _repeats(improved: Dataset, seams: Seams) -> int:
    visit = improved.trajectory * (seams.source.max() + 1) + seams.source
    return int(len(visit) - len(np.unique(visit)))


# -- in words --------------------------------------------------------------------------------------------------


def _header(original: Dataset, facts: Facts, result: Result) -> str:
    name = escape(str(original.info.get("env_id", "Your data")))
    old, new = facts.means
    tiles: list[tuple[str, ...]] = [
        ("mean return", _number(old), _number(new)),
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
        f"<p class=note>Given: {shape}. On this page <b class=old>grey is old</b>, what was given, and "
        f"<b class=new>teal is new</b>, what came back.</p></header>"
    )


def headline(facts: Facts, result: Result) -> str:
    """The outcome in a few plain sentences, as HTML."""
    (old, new), many = facts.means, len(facts.improved)
    if not facts.known:
        return (
            f"The mean return went from {_number(old)} to <b>{_number(new)}</b>{_change(old, new)}. The improved "
            "data carry no table of seams, so this page cannot say where their steps come from."
        )
    if not len(facts.step):
        return f"<b>Nothing was stitched:</b> the data came back as they were given. {_why_nothing(result)}"
    replaced, share = int(facts.replaced.sum()), len(facts.step) / facts.improved.transitions
    were = "was" if replaced == 1 else "were"
    text = (
        f"<b>{replaced:,} of {many:,}</b> trajectories {were} replaced; mean return {_number(old)}\u00a0→\u00a0"
        f"<b>{_number(new)}</b>{_change(old, new)}"
    )
    if facts.normalised:
        text += ", normalised {:.1f}\u00a0→\u00a0<b>{:.1f}</b>".format(*facts.normalised)
    doubtful = int((facts.margin <= 0).sum())
    each = "each more plausible than the step it replaced" if not doubtful else f"{doubtful:,} of them doubtful"
    return f"{text}. {_percent(share)} of steps are stitched, {each}."


def _why_nothing(result: Result) -> str:
    edges = result.graph.get("edges")
    if edges == 0:
        return (
            "No step has a more plausible alternative nearby: the graph has no edge. Neighbourhoods may be too "
            "small (a larger epsilon looks further), or the trajectories may never come close to each other."
        )
    found = f"Of {edges:,.0f} plausible edges" if edges else "Of the plausible edges"
    return (
        f"{found}, none led to a trajectory whose return beats its old one by the required share. The data may "
        "already be as good as its own pieces allow."
    )


def _distinct(facts: Facts) -> int:
    return len(np.unique(np.stack([facts.source, facts.landing]), axis=1).T)


@dataclass(frozen=True)
class Check:
    """One reason to believe the result, or not to."""

    good: bool
    text: str


def checks(facts: Facts, result: Result) -> list[Check]:
    """Everything that can be tested without the simulator."""
    if not facts.known:
        return [Check(False, "The improved data carry no table of seams, so nothing here could be tested.")]
    found = [_check_origin(facts)]
    if len(facts.step):
        found += [_check_plausible(facts), _check_worse(facts), _check_rewards(facts)]
        found += [_check_loops(facts), _check_horizon(facts), _check_variety(facts)]
        if (error := result.errors.get("reward_root_mean_square_of_std")) is not None:
            text = f"The reward model's error is {_percent(error)} of the spread of held-out rewards."
            found.append(Check(error < 0.25, text))
    return found


def _check_origin(facts: Facts) -> Check:
    if not facts.foreign:
        return Check(True, "Every state, and every step that is not stitched, is bit for bit one of the original.")
    steps = facts.improved.transitions
    return Check(False, f"{facts.foreign:,} of {steps:,} steps are not the original steps they claim to be.")


def _check_plausible(facts: Facts) -> Check:
    doubtful, stitched = int((facts.margin <= 0).sum()), len(facts.step)
    if doubtful:
        return Check(
            False, f"{doubtful:,} of {stitched:,} stitched steps are no more plausible than the old ones."
        )
    which = f"All {stitched:,} stitched steps are" if stitched > 1 else "The one stitched step is"
    text = "more plausible than what was there before, in the eyes of the most sceptical model of the ensemble."
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
        f"Rewards of stitched steps are predicted, not recorded. They add up to {_number(predicted)}, as much as "
        f"{_percent(part)} of all changes in return; the other rewards were really earned once."
    )
    return Check(part < 0.25, text)


def _check_loops(facts: Facts) -> Check:
    if not facts.repeats:
        return Check(True, "No trajectory visits the same state twice: there are no loops.")
    share = facts.repeats / facts.improved.transitions
    text = (
        f"{facts.repeats:,} steps ({_percent(share)}) start from a state their trajectory had been in before. A "
        "loop collects the same reward again and again; max_repeats forbids it."
    )
    return Check(share < 0.01, text)


def _check_horizon(facts: Facts) -> Check:
    was, now = ((data.length >= facts.horizon).mean() for data in (facts.original, facts.improved))
    text = (
        f"{_percent(now)} of trajectories are as long as the horizon of {facts.horizon:,} steps, {_percent(was)} "
        "before. Many more than before may be loops cut short."
    )
    return Check(bool(now - was < 0.25), text)


def _check_variety(facts: Facts) -> Check:
    text = (
        f"{_percent(facts.kept)} of the original steps still occur. Below a half, trajectories have run together "
        "into a few and the data have lost variety."
    )
    return Check(facts.kept > 0.5, text)


def _checks(facts: Facts, result: Result) -> str:
    marks = {True: "<li class=good><span>✓</span>", False: "<li class=doubt><span>!</span>"}
    items = "".join(f"{marks[check.good]}<p>{check.text}</p>" for check in checks(facts, result))
    intro = (
        "Tested while this page was made, on the data and models alone. What it cannot test is whether the "
        "simulator agrees."
    )
    return _section("Can it be trusted?", intro, f"<ul class=checks>{items}</ul>")


# -- sections --------------------------------------------------------------------------------------------------


def _returns(facts: Facts) -> str:
    intro = "The return of a trajectory is the sum of its rewards. A trajectory is replaced only by a better one."
    figures = [
        _figure(
            "How returns are distributed",
            _plot(partial(_draw_returns, facts.original.returns, facts.after), "% of trajectories", "return"),
            "Lines mark the means. Look for <b class=old>grey</b> on the left that became <b class=new>teal</b> "
            "on the right. A lone spike at the far right would be a few trajectories copied into many.",
        )
    ]
    if facts.known:
        shown = "" if len(facts.before) <= _POINTS else f" Of {len(facts.before):,} trajectories, some are drawn."
        figures.append(
            _figure(
                "Each trajectory, before and after",
                _plot(partial(_draw_pairs, facts), "return after", "return before"),
                "On the diagonal nothing changed. Height above it is what stitching gained. A point below would "
                f"be a trajectory made worse.{shown}",
            )
        )
    return _section("Returns", intro, _grid(figures))


def _draw_returns(old: Real, new: Real, ax: Axes) -> None:
    edges = np.linspace(*_span(np.concatenate([old, new])), _bins(new) + 1)
    _compare(ax, edges, old, new)
    for values, colour in ((old, OLD), (new, NEW)):
        ax.axvline(values.mean(), color=colour, linewidth=1.5, linestyle=(0, (4, 2)))


def _draw_pairs(facts: Facts, ax: Axes) -> None:
    low, high = _span(np.concatenate([facts.before, facts.after]))
    ax.plot([low, high], [low, high], color=FAINT, linewidth=1.5, zorder=0)
    for which, colour, size in ((~facts.replaced, OLD, 20), (facts.replaced, NEW, 26)):
        m = _some(np.flatnonzero(which), _POINTS)
        alpha = 0.75 if len(m) < 500 else 0.4
        ax.scatter(
            facts.before[m], facts.after[m], s=size, c=colour, alpha=alpha, linewidths=0, rasterized=len(m) > 300
        )
    ax.set(xlim=(low, high), ylim=(low, high))


def _iterations(original: Dataset, history: Sequence[Mapping[str, Any]]) -> str:
    intro = (
        "An iteration fits state values to the current data, proposes a new trajectory for each, and accepts "
        "those that are better. It ends when none is."
    )
    if not history:
        return _section("Iterations", intro, "<p class=none>There was no iteration: no edge to choose from.</p>")
    entries = [dict(entry) for entry in history]
    number = [int(entry.get("iteration", k + 1)) for k, entry in enumerate(entries)]
    means = np.array([original.returns.mean(), *(float(entry.get("return_mean", np.nan)) for entry in entries)])
    accepted = np.array([float(entry.get("accepted", 0)) for entry in entries])
    figures = [
        _figure(
            "Mean return",
            _plot(partial(_draw_progress, number, means), "mean return", "iteration (0: as given)"),
            "It should rise and then level off. Still steep at the end: more iterations may gain more.",
        ),
        _figure(
            "Trajectories accepted",
            _plot(partial(_draw_bars, number, accepted), "trajectories", "iteration"),
            "It should fall towards zero. A count that grows again suggests that value estimates run away.",
        ),
    ]
    names = {
        "accepted": "accepted",
        "return_mean": "mean return",
        "return_std": "std",
        "steps": "steps",
        "stitched_steps": "stitched",
        "seams": "distinct seams",
        "repeated_states": "repeats",
        "at_horizon": "at horizon",
        "seconds": "seconds",
    }
    given = [original.returns.mean(), original.returns.std(), original.transitions]
    rows = [["as given", "", *map(_number, given), *[""] * 5]]
    rows += [
        [str(k), *(_number(entry.get(name, "")) for name in names)]
        for k, entry in zip(number, entries, strict=True)
    ]
    note = (
        "<p class=note><b>Repeats</b> are steps from a state their trajectory had been in before; "
        "<b>at horizon</b> counts trajectories of the greatest length allowed. Both growing together would be "
        "loops.</p>"
    )
    return _section("Iterations", intro, _grid(figures) + _table(["iteration", *names.values()], rows) + note)


def _draw_progress(number: list[int], means: Real, ax: Axes) -> None:
    at = np.array([0, *number])
    ax.plot(at, means, color=NEW, linewidth=2)
    ax.scatter(at, means, s=36, c=[OLD] + [NEW] * len(number), zorder=3)
    ax.set_xlim(-0.3, at[-1] + 0.3)
    ax.set_ylim(*_span(means, 0.15))
    ax.set_xticks(_whole(0, at[-1]))


def _draw_bars(number: list[int], counts: Real, ax: Axes) -> None:
    ax.bar(number, counts, width=0.55, color=NEW)
    ax.set_xlim(number[0] - 0.8, number[-1] + 0.8)
    ax.set_ylim(0, max(counts.max(), 1) * 1.15)
    ax.set_xticks(_whole(number[0], number[-1]))
    _count_up(ax)
    if len(number) <= 12:
        for x, y in zip(number, counts, strict=True):
            ax.annotate(
                _compact(y), (x, y), (0, 3), textcoords="offset points", ha="center", color=INK, fontsize=10
            )


def _seams(facts: Facts, graph: Mapping[str, float]) -> str:
    intro = (
        "A seam is a step from one recorded state to another that never followed it in the data. Its action and "
        "reward are the models'. Here is every reason for which seams were chosen."
    )
    if not len(facts.step):
        return _section("Seams", intro, "<p class=none>There is no seam in these data.</p>")
    per = np.bincount(facts.improved.trajectory[facts.step], minlength=len(facts.improved))[facts.replaced]
    epsilon = graph.get("epsilon")
    draw = partial(_plot, width=330, height=215)
    figures = [
        _figure(
            "Plausibility margin",
            draw(partial(_draw_one, facts.margin), "% of seams", "log likelihood above the old step's"),
            f"Always above 0; median {_number(float(np.median(facts.margin)))}. A pile-up at 0 means seams only "
            "just allowed; huge margins mean the old step itself was a surprise.",
        ),
        _figure(
            "Value gain",
            draw(partial(_draw_one, facts.gain), "% of seams", "value of landing − of old successor"),
            "How much better the new place is thought to be. Many tiny gains: the value model's noise.",
        ),
        _figure(
            "Ensemble spread",
            draw(partial(_draw_one, facts.spread), "% of seams", "disagreement, in predicted std"),
            "Below 1 the dynamics models agree to within their own noise. A tail beyond is guesswork.",
        ),
        _figure(
            "Seams per trajectory",
            draw(partial(_draw_counts, per), "replaced trajectories", "seams in it"),
            "Few is good: each seam adds its own small error. Dozens in one trajectory deserve a look.",
        ),
        _figure(
            "Distance bridged",
            draw(
                partial(_draw_distance, facts.strides, facts.distance, epsilon),
                "% of each",
                f"distance, {facts.metric} states",
            ),
            f"<b class=new>From the old successor to the landing</b>, next to <b class=old>ordinary steps</b>. "
            f"{'The dashed line is ε. ' if epsilon else ''}Teal to the right of grey would be jumps.",
        ),
        _figure(
            "When in the trajectory",
            draw(partial(_draw_moments, facts), "% of each", "step"),
            "<b class=new>Seams</b> next to <b class=old>all steps</b>. Seams usually crowd where policies fail; "
            "one narrow spike may be a single state used by everyone.",
        ),
    ]
    return _section("Seams", intro, _grid(figures, "thirds") + _weakest(facts))


def _draw_one(values: Real, ax: Axes) -> None:
    """Shares of one quantity; on a logarithmic axis where it spans orders of magnitude."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = np.quantile(values, [0.1, 0.99])
    bins = _bins(values)
    if values.min() > 0 and high > 50 * low:
        ax.set_xscale("log")
        edges = np.geomspace(values.min() / 1.05, values.max() * 1.05, bins + 1)
    else:
        edges = np.linspace(*_span(np.append(values, 0.0) if low > 0 else values, 0.02), bins + 1)
    ax.stairs(_shares(values, edges), edges, fill=True, color=NEW, alpha=0.85)
    ax.set_xlim(edges[0], edges[-1])


def _draw_counts(per: Int, ax: Axes) -> None:
    top = int(per.max())
    width = -(-top // 30)
    edges = np.arange(0.5, top + width + 0.5, width)
    ax.bar((edges[1:] + edges[:-1]) / 2, np.histogram(per, edges)[0], width=0.8 * width, color=NEW, alpha=0.85)
    ax.set_xlim(edges[0] - 0.5, max(edges[-1], 5.5))
    ax.set_xticks(_whole(1, max(top, 5)))
    _count_up(ax)


def _draw_distance(strides: Real, distance: Real, epsilon: float | None, ax: Axes) -> None:
    top = max(float(np.quantile(strides, 0.995)), float(np.quantile(distance, 0.995)), epsilon or 0.0, 1e-9)
    _compare(ax, np.linspace(0, top * 1.03, _bins(distance) + 1), strides.clip(max=top), distance.clip(max=top))
    if epsilon:
        ax.axvline(epsilon, color=INK, linewidth=1, linestyle=(0, (3, 2)))


def _draw_moments(facts: Facts, ax: Axes) -> None:
    data = facts.improved
    longest = int(data.length.max())
    edges = np.linspace(0, longest, min(longest, _bins(facts.step)) + 1)
    when = np.arange(data.transitions) - np.repeat(data.start[:-1], data.length)
    _compare(ax, edges, when, facts.moment)


def _weakest(facts: Facts, count: int = 10) -> str:
    """The distinct seams of lowest margin, for those who want to look themselves."""
    pair = facts.source * len(facts.original.obs) + facts.landing
    _, first, uses = np.unique(pair, return_index=True, return_counts=True)
    order = np.argsort(facts.margin[first], kind="stable")[:count]
    rows = []
    for x, used in zip(first[order], uses[order], strict=True):
        place = [facts.improved.trajectory[facts.step[x]], facts.moment[x], facts.source[x], facts.landing[x]]
        reasons = [facts.margin[x], facts.gain[x], facts.spread[x], facts.distance[x]]
        rows.append([*map(str, place), *(_number(float(reason)) for reason in reasons), f"{used:,}"])
    head = ["trajectory", "step", "from row", "to row", "margin", "value gain", "spread", "distance", "uses"]
    title = (
        f"The {len(rows)} least plausible of {len(first):,} distinct seams" if len(rows) > 1 else "The one seam"
    )
    return f"<details><summary>{title}</summary>{_table(head, rows)}</details>"


def _places(original: Dataset, improved: Dataset, facts: Facts) -> str:
    if not len(facts.step):
        return ""
    flat, explained = _project(original)
    intro = (
        f"States have {original.obs_dim} numbers; drawn are the two directions in which they vary most "
        f"({_percent(explained)} of the variance of scaled states)."
    )
    overview = _figure(
        "All seams over all states",
        _plot(partial(_draw_overview, flat, facts), "", "", 820, 370, bare=True),
        "<b class=old>Darker grey</b>: more recorded states. <b class=new>Teal</b>: where seams start. Seams "
        "belong where data are dense; in thin regions the models have little to go by.",
    )
    chosen = _examples(facts)
    names = {1: ["The gain"], 2: ["Largest gain", "Smallest gain"]}.get(
        len(chosen), ["Largest gain", "Median gain", "Smallest gain"]
    )
    small = partial(_plot, width=330, height=230)
    figures = [
        _figure(
            f"{name}: trajectory {m:,}",
            small(partial(_draw_reward, original, improved, facts, m), "reward so far", "step"),
            f"Return {_number(float(facts.before[m]))} → <b class=new>{_number(float(facts.after[m]))}</b>. "
            "Dots are seams.",
        )
        for name, m in zip(names, chosen, strict=True)
    ]
    figures += [
        _figure(
            "Around its first seam",
            small(partial(_draw_window, flat, original, improved, facts, m), "", "", bare=True),
            "The <b class=old>old</b> way leaves the ring to its own successor, the <b class=new>new</b> one over "
            "the seam to the dot. The two should part gently.",
        )
        for m in chosen
    ]
    rest = f"<h3>Examples</h3>{_grid(figures, 'thirds' if len(chosen) != 2 else '')}"
    return _section("Where in the state space", intro, overview + rest)


def _project(original: Dataset) -> tuple[Real, float]:
    """States [N + M, 2] on the two main axes of the scaled states, and the share of variance there."""
    std = original.obs.std(0, dtype=np.float64)
    weight = np.where(std > 1e-6, 1 / np.maximum(std, 1e-6), 0.0)
    sample = _some(original.obs, _CLOUD)
    mean = sample.mean(0, dtype=np.float64)
    scaled = (sample - mean) * weight
    size, axes = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    axes = np.pad(axes[:, ::-1][:, :2], ((0, 0), (0, max(0, 2 - axes.shape[1]))))
    axes *= np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1, 1)  # eigenvectors have no sign of their own
    plane = (weight[:, None] * axes).astype(np.float32)
    flat = original.obs @ plane - mean @ plane
    return flat, float(size[::-1][:2].sum() / max(size.sum(), 1e-12))


def _draw_overview(flat: Real, facts: Facts, ax: Axes) -> None:
    from scipy.ndimage import gaussian_filter

    seams = flat[_some(np.unique(facts.source), _POINTS)]
    most = np.concatenate([np.quantile(flat, [0.001, 0.999], axis=0), seams])  # without the odd far-off state
    (left, right), (low, high) = (_span(column, 0.12) for column in most.T)
    points = _some(flat, _CLOUD)
    count, x, y = np.histogram2d(points[:, 0], points[:, 1], (200, 80), ((left, right), (low, high)))
    density = gaussian_filter(count, 2.2, mode="constant")
    levels = density.max() * np.geomspace(2e-3, 1, 9)
    greys = [str(shade) for shade in np.linspace(0.965, 0.72, 8)]
    middle = [(edge[1:] + edge[:-1]) / 2 for edge in (x, y)]
    ax.contourf(*middle, density.T, levels, colors=greys, antialiased=True)
    few = len(seams) < 300
    ax.scatter(
        seams[:, 0],
        seams[:, 1],
        s=70 if few else 16,
        c=NEW,
        alpha=0.95 if few else 0.7,
        edgecolors="white",
        linewidths=0.8 if few else 0,
        rasterized=not few,
    )
    ax.set(xlim=(left, right), ylim=(low, high))


def _examples(facts: Facts) -> list[int]:
    """Replaced trajectories of largest, median and smallest gain."""
    which = np.flatnonzero(facts.replaced)
    order = which[np.argsort(-(facts.after - facts.before)[which], kind="stable")]
    return [int(order[k]) for k in sorted({0, len(order) // 2, len(order) - 1})]


def _draw_reward(original: Dataset, improved: Dataset, facts: Facts, m: int, ax: Axes) -> None:
    assert improved.seams is not None
    first = int(improved.seams.source[improved.start[m]])
    old = original[int(np.searchsorted(original.start[:-1] + np.arange(len(original)), first, side="right")) - 1]
    new = improved[m]
    sums = [np.concatenate([[0.0], np.cumsum(t.reward, dtype=np.float64)]) for t in (old, new)]
    at = facts.moment[improved.trajectory[facts.step] == m]
    for total, colour, width in zip(sums, (OLD, NEW), (4.0, 1.8), strict=True):
        shown = _some(np.arange(len(total)), 400)
        ax.plot(shown, total[shown], color=colour, linewidth=width, solid_capstyle="round")
        ax.scatter(len(total) - 1, total[-1], marker="|", s=90, color=colour, linewidths=2)
    at = _some(at, 200)
    ax.scatter(at, sums[1][at], s=40, color=NEW, edgecolors="white", linewidths=0.8, zorder=4)
    ax.set_xlim(0, max(map(len, sums)) * 1.02)


def _draw_window(
    flat: Real, original: Dataset, improved: Dataset, facts: Facts, m: int, ax: Axes, reach: int = 12
) -> None:
    """The old and the new way, `reach` steps before and after the first seam."""
    assert improved.seams is not None
    x = int(np.flatnonzero(improved.trajectory[facts.step] == m)[0])
    source, landing, step = int(facts.source[x]), int(facts.landing[x]), int(facts.step[x])
    begin = original.start + np.arange(len(original) + 1)
    k = int(np.searchsorted(begin, source, side="right")) - 1
    old = flat[max(source - reach, begin[k]) : min(source + reach + 1, begin[k + 1])]
    new = flat[np.append(source, improved.seams.target[step : min(step + reach, improved.start[m + 1])])]
    both = np.concatenate([old, new])
    (left, right), (low, high) = (_span(column, 0.12) for column in both.T)
    points = _some(flat, _CLOUD)
    inside = (points[:, 0] > left) & (points[:, 0] < right) & (points[:, 1] > low) & (points[:, 1] < high)
    cloud = _some(points[inside], _POINTS)
    ax.scatter(cloud[:, 0], cloud[:, 1], s=3, c=FAINT, linewidths=0, rasterized=True)
    ax.plot(*old.T, color=OLD, linewidth=3.2, solid_capstyle="round")
    ax.plot(*new.T, color=NEW, linewidth=1.8, solid_capstyle="round")
    ax.scatter(
        flat[source, 0], flat[source, 1], s=70, facecolors="white", edgecolors=INK, linewidths=1.4, zorder=4
    )
    ax.scatter(flat[landing, 0], flat[landing, 1], s=34, color=NEW, edgecolors="white", linewidths=0.8, zorder=5)
    ax.set(xlim=(left, right), ylim=(low, high))


_ERRORS = {
    "inverse_mean_absolute_action": (
        "Inverse dynamics: the action between two states is off by",
        "on average, per action dimension, in the units of actions",
    ),
    "reward_root_mean_square": (
        "Reward: the predicted reward is off by",
        "(root mean square), in units of reward",
    ),
    "reward_root_mean_square_of_std": (
        "Reward: as a share of the rewards' own standard deviation",
        "0 is perfect, 1 no better than always guessing the mean",
    ),
}
_SIZES = {
    "epsilon": ("ε, the radius of a neighbourhood", "half the median step unless given"),
    "candidates": ("candidate steps looked at", ""),
    "edges": ("of them more plausible than the recorded step", "these are the edges"),
    "share_of_states_with_an_edge": ("share of steps with at least one edge", ""),
}


def _models(result: Result) -> str:
    intro = "Judged on trajectories the models were not trained on."
    tables = []
    for title, words, values in (("Errors", _ERRORS, result.errors), ("Graph", _SIZES, result.graph)):
        rows = []
        for key, value in values.items():
            label, note = words.get(key, (key.replace("_", " "), ""))
            shown = _percent(value) if key.startswith("share") or key.endswith("of_std") else _number(value)
            rows.append([f"{escape(label)}<small>{escape(note)}</small>", shown])
        if rows:
            tables.append(f"<div><h3>{title}</h3>{_table([], rows, escaped=True)}</div>")
    if not result.training:
        curves = "<p class=none>No model was trained here: they were the caller's own, so there are no curves.</p>"
    else:
        drawn = list(result.training.items())[:12]
        more = f" The first 12 of {len(result.training)} are drawn." if len(drawn) < len(result.training) else ""
        curves = "<h3>Training</h3>" + _grid(
            [
                _figure(escape(name), _plot(partial(_draw_training, past), "loss", "step", 330, 190), _last(past))
                for name, past in drawn
                if past.step
            ],
            "thirds",
        )
        curves += (
            "<p class=note>Dark: held-out loss, light: training loss, a line for each member of the ensemble. "
            "They should fall and flatten together; dark lines that turn upwards are overfitting. Kept are the "
            "weights of the lowest point, but for values the last ones: what they are fitted to moves, so their "
            f"loss need not fall.{more}</p>"
        )
    return _section("Models", intro, _grid(tables) + curves)


def _draw_training(past: History, ax: Axes) -> None:
    for losses, colour, width in ((past.train, "#b9c0c6", 1.2), (past.held_out, INK, 1.5)):
        ax.plot(past.step, np.asarray(losses, float), color=colour, linewidth=width, alpha=0.85)
    values = np.concatenate([np.asarray(past.train, float), np.asarray(past.held_out, float)], 1)
    settled = values[1:] if len(values) > 4 else values  # the first check is off the chart and says little
    ax.set_ylim(*_span(settled, 0.12))
    ax.set_xlim(0, max(past.step) * 1.02)
    if len(past.step) == 1:
        ax.scatter(past.step * values.shape[1], values[0], s=14, color=INK)


def _last(past: History) -> str:
    members = len(past.held_out[-1])
    lowest = np.asarray(past.held_out, float).min(0).mean()
    return f"Lowest held-out loss {_number(float(lowest))}, {members} member{'s' if members > 1 else ''}."


def _policies(scores: Mapping[str, Scores]) -> str:
    intro = (
        "Policies played in the simulator, at their last checkpoint. Bars are means, whiskers 95% bootstrap "
        "intervals over seeds and episodes; whiskers that overlap leave the order open. With one seed they cannot "
        "know how much training itself varies."
    )
    if not scores:
        return ""
    said = {name: score.summary() for name, score in scores.items()}
    kind = "normalised" if all(entry["normalised"] for entry in said.values()) else "raw"
    ends = [end for entry in said.values() for end in entry[kind]["interval95"]]
    low, high = min(0.0, *ends), max(0.0, *ends, 1e-9)
    rows = []
    for name, entry in said.items():
        colour = OLD if "original" in name.lower() else NEW if "improved" in name.lower() else "#5c6770"
        cells = [_with_interval(entry[key]) for key in ("raw", "normalised")]
        where = f"{entry['env']}, {entry['physics']}"
        rows.append(
            [
                f"{escape(name)}<small>{escape(where)}</small>",
                _bar(entry[kind], low, high, colour),
                *cells,
                f"{entry['seeds']:,} × {entry['episodes']:,}",
            ]
        )
    head = [
        "policy",
        "normalised score" if kind == "normalised" else "return",
        "return",
        "normalised",
        "seeds × episodes",
    ]
    note = "<p class=note>Normalised: 0 is a random policy, 100 an expert. ± is the std over seeds.</p>"
    return _section("Policies", intro, _table(head, rows, escaped=True, kind="scores") + note)


def _with_interval(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "–"
    low, high = map(_number, part["interval95"])
    spread = f" ± {_number(part['std_over_seeds'])}" if len(part["per_seed"]) > 1 else ""
    return f"{_number(part['mean'])}{spread}<small>{low} to {high}</small>"


def _bar(part: Mapping[str, Any], low: float, high: float, colour: str) -> str:
    at, zero, *ends = (200 * (x - low) / (high - low) for x in (part["mean"], 0.0, *part["interval95"]))
    return (
        f'<svg class=bar viewBox="-2 0 204 20" preserveAspectRatio="xMinYMid" aria-hidden="true">'
        f'<rect x="{min(at, zero):.1f}" y="4" width="{abs(at - zero):.1f}" height="12" fill="{colour}"/>'
        f'<path d="M{ends[0]:.1f} 10H{ends[1]:.1f}M{ends[0]:.1f} 6v8M{ends[1]:.1f} 6v8M{zero:.1f} 1v18" '
        f'stroke="{INK}" stroke-width="1.3" fill="none"/></svg>'
    )


def _settings(settings: Mapping[str, Any]) -> str:
    rows = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in _flat(settings)]
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    versions["python"] = platform.python_version()
    made = [[f"<code>{escape(name)}</code>", escape(value)] for name, value in versions.items()]
    body = "".join(
        f"<details><summary>{title}</summary>{_table([], lines, escaped=True, kind='plain')}</details>"
        for title, lines in (("All settings", rows), ("Versions", made))
        if lines
    )
    return _section("How it was made", "The same settings, versions and kind of machine give the same data.", body)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


# -- drawing ---------------------------------------------------------------------------------------------------


@contextmanager
def _plot_style() -> Iterator[None]:
    """Matplotlib as it comes, whatever the caller has set, plus what makes its SVG small and always the same."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trajstitch", "font.size": 11})
        yield


def _plot(
    draw: Callable[[Axes], None], up: str, along: str, width: int = 490, height: int = 290, bare: bool = False
) -> str:
    """An inline SVG of this many CSS pixels, `up` written above the vertical axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figure = Figure((width / 72, height / 72), dpi=180)
    left, bottom, top = (2, 22, 4) if bare else (40, 40, 24)
    bottom = bottom if along else 2
    ax = figure.add_axes((left / width, bottom / height, 1 - (left + 18) / width, 1 - (bottom + top) / height))
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#c4c9ce")
    ax.tick_params(which="both", length=0, labelcolor="#59626a", labelsize=10, pad=5)
    round_steps = [1, 2, 2.5, 5, 10]
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=round_steps))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=round_steps))
    draw(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: _compact(x)))
        axis.set_minor_formatter(NullFormatter())
    if bare:
        ax.set(xticks=[], yticks=[])
        ax.spines["bottom"].set_visible(False)
    else:
        ax.grid(axis="y", color=FAINT, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.set_title(up, loc="left", x=-(left - 6) / (width - left - 18), fontsize=10.5, color="#59626a", pad=9)
    if along:
        ax.set_xlabel(along, color="#59626a", fontsize=10.5, labelpad=5)
    page = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(page, format="svg", dpi=180, transparent=True, metadata=nothing)
    return _inline(page.getvalue(), f"{up} by {along}" if up else "states in two dimensions")


def _inline(svg: str, label: str) -> str:
    """The part of an SVG file that belongs into a page: no header, no size, no style or id that leaks."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"| xmlns(:xlink)?="[^"]*"', "", svg, count=4)
    svg = re.sub(r"\n\s*", "\n", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()


def _compare(ax: Axes, edges: Real, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Two distributions: the old as a grey area, the new as a teal outline with a tint."""
    before, shares = _shares(old, edges), _shares(new, edges)
    ax.stairs(before, edges, fill=True, color=OLD, alpha=0.55)
    ax.stairs(shares, edges, fill=True, color=NEW, alpha=0.18)
    ax.stairs(shares, edges, color=NEW, linewidth=1.8)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.08 * max(shares.max(), before.max(), 1e-9))


def _count_up(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def _bins(values: NDArray[Any]) -> int:
    return int(np.clip(3 * np.sqrt(len(values)), 10, 40))


def _shares(values: NDArray[Any], edges: Real) -> Real:
    return 100 * np.histogram(values, edges)[0] / max(len(values), 1)


def _span(values: NDArray[Any], margin: float = 0.03) -> tuple[float, float]:
    """From below the lowest to above the highest finite number, never empty."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    pad = margin * (high - low) or max(abs(low), 1.0) * 0.05
    return low - pad, high + pad


def _whole(first: int, last: int) -> list[int]:
    """At most eight whole numbers for an axis."""
    return list(range(int(first), int(last) + 1, max(1, -(-(int(last) - int(first) + 1) // 8))))


# -- HTML ------------------------------------------------------------------------------------------------------


def _section(title: str, intro: str, body: str) -> str:
    return f"<section><h2>{title}</h2><p class=intro>{intro}</p>{body}</section>\n"


def _figure(title: str, picture: str, caption: str) -> str:
    return f"<figure><h4>{title}</h4>{picture}<figcaption>{caption}</figcaption></figure>"


def _grid(items: Sequence[str], kind: str = "") -> str:
    return f'<div class="grid {kind}">{"".join(items)}</div>' if items else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False, kind: str = "") -> str:
    """Cells are text, or HTML where `escaped` says that their text has been."""
    shown = (lambda cell: cell) if escaped else escape
    top = f"<thead><tr>{''.join(f'<th>{escape(cell)}' for cell in head)}</thead>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{shown(cell)}' for cell in row)}" for row in rows)
    return f'<div class=wide><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def _number(value: Any) -> str:
    """As many digits as a reader wants."""
    if not isinstance(value, int | float | np.number):
        return str(value)
    size = abs(float(value))
    if not np.isfinite(size):
        return "–"
    if isinstance(value, int | np.integer) or size >= 100_000:
        text = f"{value:,.0f}"
    elif size >= 1 or size == 0:
        text = f"{value:,.1f}" if size else "0"
    else:
        text = f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"
    return text.replace("-", "−")


def _percent(share: float) -> str:
    percent = 100 * float(share)
    if not np.isfinite(percent):
        return "–"
    if 0 < percent < 0.01:
        return "less than 0.01%"
    digits = 0 if percent >= 99.95 or percent == 0 else 1 if percent >= 1 else 2
    return f"{percent:,.{digits}f}%"


def _change(old: float, new: float) -> str:
    """(+37%), or the difference where a percentage of the old would mislead."""
    if old == new:
        return " (no change)"
    if old > 0:
        text = f"{100 * (new - old) / old:+,.{0 if abs(new - old) >= 0.1 * old else 1}f}%"
    else:
        text = f"{'+' if new >= old else ''}{_number(new - old)}"
    return f" ({text.replace('-', '−')})"


def _compact(x: float) -> str:
    """For axes: 12k, 3M."""
    unit, letter = next(((u, c) for u, c in ((1e6, "M"), (1e3, "k")) if abs(x) >= 10 * u), (1, ""))
    return f"{x / unit:,.5g}{letter}".replace("-", "−")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { --old: #7d858c; --new: #00798c; --ink: #22272b; --soft: #59626a; --line: #e6e8ea; --doubt: #b45309;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --serif: "Iowan Old Style", Charter, Georgia, "Liberation Serif", serif; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.5 var(--sans); }
main { max-width: 1064px; margin: 0 auto; padding: 40px 24px 80px; }
h1, h2, .lede { font-family: var(--serif); font-weight: 400; }
h1 { font-size: 40px; line-height: 1.15; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 27px; line-height: 1.2; margin: 0; }
h3 { font: 400 20px/1.3 var(--serif); margin: 32px 0 12px; }
h4 { font-size: 14px; font-weight: 600; margin: 0 0 6px; overflow-wrap: anywhere; }
section { margin-top: 44px; border-top: 1px solid var(--line); padding-top: 24px; }
.kicker { text-transform: uppercase; letter-spacing: .1em; font-size: 12px; color: var(--soft); margin: 0 0 4px; }
.lede { font-size: 23px; line-height: 1.42; max-width: 40em; margin: 18px 0 26px; }
.lede b { color: var(--new); font-weight: 600; }
.intro { max-width: 46em; margin: 6px 0 18px; color: var(--soft); }
.lede, p, figcaption { text-wrap: pretty; }
.note, figcaption { font-size: 13px; line-height: 1.45; color: var(--soft); max-width: 62em; }
.note { margin: 12px 0 0; }
.none { color: var(--soft); font-style: italic; }
.old { color: var(--old); } .new { color: var(--new); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 0 24px;
  border: solid var(--line); border-width: 1px 0; }
.tiles div { padding: 12px 0; }
.tiles span { display: block; font-size: 12px; color: var(--soft); }
.tiles b { font-size: 21px; font-weight: 600; color: var(--new); white-space: nowrap; }
.tiles { font-variant-numeric: tabular-nums; }
.tiles i { font-style: normal; color: var(--old); font-weight: 400; }
.tiles small { font-size: 13px; font-weight: 400; color: var(--soft); }
.checks { list-style: none; margin: 0; padding: 0; display: grid; gap: 10px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.checks li { display: flex; gap: 10px; }
.checks p { margin: 0; }
.checks span { flex: none; width: 20px; height: 20px; margin-top: 2px; border-radius: 50%; color: #fff;
  font-weight: 700; font-size: 12px; line-height: 20px; text-align: center; background: var(--new); }
.checks .doubt span { background: var(--doubt); }
.checks .doubt p { color: var(--doubt); }
.grid { display: grid; gap: 28px 36px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.thirds { grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); }
figure { margin: 0; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
@media (max-width: 660px) { .thirds figure > svg { max-width: 400px; } }
svg * { stroke-linejoin: round; }
svg text { font-family: var(--sans) !important; font-variant-numeric: tabular-nums; }
figcaption { margin-top: 6px; }
figcaption b { font-weight: 600; }
.wide { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; width: 100%; }
section > .wide { margin-top: 24px; }
th { font-weight: 400; font-size: 12px; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
th, td { text-align: right; padding: 6px 0 6px 18px; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
td small { display: block; font-size: 12px; color: var(--soft); }
.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.scores td:first-child { min-width: 9em; overflow-wrap: anywhere; }
.scores th:nth-child(2), .scores td:nth-child(2) { text-align: left; width: 38%; min-width: 150px; }
.bar { display: block; width: 100%; height: auto; max-height: 30px; }
details { margin-top: 18px; }
summary { cursor: pointer; color: var(--new); }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 560px) { main { padding: 24px 16px 60px; } h1 { font-size: 31px; } .lede { font-size: 19px; }
  .tiles { grid-template-columns: 1fr 1fr; } .tiles b { font-size: 17px; white-space: normal; } }
@media print { details { display: none; } section { break-inside: avoid; } }
</style></head><body><main>
{body}</main></body></html>
"""
