"""The report of a suite: numbers by hand from records made here, and what it shows of missing cells."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from trajstitch.bench.cell_figures import cell_section
from trajstitch.bench.grid import make_grid, open_folder, record_path
from trajstitch.bench.report import markdown, page, write_reports
from trajstitch.bench.suite_figures import cell_html, log_axis, table_html
from trajstitch.bench.tables import (
    aggregate_table,
    by_iteration,
    data_table,
    improvement_estimates,
    read_results,
    score_table,
)
from trajstitch.cli import main

DATA = ("hopper-medium", "walker2d-medium")
# By cell: the last score of each of two policies; best scores are 10 higher. A stitching seed of ts-bc on walker2d
# is missing, and all of iql.
LAST = {
    "hopper-medium/bc": [50, 52],
    "hopper-medium/percent-bc": [60, 62],
    "hopper-medium/ts-bc.s0": [51, 61],
    "hopper-medium/ts-bc.s1": [53, 55],
    "walker2d-medium/bc": [70, 74],
    "walker2d-medium/percent-bc": [71, 73],
    "walker2d-medium/ts-bc.s0": [80, 84],
}


def scored(scores):
    return {"normalised": {"per_seed": scores}, "raw": {"per_seed": [30 * score for score in scores]}}


def write_record(out, cell, scores):
    stitched = None if cell.stitch_seed is None else {"return_mean": 1500.0 + 100 * cell.stitch_seed}
    record = {
        "data": {"source": "recorded <here> | there", "transitions": 12_345, "return_mean": 1400.0},
        "stitched": stitched,
        "last": scored(scores),
        "best": scored([score + 10 for score in scores]),
    }
    file = record_path(out, cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "out"
    methods = ("bc", "percent-bc", "ts-bc", "iql")
    grid = make_grid("table1", data=DATA, methods=methods, seeds=2, stitch_seeds=2)
    open_folder(folder, grid)
    for cell in grid.cells:
        if cell.name in LAST:
            write_record(folder, cell, LAST[cell.name])
    (folder / "records" / "walker2d-medium" / "ts-bc.s1.failed").write_text("the simulator <broke>\n")
    return folder


def rows(table):
    return {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_scores_stand_beside_published_ones(out):
    results = read_results(out)
    last, best = (rows(score_table(results, which)) for which in ("last", "best"))
    hopper, walker = last["hopper-medium"], last["walker2d-medium"]
    assert hopper["BC"] == "51.0 ± 1.4"
    assert hopper["BC, published"] == "55.3"
    assert hopper["TS+BC"] == f"55.0 ± {np.std([51, 61, 53, 55], ddof=1):.1f}"
    assert hopper["IQL"] == "missing"
    assert hopper["IQL, published"] == "66.3"
    assert walker["TS+BC"] == f"82.0 ± {np.std([80, 84], ddof=1):.1f} (1 of 2 cells, some failed)"
    assert last["mean"]["10%BC"] == "66.5"
    assert last["mean"]["IQL, published"] == "72.3"
    assert last["mean"]["IQL"] == "–"
    assert best["hopper-medium"]["BC"] == "61.0 ± 1.4"
    assert "BC, published" not in best["hopper-medium"]  # the paper does not say which checkpoint is best
    assert best["hopper-medium"]["10%BC, published"] == "73.8"


def test_statistics_over_data_sets(out):
    found = rows(aggregate_table(read_results(out), "last"))
    assert found.keys() == {"BC", "10%BC", "TS+BC"}
    assert found["BC"]["mean"].startswith("61.5 [")
    assert found["BC"]["IQM"].startswith("61.0 [")  # of 50, 52, 70, 74 without the ends
    assert found["TS+BC"]["policies"] == "6"
    assert found["TS+BC"]["mean"].startswith("68.5 [")
    assert found["TS+BC"]["IQM"].startswith(f"{np.mean([53, 55, 61, 80]):.1f} [")


def test_probability_of_improvement_over_both_baselines(out):
    found = improvement_estimates(read_results(out), "last")
    # Hopper: of 8 pairs with BC (50, 52), 51 wins 1, the others both: 7. Walker2d: all of 4.
    assert found["bc"]["ts-bc"].value == pytest.approx((7 / 8 + 1) / 2)
    assert found["percent-bc"]["ts-bc"].value == pytest.approx((1 / 8 + 1) / 2)
    assert found["bc"]["ts-bc"].low <= found["bc"]["ts-bc"].value <= found["bc"]["ts-bc"].high
    assert "iql" not in found["bc"]


def test_returns_of_stitched_data(out):
    table = rows(data_table(read_results(out)))
    assert table["hopper-medium"]["after TS+BC"] == f"1,550.0 ± {np.std([1500, 1600], ddof=1):.1f}"
    assert table["hopper-medium"]["source"] == "recorded <here> | there"


def test_markdown_has_every_table_with_a_sentence(out):
    text = markdown(read_results(out))
    assert "Finished cells: 7 of 10; policies per cell: 2; stitching seeds: 2;" in text
    assert "Published scores are of D4RL's v2 data" in text
    assert "recorded <here> \\| there" in text
    assert "| walker2d-medium | ts-bc.s1 | the simulator <broke> |" in text
    sections = text.split("\n## ")[1:]
    assert len(sections) == 2 * 4 + 3
    for part in sections:
        *_, reading = part.strip().split("\n\n")
        assert re.fullmatch(r"[A-Z][^|]*\.", reading), reading
        widths = {line.replace("\\|", "").count("|") for line in part.splitlines() if line.startswith("|")}
        assert len(widths) == 1


class Checked(HTMLParser):
    """Collects what a page loads and shows."""

    def __init__(self):
        super().__init__()
        self.loads, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href") and not value.startswith("#")]
        assert tag != "script"

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained_and_says_the_same(out):
    results = read_results(out)
    found = Checked()
    text = page(results)
    found.feed(text)
    shown = " ".join(found.text)
    assert found.loads == []
    assert "recorded <here> | there" in shown
    assert "the simulator <broke>" in shown
    assert text.count("<figure>") == 2 * 3 + 2  # a profile per method and checkpoint; the cells of a data set
    assert text.count("<svg class=bar") == 2 * (3 + 2) + 6  # six of eight cells have policies
    assert "<span>finished cells</span><b>7 of 10 <small>1&nbsp;failed</small></b>" in text
    assert page(results) == text


def test_published_scores_are_small_below_ours_and_missing_cells_look_so(out):
    results = read_results(out)
    head, (hopper, walker, _) = table_html(score_table(results, "last"))
    assert head == ["data", "BC", "10%BC", "TS+BC", "IQL"]
    assert hopper[1] == "51.0 ± 1.4<small>published 55.3</small>"
    assert hopper[4] == "<span class=none>missing</span><small>published 66.3</small>"
    assert walker[3] == ("82.0 ± 2.8<small><b>1 of 2 cells, some failed</b></small><small>published 78.8</small>")
    assert cell_html("<a> (no cells)") == "&lt;a&gt; (no cells)"


def test_every_cell_is_drawn_beside_its_published_score(out):
    text = cell_section(read_results(out))
    assert "TS+BC<small>2 policies<b>, 1 of 2 cells, some failed</b></small>" in text
    assert re.search(r"51\.0 \[50\.0, 52\.0\]<small>published 55\.3</small>", text)
    # From 0 to 84, of 200 pixels: 51.0 and 55.3.
    assert 'width="121.4"' in text
    assert f'<circle cx="{200 * 55.3 / 84:.1f}"' in text
    assert text.count("<circle") == 6  # of the cells with a bar


def test_nothing_is_said_of_published_scores_where_there_are_none(tmp_path):
    grid = make_grid("smoke", methods=("bc",))
    open_folder(tmp_path, grid)
    write_record(tmp_path, grid.cells[0], [1, 3])
    results = read_results(tmp_path)
    assert "ublished" not in markdown(results) + page(results)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([12.8, 12.9], [10, 20]),
        ([0.3, 0.9], [0.2, 0.5, 1]),
        ([2e-3, 30], [0.001, 0.01, 0.1, 1, 10, 100]),
        ([1, 1], [1, 2]),
    ],
)
def test_logarithmic_axes_end_at_round_numbers(values, ticks):
    ax = Figure().add_subplot()
    log_axis(ax, values)
    assert ax.get_yscale() == "log"
    assert ax.get_yticks() == pytest.approx(ticks)
    low, high = ax.get_ylim()
    assert low <= min(values) <= max(values) <= high


def test_the_command_writes_both_files(out, tmp_path, capsys):
    assert main(["report", str(out), "--json"]) == 0
    *text, line = capsys.readouterr().out.splitlines()
    assert "\n".join(text).strip() == (out / "report.md").read_text().strip()
    assert json.loads(line)["finished"] == 7
    assert json.loads(line)["iqm"]["last"]["bc"] == pytest.approx(61)
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a folder of trajstitch bench (suite.json is missing)" in capsys.readouterr().err
    open_folder(tmp_path / "new", make_grid("smoke"))
    assert main(["report", str(tmp_path / "new")]) == 2
    assert "has no finished cell yet; run trajstitch bench smoke" in capsys.readouterr().err


def test_scores_and_returns_by_iteration_are_drawn(out, tmp_path):
    assert "By iteration" not in page(read_results(out))
    grid = make_grid("iterations", data=DATA[:1], methods=("bc", "ts-bc-1", "ts-bc-3"), stitch_seeds=2)
    open_folder(tmp_path / "out", grid)
    for number, cell in enumerate(grid.cells):
        write_record(tmp_path / "out", cell, [10 * number, 10 * number + 2])
    results = read_results(tmp_path / "out")
    assert [cell.name.partition("/")[2] for cell in grid.cells[:3]] == ["bc", "ts-bc-1.s0", "ts-bc-1.s1"]
    points = [(iteration, score.value, mean) for iteration, score, mean in by_iteration(results, DATA[0])]
    assert points == [(0, 1, 1400), (1, 16, 1550), (3, 36, 1550)]
    assert "By iteration" in page(results)


def test_without_reference_scores_returns_are_shown(out, tmp_path):
    grid = make_grid("smoke", methods=("bc",))
    open_folder(tmp_path / "out", grid)
    write_record(tmp_path / "out", grid.cells[0], [1, 3])
    file = record_path(tmp_path / "out", grid.cells[0])
    record = json.loads(file.read_text())
    record["last"]["normalised"] = record["best"]["normalised"] = None
    file.write_text(json.dumps(record))
    text, _ = write_reports(tmp_path / "out")
    assert "Scores are raw returns." in text
    assert "| demo | 60.0 ± 42.4 |" in text
    assert "profile" not in text
