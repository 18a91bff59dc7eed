"""What a case will cost on one rank, before a process starts: parameters, FLOPs, calls, memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import context, strategies
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
    parameters = counts.parameters(model)
    states = _STATES[train.optimizer] if train.optimizer != "sgd" or train.momentum else 0
    return Prediction(
        parameters=parameters,
        model_flops=counts.model_flops(model, train.batch),
        executed_flops=executed_flops(case),
        calls=tuple(strategies.calls(case, rank)),
        memory_bytes={
            "parameters": parameters * itemsize,
            "gradients": parameters * itemsize,
            "optimizer": parameters * itemsize * states,
            "activations": kept_bytes(case, rank),
            "exchange": strategies.buffer_bytes(case, rank),
        },
    )


def executed_flops(case: Case) -> int:
    """Count the FLOPs of the matrix products of a step, on all ranks."""
    return counts.executed_flops(case.model, case.train.batch, scores=context.computed_scores(case))


def kept_bytes(case: Case, rank: int) -> int:
    """Predict the activations that `rank` keeps of one micro-batch."""
    model, plan, train = case.model, case.plan, case.train
    return counts.activation_bytes(
        model,
        train.batch // plan.batch_parts // train.micro_batches,
        tokens=model.sequence // plan.cp,
        kept=context.kept_numbers(case, rank),
    )
