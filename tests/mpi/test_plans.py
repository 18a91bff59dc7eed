"""Every strategy, alone and in products, under a real MPI: `pscale verify` finds all equal to serial."""

import json
import subprocess

import pytest
from whole_runs import LIMIT_S

DENSE = """
name: dense
scaling: strong
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}
train: {batch: 8, micro_batches: 2, lr: 1.0e-2, clip: 0.5}
ranks: 4
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {zero: 3, shard: 2}
  - {tp: 2, sp: true, zero: 3, optimizer: lamb, checkpoint: full}
  - {cp: 4, context: ring}
  - {cp: 2, context: ulysses, tp: 2, optimizer: adafactor, checkpoint: selective}
  - {cp: 2, context: all-gather, placement: contiguous, zero: 1}
  - {pp: 4, schedule: 1f1b, micro_batches: 4}
  - {pp: 2, schedule: interleaved, virtual_stages: 2, zero: 1, offload: both}
  - {compression: topk, tp: 2, sp: true}
  - {compression: powersgd, pp: 2}
  - {pp: 2, schedule: zero-bubble, zero: 3, optimizer: adafactor, checkpoint: every-2}
  - {pp: 2, tp: 2, sp: true, ranks: 8}
"""

MIXTURE = """
name: mixture
scaling: strong
model: {kind: moe, layers: 2, width: 32, heads: 4, sequence: 32, experts: 4, top_k: 2, capacity_factor: 0.75}
train: {batch: 8, lr: 1.0e-2, clip: 0.5}
ranks: 4
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {ep: 4}
  - {ep: 2, zero: 3, optimizer: adafactor, checkpoint: full}
  - {ep: 2, tp: 2}
  - {ep: 2, pp: 2}
  - {ep: 2, cp: 2}
  - {tp: 2, sp: true, zero: 2}
"""

GRIDS = """
name: grids
scaling: strong
model: {kind: gpt, layers: 1, width: 32, heads: 4, sequence: 16, vocabulary: 256}
train: {batch: 8, lr: 1.0e-2, clip: 0.5}
ranks: 4
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {tx: 2, ty: 2, algorithm: summa}
  - {tx: 2, ty: 2, algorithm: cannon}
  - {tx: 2, tz: 2, algorithm: agarwal}
  - {ty: 2, tz: 2, algorithm: axonn}
"""

BITS = """
name: bits
scaling: strong
model: {kind: gpt, layers: 2, width: 32, heads: 4, sequence: 32, vocabulary: 257}
train: {batch: 8, micro_batches: 2, lr: 1.0e-2, clip: 0.5}
ranks: 4
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {precision: bf16, tp: 2, sp: true}
  - {precision: fp16, zero: 2, cp: 2, reduce: float32}
"""

ROUTED = """
name: routed
scaling: strong
model: {kind: moe, layers: 2, width: 32, heads: 4, sequence: 32, experts: 4, top_k: 2, capacity_factor: 0.75}
train: {batch: 8, micro_batches: 2, lr: 1.0e-2, clip: 0.5}
ranks: 4
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {precision: bf16, tp: 2, ep: 2}
  - {precision: fp16, tp: 2, sp: true, zero: 1}
  - {precision: bf16, cp: 2, pp: 2}
"""


@pytest.mark.parametrize(
    "text",
    [DENSE, MIXTURE, GRIDS, BITS, ROUTED],
    ids=["dense", "mixture", "grids", "bits", "routed"],
)
def test_every_plan_is_the_serial_run_and_makes_the_calls_that_were_predicted(cli, text):
    command = cli.command("verify", cli.suite(text), "--reports", cli.reports, "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    verdicts = json.loads(done.stdout)
    assert {verdict["label"]: verdict["reason"] for verdict in verdicts if not verdict["passed"]} == {}
    assert len(verdicts) == text.count("  - {")
    assert all(verdict["counted"] == verdict["predicted"] for verdict in verdicts)
    files = {verdict["label"]: verdict["files"] for verdict in verdicts}
    assert all(each["counted"] == each["predicted"] for each in files.values())
    assert all(bool(each["counted"]) == ("offload" in label) for label, each in files.items())
