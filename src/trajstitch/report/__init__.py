"""Report: one HTML page that says what an improvement changed and why to believe it; numbers, then pictures."""

from trajstitch.report.facts import measure
from trajstitch.report.page import render
from trajstitch.report.words import checks

__all__ = ["checks", "measure", "render"]
