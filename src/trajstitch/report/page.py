"""Page: all sections in order, as one self-contained HTML file with its CSS."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from trajstitch.data import Dataset
from trajstitch.report.audit import show_audit
from trajstitch.report.comparison import measure
from trajstitch.report.imagined import show_imagined
from trajstitch.report.models import show_models, show_policies, show_settings
from trajstitch.report.plan import show_plan
from trajstitch.report.plots import plot_style
from trajstitch.report.positions import show_positions
from trajstitch.report.returns import show_iterations, show_returns
from trajstitch.report.seams import show_places, show_seams
from trajstitch.report.verdict import planned_values, show_checks, show_header
from trajstitch.report.weights import show_weights
from trajstitch.stitching.improve import Result

if TYPE_CHECKING:
    from trajstitch.evaluation.mazes import Maze  # which loads the simulator, like the next
    from trajstitch.evaluation.scores import Scores

_AUDIT = ("<!-- audit -->\n", "<!-- end of audit -->\n")  # around the section that an audit adds to a page


def render(
    original: Dataset,
    improved: Dataset,
    result: Result,
    settings: Mapping[str, Any],
    scores: Mapping[str, Scores] | None = None,
    audit: Mapping[str, Any] | None = None,
    maze: Maze | None = None,
) -> str:
    """Return the page as self-contained HTML; the same input gives the same bytes.

    Arguments:
        original: the data that were improved.
        improved: the improved data.
        result: what `improve` returned.
        settings: those of `Improve`, or a mapping that has them under "config".
        scores: scores of last checkpoints by the policies' names; names with "original" in them are drawn in the
            colour of old data, names with "improved" in that of new data.
        audit: the content of audit.json; `with_audit` adds it later too.
        maze: the maze of the data, whose walls are drawn then; positions are drawn without it too.
    """
    facts = measure(original, improved, settings)
    with plot_style():
        sections = [
            show_positions(facts, result, maze),
            show_plan(facts, result, scores or {}),
            *(
                [show_imagined(facts, result)]
                if facts.imagined
                else [
                    show_returns(facts),
                    "" if planned_values(result) else show_iterations(original, result.history),
                    show_seams(facts, result.graph),
                    show_places(original, improved, facts),
                ]
            ),
            show_weights(improved),
            *_AUDIT,
            show_models(result),
            show_policies(scores or {}),
            show_settings(settings),
        ]
    body = show_header(original, facts, result) + show_checks(facts, result) + "".join(sections)
    name = str(improved.info.get("env_id", "Improved data"))
    page = whole_page(f"{name}: trajectory stitching report", body)
    return with_audit(page, audit) if audit else page


def whole_page(title: str, body: str) -> str:
    """Return a page with the style of all pages; the body is HTML, the title is text."""
    before, after = _PAGE.split("{body}")
    return before.replace("{title}", escape(title)) + body + after


def with_audit(page: str, audit: Mapping[str, Any]) -> str:
    """Return a page with the section on this audit, in place of an older one."""
    begin, end = _AUDIT
    if begin not in page:  # a page of an older version
        page = page.replace("</main></body>", f"{begin}{end}</main></body>")
    before, _, rest = page.partition(begin)
    with plot_style():
        return before + begin + show_audit(audit) + end + rest.partition(end)[2]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { --old: #7d858c; --new: #00798c; --ink: #22272b; --soft: #59626a; --line: #e6e8ea; --warning: #b45309;
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
.many { grid-template-columns: repeat(auto-fit, minmax(145px, 1fr)); }
.tiles.many b { white-space: normal; }
.checks { list-style: none; margin: 0; padding: 0; display: grid; gap: 10px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.checks li { display: flex; gap: 10px; }
.checks p { margin: 0; }
.checks span { flex: none; width: 20px; height: 20px; margin-top: 2px; border-radius: 50%; color: #fff;
  font-weight: 700; font-size: 12px; line-height: 20px; text-align: center; background: var(--new); }
.checks .warning span { background: var(--warning); }
.checks .warning p { color: var(--warning); }
.grid { display: grid; gap: 28px 36px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.thirds { grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); }
figure { margin: 0; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
@media (max-width: 660px) { .thirds figure > svg { max-width: 400px; } }
svg * { stroke-linejoin: round; }
svg text { font-family: var(--sans) !important; font-variant-numeric: tabular-nums; }
figcaption { margin-top: 6px; }
figcaption b { font-weight: 600; }
.wide { overflow-x: auto; margin-top: 8px; background: right / 48px 100% no-repeat local,
  right / 16px 100% no-repeat; background-image: linear-gradient(to left, #fff 30%, #fff0),
  linear-gradient(to left, #22272b2b, #22272b00); } /* a shadow where more columns can be scrolled into view */
.wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: #fff; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
section > .wide { margin-top: 24px; }
th { font-weight: 400; font-size: 12px; color: var(--soft); vertical-align: bottom; }
th, td { text-align: right; padding: 6px 0 6px 18px; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
@media (min-width: 661px) { .data td:first-child { min-width: 9em; } }
.named th:nth-child(2), .named td:nth-child(2) { text-align: left; }
.named td:nth-child(2) { white-space: normal; min-width: 11em; }
td small { display: block; font-size: 12px; color: var(--soft); }
td small b { color: var(--warning); font-weight: 400; white-space: normal; }
.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.scores td:first-child { min-width: 10.5em; overflow-wrap: anywhere; }
.scores th:nth-child(2), .scores td:nth-child(2) { text-align: left; width: 32%; min-width: 150px; }
.bar { display: block; width: 100%; height: auto; max-height: 30px; }
details { margin-top: 18px; }
summary { cursor: pointer; color: var(--new); }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 560px) { main { padding: 24px 16px 60px; } h1 { font-size: 31px; } .lede { font-size: 19px; }
  .scores td:first-child { min-width: 7.5em; }
  .scores th:nth-child(2), .scores td:nth-child(2) { min-width: 96px; }
  .tiles { grid-template-columns: 1fr 1fr; } .tiles b { font-size: 17px; white-space: normal; } }
@media print { details { display: none; } section { break-inside: avoid; } }
</style></head><body><main>
{body}</main></body></html>
"""
