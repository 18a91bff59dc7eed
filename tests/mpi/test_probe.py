"""Ranks alone do what they do among others, and a launch of them measures what is to be predicted."""

import json
from dataclasses import replace

import pytest
from dry_runs import predicted_program, recorded_program
from lone_ranks import alone, recorder_of
from plans import TEXT, on_plan
from training.test_dry_run import CASES, named

from pscale.analysis.frames import load
from pscale.config import Plan
from pscale.launch.machine import inspect
from pscale.predict.probe import kinds_of

pytestmark = pytest.mark.slow

DENSE = """
name: dense
scaling: throughput
model: {kind: gpt, layers: 2, width: 32, heads: 4, sequence: 32, vocabulary: 257}
data: {kind: synthetic}
train: {batch: 8, steps: 6, warmup: 1}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0, trace: true}
launch: {time_limit: 10m}
"""
NETWORK = "tiers: [{name: node, ranks: 64, latency: 2us, bandwidth: 10GB/s}]"
FILES = replace(TEXT, data=replace(TEXT.data, loading="files"))
TRAINED = [case for case in CASES if case.model.kind != "collectives"]
PIPED = on_plan(TEXT, Plan(pp=2, schedule="interleaved", virtual_stages=1, dp=2), 4)


@pytest.mark.parametrize("case", [*TRAINED, PIPED, on_plan(FILES, Plan(dp=2, tp=2))], ids=named)
def test_a_rank_alone_does_in_order_what_its_program_says(case, tmp_path):
    for kind in kinds_of(case):
        recorder = recorder_of(case)
        alone(kind, 0, tmp_path / kind.name, recorder)
        found = recorded_program(recorder, case.plan, kind.rank, step=3)
        assert calls(found) == calls(predicted_program(kind.case, kind.rank))


def calls(phases):
    """Return phases without copies, of which MPI makes some more."""
    return [(*which, [event for event in done if event[0] != "copy"]) for *which, done in phases]


def predicted(cli, suite, *words):
    """Return what is predicted of a suite."""
    return json.loads(cli.call("predict", suite, *words, "--reports", cli.reports, "--json").stdout)


def test_a_batch_that_no_run_had_is_measured_and_not_extrapolated(cli):
    suite = cli.suite(DENSE)
    run = cli.run(suite)
    larger = (suite, "--from", run.folder, "--set", "train.batch=64")
    (blind,) = predicted(cli, *larger)["cases"]
    assert any("extrapolated" in note for note in blind["notes"])
    (seen,) = predicted(cli, *larger, "--probe", "2s")["cases"]
    assert not any("extrapolated" in note for note in seen["notes"])
    assert any("computing is measured" in note for note in seen["notes"])
    assert seen["step_s"]["low"] <= seen["step_s"]["value"] <= seen["step_s"]["high"]
    assert seen["losses_s"]["compute"] == pytest.approx(seen["step_s"]["value"])
    assert load(run.folder).path == run.folder  # nothing of the probes is left among runs


def test_plans_are_predicted_on_a_network_without_any_run(cli):
    (cli.folder / "network.yaml").write_text(NETWORK)
    plans = "ranks: 2\nsweep: {cases: [{pp: 2}, {dp: 2, zero: 3}, {tp: 2, sp: true}]}\n"
    suite = cli.suite(f"{DENSE}{plans}".replace("batch: 8,", "batch: 8, micro_batches: 2,"))
    document = predicted(cli, suite, "--probe", "6s", "--network", cli.folder / "network.yaml")
    assert document["origin"] == "probes of this machine"
    assert len(document["cases"]) == 3
    for place, case in enumerate(document["cases"]):
        (measured,) = (note for note in case["notes"] if note.startswith("computing is measured"))
        at_once = inspect().usable_cores > 1 and place > 0  # the stages of the pipeline take turns
        assert ("alone in 2 copies at once" if at_once else "alone, in") in measured
        assert 0 < case["losses_s"]["compute"] <= case["step_s"]["value"]


def test_a_probe_that_fails_says_why_in_a_sentence(cli):
    suite = cli.suite(DENSE.replace("launch: {", "launch: {extra: [--no-such-option], "))
    failed = cli.call("predict", suite, "--probe", "1s", "--reports", cli.reports, code=4)
    assert "--probe: rank 0 of" in failed.stderr
    assert "Traceback" not in failed.stderr
    suite = cli.suite(DENSE.replace("launch: {", "launch: {memory_limit: 1MiB, "))
    refused = " ".join(
        cli.call("predict", suite, "--probe", "1s", "--reports", cli.reports, code=3).stderr.split()
    )
    assert "alone, more than the 1 MiB there are" in refused
