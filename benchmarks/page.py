"""Measure the HTML page of a large run: its size, and the time to write and to show it.

    python benchmarks/page.py [--cases 1000]

The run is generated: five cases with all features, copied up to the requested number. The browser is a
headless Chromium with an empty profile; the time is from the start of loading to the first frame after
layout, the median of five loads.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import Browser, found
from synthetic import Point, replicated, summary_of

from pscale.report.page import draw_figures, inline_figures, render_page

_LOADS = 5
_SHOWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"


def points() -> list[Point]:
    """Return five sizes of one series; the last one fails."""
    losses = [5.5 - 0.1 * step for step in range(24)]
    good = [
        Point(ranks=ranks, noise=0.02, transfer_s=0.002 * ranks, late_s={ranks - 1: 0.01}, losses=losses)
        for ranks in (1, 2, 4, 8)
    ]
    return [*good, Point(ranks=16, status="failed", reason="rank 3 died: MemoryError")]


def main() -> None:
    """Write one page and open it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pscale-page-") as name:
        folder = Path(name)
        findings = replicated(summary_of(folder / "run", points()), asked.cases // 5)
        start = perf_counter()
        drawn = inline_figures(draw_figures(findings))
        rendering = perf_counter()
        text = render_page(findings, drawn)
        end = perf_counter()
        (folder / "report.html").write_text(text)
        print(f"{len(findings.rows('cases'))} cases: {len(text.encode()) / 1e6:.2f} MB")
        print(f"figures {rendering - start:.2f} s, page {end - rendering:.2f} s")
        if found():
            print(f"shown after {_shown_s(folder):.2f} s")


def _shown_s(folder: Path) -> float:
    """Return the median time until the page in the folder is shown."""
    with Browser(folder / "profile") as browser:
        times = []
        for _ in range(_LOADS):
            browser.open(folder / "report.html")
            times.append(float(browser.value(_SHOWN)) / 1e3)
        return statistics.median(times)


if __name__ == "__main__":
    main()
