"""What a report says of real runs: of a healthy one, and of one on a slow network, which replay can price.

Computing and the network are made of sleep, so that cores that others use too change little.
"""

import os

import pytest
from attempts import in_one_of_several

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.text import percent
from pscale.suite.network import read_network

pytestmark = pytest.mark.slow

COMPUTE_S, SLOW_S = 0.25, 0.25
CAUSES = "imbalance", "serialisation", "transfer"
NOISE = 0.2  # of a step, on cores that others use too
SLEEPING = f"""
import time
import pscale.mesh.axis as axis
import pscale.nn.loss as loss
compute, begin = loss.CrossEntropy.forward, axis.Axis.__init__
def slow_to_compute(self, *arguments):
    time.sleep({COMPUTE_S})
    return compute(self, *arguments)
class SlowToReduce:
    def __init__(self, comm):
        self._comm = comm
    def __getattr__(self, name):
        return getattr(self._comm, name)
    def Allreduce(self, *arguments):  # of one of the two cases
        self._comm.Allreduce(*arguments)
        time.sleep({SLOW_S})
def on_a_slow_network(self, *arguments):
    begin(self, *arguments)
    self._comm = SlowToReduce(self._comm)
loss.CrossEntropy.forward, axis.Axis.__init__ = slow_to_compute, on_a_slow_network
"""
SUITE = """
name: verdicts
scaling: throughput
ranks: 2
model: {kind: gpt, layers: 1, width: 16, heads: 2, sequence: 8}
data: {kind: synthetic}
train: {batch: 4, steps: 4, warmup: 1, optimizer: sgd, clip: null}
plan: {dp: ranks}
sweep: {plan.reduction: [gather-broadcast, all-reduce]}
timing: {gemm_peak: false, overhead_steps: 0, trace: true}
repeat: 1
launch: {oversubscribe: true, time_limit: 10m}
"""


def test_a_healthy_run_is_called_so_and_a_slow_network_is_named_and_priced(cli, monkeypatch):
    (cli.folder / "sitecustomize.py").write_text(SLEEPING)
    monkeypatch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
    in_one_of_several(called_and_priced, cli)


def called_and_priced(cli):
    asked = ("dp: ideal", f"dp: {{latency: {SLOW_S}s}}")
    networks = {text: read_network(text) for text in asked}
    summary = Findings(load(cli.run(cli.suite(SUITE)).folder), networks)
    healthy, slow = summary.rows("cases")
    of = {verdict.case: verdict for verdict in summary.rows("verdicts")}
    lost = summary.of_case("lost_time")
    assert max(getattr(lost[healthy.case], cause).value for cause in CAUSES) < NOISE
    verdict = of[healthy.case]
    cause = verdict.cause and getattr(lost[healthy.case], verdict.cause).value
    figure = f"{percent(cause)} of the step" if verdict.cause else "No single loss"
    assert verdict.interference or figure in verdict.loss_text
    transfer = lost[slow.case].transfer.value
    assert transfer == pytest.approx(SLOW_S / slow.step_s.value, abs=NOISE)
    verdict = of[slow.case]
    said = f"transfer in sync ({percent(transfer)} of the step)"
    assert verdict.interference or (not verdict.firm and said in verdict.loss_text)
    found = {(each.case, each.network): each for each in summary.rows("what_if")}
    perfect, as_slow = (found[slow.case, network] for network in asked)
    assert perfect.expected_s == pytest.approx(perfect.measured_s - SLOW_S, rel=NOISE)
    assert as_slow.expected_s == pytest.approx(as_slow.measured_s, rel=NOISE)
