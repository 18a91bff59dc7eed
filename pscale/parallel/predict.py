"""What a case will cost on one rank, before a process starts: parameters, FLOPs, calls, memory."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import context, division, pipeline, strategies, zero_plan
from pscale.parallel.replicas import Call
from pscale.parallel.schedule import peak

_STATES = {"sgd": 1, "adamw": 2}  # arrays of the parameters' size that the optimizer keeps


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Exact counts for one rank and step; `memory_bytes` by kind, as the job lays it out."""

    parameters: int  # all ranks
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
    state, item = zero_plan.model_state(case, rank), division.item_bytes(case)
    states = _STATES[train.optimizer] if train.optimizer != "sgd" or train.momentum else 0
    return Prediction(
        parameters=counts.parameters(model),
        model_flops=counts.model_flops(model, train.batch),
        executed_flops=executed_flops(case),
        calls=tuple(strategies.calls(case, rank)),
        memory_bytes={
            "parameters": state["parameters"] * item,
            "gradients": state["gradients"] * item,
            "optimizer": state["updated"] * item * states,
            "activations": kept_bytes(case, rank),
            "exchange": strategies.buffer_bytes(case, rank),
        },
    )


def executed_flops(case: Case) -> int:
    """Count the FLOPs of the matrix products of a step, on all ranks."""
    scores = context.computed_scores(case)
    copies, parts = case.plan.mixture_copies, case.plan.sequence_parts
    return counts.executed_flops(case.model, case.train.batch, scores=scores, copies=copies, parts=parts)


def kept_bytes(case: Case, rank: int) -> int:
    """Predict the most that `rank` keeps for backward passes to come, of all micro-batches under way."""
    model, plan, stage = case.model, case.plan, pipeline.stage_of(case.plan, rank)
    sequences, columns = division.sequences(case), division.vocabulary(case, rank)
    tokens, outside = model.sequence // plan.cp, plan.tp if plan.sp else 1
    kept = counts.unit_activation_bytes(
        model,
        sequences,
        inside=plan.tp,
        outside=outside,
        columns=columns,
        tokens=tokens,
        kept=context.kept_numbers(case, rank),
    )
    put_off = counts.unit_put_off_bytes(
        model, sequences, inside=plan.tp, outside=outside, columns=columns, tokens=tokens
    )
    parts = pipeline.stage_units(model, plan, stage)
    return peak(
        pipeline.timetable(plan, case.train.micro_batches).actions(stage),
        kept=lambda part: sum(kept[unit][1] for unit in parts[part]),
        put_off=lambda part: sum(put_off[unit][1] for unit in parts[part]),
    )
