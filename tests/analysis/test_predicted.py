"""Predictions count if they were made before the launches, as they were made then."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.predictions import machine_of, score, score_in
from pscale.report.markdown import render_markdown
from pscale.runs import predictions
from pscale.runs.predictions import Predicted

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture
def run(tmp_path):
    shutil.copytree(GALLERY / "pipeline", tmp_path / "pipeline" / "run")
    return load(tmp_path / "pipeline" / "run")


def made(run, *, before_s, step_s=0.1, width=2.0):
    row = run.cases.iloc[0]
    return Predicted(
        case=str(row["case"]),
        label="any",
        ranks=int(row["ranks"]),
        made_unix_s=float(run.cases["started_unix_s"].min()) - before_s,
        step_s=step_s,
        low_s=step_s / width,
        high_s=step_s * width,
        losses_s={"compute": 0.7 * step_s, "bubble": 0.2 * step_s, "jitter": 0.1 * step_s},
        quantiles_s=[step_s],
        checked_ranks=2,
        notes=[],
        inputs={},
    )


def test_the_last_prediction_before_the_first_launch_is_beside_what_was_measured(run):
    folder = run.path.parent
    assert Findings(run).predicted.empty
    predictions.add(folder, [made(run, before_s=20, step_s=1.0), made(run, before_s=10)])
    predictions.add(folder, [made(run, before_s=-1000, step_s=5.0)])  # after all launches had begun
    findings = Findings(run)
    (found,) = findings.rows("predicted")
    steps_s = run.cases.loc[run.cases["case"] == found.case, "step_s"]
    assert found.predicted_s == 0.1
    assert found.measured_s == pytest.approx(steps_s.median())
    assert found.error == pytest.approx(0.1 / steps_s.median() - 1)
    assert found.inside == found.launches == len(steps_s)
    kinds = {time.kind: time for time in findings.rows("predicted_kinds")}
    assert kinds["wait"].predicted_s == pytest.approx(0.03)
    assert kinds["compute"].measured_s > kinds["wait"].measured_s > 0


def test_kinds_that_the_clocks_do_not_tell_are_unknown_beside_their_prediction(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    findings = Findings(replace(run, phases=run.phases.assign(wait_or_transfer_s=1e-3)))
    measured_s = {time.kind: time.measured_s for time in findings.rows("predicted_kinds")}
    assert measured_s["wait"] is None
    assert measured_s["compute"] > 0
    assert "30 ms → unknown" in render_markdown(findings)


def test_a_report_reads_the_record_once(run, monkeypatch):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    reads = []
    monkeypatch.setattr("pscale.analysis.predictions.read", lambda folder: reads.append(folder) or [])
    render_markdown(Findings(run))
    assert len(reads) == 1


def test_a_report_has_both_and_the_score(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    summary = Findings(run)
    (found,) = summary.rows("prediction_score")
    said = render_markdown(summary)
    assert "Predicted beside measured" in said
    score_row = f"| {found.cases} | {found.mean_error:.1%} | {found.largest_error:.1%} |"
    assert f"{score_row} {found.inside} of {found.launches} |" in said


def test_the_score_sums_launches_and_has_the_mean_and_the_largest_error_whatever_their_signs():
    held = {"launches": 3, "inside": 2}
    rows = [row("predicted", error=-0.3, ranks=2, **held), row("predicted", error=0.1, ranks=8, **held)]
    (found,) = score(rows)
    assert found == {
        "cases": 2,
        "largest_ranks": 8,
        "mean_error": pytest.approx(0.2),
        "largest_error": 0.3,
        "launches": 6,
        "inside": 4,
    }
    assert not [*score([])]


def test_the_score_counts_runs_of_the_same_machine_alone(run, tmp_path):
    predictions.add(run.path.parent, [made(run, before_s=10, width=1.001)])
    found = score_in(tmp_path, machine_of(run))
    assert (found.cases, found.inside) == (1, 0)
    assert score_in(tmp_path, ("elsewhere", "another")) is None


def test_a_prediction_that_was_changed_afterwards_does_not_count(run):
    file = predictions.add(run.path.parent, [made(run, before_s=10)])
    document = json.loads(file.read_text())
    document["predictions"][0]["made_unix_s"] -= 1
    file.write_text(json.dumps(document))
    assert Findings(run).predicted.empty


def test_the_measured_time_is_that_of_launches_that_ended_well(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    cases = run.cases.copy()
    cases.loc[cases.index[0], "status"] = "failed"
    (found,) = Findings(replace(run, cases=cases)).rows("predicted")
    assert found.launches == len(cases[cases["case"] == found.case]) - 1
