"""What MPI libraries do in their own ways: reductions of every type, and reading files by hints and ahead."""

from pathlib import Path

import pytest
from whole_runs import TINY, said_by_ranks

CASES = """sweep:
  cases:
  - {ranks: 1}
  - {ranks: 2, data.loading: scatter}
  - {ranks: 2, data.loading: files}
  - {ranks: 2, data.loading: mpi-io}
  - {ranks: 2, data.loading: files, data.prefetch: true}
  - {ranks: 2, data.loading: mpi-io, data.prefetch: true, zero: 3, micro_batches: 4}
  - {ranks: 4, data.loading: mpi-io, data.prefetch: true, tp: 2, sp: true, micro_batches: 2}
"""
AHEAD = TINY.replace("sweep: {ranks: [1, 2, 4]}", CASES).replace("plan: {dp: ranks}", "plan: {dp: rest}")
HINTS = TINY.replace("sweep: {ranks: [1, 2, 4]}", "sweep: {ranks: [1, 2], data.hints.cb_nodes: [1]}")
LOADED = "loading: mpi-io, hints: {no_such_hint: 4KiB}}"


def test_every_reduction_of_every_type_is_right():
    said = said_by_ranks(3, Path(__file__).with_name("bare_reductions.py"))
    assert str([(4 * 3 * 5, [])] * 3) in said


def test_every_loading_mode_trains_on_the_same_text_also_where_it_is_read_ahead(cli):
    ran = cli.run(cli.suite(AHEAD), report=True)
    rows = {row["case"]: row for row in ran.rows("cases")}
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    losses = [rows[case.id]["losses"] for case in ran.planned()]
    assert losses == [pytest.approx(losses[0], rel=1e-12)] * 7
    read = {row["case"] for row in ran.rows("steps") if row["phase"] == "data" and row["offload_io_s"] > 0}
    assert read == {case.id for case in ran.planned() if case.data.prefetch}
    assert "Samples read ahead (per rank and step)" in (ran.folder / "report.md").read_text()


def test_verify_counts_the_bytes_that_are_read_ahead(cli):
    files = [verdict["totals"]["file"] for verdict in cli.verify(cli.suite(AHEAD), "--only", "prefetch")]
    window = 32 + 1
    expected = [8 * window] * 2 + [2 * 8 * window]  # ranks that share samples each read them
    assert files == [{"predicted": size, "counted": size} for size in expected]


def test_the_report_says_which_hints_the_library_took(cli):
    ran = cli.run(cli.suite(HINTS.replace('*.py"}', f'*.py", {LOADED}')), report=True)
    assert [row["status"] for row in ran.rows("cases")] == ["ok", "ok"]
    said = (ran.folder / "report.md").read_text()
    assert "Hints for MPI-IO" in said
    assert "no_such_hint 4096, it says none" in said.replace("\\", "")
