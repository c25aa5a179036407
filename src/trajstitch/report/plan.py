"""Plan: the section on what the planner optimal promises, beside what the recording and the simulator give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trajstitch.report.comparison import Facts
from trajstitch.report.html import number, percent, section, table
from trajstitch.report.verdict import planned_values
from trajstitch.stitching.improve import Result

if TYPE_CHECKING:
    from trajstitch.evaluation.scores import Scores  # which loads the simulator


def show_plan(facts: Facts, result: Result, scores: Mapping[str, Scores]) -> str:
    """Return the section on the plan; nothing where there is none."""
    values = planned_values(result)
    if values is None:
        return ""
    recorded, planned = values
    intro = (
        "The plan has the best step from every state: a recorded step, or one to another recorded state that an "
        "action leads to. It is exact for the world model, which is not. Values count future rewards with the "
        "planner's discount."
    )
    rows = [
        ["value of the start states as recorded", number(recorded)],
        ["the same by the plan, a promise", number(planned)],
        *(_net_found(result) if facts.imagined else _edges_found(result)),
        ["trajectories that really end, as recorded", f"{facts.ends[0]:,} of {len(facts.original):,}"],
        ["the same, composed", f"{facts.ends[1]:,} of {len(facts.improved):,}"],
    ]
    if facts.imagined:
        intro = (
            "The plan has the best action anywhere near the data, held for some steps in the world model. What a "
            "landing is worth is a mean over the recorded states around it. Values count future rewards with the "
            "planner's discount."
        )
    body = table([], rows, kind="facts")
    if scores:
        body += "<h3>What the simulator gives</h3>" + table(
            ["", "mean return", "episodes that reach the goal", "steps to the goal"],
            [
                ["trajectories as recorded", number(facts.means[0]), "–", "–"],
                ["trajectories as composed, a promise", number(facts.means[1]), "–", "–"],
                *(_given(name, score) for name, score in scores.items()),
            ],
        )
        body += (
            "<p class=note>Returns are sums without a discount. Trajectories begin where recorded ones do, and "
            "have their lengths; policies begin where the environment does, for as long as its time limit. Where "
            "both are alike, a promise far above what a clone of it earns is a plan that flatters itself.</p>"
        )
    return section("The plan", intro, body)


def _edges_found(result: Result) -> list[list[str]]:
    """Return rows on the graph of the planner optimal."""
    graph = result.graph
    rows = [
        ["states with a way on that was not recorded", percent(graph["share_of_states_with_an_edge"])],
        ["rounds of policy iteration", number(int(graph["rounds"]))],
    ]
    if (usual := result.errors.get("usual_landing_error")) is not None:
        rows[1:1] = [
            ["tolerance of landing errors, in typical steps", number(graph["epsilon"])],
            ["landing error that nine of ten recorded steps stay below", number(usual)],
        ]
    return rows


def _net_found(result: Result) -> list[list[str]]:
    """Return rows on the net of the planner held."""
    names = {"net": "states of the net", "actions": "actions tried in each", "sweeps": "sweeps of value iteration"}
    return [[text, number(int(result.graph[name]))] for name, text in names.items()]


def _given(name: str, score: Scores) -> list[str]:
    share = "–" if score.reached is None else percent((score.reached >= 0).mean())
    steps = "–" if score.steps_to_goal is None else number(score.steps_to_goal)
    return [name, number(score.raw), share, steps]
