"""The page on strategies names what there is."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "strategies.md"


def test_names_in_the_page_are_those_of_the_code():
    named = {
        "parallel/strategies.py": ["TABLE"],
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
