"""What cases cost: core time, and core-hours for their work."""

import pytest
from synthetic import Point, summary_of

from pscale.report.topics.choices import COSTS


def test_cost_is_cores_times_step_time_over_the_work_and_beside_the_base(tmp_path):
    points = [
        Point(ranks=1, base=True, compute_s=0.1),
        Point(ranks=4, threads=2, compute_s=0.1, transfer_s=0.1),
        Point(ranks=8, status="failed"),
    ]
    findings = summary_of(tmp_path / "run", points)
    alone, eight = findings.rows("costs")
    assert alone.core_s.value == pytest.approx(0.1, rel=1e-3)
    assert eight.core_s.value == pytest.approx(8 * 0.2, rel=1e-3)
    assert (eight.unit, eight.work) == ("sample", 16)
    assert eight.core_hours.value == pytest.approx(1e6 / 16 * 8 * 0.2 / 3600, rel=1e-3)
    efficiency = findings.case(eight.case).efficiency
    assert eight.relative.value == pytest.approx(1 / efficiency.value)
    assert (eight.relative.low, eight.relative.high) == pytest.approx(
        (1 / efficiency.high, 1 / efficiency.low)
    )
    (table,) = COSTS.tables(findings)
    assert [column.name for column in table.columns][2:5] == [
        "core time of a step",
        "core-hours for 1M samples",
        "cost over base",
    ]


def test_cost_without_a_base_is_beside_nothing(tmp_path):
    findings = summary_of(tmp_path / "run", [Point(ranks=2, scaling="throughput", compute_s=0.1)])
    (cost,) = findings.rows("costs")
    assert cost.relative is None
    (table,) = COSTS.tables(findings)
    assert "cost over base" not in {column.name for column in table.columns}
    assert not table.caption
