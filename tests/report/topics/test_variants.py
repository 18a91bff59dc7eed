"""The tables and figures of plans side by side."""

import csv
import io
import json

import numpy as np
import pytest
from synthetic import BYTES, SHARES, Point, summary_of

from pscale.analysis import messages
from pscale.analysis.columns import row
from pscale.config import Plan
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.report import drawing
from pscale.report.exports import csv_tables, render_json
from pscale.report.topics import TOPICS, resources, steps, training, variants
from pscale.report.topics.cases import scaling_figure as scaling
from pscale.report.topics.problems import warnings
from pscale.report.topics.variants import COMPRESSION, COSTS, OFFLOAD, ON_TIME, OPTIMIZERS, PRECISION, SAVED

MIB = 1 << 20


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    predicted = {"peak_memory_rank": 0, **{f"predicted_{kind}_bytes": 40 * MIB for kind in KINDS}}
    counted = {f"{kind}_bytes": 40 * MIB for kind in KINDS} | {"exchange_bytes": 50 * MIB}
    held = {
        **counted,
        "peak_rss_bytes": 320 * MIB,
        "baseline_rss_bytes": 100 * MIB,
        "peak_rss_of_steps": True,
    }
    points = [
        Point(
            ranks=2,
            scaling="throughput",
            series=label,
            label=label,
            plan=plan,
            transfer_s=transfer_s,
            plan_row=predicted,
            row={"predicted_bubble": 0.25, "dropped_share": 0.125, "expert_imbalance": 1.5},
            rank_row=held | {"cpus": "0"},
        )
        for label, plan, transfer_s in (("a", Plan(dp=2), 0.0), ("b", Plan(pp=2), 0.1))
    ]
    refused = Point(ranks=2, series="c", label="c", status="skipped", reason="no room", plan_row=predicted)
    return summary_of(tmp_path_factory.mktemp("compared") / "run", [*points, refused])


def texts(table):
    names = [column.name for column in table.columns]
    return [dict(zip(names, cells, strict=True)) for _, cells in table.texts()]


def test_all_cases_are_in_one_table_of_each_kind_and_the_ranking_comes_first(compared):
    tables = [table for topic in TOPICS for table in topic.tables(compared)]
    titles = [table.title for table in tables]
    assert titles[0] == "Which plan is fastest"
    assert len(titles) == len(set(titles))
    assert not any(":" in title for title in titles)
    for table in tables:
        assert all(len(values) == len(table.columns) for _, values in table.rows)


def test_the_ranking_shows_how_much_slower_and_why(compared):
    (table,) = variants.ranking(compared)
    first, second = texts(table)
    assert (first["plan"], first["× fastest"], first["largest loss"]) == ("a", "1", "none")
    assert (second["plan"], second["× fastest"], second["largest loss"]) == ("b", "2", "exchange 50%")


def test_memory_is_shown_predicted_beside_counted_beside_measured(compared):
    (table,) = resources.MEMORY.tables(compared)
    first, _, refused = texts(table)
    assert first["exchange"] == "50 MiB (40 MiB)", "counted, and in brackets what was predicted instead"
    assert (first["predicted"], first["counted"], first["measured"]) == ("200 MiB", "210 MiB", "220 MiB")
    assert first["of predicted"] == "110%"
    assert (refused["predicted"], refused["counted"], refused["measured"]) == ("200 MiB", "skipped", "-")
    assert [tone for tone, _ in table.rows] == ["", "", "pending"]
    assert (compared.complete, compared.rows("failures")) == (True, []), "a case without room is no failure"
    assert "predicted only" in table.caption


def test_bubbles_and_experts_have_tables_of_their_own(compared):
    (bubbles,) = steps.PIPELINE.tables(compared)
    assert [(row["case"], row["predicted"]) for row in texts(bubbles)] == [("b", "25.0%")]
    (use,) = training.EXPERTS.tables(compared)
    assert texts(use)[0]["dropped choices"] == "12.5%"
    assert texts(use)[0]["busiest expert"] == "1.50 × mean"


def warning(kind, case, said):
    return row("warnings", kind=kind, case=case, label=case and f"case {case}", text=said)


def test_what_many_cases_suffer_from_is_said_once_with_the_figures_of_one():
    said = warnings(
        [
            warning("hosts", "", "two nodes"),
            warning("load", "a", "load 9"),
            warning("others", "a", "other work"),
            warning("straggler", "a", "rank 3 is late"),
            warning("load", "b", "load 12"),
            warning("others", "b", "other work"),
            warning("straggler", "b", "rank 1 is late"),
        ]
    )
    assert said == [
        ("", "two nodes"),
        ("2 cases, such as case a", "load 9"),
        ("2 cases", "other work"),
        ("case a", "rank 3 is late"),
        ("case b", "rank 1 is late"),
    ]


