"""The example reports show what docs/reports.md says of them, however they were measured last."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.report.brief import Answer, print_answers

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
FACTORS = ("load_balance", "serialisation", "transfer")


def shown(suite):
    """Return the summary of a run, and the factors of its cases on two ranks."""
    summary = Findings(load(GALLERY / suite))
    trees = summary.of_case("efficiency")
    two = [trees[point.case] for point in summary.rows("cases") if point.ranks == 2]
    return summary, [{name: getattr(tree, name).value for name in FACTORS} for tree in two]


def test_the_healthy_report_has_no_factor_that_stands_out_and_hides_most_of_its_exchange():
    summary, (factors,) = shown("weak")
    assert min(factors.values()) > 0.9
    (call,) = [call for call in summary.rows("calls") if call.verb == "all_reduce"]
    assert call.hidden_s > call.exposed_s


def test_the_imbalanced_report_names_the_late_rank_and_loses_balance_alone():
    summary, (healthy, injected) = shown("imbalanced")
    (verdict,) = [verdict for verdict in summary.rows("verdicts") if "injected" in verdict.series]
    assert verdict.cause == "imbalance"
    assert verdict.meaning.startswith("Rank 1")
    assert "mostly in backward" in verdict.meaning
    assert min(injected, key=injected.__getitem__) == "load_balance"
    assert healthy["load_balance"] > injected["load_balance"] + 0.08


@pytest.mark.parametrize("width", [80, 100, 130])
def test_the_imbalanced_report_names_the_late_rank_in_brief(width):
    console = Console(file=io.StringIO(), width=width)
    print_answers([Answer.of(Findings(load(GALLERY / "imbalanced")), "page")], console)
    said = " ".join(console.file.getvalue().split())
    assert "injected 20 ms in backward of rank 1: The main loss is load imbalance" in said
    assert "load imbalance" in said
    assert "Rank 1 on" in said
    assert "healthy: The main loss is undecided: probably transfer" in said
    assert "it trains" in said
    assert said.count("20 ms in backward of rank 1") == 2, "in the name of the series and in what it costs"


def test_the_communication_bound_report_loses_transfer_most():
    summary, (factors,) = shown("communication")
    assert min(factors, key=factors.__getitem__) == "transfer"
    (verdict,) = summary.rows("verdicts")
    assert verdict.cause == "transfer"
    assert ("larger batches" in verdict.advice) is verdict.firm
    assert factors["transfer"] < factors["load_balance"] - 0.05


def test_the_report_on_pipelines_names_no_straggler_for_the_bubble():
    summary, factors = shown("pipeline")
    assert min(each["serialisation"] for each in factors) < 0.9, "there is a bubble"
    assert summary.rows("stragglers") == []


def test_the_report_on_time_to_loss_says_from_which_batch_on_a_second_rank_does_not_pay():
    rows = Findings(load(GALLERY / "time_to_loss")).rows("time_to_loss")
    assert {row.seeds for row in rows} == {8}
    assert {row.batch: row.answer for row in rows if row.ranks == 2} == {
        8: "undecided",
        16: "undecided",
        32: "slower",
    }
