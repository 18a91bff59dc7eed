"""Attacks are drawn at random from a seed, which every failure names: PSCALE_ATTACK_SEED repeats them.

PSCALE_THOROUGH=20 makes twenty times as many, PSCALE_THOROUGH=0.3 fewer.
"""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import THOROUGH

SEED = int(os.environ.get("PSCALE_ATTACK_SEED", "1"))


def pytest_collection_modifyitems(items):
    """All attacks take long."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Attack:
    """A source of chance of a test's own, and how many times more attacks than usual are wanted."""

    draw: random.Random

    def times(self, usual):
        return max(1, round(usual * THOROUGH))


@pytest.fixture
def attack(request):
    request.node.user_properties.append(("seed", SEED))
    return Attack(random.Random(f"{SEED} {request.node.name}"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.failed and item.user_properties:
        report.sections.append(
            ("attack", f"repeat it with PSCALE_ATTACK_SEED={SEED} PSCALE_THOROUGH={THOROUGH:g}")
        )


@pytest.fixture(scope="session")
def with_events(tmp_path_factory):
    """A traced launch of a pipeline, of the shipped runs."""
    gallery = Path(__file__).parents[2] / "reports" / "gallery" / "pipeline"
    run = tmp_path_factory.mktemp("traced") / "run"
    (run / "data").mkdir(parents=True)
    shutil.copy(gallery / "run.json", run)
    launch = min(gallery.glob("data/events-*")).stem.removeprefix("events")
    for path in gallery.glob(f"data/*{launch}.parquet"):
        shutil.copy(path, run / "data")
    return run