def test_plans_and_memory_are_drawn_in_place_of_a_scaling_that_there_is_not(compared):
    with drawing.styled():
        assert scaling(compared) is None
        bars = variants.ranking_figure(compared).axes[0]
        assert [tick.get_text() for tick in bars.get_yticklabels()] == ["a", "b"]
        assert "ranks share cores" in variants.ranking_figure(compared).get_suptitle()
        drawn = resources.figure(compared)
        assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == ["a", "b", "c"]
        labels = [text.get_text() for text in drawn.axes[0].texts]
        assert labels == ["220 MiB", "220 MiB", "200 MiB, predicted"], "each beside its mark"


def test_the_rank_of_a_prediction_that_names_none_is_unknown(tmp_path):
    predicted = {f"predicted_{kind}_bytes": 40 * MIB for kind in KINDS} | {"peak_memory_rank": None}
    (row,) = summary_of(tmp_path / "run", [Point(ranks=2, plan_row=predicted)]).rows("memory")
    assert (row.rank, row.predicted_bytes) == (None, 200 * MIB)


def test_the_csv_of_memory_has_a_column_for_every_kind_predicted_and_counted(compared):
    rows = list(csv.DictReader(io.StringIO(csv_tables(compared)["memory"])))
    assert rows[0]["predicted_exchange_bytes"] == str(40 * MIB)
    assert rows[0]["counted_exchange_bytes"] == str(50 * MIB)
    assert rows[2]["counted_exchange_bytes"] == ""
    assert {row["name"] for row in csv.DictReader(io.StringIO(csv_tables(compared)["ranking"]))} == {"a", "b"}


# Cases that differ in one choice alone, beside the one without it


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


def cells(topic, summary, *names):
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
    plain, topk = rows(summary, "choices")
    assert (plain["sent_ratio"], plain["step_ratio"], plain["loss_more"]) == (1, 1, 0)
    assert (topk["choice"], topk["setting"], topk["sent_bytes"]) == ("compression", "topk", BYTES)
    assert (topk["step_ratio"], topk["loss_more"]) == pytest.approx((2, 0.25), rel=0.01)
    assert topk["sync_compute_s"] == 0
    losses = cells(COMPRESSION, summary, "case", "loss", "more")
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
    plain, narrow = rows(summary, "choices")
    assert [plain[f"{name}_ratio"] for name in ("sent", "held", "step")] == [1, 1, 1]
    assert (narrow["setting"], narrow["sent_bytes"], narrow["held_bytes"]) == ("bf16", BYTES, 600)
    assert (narrow["held_ratio"], narrow["loss_more"]) == pytest.approx((0.6, 0.05))
    assert narrow["step_ratio"] == pytest.approx(2, rel=0.01)
    assert cells(PRECISION, summary, "case", "held") == [("a", "1000 B"), ("b", "600 B")]
    assert ON_TIME in next(iter(PRECISION.tables(summary))).caption


def test_memory_and_what_is_moved_are_beside_those_without_offload(tmp_path):
    def point(label, offload, peak, last=2.0):
        counted = {f"{kind}_bytes": MIB for kind in KINDS} | {"offloaded_bytes": 4 * MIB if peak < 9 else 0}
        held = counted | {"peak_rss_bytes": peak * MIB, "baseline_rss_bytes": MIB, "peak_rss_of_steps": True}
        return case(label, last, plan=Plan(dp=2, offload=offload), rank_row=held)

    summary = summary_of(tmp_path / "run", [point("a", "none", 9), point("b", "optimizer", 5)])
    plain, offloaded = rows(summary, "choices")
    assert (plain["memory_ratio"], offloaded["memory_ratio"]) == (1, 0.5)
    assert (offloaded["setting"], offloaded["file_bytes"]) == ("optimizer", 4 * MIB)
    assert (offloaded["read_bytes"], offloaded["stall_s"], offloaded["bytes_per_s"]) == (0, 0, None)
    assert cells(OFFLOAD, summary, "case", "memory", "× none")[1] == ("b", "4 MiB", "0.5")


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
    whole, moments, of_share, _ = rows(summary, "choices")
    assert (whole["setting"], whole["loss_more"], whole["step_ratio"]) == ("sgd", 0.5, 1)
    assert (moments["setting"], moments["lr"], moments["loss_more"]) == ("adamw", 2e-3, 0)
    assert moments["step_ratio"] == pytest.approx(2, rel=0.01)
    assert moments["update_s"] == moments["update_compute_s"] == pytest.approx(0.2 * SHARES["update"])
    assert of_share["loss_more"] == pytest.approx(0.25), "beside those that have a share of their state"
    assert cells(OPTIMIZERS, summary, "case", "state") == [
        *(("a", "4 MiB"), ("c", "8 MiB"), ("b", "2 MiB"), ("d", "4 MiB"))
    ]


