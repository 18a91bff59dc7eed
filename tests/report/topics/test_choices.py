"""Cases that differ in one choice alone, beside the one without it."""

import csv
import io
import json

import pytest
from synthetic import BYTES, SHARES, Point, summary_of

from pscale.config import Plan
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.report.exports import csv_tables, render_json
from pscale.report.topics.choices import COMPRESSION, OFFLOAD, ON_TIME, OPTIMIZERS, PRECISION

MIB = 1 << 20


def case(label, last=2.0, compute_s=0.1, plan=Plan(dp=2), **settings):
    row = {"loss_first": 5.0, "loss_last": last, "losses": [5.0] * 19 + [last]}
    settings = {"scaling": "strong", "row": row} | settings
    return Point(ranks=plan.ranks, series=label, label=label, plan=plan, compute_s=compute_s, **settings)


def rows(summary, name):
    """Return the rows of a table for programs, numbers as numbers: those of CSV are those of JSON."""
    found = json.loads(render_json(summary))[name]
    of_csv = list(csv.DictReader(io.StringIO(csv_tables(summary)[name])))
    written = [{key: "" if value is None else str(value) for key, value in row.items()} for row in found]
    assert of_csv == written
    return found


def texts(topic, summary, *names):
    (table,) = topic.tables(summary)
    places = [[column.name for column in table.columns].index(name) for name in names]
    return [tuple(cells[place] for place in places) for _, cells in table.texts()]


def test_bytes_time_and_loss_are_beside_those_without_compression(tmp_path):
    points = [
        case("a"),
        case("b", 2.5, 0.2, Plan(dp=2, compression="topk", compression_share=0.1)),
        case("c", plan=Plan(dp=2, tp=2)),
    ]
    summary = summary_of(tmp_path / "run", points)
    plain, topk = rows(summary, "compressed")
    assert (plain["sent_ratio"], plain["step_ratio"], plain["loss_more"]) == (1, 1, 0)
    assert (topk["compression"], topk["sent_bytes"]) == ("topk", BYTES)
    assert (topk["step_ratio"], topk["loss_more"]) == pytest.approx((2, 0.25), rel=0.01)
    assert topk["sync_compute_s"] == 0
    losses = texts(COMPRESSION, summary, "case", "loss", "more")
    assert losses == [("a", "2", "+0.0%"), ("b", "2.5", "+25.0%")]


def test_bytes_memory_time_and_loss_are_beside_those_of_float32_and_why_time_is_no_saving(tmp_path):
    def point(label, dtype, held, last, **settings):
        predicted = {"peak_memory_rank": 0} | {f"predicted_{kind}_bytes": held for kind in KINDS}
        compute_s = 0.1 if dtype == "float32" else 0.2
        return case(label, last, compute_s, dtype=dtype, plan_row=predicted, **settings)

    points = [
        point("a", "float32", 200, 2.0),
        point("b", "bf16", 120, 2.1),
        point("c", "float32", 100, 2.0, plan=Plan(dp=2, tp=2)),
    ]
    summary = summary_of(tmp_path / "run", points)
    plain, narrow = rows(summary, "precision")
    assert [plain[f"{name}_ratio"] for name in ("sent", "held", "step")] == [1, 1, 1]
    assert (narrow["precision"], narrow["sent_bytes"], narrow["held_bytes"]) == ("bf16", BYTES, 600)
    assert (narrow["held_ratio"], narrow["loss_more"]) == pytest.approx((0.6, 0.05))
    assert narrow["step_ratio"] == pytest.approx(2, rel=0.01)
    assert texts(PRECISION, summary, "case", "held") == [("a", "1000 B"), ("b", "600 B")]
    assert ON_TIME in next(iter(PRECISION.tables(summary))).caption


def test_memory_and_what_is_moved_are_beside_those_without_offload(tmp_path):
    def point(label, offload, peak, last=2.0):
        counted = {f"{kind}_bytes": MIB for kind in KINDS} | {"offloaded_bytes": 4 * MIB if peak < 9 else 0}
        held = counted | {"peak_rss_bytes": peak * MIB, "baseline_rss_bytes": MIB, "peak_rss_of_steps": True}
        return case(label, last, plan=Plan(dp=2, offload=offload), rank_row=held)

    summary = summary_of(tmp_path / "run", [point("a", "none", 9), point("b", "optimizer", 5)])
    plain, offloaded = rows(summary, "offloaded")
    assert (plain["memory_ratio"], offloaded["memory_ratio"]) == (1, 0.5)
    assert (offloaded["offload"], offloaded["file_bytes"]) == ("optimizer", 4 * MIB)
    assert (offloaded["read_bytes"], offloaded["stall_s"], offloaded["bytes_per_s"]) == (0, 0, None)
    assert texts(OFFLOAD, summary, "case", "memory", "× none")[1] == ("b", "4 MiB", "0.5")


def test_loss_state_update_and_step_are_beside_those_of_the_other_optimizers_of_the_same_plan(tmp_path):
    def point(label, optimizer, last, state=0, plan=Plan(dp=2), *, lr=1e-3, compute_s=0.1):
        settings = {"scaling": "throughput", "train": {"optimizer": optimizer, "lr": lr}}
        held = {f"{kind}_bytes": MIB for kind in KINDS} | {"optimizer_bytes": state}
        return case(label, last, compute_s, plan, rank_row=held, **settings)

    sharded = Plan(dp=2, zero=2)
    points = [
        point("a", "sgd", 3.0, 4 * MIB),
        point("b", "sgd", 3.0, 2 * MIB, plan=sharded),
        point("c", "adamw", 2.0, 8 * MIB, lr=2e-3, compute_s=0.2),
        point("d", "adamw", 2.4, 4 * MIB, plan=sharded),
        point("e", "adamw", 1.0, plan=Plan(pp=2)),
    ]
    summary = summary_of(tmp_path / "run", points)
    whole, moments, of_share, _ = rows(summary, "optimizers")
    assert (whole["optimizer"], whole["loss_more"], whole["step_ratio"]) == ("sgd", 0.5, 1)
    assert (moments["optimizer"], moments["lr"], moments["loss_more"]) == ("adamw", 2e-3, 0)
    assert moments["step_ratio"] == pytest.approx(2, rel=0.01)
    assert moments["update_s"] == moments["update_compute_s"] == pytest.approx(0.2 * SHARES["update"])
    assert of_share["loss_more"] == pytest.approx(0.25), "beside those that have a share of their state"
    assert texts(OPTIMIZERS, summary, "case", "state") == [
        *(("a", "4 MiB"), ("c", "8 MiB"), ("b", "2 MiB"), ("d", "4 MiB"))
    ]


@pytest.mark.parametrize("topic", [COMPRESSION, PRECISION, OFFLOAD, OPTIMIZERS])
def test_a_run_without_a_choice_has_no_such_table(topic, tmp_path):
    train = [{"optimizer": "sgd", "lr": lr} for lr in (0.03, 0.1)]
    summary = summary_of(tmp_path / "run", [case("a", train=train[0]), case("b", train=train[1])])
    assert not [*topic.tables(summary)]
