"""The experiments of `validate.py` as suites: what is measured first, what is predicted and then measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

COMMON = """
timing: {gemm_peak: false, overhead_steps: 0, trace: true}
data: {kind: synthetic}
"""
GHOSTS = """
name: ghosts
scaling: weak
launch: {oversubscribe: true, hang_after: 5m}
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan at many sizes, its computing slept at `gflops`; `degree` is what grows with the ranks.

    Others are predicted from the sizes `known`.
    """

    name: str
    degree: str
    model: str
    train: str
    gflops: float
    more: str = ""
    known: tuple[int, ...] = (2, 4, 8)

    def suite(self, ranks: Sequence[int], *, jitter_s: float, steps: int, repeats: int) -> str:
        """Return the suite of some sizes, with or without jitter."""
        jitter = f"jitter: {{mean: {jitter_s:g}s}}" if jitter_s else ""
        return f"""{GHOSTS}{COMMON}{jitter}
model: {self.model}
train: {{{self.train}, steps: {steps}, warmup: 1}}
ghost: {{gflops: {self.gflops}, poll: 1ms}}
plan: {{{self.degree}: ranks{self.more}}}
repeat: {repeats}
sweep: {{ranks: {list(ranks)}}}
"""


GPT = "{kind: gpt, layers: 2, width: 64, heads: 32, sequence: 64}"
DEEP = "{kind: gpt, layers: 32, width: 32, heads: 4, sequence: 32}"
EXPERTS = "{kind: moe, layers: 2, width: 64, heads: 4, sequence: 64, experts: 32, every: 1}"
PIPELINED = "batch: 16, micro_batches: 16"
# A step sleeps for 0.2 to 2 s, between most calls for 5 ms and more, on 32 ranks too; what is sent is little,
# since on two cores the transfers of 32 ranks take turns. What a plan divides takes long on two ranks.
FEW = 4, 8
PLANS = (
    Plan(name="dp", degree="dp", model=GPT, train="batch: 4", gflops=0.5),
    Plan(name="zero 3", degree="dp", model=GPT, train="batch: 4", gflops=0.5, more=", zero: 3"),
    Plan(name="tp", degree="tp", model=GPT, train="batch: 4", gflops=0.025, known=FEW),
    Plan(name="pp 1f1b", degree="pp", model=DEEP, train=PIPELINED, gflops=0.2, known=FEW),
    Plan(
        name="cp ulysses",
        degree="cp",
        model=GPT,
        train="batch: 4",
        gflops=0.025,
        more=", context: ulysses",
        known=FEW,
    ),
    Plan(
        name="pp zero-bubble",
        degree="pp",
        model=DEEP,
        train=PIPELINED,
        gflops=0.2,
        more=", schedule: zero-bubble",
        known=FEW,
    ),
    Plan(name="ep", degree="ep", model=EXPERTS, train="batch: 4", gflops=0.5),
)

# On two ranks: the largest and the smallest shares of communication, exposed and hidden.
STRATEGIES = """  cases:
  - {dp: 2}
  - {zero: 3}
  - {pp: 2, micro_batches: 4}
  - {tp: 2}
  - {cp: 2}
"""


def strategies(
    model: str, options: Sequence[str] = (), *, steps: int, repeats: int, gflops: float = 0.0
) -> str:
    """Return the suite of the strategies on two ranks; `options` are those of the launcher.

    With `gflops` computing is slept at that speed.
    """
    return f"""
name: strategies
scaling: weak
ranks: 2
{COMMON}
model: {model}
train: {{batch: 4, steps: {steps}, warmup: 3, micro_batches: 2}}
ghost: {{gflops: {gflops:g}}}
launch: {{oversubscribe: true, extra: {json.dumps(list(options))}}}
repeat: {repeats}
sweep:
{STRATEGIES}"""


ADVISED = (
    "{kind: gpt, layers: 4, width: 64, heads: 8, sequence: 64, vocabulary: 256}"  # of suites/strategies.yaml
)
BARE = """
name: bare
scaling: throughput
ranks: 2
model: {kind: collectives, calls: 10}
train: {batch: 2, clip: null, steps: 20, warmup: 3}
plan: {dp: 2}
timing: {gemm_peak: false, overhead_steps: 0}
sweep: {model.message: [256B, 1KiB, 4KiB, 16KiB, 64KiB, 256KiB, 1MiB]}
repeat: 2
launch: {oversubscribe: true}
"""
SMALL = "{kind: gpt, layers: 4, width: 128, heads: 4, sequence: 128}"
SENT = "{kind: gpt, layers: 2, width: 256, heads: 4, sequence: 256}"  # its messages are of 0.5 to 6 MB

_LATE = f"""{GHOSTS}{COMMON}
ranks: 8
model: {DEEP}
train: {{batch: 16, micro_batches: 8, steps: %d, warmup: 2}}
ghost: {{gflops: 0.5}}
plan: {{pp: 4}}
repeat: 1
"""
INJECTIONS = {
    "one late rank": "inject: {rank: 3, phase: forward, delay: 60ms}\n",
    "jitter of all ranks": "jitter: {phase: backward, mean: 20ms}\n",
    "jitter of two ranks": "jitter: {phase: update, distribution: uniform, mean: 40ms, ranks: [1, 6]}\n",
}


def late(steps: int, injection: str = "") -> str:
    """Return the suite of two pipelines of four stages."""
    return _LATE % steps + injection


def steady(ranks: int, steps: int) -> str:
    """Return a suite of many short steps under jitter."""
    return f"""{GHOSTS}{COMMON}
