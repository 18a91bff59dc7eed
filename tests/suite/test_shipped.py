from pathlib import Path

import pytest

from pscale.nn.counts import parameters
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

FOLDER = Path(__file__).parents[2] / "suites"
SUITES = sorted(FOLDER.glob("*.yaml"))


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


def test_every_picture_of_the_tour_has_a_suite_that_keeps_its_events():
    pictures = (FOLDER.parent / "docs" / "tour").glob("*.png")
    for suite in [load_suite(picture.with_suffix(".yaml")) for picture in pictures]:
        cases = expand(suite, {"cores": 2.0, "memory_gib": 8.0, "nodes": 1.0}).cases
        assert all(case.timing.trace for case in cases)


def test_mingpt_has_the_models_of_the_torchshard_note_under_six_plans_with_one_batch():
    suite = load_suite(FOLDER / "mingpt.yaml")
    cases = expand(suite, {"cores": 2.0, "memory_gib": 8.0, "nodes": 1.0}).cases
    counted = {
        (case.model.layers, case.model.heads, case.model.width): parameters(case.model)
        for case in cases
        if not case.plan.sp
    }
    assert counted == {
        (12, 8, 256): 10_001_664,
        (24, 8, 256): 19_478_784,
        (32, 8, 256): 25_796_864,
        (32, 8, 512): 101_925_376,
        (48, 8, 512): 152_363_520,
        (64, 8, 512): 202_801_664,
        (64, 32, 1024): 808_256_512,
    }
    assert len(cases) == 7 * 6
    assert {(case.ranks, case.train.batch) for case in cases} == {(8, 8)}
    sliced = [case for case in cases if case.plan.sp]
    assert len(sliced) == 7
    for case in sliced:  # one position more, so that slices are equal
        key = (case.model.layers, case.model.heads, case.model.width)
        assert parameters(case.model) == counted[key] + case.model.width