def test_loading_by_one_rank_is_beside_loading_by_every_rank(tmp_path):
    def point(label, load_by, load_s, **train):
        row = {"save_s": 0.5, "saved_bytes": 4 * MIB, "load_s": load_s}
        return Point(ranks=2, series=label, label=label, train={"load_by": load_by, **train}, row=row)

    summary = summary_of(
        tmp_path / "run",
        [point("a", "read", 0.2), point("b", "broadcast", 0.4), point("cc", "read", None)],
    )
    for_itself, by_one, saves_only = rows(summary, "saved")
    assert (for_itself["load_s"], for_itself["load_ratio"], for_itself["answer"]) == (0.2, 1, "")
    assert (by_one["load_s"], by_one["load_ratio"], by_one["answer"]) == (0.4, 2, "slower")
    (said,) = (headline.text for headline in summary.answers)
    assert said.startswith("Loading a saved state takes 400 ms, 2 times as long as where every rank reads")
    assert said.endswith(": slower.")
    assert (saves_only["save_s"], saves_only["saved_bytes"], saves_only["load_s"]) == (0.5, 4 * MIB, None)


def trainings(*known):
    """Return points of (ranks, batch, seed, step time, steps, validation losses)."""
    return [
        Point(
            ranks=ranks,
            series="s",
            label=f"{ranks} {batch} {seed}",
            scaling="strong",
            noise=0.0,
            launch_noise=0.0,
            compute_s=step_s,
            train={"batch": batch, "seed": seed},
            row={"validation_losses": losses, "validation_steps": steps},
        )
        for ranks, batch, seed, step_s, steps, losses in known
    ]


def test_time_to_loss_is_steps_on_a_line_between_evaluations_times_the_step_time(tmp_path):
    steps = [10, 20, 30]
    points = trainings(
        *((1, 8, seed, 0.2, steps, [5.0, 4.0, 3.0 + seed / 1000]) for seed in range(3)),
        *((2, 8, seed, 0.05, steps, [5.0, 3.9 + seed / 1000, 2.0]) for seed in range(3)),
        *((2, 64, seed, 0.2, steps, [5.0, 4.0, 3.0 + seed / 1000]) for seed in range(3)),
    )
    one, small, large = rows(summary_of(tmp_path / "run", points), "time_to_loss")
    assert {each["target"] for each in (one, small, large)} == {3.002}, "all of them reach it"
    assert one["to_loss_steps"] == pytest.approx(np.mean([29.98, 29.99, 30.0]), rel=1e-3)
    assert one["to_loss_s"] == pytest.approx(29.99 * 0.2, rel=0.02)
    assert small["to_loss_steps"] == pytest.approx(20 + 10 * 0.898 / 1.9, rel=1e-2)
    assert small["to_loss_core_hours"] == pytest.approx(2 * small["to_loss_s"] / 3600)
    assert (one["answer"], small["answer"], large["answer"]) == ("", "faster", "equal")
    assert small["over"] == pytest.approx(small["to_loss_s"] / one["to_loss_s"])


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            {8: "faster", 16: "slower", 32: "equal"},
            "From a batch of 16 on, more ranks reach a validation loss of 2.5 no sooner.",
        ),
        ({8: "faster", 16: "undecided"}, "Undecided"),
        (
            {8: "slower", 16: "faster"},
            "Up to a batch of 16, more ranks reach a validation loss of 2.5 sooner.",
        ),
        ({8: ""}, ""),
    ],
)
def test_the_batch_from_which_more_ranks_stop_paying_is_named_where_it_is_decided(answers, said):
    found = messages.stops_paying(
        [row("time_to_loss", batch=batch, answer=answer, target=2.5) for batch, answer in answers.items()]
    )
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("topic", [COMPRESSION, PRECISION, OFFLOAD, OPTIMIZERS, SAVED])
def test_a_run_without_a_choice_has_no_such_table(topic, tmp_path):
    train = [{"optimizer": "sgd", "lr": lr} for lr in (0.03, 0.1)]
    summary = summary_of(tmp_path / "run", [case("a", train=train[0]), case("b", train=train[1])])
    assert not [*topic.tables(summary)]


# What cases cost: core time, and core-hours for their work


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
