import json
from pathlib import Path

import pytest

from pscale.suite import editor_schema, expand, load_suite

FOLDER = Path(__file__).parents[2] / "suites"
SUITES = sorted(FOLDER.glob("*.yaml"))


def test_the_suites_that_the_manual_names_are_there():
    names = {path.stem for path in SUITES}
    assert names >= {"weak", "strong", "linear", "block", "text", "reduction", "loading", "quick"}
    assert names >= {"tensor", "sequence", "context", "pipeline", "zero", "moe", "3d", "strategies"}


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_every_shipped_suite_expands_on_small_and_large_machines(path, cores):
    suite = load_suite(path)
    cases = expand(suite, {"cores": float(cores), "memory_gib": 8.0, "nodes": 1.0}).cases
    assert suite.name == path.stem
    assert suite.title
    assert len({case.label for case in cases}) == len(cases)
    assert all(case.launch.oversubscribe or case.ranks * case.threads <= cores for case in cases)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_shipped_suite_begins_with_its_schema_and_its_question(path):
    first, question, *_ = path.read_text().splitlines()
    assert first == "# yaml-language-server: $schema=suite.schema.json"
    assert question.startswith("# ")
    assert "?" in question


def test_the_shipped_schema_is_up_to_date():
    shipped = json.loads((FOLDER / "suite.schema.json").read_text())
    assert shipped == editor_schema(), "write it anew: pscale schema > suites/suite.schema.json"