ranks: {ranks}
model: {GPT}
train: {{batch: 4, steps: {steps}, warmup: 2}}
ghost: {{gflops: 4}}
jitter: {{mean: 10ms}}
repeat: 1
"""


SHARED = {
    "experts": (
        "{kind: moe, layers: 2, width: 128, heads: 4, sequence: 128, experts: 4, every: 1}",
        "{ep: ranks}",
    ),
    "replicas of tensor ranks": (
        "{kind: gpt, layers: 2, width: 128, heads: 4, sequence: 128}",
        "{tp: 2, reduction: all-reduce}",
    ),
}


def shared(name: str, steps: int, options: Sequence[str] = ()) -> str:
    """Return the suite of four ghosts whose exchanges meet on the link between two and two."""
    model, plan = SHARED[name]
    return f"""{GHOSTS.replace("launch:", "# launch:")}{COMMON}
ranks: 4
model: {model}
train: {{batch: 4, steps: {steps}, warmup: 2}}
ghost: {{gflops: 5}}
plan: {plan}
launch: {{oversubscribe: true, extra: {json.dumps(list(options))}}}
repeat: 1
"""


TRACED = {"batch": 32, "sequence": 64, "width": 64, "layers": 2, "vocabulary": 256, "micro_batches": 1}
ALONE = {  # model and plan of work that is measured at one shape and predicted at others
    "dense": ("{kind: gpt, heads: 4}", "{dp: 1}"),
    "mixture": ("{kind: moe, heads: 4, experts: 4, every: 1}", "{dp: 1}"),
}
SHAPED = {
    "dense": ALONE["dense"],
    "tp": ("{kind: gpt, heads: 4}", "{tp: 2}"),
    "pp": ("{kind: gpt, heads: 4}", "{pp: 2}"),
    "zero 3": ("{kind: gpt, heads: 4}", "{dp: 2, zero: 3}"),
    "experts": ("{kind: moe, heads: 4, experts: 4, every: 1}", "{ep: 2}"),
}
Change = tuple[tuple[str, ...], int]
UNCHANGED: Change = (), 1
CHANGED: tuple[Change, ...] = (  # what is so many times as large; chosen before any was measured
    *(((name,), times) for name in TRACED for times in (4, 16)),
    (("batch", "sequence"), 4),
    (("batch", "width"), 4),
    (("width", "layers"), 4),
    (("vocabulary", "batch"), 4),
    (("sequence", "vocabulary", "micro_batches"), 4),
    (("layers", "micro_batches"), 16),
    (("vocabulary", "micro_batches"), 16),
)


def shaped(name: str, changes: Sequence[Change], *, steps: int, repeats: int) -> str:
    """Return the suite of some work with these changes of its shape, each a case; unchanged it is short."""
    model, plan = (ALONE | SHAPED)[name]
    cases = [
        {
            f"{'train' if field in _OF_TRAIN else 'model'}.{field}": size * (times if field in fields else 1)
            for field, size in TRACED.items()
        }
        | {"train.steps": steps if fields else 4 * steps}
        for fields, times in changes
    ]
    return f"""
name: shapes
scaling: throughput
ranks: {1 if name in ALONE else 2}
{COMMON}
model: {model}
train: {{warmup: 2}}
plan: {plan}
launch: {{oversubscribe: true}}
repeat: {repeats}
sweep: {json.dumps({"cases": cases})}
"""


_OF_TRAIN = ("batch", "micro_batches")
