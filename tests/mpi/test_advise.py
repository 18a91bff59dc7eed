"""The best plans measured on the spot, as a run that says what was predicted."""

import pytest

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.runs.predictions import read

pytestmark = pytest.mark.slow

SUITE = """
name: small
scaling: weak
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}
data: {kind: synthetic}
train: {batch: 4, micro_batches: 2, steps: 4, warmup: 1}
plan: {dp: ranks}
sweep: {ranks: [1, 2]}
repeat: 2
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 10m}
"""


def test_the_plan_that_is_measured_fastest_is_the_one_to_paste(plans, cli):
    asked = ("--from", plans.folder, "--ranks", "2", "--measure", "2", "--reports", cli.reports)
    said = cli.call("advise", cli.suite(SUITE), *asked).stdout
    run = load(cli.newest().folder)
    assert len(run.cases) == 4
    assert {case["train"]["batch"] for case in run.planned.values()} == {8}
    summary = Findings(run)
    fastest = min(summary.rows("cases"), key=lambda point: point.step_s.value)
    plan = run.planned[fastest.case]["plan"]
    last = said.splitlines()[-1]
    assert last.startswith(f"plan: {{dp: {plan['dp']}")
    assert ("pp: 2" in last) == (plan["pp"] == 2)
    assert len(summary.predicted) == 2
    assert "Regret" in said


def test_the_best_five_are_predicted_again_from_ranks_alone(plans, cli):
    asked = ("--from", plans.folder, "--ranks", "2", "--probe", "2s", "--measure", "0")
    said = cli.call("advise", cli.suite(SUITE), *asked, "--reports", cli.reports).stdout
    assert "computing is measured" in " ".join(said.split())
    (file,) = cli.reports.rglob("*.prediction.json")
    measured = [
        any("is measured" in note for note in each.notes) for each in read(cli.reports / "small-advice")
    ]
    assert sum(measured) == 5
    assert file.name == "small-advice.prediction.json"
