"""Cases that differ in precision alone, beside the one in float32."""

import pytest
from synthetic import BYTES, Point, summary_of

from pscale.analysis.memory import KINDS
from pscale.config import Plan
from pscale.report.exports import csv_tables
from pscale.report.grids_precision import ON_TIME, precisions


def point(label, dtype, held, last, plan=Plan(dp=2)):  # noqa: B008
    return Point(
        ranks=plan.ranks,
        series=label,
        label=label,
        plan=plan,
        dtype=dtype,
        compute_s=0.1 if dtype == "float32" else 0.2,
        scaling="strong",
        row={"loss_first": 5.0, "loss_last": last, "losses": [5.0] * 19 + [last]},
        plan_row={"fullest_rank": 0} | {f"predicted_{kind}_bytes": held for kind in KINDS},
    )


def test_bytes_memory_time_and_loss_are_beside_those_of_float32_and_why_time_is_no_saving(tmp_path):
    points = [
        point("a", "float32", 200, 2.0),
        point("b", "bf16", 120, 2.1),
        point("c", "float32", 100, 2.0, Plan(dp=2, tp=2)),
    ]
    summary = summary_of(tmp_path / "run", points)
    plain, narrow = summary.precision
    assert (plain.sent_ratio, plain.held_ratio, plain.step_ratio, plain.loss_more) == (1, 1, 1, 0)
    assert (narrow.precision, narrow.sent_bytes, narrow.held_bytes) == ("bf16", BYTES, 600)
    assert (narrow.held_ratio, narrow.loss_more) == (0.6, pytest.approx(0.05))
    assert narrow.step_ratio == pytest.approx(2, rel=0.01)
    (grid,) = precisions(summary)
    assert [cells[0] for _, cells in grid.rows] == ["a", "b"]
    assert ON_TIME in grid.caption
    assert "bf16" in csv_tables(summary)["precision"]


def test_a_run_in_float32_alone_has_no_such_table(tmp_path):
    assert not [*precisions(summary_of(tmp_path / "run", [point("a", "float32", 1, 2.0)]))]
