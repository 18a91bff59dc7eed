"""Suites of published models: `model: {like: NAME}`."""

import json

import pytest

from pscale.errors import SuiteError
from pscale.nn.counts import parameters
from pscale.suite.derive import resized, unlimited
from pscale.suite.expand import expand
from pscale.suite.file import PUBLISHED
from pscale.suite.load import load_suite

COUNTS = {  # of the released weights; GPT-3's of its paper's sizes, which it calls 175 billion
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "mingpt-10m": 10_001_664,
    "mingpt-19m": 19_478_784,
    "mingpt-26m": 25_796_864,
    "mingpt-102m": 101_925_376,
    "mingpt-152m": 152_363_520,
    "mingpt-203m": 202_801_664,
    "mingpt-808m": 808_256_512,
}


@pytest.fixture
def cases(tmp_path):
    """Return the cases of a suite with a model and a sweep."""

    def expanded(model, sweep="{ranks: [2]}", overrides=()):
        file = tmp_path / "suite.yaml"
        file.write_text(
            f"name: s\nscaling: strong\ndata: {{kind: synthetic}}\nmodel: {model}\nsweep: {sweep}\n"
            "train: {batch: 8}\nlaunch: {oversubscribe: true}\n"
        )
        suite = load_suite(file, overrides)
        return suite, expand(suite, unlimited(64)).cases

    return expanded


def test_every_published_model_has_a_count_here():
    assert COUNTS.keys() == PUBLISHED.keys()


def test_parameters_are_the_published_counts(cases):
    _, found = cases("{like: gpt2}", f"{{like: [{', '.join(COUNTS)}]}}")
    assert {case.label: parameters(case.model) for case in found} == COUNTS


def test_fields_beside_the_name_override_and_the_same_work_has_the_same_id(cases):
    _, [case] = cases("{like: gpt2, layers: 2, sequence: '=64 * ranks'}")
    assert (case.model.layers, case.model.sequence, case.model.width, case.model.tied) == (2, 128, 768, True)
    _, [same] = cases(
        "{kind: gpt, layers: 2, width: 768, heads: 12, sequence: 128, vocabulary: 50257, tied: true}"
    )
    assert same.id == case.id


def test_a_run_is_predicted_at_other_sizes_with_the_model_that_its_sweep_names(cases):
    suite, found = cases("{like: gpt2, layers: 2}", "{like: [gpt2, mixtral-8x7b], ranks: [1, 2]}")
    resolved = json.loads(json.dumps(suite.resolved))
    assert {case.model for case in resized(resolved, {1, 2}, 4)} == {case.model for case in found}
    assert {case.model.kind for case in found} == {"gpt", "moe"}


@pytest.mark.parametrize(
    ("like", "kind", "expected"),
    [
        ("gpt2", "gpt", ("gpt", 2, 768)),
        ("gpt2", "moe", ("moe", 2, 768)),
        ("mixtral-8x7b", "gpt", ("gpt", 2, 4096)),
        ("gpt2", "block", ("block", 1, 256)),
    ],
)
def test_another_kind_keeps_the_published_sizes_that_it_has(cases, like, kind, expected):
    _, [case] = cases(f"{{like: {like}, layers: 2}}", overrides=[f"model.kind={kind}"])
    assert (case.model.kind, case.model.layers, case.model.width) == expected


@pytest.mark.parametrize("model", ["{like: gpt4}", "{kind: block, like: gpt2}", "{like: 3}"])
def test_what_is_no_published_model_is_refused(cases, model):
    with pytest.raises(SuiteError, match=r"like|layers"):
        cases(model)
