"""What a case will cost on one rank, before a process starts: parameters, FLOPs, calls, memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import strategies, zero_plan
from pscale.parallel.replicas import Call

_STATES = {"sgd": 1, "adamw": 2}  # arrays of the parameters' size that the optimizer keeps


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Exact counts for one rank and step; `memory_bytes` by kind, as the job lays it out."""

    parameters: int
    model_flops: int  # all ranks
    executed_flops: int  # all ranks
    calls: tuple[Call, ...]
    memory_bytes: dict[str, int]

    @property
    def sent_bytes(self) -> int:
        """Payload that the rank hands to its calls in one step."""
        return sum(call.step_bytes for call in self.calls)


def predict(case: Case, rank: int = 0) -> Prediction:
    """Count what `rank` computes, sends and holds."""
    model, train = case.model, case.train
    itemsize = np.dtype(model.dtype).itemsize
    state = zero_plan.model_state(case, rank)
    states = _STATES[train.optimizer] if train.optimizer != "sgd" or train.momentum else 0
    micro_batch = train.batch // case.plan.dp // train.micro_batches
    return Prediction(
        parameters=counts.parameters(model),
        model_flops=counts.model_flops(model, train.batch),
        executed_flops=counts.executed_flops(model, train.batch),
        calls=tuple(strategies.calls(case, rank)),
        memory_bytes={
            "parameters": state["parameters"] * itemsize,
            "gradients": state["gradients"] * itemsize,
            "optimizer": state["updated"] * itemsize * states,
            "activations": counts.activation_bytes(model, micro_batch),
            "exchange": strategies.buffer_bytes(case, rank),
        },
    )
