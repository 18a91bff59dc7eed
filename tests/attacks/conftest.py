"""Attacks are drawn at random from a seed, which every failure names: PSCALE_ATTACK_SEED repeats them.

PSCALE_ATTACKS=20 makes twenty times as many.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

SEED = int(os.environ.get("PSCALE_ATTACK_SEED", "1"))
TIMES = int(os.environ.get("PSCALE_ATTACKS", "1"))


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
        return usual * TIMES


@pytest.fixture
def attack(request):
    request.node.user_properties.append(("seed", SEED))
    return Attack(random.Random(f"{SEED} {request.node.name}"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.failed and item.user_properties:
        report.sections.append(("attack", f"repeat it with PSCALE_ATTACK_SEED={SEED} PSCALE_ATTACKS={TIMES}"))
