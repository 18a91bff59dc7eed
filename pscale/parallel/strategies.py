"""What all strategies check before a process starts.

To add a constraint: a line of the table, or of the form of context parallelism that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pscale.config import Case
from pscale.config.axes import BATCH_AXES, DEGREES, WITHIN_LAYERS
from pscale.errors import PlanError
from pscale.nn.dtypes import BYTES
from pscale.nn.optimizers import rule_of
from pscale.parallel import collectives, saved_state
from pscale.parallel.constraints import AtMost, Constraint, Divides, Excludes, Requires, Table
from pscale.parallel.context.form import form_of, layout_of
from pscale.parallel.matrix.grid import SCHEMES, Scheme

_CUT = "kind gpt|moe|block"  # what has layers that ranks can share
MODEL: Sequence[Constraint] = (
    Divides("width", "heads", when=_CUT, ways="heads, width"),
    Divides("heads", "kv_heads", when=f"{_CUT}, kv_heads", ways="kv_heads"),
    Divides("width", "heads", "pair", when="positions rope", ways="positions, width"),
    AtMost("top_k", "experts", when="kind moe", ways="top_k"),
    AtMost("every", "layers", when="kind moe", ways="every"),
)
_NO_GRID = "tx 1 with ty 1 with tz 1"
_SUMMA, _PANELS = "algorithm summa, matrix", "the {panels} panels of summa on tx {tx} and ty {ty}"
_PLAN: Sequence[Constraint] = (
    Requires(
        lambda get: get("ranks_of_plan") == get("ranks"),
        text="the plan needs {ranks_of_plan} ranks ({degrees}), the case has {ranks}",
        ways=f"dp; {', '.join(DEGREES[1:])}; ranks",
    ),
    # Bare collectives have no model.
    *(
        Excludes(axis, "kind collectives", why="it communicates over dp and tp", ways=axis)
        for axis in ("cp", "ep", "pp")
    ),
    Excludes("matrix", "kind collectives", why="it multiplies nothing", ways=_NO_GRID),
    Excludes("zero", "kind collectives", why="it has no parameters", ways="zero"),
    Excludes("compression", "kind collectives", why="it has no gradients", ways="compression"),
    Excludes("checkpoint", "kind linear|collectives", why="it has no blocks", ways="checkpoint none"),
    Excludes("offload", "kind collectives", why="it keeps nothing", ways="offload none"),
    Excludes("loss_scale", "kind collectives", why="it has no loss", ways="loss_scale none"),
    Excludes("reduce float32", "kind collectives", why="it has no gradients", ways="reduce wire"),
    *(Divides("message", axis, "number_bytes", when="kind collectives") for axis in collectives.AXES),
    # Data parallel. Where people give the batch of one replica, replicas do not cut it.
    Excludes("reduction", "zero", why="its sums are scattered, unit by unit"),
    Excludes("reshard_after_forward", "zero !3", why="no weights are gathered"),
    Excludes("shard", "zero 0", why="there is nothing to share"),
    Excludes("shard", "dp 1", why="there is nobody to share with", ways="shard"),
    Excludes("shard 1", "zero", why="a set of one rank shares nothing", ways="shard"),
    Divides("dp", "shard", when="shard", ways="shard"),
    Divides("batch", *BATCH_AXES, "micro_batches", when="batch_of all"),
    Divides("batch", "micro_batches", when="batch_of replica"),
    # Tensor and sequence parallel.
    Excludes("tp", "kind linear", why="it has no layers to cut", ways="tp"),
    Divides("heads", "tp", when=_CUT, ways="tp, heads"),
    Divides("kv_heads", "tp", when=_CUT, ways="tp, kv_heads"),
    Divides("mlp_width", "tp", when=_CUT, ways="tp, mlp_width"),
    AtMost("tp", "vocabulary", when="kind gpt|moe", ways="tp"),
    Divides("sequence", "tp", "cp", when=f"sp, tp, {_CUT}", ways="sequence, sp"),
    # Context parallel.
    Excludes("cp", "kind linear", why="it has no sequences", ways="cp"),
    Excludes("ulysses", "context !unified", "cp", ways="ulysses, context"),
    Divides(
        "sequence",
        "chunks",
        when="cp, placement zigzag",
        text="sequence {sequence} does not divide by the {chunks} chunks of cp {cp} in zigzag",
        ways="sequence, placement",
    ),
    Divides("sequence", "cp", when="cp, placement contiguous"),
    # Expert parallel.
    Excludes("ep", "kind !moe", why="it has no experts", ways="ep, kind moe"),
    Divides("experts", "ep", when="kind moe", ways="ep, experts"),
    # Pipeline parallel.
    Excludes("virtual_stages", "schedule !interleaved"),
    Excludes("schedule interleaved", "virtual_stages 1", "pp", ways="virtual_stages 2, schedule 1f1b"),
    Excludes("pp", "kind linear|block", why="it is one unit", ways="pp"),
    AtMost(
        "pp * virtual_stages",
        "layers",
        when="pp",
        ways="layers, pp, virtual_stages, schedule 1f1b with virtual_stages 1",
    ),
    Divides(
        "micro_batches",
        "pp",
        when="pp, schedule interleaved",
        ways="micro_batches; schedule 1f1b with virtual_stages 1",
    ),
    # A grid.
    Excludes("matrix", "kind linear", why="it has no layers to cut", ways=_NO_GRID),
    Excludes("matrix", "kind moe", why="it has experts, no whole MLPs", ways=f"{_NO_GRID}, kind gpt"),
    *(Excludes(axis, "matrix", why="both would cut the same layers", ways=axis) for axis in WITHIN_LAYERS),
    Excludes(
        "sp", "matrix", why="it cuts tokens of tensor parallelism, as agarwal does on a grid", ways="sp"
    ),
    Excludes("schedule zero-bubble", "matrix", "pp", why="what it delays communicates", ways="schedule 1f1b"),
    Excludes("tz", "algorithm cannon|summa", why="it has two axes"),
    Requires(
        lambda get: get("tx") == get("ty"),
        when="algorithm cannon",
        text="algorithm cannon needs a square, and tx {tx} is not ty {ty}",
        ways="tx and ty, algorithm summa",
    ),
    Divides("width", "panels", when=_SUMMA, text=f"width {{width}} does not divide by {_PANELS}"),
    Divides("mlp_width", "panels", when=_SUMMA, text=f"mlp_width {{mlp_width}} does not divide by {_PANELS}"),
    # Compression keeps what it does not send, for the next step.
    Excludes("compression", "zero", why="no replica has whole gradients"),
    Excludes("compression", "reduction", why="it has a communication of its own"),
    Excludes(
        "compression", "precision fp16|bf16", why="it needs 32 bits", ways="compression, precision float32"
    ),
    Excludes(
        "compression", "loss_scale", why="the next step may have another", ways="compression, loss_scale none"
    ),
    # Recomputing, and what lies in a file.
    Requires(
        lambda get: get("keeps_scores"),
        when="checkpoint selective",
        text="checkpoint selective recomputes scores, and attention {attention} keeps none",
        ways="checkpoint none, attention plain",
    ),
    Excludes(
        "checkpoint !none|selective",
        "kind block",
        why="it is a single block",
        ways="checkpoint selective|none",
    ),
    AtMost(
        "checkpoint_interval",
        "layers",
        text="checkpoint {checkpoint} has more blocks than layers {layers}",
        ways="checkpoint full",
    ),
    Excludes("offload activations|both", "kind linear|block", why="one unit keeps nothing", ways="offload"),
    Excludes("offload activations|both", "layers 1", why="one unit keeps nothing", ways="offload, layers 2"),
    Excludes(
        "offload optimizer|both",
        "optimizer_state none|factored",
        why="there is nothing to save",
        ways="offload, optimizer adamw",
    ),
    # Numbers of 16 bits, and the optimizer.
    Excludes("reduction gather-broadcast", "reduce float32", "precision fp16|bf16", ways="reduction, reduce"),
    AtMost(
        "lr_warmup",
        "last_step",
        text="lr_warmup {lr_warmup} leaves none of warmup {warmup} + steps {steps} at the full rate",
        ways="lr_warmup",
        when="load_nothing true",
    ),
    # Saved state.
    Excludes("saved_state true", "kind collectives", why="it has none", ways="kind gpt"),
    Excludes("load_by broadcast", "offload optimizer|both", "saved_state true", ways="load_by"),
    Requires(lambda get: not get("misfit"), when="load", text="train.load: {misfit}", ways=""),
)


def _cuts(scheme: Scheme) -> Iterator[Constraint]:
    """Yield what ranks of a grid share evenly."""
    yield Divides("heads", *scheme.inside.columns, ways="heads; heads with width")
    yield Divides("kv_heads", *scheme.inside.columns)
    for partition in (scheme.into, scheme.out_of):
        yield Divides("width", *partition.rows)
        yield Divides("width", *partition.columns)
    yield Divides("mlp_width", *scheme.into.columns)
    yield Divides("mlp_width", *scheme.out_of.rows)
    for axes in (scheme.into.columns, scheme.table.rows):
        yield Divides("vocabulary", *axes, when="kind gpt")
    for axes in (scheme.outside.rows, scheme.inside.rows):
        text = "batch {batch} gives a micro-batch {sequences} sequences, which do not divide by {split}"
        yield Divides("sequences", *axes, text=text, ways="batch")


_GRIDS = {algorithm: [*_cuts(scheme)] for algorithm, scheme in SCHEMES.items()}


def _constraints(case: Case) -> Iterator[Constraint]:
    """Yield those of the form of context parallelism and of the algorithm on a grid."""
    yield from form_of(case.plan.context).constraints if case.plan.cp > 1 else ()
    yield from _GRIDS[case.plan.matrix.algorithm] if case.plan.matrix.ranks > 1 else ()


def _batch(case: Case) -> int:
    parts = case.plan.batch_parts if _batch_of(case) == "replica" else 1
    return case.train.batch // parts


def _batch_of(case: Case) -> str:
    weak = case.scaling == "weak" and case.train.batch % case.plan.batch_parts == 0
    return "replica" if weak else "all"


def _state(case: Case) -> str:
    """Return what the optimizer keeps: `none`, `factored` or `whole`."""
    rule = rule_of(case.train.optimizer)
    return "factored" if rule.factored else "whole" if rule.keeps(case.train) else "none"


TABLE = Table(
    (*MODEL, *_PLAN),
    _constraints,
    {
        "batch": _batch,
        "batch_of": _batch_of,
        "chunks": lambda case: math.lcm(layout_of(case.model, case.plan).chunks, case.plan.cp),
        "degrees": lambda case: case.plan.product,
        "load_nothing": lambda case: not case.train.load,
        "misfit": saved_state.misfit,
        "saved_state": lambda case: bool(case.train.save.every or case.train.load),
        "number_bytes": lambda case: BYTES[case.model.dtype],
        "last_step": lambda case: case.train.warmup + case.train.steps - 1,
        "pair": lambda _: 2,
        "panels": lambda case: math.lcm(case.plan.matrix.tx, case.plan.matrix.ty),
        "ranks_of_plan": lambda case: case.plan.ranks,
        "sequences": lambda case: case.train.batch // case.plan.batch_parts // case.train.micro_batches,
        "optimizer_state": _state,
    },
)


def check(case: Case) -> None:
    """Raise PlanError if the case cannot run on any machine."""
    if constraint := TABLE.clash(case):
        raise PlanError(TABLE.words(constraint, case))
