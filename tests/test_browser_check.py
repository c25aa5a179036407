"""The browser check finds what it looks for; needs Chromium."""

import shutil

import pytest

from benchmarks.browser_check import check

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def page(body):
    return f"<!doctype html><html><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "<p>fine<div class=wide style='overflow-x: auto'><table style='width: 900px'><tr><td>x</table></div>",
            None,
        ),
        ("<script>missing()</script>", "console"),
        ("<p style='width: 90px; white-space: nowrap'>much wider than the box it is in", "wide"),
        ("<svg viewBox='0 0 300 30'><text x='280' y='20'>cut off</text></svg>", "cut"),
        (
            "<svg viewBox='0 0 300 30'><text y='20'>one above</text><text x='9' y='21'>other</text></svg>",
            "covered",
        ),
    ],
)
def test_each_problem_is_found(body, problem):
    found = check(page(body), 400, CHROMIUM)
    assert [key for key in ("console", "wide", "cut", "covered") if found[key]] == ([problem] if problem else [])
    assert found["ok"] == (problem is None)


def test_a_page_that_is_wider_than_a_phone_fits_a_desktop():
    text = page("<main style='width: 800px'>wide</main>")
    assert not check(text, 400, CHROMIUM)["ok"]
    assert check(text, 1200, CHROMIUM)["ok"]
