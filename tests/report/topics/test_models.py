"""Models in every kind of report, and on the command line."""

import csv
import io
import json
import math
import sys
from pathlib import Path

import pytest
from synthetic import Point, summary_of

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.stats import Estimate
from pscale.cli import main
from pscale.cli.predict import by_parts
from pscale.predict.engine import predict
from pscale.predict.profile import Profile, case_of
from pscale.report import drawing
from pscale.report.exports import csv_tables
from pscale.report.markup import render_markdown
from pscale.report.topics.cases import scaling_figure as scaling
from pscale.report.topics.predictions import tables as models

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "run"
    points = [
        Point(
            ranks=ranks, compute_s=6.4 / ranks + 0.05, transfer_s=0.004 * math.log2(ranks), scaling="strong"
        )
        for ranks in (1, 2, 4, 8, 16)
    ]
    return folder, summary_of(folder, points, steps=5)


@pytest.fixture
def report(folder, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pscale", "report", str(folder[0]), "--no-figures", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    return call


def test_a_size_is_asked_for_on_the_command_line_and_marked_where_it_is_far(report):
    code, shown = report("--predict", "32", "--predict", "1024")
    page = " ".join(shown.out.split())
    assert code == 0
    assert "Model (p: ranks; at 32 and 1,024*)" in page
    assert "First bottleneck: sync" in page
    assert "* more than 4 times the largest measured size (16)" in page
    assert "Amdahl: serial fraction" in page
    assert "contention" in page


def test_parts_and_law_stand_side_by_side_and_where_they_disagree_it_is_said(folder):
    _, summary = folder
    refused = row("projections", model=1, series="dp", ranks=128, refusal="it has no plan")
    agreeing = row("projections", model=1, ranks=32, answer="agree", checked_ranks=32,
                   step_s=Estimate(value=0.3, low=0.2, high=0.4))  # fmt: skip
    apart = row("projections", model=1, ranks=64, answer="disagree", checked_ranks=32,
                step_s=Estimate(value=0.5), first_loss="transfer", notes=("calls are free",))  # fmt: skip
    page = render_markdown(summary.replaced(projections=[agreeing, apart, refused]))
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}
    assert rows["32"].startswith("| 32 | 300 ms \\[200–400\\] |")
    assert rows["32"].endswith("| agree |")
    assert rows["64\\*"].startswith("| 64\\* | 500 ms | transfer |")
    assert rows["64\\*"].endswith("| disagree |")
    assert "On 64 ranks the two disagree" in page
    assert "Assumptions: calls are free" in page
    assert "no interval: no prediction for more than 32 ranks was checked." in page
    assert "| 128 | parts | it has no plan |" in page


def test_a_run_predicts_other_sizes_by_its_own_parts_and_says_where_it_cannot(monkeypatch, capsys):
    def call(name, *sizes):
        asked = [part for size in sizes for part in ("--predict", str(size))]
        monkeypatch.setattr(sys, "argv", ["pscale", "report", str(GALLERY / name), "-f", "json", *asked])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        document = json.loads(capsys.readouterr().out)
        return document["models"][0] | {"projected": document["projections"]}

    run = load(GALLERY / "communication")
    model = call("communication", 2, 64)
    measured, projected = model["projected"]
    again = predict(
        case_of(run, max(run.planned, key=lambda case: run.planned[case]["ranks"])), Profile.of_run(run)
    )
    assert measured["step_s"] == pytest.approx(again.step_s.value)
    assert measured["step_s_low"] < measured["step_s"] < measured["step_s_high"]
    assert (projected["checked_ranks"], projected["step_s_low"], projected["step_s_high"]) == (2, None, None)
    assert projected["step_s"] > measured["step_s"]
    assert model["refusal"].startswith("2 sizes measured")
    (untraced,) = call("weak", 8)["projected"]
    assert untraced["step_s"] is None
    assert "--set trace=true" in untraced["refusal"]


def test_the_law_beside_the_parts_is_that_of_the_size_and_not_of_the_line_in_the_figure(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setattr(Profile, "of_run", lambda _: None)
    monkeypatch.setattr("pscale.cli.predict._projected", lambda *_: {"step_s": Estimate(value=9.0)})
    run = load(path)
    monkeypatch.setitem(run.suite, "resolved", {"name": "any"})
    findings = by_parts(run, Findings(run, predict=[64]), [64])
    (law,) = (row for row in findings.rows("law_predictions") if row.part == "step" and not row.curve)
    (projection,) = findings.rows("projections")
    assert (projection.ranks, projection.law_s, projection.answer) == (64, law.time_s, "disagree")


def test_a_size_that_is_none_is_a_usage_error(report):
    code, shown = report("--predict", "0")
    assert code == 2
    assert "--predict" in shown.err


def test_csv_and_markdown_have_the_formula(folder):
    _, summary = folder
    rows = {row["part"]: row for row in csv.DictReader(io.StringIO(csv_tables(summary)["laws"]))}
    assert rows["sync"]["formula"] == "4 ms·log₂ p"
    assert "| sync | 4 ms·log₂ p |" in render_markdown(summary)
    predictions = list(csv.DictReader(io.StringIO(csv_tables(summary)["law_predictions"])))
    assert {row["size"] for row in predictions if row["curve"] == "False"} == {"32.0", "64.0"}
    laws = list(csv.DictReader(io.StringIO(csv_tables(summary)["named_laws"])))
    assert [row["law"] for row in laws] == ["amdahl", "usl"]


def test_what_was_asked_for_in_vain_is_reported_with_the_reason(tmp_path):
    points = [Point(ranks=ranks) for ranks in (1, 2)]
    summary_of(tmp_path / "run", points, steps=3)

    run = load(tmp_path / "run")
    assert list(models(Findings(run))) == []
    (table,) = models(Findings(run, predict=[1024]))
    ((_, values),) = table.rows
    assert values == ("dp", "1,024", "law", "2 sizes measured; a law needs at least 5")


def test_the_figure_has_the_law_dashed_with_a_band_to_four_times_the_largest_size(folder):
    _, summary = folder
    with drawing.styled():
        efficiency = scaling(summary).axes[0]
    ends = [max(line.get_xdata()) for line in efficiency.lines]
    assert max(ends) == 64
    assert len(efficiency.collections) == 1
    assert efficiency.get_xlim()[1] > 64
