"""Report: one HTML page that shows what an improvement changed and whether to trust it."""

from trajstitch.report.comparison import measure
from trajstitch.report.page import render, with_audit
from trajstitch.report.verdict import checks

__all__ = ["checks", "measure", "render", "with_audit"]
