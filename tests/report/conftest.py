import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import Browser, found
from synthetic import Point, summary_of

HOSTILE = "=cmd|' /C calc'!A0 | `x` [red]*b*[/red] <script> @all $\\frac{$ \x1b[31m"


def need(there, otherwise):
    """Skip the test without what it needs; where all is to be tested, fail it."""
    if not there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(otherwise)


@pytest.fixture(scope="session")
def axe():
    """Return the script of axe-core, which audits a page in its browser."""
    package = find_spec("axe_playwright_python")
    need(package, "there is no axe-core: pip install --no-deps axe-playwright-python")
    return (Path(package.origin).parent / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    need(found(), "there is no Chromium: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def summary(tmp_path_factory):
    """A run with everything in it: noise, imbalance, warnings, failures, launches to come."""
    losses = [5.5, 4.0, 3.0, 2.5]
    points = [
        Point(ranks=1, noise=0.01, losses=losses),
        Point(ranks=2, noise=0.01, transfer_s=0.01, losses=losses, only_repeats=(0,)),
        Point(
            ranks=4,
            noise=0.15,
            transfer_s=0.02,
            late_s={3: 0.03},
            losses=losses,
            row={"recording_ratio": 1.034},
        ),
        Point(ranks=8, status="failed", reason="rank 3 died: MemoryError"),
        Point(ranks=16, only_repeats=()),
    ]
    cases = [point.case.id for point in points if point.ranks <= 4]
    expect = [{"metric": "efficiency", "where": "ranks <= 4", "at_least": 0.85, "cases": cases}]
    return summary_of(tmp_path_factory.mktemp("mixed") / "run", points, expect=expect)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A run of a suite whose texts try to be markup, formulas and more."""
    points = [
        Point(
            ranks=ranks,
            series=series,
            label=f"{HOSTILE} {ranks}",
            hosts=(HOSTILE,),
            transfer_s=0.01,
            losses=[2.0, 1.0],
        )
        for series in ("=a", HOSTILE)
        for ranks in (1, 2)
    ]
    points.append(Point(ranks=4, status="failed", reason=HOSTILE, label=HOSTILE))
    return summary_of(tmp_path_factory.mktemp("hostile") / "run", points, title=HOSTILE)


@pytest.fixture(scope="session")
def failed(tmp_path_factory):
    """A run in which nothing ended well."""
    points = [Point(ranks=ranks, status="failed", reason="no MPI") for ranks in (1, 2)]
    return summary_of(tmp_path_factory.mktemp("failed") / "run", points)
