"""The page on strategies names what there is."""

import inspect
from pathlib import Path

import pytest

from pscale.parallel import strategies

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "strategies.md"


@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_every_strategy_offers_what_the_page_asks_of_one(name):
    asked = [member for member in vars(strategies.Strategy) if not member.startswith("_")]
    assert asked == ["check", "calls"]
    module = strategies.STRATEGIES[name]
    for member in asked:
        signature = inspect.signature(getattr(module, member))
        assert list(signature.parameters) == (["case"] if member == "check" else ["case", "rank"])
        assert f"`{member}" in PAGE.read_text()


def test_names_in_the_page_are_those_of_the_code():
    named = {
        "parallel/strategies.py": ["STRATEGIES", "buffer_bytes"],
        "parallel/ranks.py": ["GROUPS"],
        "config/axes.py": ["AXES"],
        "parallel/tensor.py": ["ReplicatedLoss"],
        "training/units.py": ["_column_parallel", "_reduce", "loss"],
        "config/plan.py": ["class Plan"],
        "config/choices.py": ["InSuite"],
        "parallel/schedule.py": ["class Timetable", "def actions"],
    }
    for file, words in named.items():
        text = (ROOT / "pscale" / file).read_text()
        assert [word for word in words if word not in text] == []
        assert all(f"`{word}" in PAGE.read_text() or " " in word for word in words)
