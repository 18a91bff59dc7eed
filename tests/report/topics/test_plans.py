"""The tables and figures of plans side by side."""

import csv
import io

import pytest
from synthetic import Point, summary_of

from pscale.analysis.columns import row
from pscale.config import Plan
from pscale.report import drawing
from pscale.report.exports import csv_tables
from pscale.report.topics import TOPICS, experts, pipeline, resources, variants
from pscale.report.topics.cases import figure as scaling
from pscale.report.topics.problems import warnings

KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")
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
    assert "predicted only" in table.caption


def test_bubbles_and_experts_have_tables_of_their_own(compared):
    (bubbles,) = pipeline.tables(compared)
    assert [(row["case"], row["predicted"]) for row in texts(bubbles)] == [("b", "25.0%")]
    (use,) = experts.tables(compared)
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
    assert {row["plan"] for row in csv.DictReader(io.StringIO(csv_tables(compared)["ranking"]))} == {"a", "b"}
