"""Cases that differ in optimizer, beside the one that learned most and the fastest one."""

import pytest
from synthetic import SHARES, Point, summary_of

from pscale.config import Plan
from pscale.report.exports import csv_tables
from pscale.report.grids_optimizers import optimizers

MIB = 1 << 20
KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")


def point(label, optimizer, last, state=0, plan=Plan(dp=2), *, lr=1e-3, compute_s=0.1):  # noqa: B008
    return Point(
        ranks=2,
        series=label,
        label=label,
        plan=plan,
        compute_s=compute_s,
        scaling="throughput",
        train={"optimizer": optimizer, "lr": lr},
        row={"loss_first": 5.0, "loss_last": last, "losses": [5.0] * 19 + [last]},
        rank_row={f"{kind}_bytes": MIB for kind in KINDS} | {"optimizer_bytes": state},
    )


def test_loss_state_update_and_step_are_beside_those_of_the_other_optimizers_of_the_same_plan(tmp_path):
    sharded = Plan(dp=2, zero=2)
    points = [
        point("a", "sgd", 3.0, 4 * MIB),
        point("b", "sgd", 3.0, 2 * MIB, plan=sharded),
        point("c", "adamw", 2.0, 8 * MIB, lr=2e-3, compute_s=0.2),
        point("d", "adamw", 2.4, 4 * MIB, plan=sharded),
        point("e", "adamw", 1.0, plan=Plan(pp=2)),
    ]
    summary = summary_of(tmp_path / "run", points)
    whole, moments, of_share, _ = summary.optimizers
    assert (whole.optimizer, whole.loss_more, whole.step_ratio) == ("sgd", 0.5, 1)
    assert (moments.optimizer, moments.lr, moments.loss_more) == ("adamw", 2e-3, 0)
    assert moments.step_ratio == pytest.approx(2, rel=0.01)
    assert moments.update_s == moments.update_compute_s == pytest.approx(0.2 * SHARES["update"])
    assert of_share.loss_more == pytest.approx(0.25), "beside the optimizers that have a share of their state"
    (grid,) = optimizers(summary)
    places = [grid.columns.index(column) for column in grid.columns if column.name in ("case", "state")]
    shown = [tuple(cells[place] for place in places) for _, cells in grid.rows]
    assert shown == [("a", "4 MiB"), ("c", "8 MiB"), ("b", "2 MiB"), ("d", "4 MiB")]
    assert "adamw" in csv_tables(summary)["optimizers"]


def test_rates_of_one_optimizer_are_no_optimizers(tmp_path):
    points = [point("a", "sgd", 2.0, lr=0.03), point("b", "sgd", 2.1, lr=0.1)]
    assert not [*optimizers(summary_of(tmp_path / "run", points))]
