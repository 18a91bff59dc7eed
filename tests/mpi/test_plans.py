"""Every strategy, alone and in products, under a real MPI: `pscale verify` finds all equal to serial.

Also what they evaluate on held-out text, and how they go on from what one rank has saved, and it from theirs.
"""

import pytest
from patience import share
from whole_runs import SMALL_TEXT

SUITE = f"""
name: plans
scaling: strong
model: {{kind: gpt, layers: 2, width: 32, heads: 4, sequence: 32, vocabulary: 257}}
data: {{kind: text, source: "{SMALL_TEXT}"}}
train: {{batch: 8, micro_batches: 2, lr: 1.0e-2, clip: 0.5MORE}}
ranks: 4
launch: {{oversubscribe: true, time_limit: 10m}}
sweep:
  cases:
"""

LLAMA = "model.norm: rmsnorm, bias: false, mlp: swiglu, mlp_width: 88, positions: rope, kv_heads: 2"
QUICK = f"""
  - {{tp: 2, sp: true, zero: 3, optimizer: lamb, checkpoint: full}}
  - {{cp: 2, context: ulysses, tp: 2, optimizer: adafactor, checkpoint: selective}}
  - {{cp: 2, context: ring, compression: powersgd}}
  - {{pp: 2, schedule: interleaved, model.layers: 4, virtual_stages: 2, zero: 1, offload: both}}
  - {{pp: 2, schedule: zero-bubble, zero: 2, precision: bf16, reduce: float32}}
  - {{tx: 2, tz: 2, algorithm: agarwal, micro_batches: 1}}
  - {{model.kind: moe, ep: 2, zero: 3, micro_batches: 1, checkpoint: full}}
  - {{model.kind: moe, ep: 2, tp: 2, precision: fp16, loss_scale: 0.01}}
  - {{{LLAMA}, tp: 2, sp: true, zero: 3}}
  - {{{LLAMA}, cp: 2, context: ulysses, pp: 2, checkpoint: selective, precision: bf16, dropout: 0.1}}
  - {{{LLAMA}, tied: true, dropout: 0.1, pp: 2, zero: 2}}
  - {{{LLAMA}, tied: true, rope_base: 5.0e+5, tx: 2, ty: 2, algorithm: summa, vocabulary: 256}}
  - {{tied: true, tp: 2, sp: true, embedding: column, pp: 2, compression: none}}
  - {{tied: true, pp: 2, compression: topk}}
"""

THOROUGH = """
  - {zero: 3, shard: 2}
  - {cp: 4, context: unified, ulysses: 2}
  - {cp: 2, context: all-gather, placement: contiguous, zero: 1}
  - {precision: fp16, zero: 2, cp: 2, reduce: float32}
  - {pp: 4, schedule: 1f1b, micro_batches: 4, model.layers: 4}
  - {pp: 2, schedule: gpipe, cp: 2, context: ring, precision: fp16}
  - {pp: 2, schedule: zero-bubble, zero: 3, optimizer: adafactor, checkpoint: every-2, model.layers: 4}
  - {pp: 2, tp: 2, sp: true, ranks: 8}
  - {compression: int8, tp: 2, sp: true}
  - {compression: sign}
  - {tied: true, tx: 2, ty: 2, algorithm: cannon, micro_batches: 1, vocabulary: 256}
  - {tied: true, ty: 2, tz: 2, algorithm: axonn, micro_batches: 1, vocabulary: 256}
  - {model.kind: moe, ep: 4, micro_batches: 1}
  - {model.kind: moe, ep: 2, pp: 2, optimizer: adafactor, micro_batches: 1}
  - {model.kind: moe, precision: bf16, cp: 2, ep: 2}
"""

EVALUATED = """
  - {tp: 2, sp: true, zero: 3, model.layers: 4}
  - {pp: 2, schedule: interleaved, virtual_stages: 2, zero: 1, model.layers: 4}
  - {pp: 4, schedule: zero-bubble, micro_batches: 4, model.layers: 4}
  - {model.kind: moe, ep: 2, cp: 2, micro_batches: 1}
"""

SAVED = """
  - {tp: 2, sp: true, zero: 3, optimizer: lamb, checkpoint: full}
  - {cp: 2, context: ulysses, tp: 2, optimizer: adafactor}
  - {pp: 2, schedule: interleaved, model.layers: 4, virtual_stages: 2, zero: 1, offload: both}
  - {pp: 2, schedule: zero-bubble, zero: 2, precision: bf16, reduce: float32}
  - {tx: 2, tz: 2, algorithm: agarwal, micro_batches: 1, optimizer: adafactor}
  - {model.kind: moe, ep: 2, zero: 3, micro_batches: 1, load_by: broadcast}
  - {zero: 3, shard: 2, optimizer: muon, train.momentum: 0.9}
  - {pp: 2, tp: 2, load_by: broadcast}
  - {tp: 2, compression: powersgd}
  - {model.tied: true, pp: 2, compression: int8, load_by: broadcast}
"""


def share_of(cases):
    return "\n" + "\n".join(share(cases.splitlines()[1:])) + "\n"


@pytest.mark.parametrize(
    ("more", "cases"),
    [
        pytest.param("", QUICK, id="quick"),
        pytest.param("", share_of(THOROUGH), marks=pytest.mark.slow, id="thorough"),
        pytest.param(", evaluate: {every: 5, batches: 2}", EVALUATED, marks=pytest.mark.slow, id="evaluated"),
        pytest.param(", save: {every: 7}", share_of(SAVED), marks=pytest.mark.slow, id="saved"),
    ],
)
def test_every_plan_is_the_serial_run_and_makes_the_calls_that_were_predicted(cli, more, cases):
    verdicts = cli.verify(cli.suite(SUITE.replace("MORE", more) + cases), code=None)
    assert {verdict["label"]: verdict["reason"] for verdict in verdicts if not verdict["passed"]} == {}
    assert len(verdicts) == cases.count("  - {")
    assert all(verdict["counted"] == verdict["predicted"] for verdict in verdicts)
    files = {verdict["label"]: verdict["files"] for verdict in verdicts}
    assert all(each["counted"] == each["predicted"] for each in files.values())
    written = "save" in more  # whatever the plan
    assert all(bool(each["counted"]) == ("offload" in label or written) for label, each in files.items())
    if "save" in more:
        assert all(dict(verdict["errors"]["resumed"])["same plan"] == 0 for verdict in verdicts), verdicts
    for verdict in verdicts if "evaluate" in more else ():
        assert any(axis.startswith("evaluation") for _, axis, *_ in verdict["counted"])
