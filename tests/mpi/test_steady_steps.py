"""Under a real MPI: steady steps of every strategy allocate nothing, and progress moves what was started."""

import json
from pathlib import Path

import pytest
from whole_runs import said_by_ranks

pytestmark = pytest.mark.slow

PIPELINES = {"gpipe", "1f1b", "interleaved", "zero-bubble"}
MESSAGES = 2 * 2 * 2  # of a step at most, each way by micro-batch and chunk: more are never under way at once
STEADY = 10  # steps
ACTIVATION = 8 // 2 // 2 * 128 * 128 * 8  # bytes of a micro-batch on one rank: far above all objects


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    program = Path(__file__).with_name("steady_steps.py")
    return json.loads(said_by_ranks(2, program, tmp_path_factory.mktemp("data")))


def test_a_steady_step_allocates_nothing_of_the_size_of_an_activation_under_any_strategy(ranks):
    peaks = {name: max(rank["plans"][name]["peak_bytes"] for rank in ranks) for name in ranks[0]["plans"]}
    assert {name: peak for name, peak in peaks.items() if peak > ACTIVATION / 2} == {}


def test_memory_that_is_kept_for_use_does_not_grow_from_step_to_step(ranks):
    for rank in ranks:
        grows = {name: plan["grows"] for name, plan in rank["plans"].items()}
        assert {name for name, steps in grows.items() if steps} <= PIPELINES
        assert max(grows.values()) <= MESSAGES < STEADY


def test_exchanges_need_no_copy_unless_they_cut_activations_by_features_or_tokens(ranks):
    copying = {name for rank in ranks for name, plan in rank["plans"].items() if "copy" in plan["verbs"]}
    assert copying <= {"tensor, by columns", "sequence", "gathered keys", "ulysses", "ring", "experts"}


def test_progress_between_layers_completes_what_was_started(ranks):
    assert [rank["progress"] for rank in ranks] == [True, True]
