"""The table of docs/security.md: each line is tried by tests that exist, and each attack has its line."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"


def names_in(folder):
    found = (
        re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE) for path in folder.rglob("test_*.py")
    )
    return {name for names in found for name in names}


def test_each_line_of_the_threat_model_names_tests_that_exist_and_each_attack_has_a_line():
    _, _, table = PAGE.read_text().partition("## The threat model")
    _, _, *lines = re.findall(r"^\|.*\|$", table, re.MULTILINE)
    named = [set(re.findall(r"`(\w+)`", line.split("|")[-2])) for line in lines]
    assert len(lines) > 10
    assert all(named), "each line names a test"
    assert set().union(*named) - names_in(TESTS) == set(), "they exist"
    assert names_in(TESTS / "attacks") - set().union(*named) == set(), "each attack is in the table"
