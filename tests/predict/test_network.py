"""Prices of calls on tiers, against what one works out by hand; and files that say something impossible."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pscale.analysis.frames import load
from pscale.analysis.network import what_if
from pscale.errors import PlanError, SuiteError
from pscale.mesh.dry import AxisCall
from pscale.predict.costs import Costs
from pscale.predict.network import Fabric
from pscale.predict.profile import CallKey, CallTimes, Distribution
from pscale.predict.step_program import StepProgram
from pscale.simulator.network import Link, Network
from pscale.suite.network import load_network, read_network

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"

TWO_TIERS = """
tiers:
- {name: node, ranks: 4, latency: 1us, bandwidth: 10GB/s}
- {name: leaf, ranks: 16, latency: 5us, bandwidth: 1GB/s, oversubscription: 2}
"""
MEGABYTE = 1_000_000


def fabric(tmp_path, text, spans, **sizes):
    file = tmp_path / "network.yaml"
    file.write_text(text)
    program = StepProgram(sizes=sizes, spans=spans, blocks=())
    return Fabric(Network(tiers=load_network(file)), program)


def priced(tmp_path, verb, axis, algorithm="", payload=MEGABYTE):
    algorithms = f"algorithms: {{{verb}: {algorithm}}}\n" if algorithm else ""
    found = fabric(
        tmp_path, TWO_TIERS + algorithms, {"dp": ("dp",), "tp": ("tp",), "dp+tp": ("dp", "tp")}, dp=4, tp=4
    )
    return found.price(axis, verb, payload).seconds


def test_within_a_node_the_fast_links_count(tmp_path):
    assert priced(tmp_path, "all_reduce", "tp") == pytest.approx(6e-6 + 1.5 * 1e6 / 10e9)


def test_groups_of_a_node_share_its_link(tmp_path):
    # Four rings go out of each node, one for each of its ranks, and the leaf carries half of it.
    assert priced(tmp_path, "all_reduce", "dp") == pytest.approx(6 * 5e-6 + 1.5 * 1e6 / (1e9 / 2 / 4))


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 30 * 5e-6 + 2 * 15 / 16 * 1e6 / 0.5e9),  # one flow out of each node
        ("recursive-doubling", 4 * 5e-6 + 4 * 1e6 * 4 / 0.5e9),  # four ranks of a node send at once
        ("tree", 8 * 5e-6 + 8 * 1e6 / 0.5e9),
        ("best", 4 * 5e-6 + 2 * 15 / 16 * 1e6 * 4 / 0.5e9),
        # In the node to a fourth each, which all four sum over the nodes at once, and back.
        ("hierarchical", 6 * 1e-6 + 2 * 0.75e6 / 10e9 + 6 * 5e-6 + 1.5 * 0.25e6 * 4 / 0.5e9),
    ],
)
def test_algorithms_of_a_sum_over_nodes_cost_what_they_send(tmp_path, algorithm, seconds):
    assert priced(tmp_path, "all_reduce", "dp+tp", algorithm) == pytest.approx(seconds)


def test_every_rank_of_an_all_to_all_sends_out_of_its_node(tmp_path):
    assert priced(tmp_path, "all_to_all", "dp+tp") == pytest.approx(15 * 5e-6 + 12 / 16 * 1e6 * 4 / 0.5e9)


def test_a_hierarchical_gathering_is_what_its_halves_are(tmp_path):
    scattered = priced(tmp_path, "reduce_scatter", "dp+tp", "hierarchical")
    gathered = priced(tmp_path, "all_gather", "dp+tp", "hierarchical", MEGABYTE // 16)
    assert scattered + gathered == pytest.approx(priced(tmp_path, "all_reduce", "dp+tp", "hierarchical"))


def test_recorded_steps_cost_the_same_on_a_tier_of_a_file_as_on_its_link_in_a_line(tmp_path):
    file = tmp_path / "network.yaml"
    file.write_text(
        "tiers: [{name: node, ranks: 2, latency: 1ms, bandwidth: 50MB/s}]\nalgorithms: {all_reduce: best}"
    )
    texts = "all: {latency: 1ms, bandwidth: 50MB/s}", str(file)
    found = [*what_if(load(GALLERY / "communication"), {text: read_network(text) for text in texts})]
    expected = {(each["case"], each["network"]): each["expected_s"] for each in found}
    cases = {case for case, _ in expected}
    assert len(cases) == 2
    for case in cases:
        assert expected[case, texts[0]] == pytest.approx(expected[case, texts[1]], rel=1e-12)
    assert max(each["change"] for each in found) > 0.5


@pytest.mark.parametrize("event", ["call", "wait"])
def test_a_priced_call_keeps_nothing_of_the_slow_network_that_was_measured(event):
    sample = Distribution.of(np.array([0.0, 0.2, 0.4]))
    key = CallKey("all_reduce", event, 4, MEGABYTE)
    slow = SimpleNamespace(calls={key: CallTimes(last=sample, late=sample, together=0.0)})
    program = StepProgram(sizes={"dp": 4}, spans={"dp": ("dp",)}, blocks=())
    fast = Fabric(Network(links={"dp": Link(latency_s=0.0, bytes_per_s=1e9)}), program)
    cost = Costs(slow, fast).call(AxisCall(event, "dp", "all_reduce", MEGABYTE), 4)
    assert cost.last.mean() == pytest.approx(1.5 * MEGABYTE / 1e9)
    assert cost.late.max() == 0.0


def test_what_meets_on_a_shared_link_is_told(tmp_path):
    shared = fabric(tmp_path, TWO_TIERS, {"tp": ("tp",), "dp": ("dp",)}, dp=4, tp=4)
    shared.price("dp", "all_reduce", MEGABYTE)
    assert shared.notes == ()
    for _ in range(2):
        shared.price("dp", "all_to_all", MEGABYTE)
    assert [note.partition(" meets")[0] for note in shared.notes] == ["all-to-all over dp"]


def test_a_tier_without_a_link_costs_what_was_measured(tmp_path):
    text = TWO_TIERS.replace("ranks: 4, latency: 1us, bandwidth: 10GB/s", "ranks: 4")
    found = fabric(tmp_path, text, {"dp": ("dp",), "tp": ("tp",)}, dp=4, tp=4)
    assert found.price("tp", "all_reduce", MEGABYTE) is None
    assert found.price("dp", "all_reduce", MEGABYTE) is not None


def test_links_by_axis_cost_what_is_needed_at_least():
    program = StepProgram(sizes={"dp": 8}, spans={"dp": ("dp",)}, blocks=())
    found = Fabric(Network(links={"dp": Link(latency_s=1e-6, bytes_per_s=1e9)}), program)
    assert found.price("dp", "all_reduce", MEGABYTE).seconds == pytest.approx(3e-6 + 1.75e-3)


def test_ranks_beyond_the_last_tier_are_refused_with_file_and_field(tmp_path):
    found = fabric(tmp_path, TWO_TIERS, {"dp": ("dp",)}, dp=32)
    with pytest.raises(
        PlanError, match=r"network.yaml: tiers: the last, leaf, holds 16 ranks.* at least 32 ranks"
    ):
        found.price("dp", "all_reduce", MEGABYTE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: []", r"yaml:1: tiers: expected a list"),
        ("tiers:\n- {name: node, ranks: 0, latency: 1us, bandwidth: 1GB/s}", r":2: tiers\[0\].ranks: "),
        (
            "tiers:\n- {name: node, ranks: 4, latency: 1us, bandwidth: fast}",
            r":2: tiers\[0\].bandwidth: .*10GB/s",
        ),
        ("tiers:\n- {name: node, ranks: 4, latency: 1us}", r":2: tiers\[0\]: 'bandwidth' is missing"),
        ("tiers:\n- {name: node, rank: 4}", r"tiers\[0\].rank: .*no such field; did you mean 'ranks'"),
        (TWO_TIERS.replace("16", "6"), r":4: tiers\[1\].ranks: 6 is not a multiple of the 4"),
        (TWO_TIERS + "algorithms: {all_reduce: rings}", r":5: algorithms.all_reduce: .*did you mean 'ring'"),
        (TWO_TIERS + "algorithms: {allreduce: ring}", r"algorithms.allreduce: .*did you mean 'all_reduce'"),
        (TWO_TIERS.replace(": 2}", ": 0.5}"), r"oversubscription: expected at least 1"),
    ],
)
def test_a_file_that_cannot_be_says_line_and_field(tmp_path, text, message):
    file = tmp_path / "network.yaml"
    file.write_text(text)
    with pytest.raises(SuiteError, match=message):
        load_network(file)
