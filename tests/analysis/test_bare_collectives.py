"""Calls of training beside the same verbs by themselves."""

import json
import re
from dataclasses import replace

import pytest
from synthetic import BYTES, Point, write_bare, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.errors import UsageError
from pscale.report.markup import render_markdown

pytestmark = pytest.mark.slow

KIB = 1024


def call(rank, size, transfer_s, phase="forward"):
    """Return ten calls of one rank, which another one keeps waiting."""
    what = {"rank": rank, "phase": phase, "axis": "dp", "verb": "all_reduce", "count": 10, "bytes": 10 * size}
    times = {"transfer_s": 10 * transfer_s, "wait_s": 1.0, "hidden_s": 0.0, "exposed_s": 0.0}
    return what | times


def network(folder, ranks, **row):
    """Return a run in which 1 KiB takes 1 ms, as small as it may be, and then a megabyte a millisecond."""
    rows = {
        size: [
            *(call(rank, size, seconds) for rank in range(ranks)),
            *(call(rank, size, 9 * seconds, "backward") for rank in range(ranks)),  # under way, beside work
        ]
        for size, seconds in ((KIB, 1e-3), (1_000_000, 1e-3), (4_000_000, 4e-3))
    }
    return load(write_bare(folder, ranks, rows, **row))


@pytest.fixture
def trained(tmp_path):
    """Sizes of 1, 2 and 4 ranks, whose all-reduces of 40 MB take 100 and 80 ms once all have arrived."""
    points = [Point(ranks=1), Point(ranks=2, transfer_s=0.1), Point(ranks=4, transfer_s=0.04, hidden_s=0.04)]
    return load(write_run(tmp_path / "trained", points, repeats=1))


def test_calls_are_set_beside_the_verb_alone_over_as_many_ranks(trained, tmp_path):
    summary = Findings(trained, bare=network(tmp_path / "bare", 2))
    two, four = summary.rows("calls")
    assert (two.axis, two.verb, two.bytes / two.count) == ("dp", "all_reduce", BYTES)
    assert two.bare_bytes_per_s == pytest.approx(1e9)  # beyond the largest size by its bandwidth
    assert two.bare_share == pytest.approx(0.4)
    assert four.bare_bytes_per_s is None
    text = render_markdown(summary)
    assert "| B/s | bare B/s | of bare |" in text
    assert "| 400M | 1G | 40% |" in text
    assert "| 500M | - | - |" in text  # nothing is known of four ranks
    assert "Bandwidths of bare collectives are from run bare." in text


def test_a_collective_has_its_bandwidth_that_of_a_link_and_the_share_that_work_hides(tmp_path):
    def of_rank(rank):
        slower = {**call(rank, KIB, 1e-3 * (1 + rank)), "wait_s": 0.0}
        return [slower, {**slower, "phase": "backward", "hidden_s": 0.3, "exposed_s": 0.1}]

    run = load(write_bare(tmp_path / "bare", 4, {KIB: [each for rank in range(4) for each in of_rank(rank)]}))
    (found,) = Findings(run).rows("bandwidths")
    assert (found.axis, found.verb, found.ranks, found.message_bytes) == ("dp", "all_reduce", 4, KIB)
    assert [found.least_s, found.call_s, found.most_s] == pytest.approx([1e-3, 2.5e-3, 4e-3])
    assert found.algorithm_bytes_per_s == pytest.approx(KIB / 2.5e-3)
    assert found.bus_bytes_per_s == pytest.approx(2 * 3 / 4 * KIB / 2.5e-3)
    assert found.hidden == pytest.approx(0.75)


@pytest.mark.parametrize(("size", "seconds"), [(8, 1e-3), (2_000_000, 2e-3), (8_000_000, 8e-3)])
def test_between_sizes_times_are_read_off_and_beyond_them_latency_or_bandwidth_holds(
    trained, tmp_path, size, seconds
):
    of_size = trained.calls.assign(bytes=trained.calls["count"] * size)
    found, _ = Findings(replace(trained, calls=of_size), bare=network(tmp_path / "bare", 2)).rows("calls")
    assert found.bare_bytes_per_s == pytest.approx(size / seconds)


def test_without_the_option_there_is_no_column_and_a_run_of_something_else_is_refused(trained):
    assert "of bare" not in render_markdown(Findings(trained))
    with pytest.raises(UsageError, match=re.escape("has no bare collectives; `pscale run coll")):
        Findings(trained, bare=trained).rows("calls")


def test_nothing_is_trained_at_a_rate_where_collectives_are_bare(trained, tmp_path):
    bare = network(tmp_path / "bare", 2)
    for run, trains in ((trained, True), (bare, False)):
        found = Findings(run).rows("cases")
        assert [point.samples_per_s is not None for point in found] == [trains] * 3


def test_what_keeps_the_two_from_being_compared_is_said(trained, tmp_path):
    crowded = network(
        tmp_path / "bare", 2, oversubscribed=True, provenance='{"mpi": {"library": "Open MPI"}}'
    )
    assert "from run bare, which had another MPI, in which ranks share cores." in render_markdown(
        Findings(trained, bare=crowded)
    )


def test_types_and_operations_of_numbers_are_distinguished(trained, tmp_path):
    rows = {size: [call(rank, size, 1e-3) for rank in range(2)] for size in (KIB, 1_000_000, 1_000_001)}
    folder = write_bare(tmp_path / "bare", 2, rows)
    document = json.loads((folder / "run.json").read_text())
    others = {"dtype": "bf16", "message_bytes": KIB}, {"op": "max", "message_bytes": KIB}
    for case, other in zip(document["cases"][1:], others, strict=True):
        case["model"] |= other
    (folder / "run.json").write_text(json.dumps(document))
    bare = Findings(load(folder))
    found = [(row.message_bytes, row.dtype, row.op) for row in bare.rows("bandwidths")]
    assert {*found} == {(KIB, "bf16", "sum"), (KIB, "float32", "max"), (KIB, "float32", "sum")}
    text = render_markdown(bare)
    assert "| verb | op | type | ranks |" in text
    assert "dp, 2 ranks, sum of bf16" in text
    assert "| verb | ranks |" in render_markdown(Findings(network(tmp_path / "plain", 2)))
    (beside,) = [row for row in Findings(trained, bare=load(folder)).rows("calls") if row.bare_bytes_per_s]
    assert beside.bare_bytes_per_s == pytest.approx(KIB / 1e-3)  # the sum of float32
