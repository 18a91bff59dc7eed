"""What a case will cost on one rank, before a process starts: parameters, FLOPs, calls, memory."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import recompute, strategies
from pscale.parallel.flops import executed_flops
from pscale.parallel.memory import kept_bytes, memory_bytes
from pscale.parallel.offload import Offloaded, offloaded
from pscale.parallel.replicas import Call


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Exact counts for one rank and step.

    `memory_bytes` is by kind, as the job lays it out. Of its activations, `kept_bytes` lie between forward
    and backward; the rest is for gradients on their way and scratch. What is `offloaded` is in none of them.
    """

    rank: int
    parameters: int  # all ranks
    model_flops: int  # all ranks
    executed_flops: int  # all ranks
    recomputed_flops: int  # of these: done again in backward, to keep less
    calls: tuple[Call, ...]
    memory_bytes: dict[str, int]
    kept_bytes: int
    offloaded: Offloaded

    @property
    def total_bytes(self) -> int:
        """Memory of all kinds."""
        return sum(self.memory_bytes.values())

    @property
    def sent_bytes(self) -> int:
        """Payload that the rank hands to its calls in one step."""
        return sum(call.step_bytes for call in self.calls)


def predict(case: Case, rank: int = 0) -> Prediction:
    """Count what `rank` computes, sends and holds."""
    return Prediction(
        rank=rank,
        parameters=counts.parameters(case.model),
        model_flops=counts.model_flops(case.model, case.train.batch),
        executed_flops=executed_flops(case),
        recomputed_flops=recompute.flops(case),
        calls=tuple(strategies.calls(case, rank)),
        memory_bytes=memory_bytes(case, rank),
        kept_bytes=kept_bytes(case, rank),
        offloaded=offloaded(case, rank),
    )
