"""Cases that differ in compression alone, beside the one without any."""

import pytest
from synthetic import BYTES, Point, summary_of

from pscale.config import Plan
from pscale.report.exports import csv_tables
from pscale.report.grids_compression import compression


def point(label, plan, compute_s, last):
    losses = (5.0,) * 19 + (last,)
    row = {"loss_first": 5.0, "loss_last": last, "losses": list(losses)}
    return Point(
        ranks=plan.ranks, series=label, label=label, plan=plan, compute_s=compute_s, scaling="strong", row=row
    )


def test_bytes_time_and_loss_are_beside_those_without_compression(tmp_path):
    points = [
        point("a", Plan(dp=2), 0.1, 2.0),
        point("b", Plan(dp=2, compression="topk", compression_share=0.1), 0.2, 2.5),
        point("c", Plan(dp=2, tp=2), 0.1, 2.0),
    ]
    summary = summary_of(tmp_path / "run", points)
    plain, topk = summary.compressed
    assert (plain.sent_ratio, plain.step_ratio, plain.loss_more) == (1, 1, 0)
    assert (topk.compression, topk.sent_bytes, topk.loss_more) == ("topk", BYTES, pytest.approx(0.25))
    assert topk.step_ratio == pytest.approx(2, rel=0.01)
    (grid,) = compression(summary)
    assert [cells[0] for _, cells in grid.rows] == ["a", "b"]
    assert grid.rows[1][1][-1] == "+25.0%"
    assert "topk" in csv_tables(summary)["compressed"]


def test_a_run_without_compression_has_no_such_table(tmp_path):
    assert not [*compression(summary_of(tmp_path / "run", [point("a", Plan(dp=2), 0.1, 2.0)]))]
