"""Evaluation under a real MPI: the serial loss of held-out text, with the calls that were predicted."""

import pytest
from whole_runs import SMALL_TEXT, TINY

SUITE = f"""
name: plans
scaling: strong
model: {{kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}}
data: {{kind: text, source: "{SMALL_TEXT}"}}
train: {{batch: 8, micro_batches: 2, lr: 1.0e-2, clip: 0.5, evaluate: {{every: 5, batches: 2}}}}
ranks: 4
launch: {{oversubscribe: true, time_limit: 10m}}
sweep:
  cases:
  - {{tp: 2, sp: true, zero: 3}}
  - {{pp: 2, schedule: interleaved, virtual_stages: 2, zero: 1}}
  - {{pp: 4, schedule: zero-bubble, micro_batches: 4}}
  - {{model.kind: moe, ep: 2, cp: 2, micro_batches: 1}}
"""


def test_a_run_evaluates_between_its_steps_and_reports_the_loss(cli):
    train = next(line for line in TINY.splitlines() if line.startswith("train"))
    suite = TINY.replace(train, train.replace("clip: 0.5", "clip: 0.5, evaluate: {every: 4, batches: 2}"))
    one, two = cli.run(cli.suite(suite), "--set", "sweep.ranks=[1, 2]", report=True).rows("cases")
    assert one["validation_steps"] == two["validation_steps"] == [4, 8]
    assert one["validation_losses"] == pytest.approx(two["validation_losses"], rel=1e-12)
    assert one["validation_losses"][1] < one["validation_losses"][0]
    assert one["evaluate_s"] > 0
    assert "Time to a validation loss of" in (cli.newest().folder / "report.md").read_text()


@pytest.mark.slow
def test_every_plan_evaluates_as_one_rank_and_makes_the_calls_that_were_predicted(cli):
    verdicts = cli.verify(cli.suite(SUITE), code=None)
    assert {verdict["label"]: verdict["reason"] for verdict in verdicts if not verdict["passed"]} == {}
    assert all(
        any(axis.startswith("evaluation") for _, axis, *_ in verdict["counted"]) for verdict in verdicts
    )
