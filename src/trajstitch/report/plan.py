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
    graph = result.graph
    intro = (
        "The plan has the best step from every state: a recorded step, or one to another recorded state that an "
        "action leads to. It is exact for the world model, which is not. Values count future rewards with the "
        "planner's discount."
    )
    rows = [
        ["value of the start states as recorded", number(recorded)],
        ["the same by the plan, a promise", number(planned)],
        ["states with a way on that was not recorded", percent(graph["share_of_states_with_an_edge"])],
        ["rounds of policy iteration", number(int(graph["rounds"]))],
        ["trajectories that really end, as recorded", f"{facts.ends[0]:,} of {len(facts.original):,}"],
        ["the same, composed", f"{facts.ends[1]:,} of {len(facts.improved):,}"],
    ]
    if (usual := result.errors.get("usual_landing_error")) is not None:
        rows[3:3] = [
            ["tolerance of landing errors, in typical steps", number(graph["epsilon"])],
            ["landing error that nine of ten recorded steps stay below", number(usual)],
        ]
    body = table([], rows, kind="facts")
    if scores:
        body += "<h3>What the simulator gives</h3>" + table(
            ["policy", "mean return", "episodes that reach the goal", "steps to the goal"],
            [_given(name, score) for name, score in scores.items()],
        )
        body += (
            "<p class=note>Returns are sums without a discount, from the environment's own start states, so they "
            "are not the values above. What counts is whether clones of the composed data do better.</p>"
        )
    return section("The plan", intro, body)


def _given(name: str, score: Scores) -> list[str]:
    share = "–" if score.reached is None else percent((score.reached >= 0).mean())
    steps = "–" if score.steps_to_goal is None else number(score.steps_to_goal)
    return [name, number(score.raw), share, steps]
