"""Browser check: report pages in headless Chromium, at the width of a phone and of a desktop.

    python -m benchmarks.browser_check runs/smoke/report.html runs/demo/improve/report.html --json results/x.json

A page fails if it writes anything to the console (it has no script, so that means an error or a request that
failed), if it is wider than its window, if something sticks out of its box, or if text of a picture is cut off or
covers other text. What can be folded out is folded out first. `--shots FOLDER` keeps a picture of every page, for
your eyes.

A copy of the page gets a script that measures it, and is shown in a frame: no window is narrower than 500 pixels.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

from benchmarks.command import command
from trajstitch.storage.atomic import write_json

WIDTHS = (400, 1200)
LIMIT_S = 120
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--enable-logging=stderr", "--virtual-time-budget=10000", "--force-device-scale-factor=1"),
)
# Chromium's fonts are a little wider than Matplotlib's, which has placed the text of pictures: 2 pixels are none.
MEASURE = """<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const box = one => one.getBoundingClientRect();
  const name = one => one.tagName.toLowerCase() + ": " + one.textContent.trim().slice(0, 40);
  const all = [...document.body.querySelectorAll("*")].filter(one => !one.closest("svg, .wide > *"));
  const wide = all.filter(one => box(one).right > innerWidth + 1
    || one.scrollWidth > one.clientWidth + 1 && one.clientWidth && !one.matches(".wide")).map(name);
  const cut = [], covered = [];
  for (const picture of document.querySelectorAll("svg")) {
    const frame = box(picture), texts = [...picture.querySelectorAll("text")];
    texts.forEach((one, k) => {
      const a = box(one);
      if (Math.max(frame.left - a.left, a.right - frame.right, frame.top - a.top, a.bottom - frame.bottom) > 2)
        cut.push(name(one));
      for (const other of texts.slice(k + 1)) {
        const b = box(other);
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4) covered.push(name(one));
      }
    });
  }
  const count = what => document.querySelectorAll(what).length, page = document.scrollingElement;
  const tables = [...document.querySelectorAll(".wide")];
  parent.postMessage({width: innerWidth, content: page.scrollWidth, height: page.scrollHeight, wide, cut, covered,
    tables: tables.length, scrolling_tables: tables.filter(one => one.scrollWidth > one.clientWidth).length,
    pictures: count("svg:not(.bar)"), bars: count(".bar")}, "*");
});
</script>"""
FRAME = """<!doctype html><meta charset=utf-8><style>body{{margin:0}}iframe{{border:0;display:block}}</style>
<script>addEventListener("message", got => document.body.dataset.found = JSON.stringify(got.data));</script>
<iframe src="page.html" width={width} height={height}></iframe>"""


def check(page: str, width: int, chromium: str, shot: Path | None = None) -> dict[str, Any]:
    """Measure a page at one width; keep a picture of all of it if `shot` is given."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "page.html").write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
        shown, log = _browse(place, chromium, width, 1000, "--dump-dom")
        told = re.search(r'data-found="([^"]*)"', shown)
        found = json.loads(unescape(told[1])) if told else {}
        if shot and found:
            _browse(place, chromium, width, found["height"], f"--screenshot={shot.resolve()}")
    console = re.findall(r':CONSOLE\S* ("[^\n]*"), source:', log)
    fits = found.get("width") == width and found["content"] <= width
    ok = fits and not (console or found["wide"] or found["cut"] or found["covered"])
    return {"ok": ok, "console": console, **found}


def _browse(place: Path, chromium: str, width: int, height: int, do: str) -> tuple[str, str]:
    """Show the page in a frame of this size; return what Chromium prints and what it logs."""
    (place / "frame.html").write_text(FRAME.format(width=width, height=height), encoding="utf-8")
    window = f"--window-size={max(width, 500)},{height}"
    switches = [*SWITCHES, f"--user-data-dir={place / 'profile'}", window, do]
    url = (place / "frame.html").as_uri()
    done = subprocess.run([chromium, *switches, url], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout, done.stderr


def check_pages(pages: Sequence[Path], chromium: str, shots: Path | None = None) -> dict[str, Any]:
    """Check pages at all widths; return what was found of each, and counts."""
    found: dict[str, dict[str, Any]] = {}
    for page in pages:
        text, name = page.read_text(encoding="utf-8"), f"{page.parent.name}/{page.name}"
        for width in WIDTHS:
            shot = shots / f"{page.parent.name}-{page.stem}-{width}.png" if shots else None
            found.setdefault(name, {})[str(width)] = check(text, width, chromium, shot)
    every = [one for widths in found.values() for one in widths.values()]
    counts = {
        "pages": len(found),
        "failed": sum(not one["ok"] for one in every),
        "console_messages": sum(len(one["console"]) for one in every),
        "wider_than_window": sum(one.get("content", 0) > one.get("width", 0) for one in every),
        "text_cut_off": sum(len(one.get("cut", ())) for one in every),
        "text_covered": sum(len(one.get("covered", ())) for one in every),
    }
    version = subprocess.run([chromium, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return {"browser": " ".join(version[:2]), "widths": WIDTHS, **counts, "found": found}


def main() -> None:
    """Check the pages that are named; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    summary = check_pages(args.pages, args.chromium, args.shots)
    if args.json:
        write_json(args.json, {"command": command("browser_check")} | summary)
    print(json.dumps(summary, indent=1))
    sys.exit(summary["failed"] > 0)


if __name__ == "__main__":
    main()
