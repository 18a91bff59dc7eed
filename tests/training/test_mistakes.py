"""A proof can fail: what is left out of a strategy makes a run differ from the serial one."""

import numpy as np
import pytest
from plans import TEXT, as_it_is, error_of, serial
from thread_mesh import ThreadAxis
from training.test_equivalence import case_of
from training.test_equivalence_context import SEQUENCE, UNIFIED, with_sequence
from training.test_equivalence_matrix import TWO, grid
from training.test_equivalence_products import GPT, MOE
from training.test_equivalence_tensor import CASES as TENSOR
from training.test_equivalence_zero import CASES as ZERO

from pscale.config import Plan
from pscale.nn import kernels
from pscale.nn.routing import ExpertPositions
from pscale.parallel import expert, tensor
from pscale.parallel.context import ring
from pscale.parallel.context.layout import Layout
from pscale.parallel.matrix.axonn import Depth
from pscale.parallel.matrix.cannon import ShiftedBlock
from pscale.parallel.reduction import Reduction
from pscale.parallel.shards import WholeWeights
from pscale.parallel.zero import Replicas
from pscale.training import units
from pscale.training.parameters import Parameters


def own_part(axis, x, out, dim):
    def act():
        out[...] = np.split(x, axis.size, axis=dim)[axis.rank]
        axis._board.gate.wait()

    return "reduce_scatter", x.nbytes, act


def keep_own(axis, x, out, dim=0):
    return axis._call(*own_part(axis, x, out, dim))


def start_keeping_own(axis, x, out):
    return axis._start(*own_part(axis, x, out, 0))


def start_nothing(axis, x):
    return axis._start("all_reduce", x.nbytes, lambda: None)


def nothing(*_, **__):
    pass


def norm_of_own_parts(replicas):
    return sum(kernels.current().square_norm(each.gradients.own) / each.copies for each in replicas._pieces)


def for_nobody(self, *arguments, made=Parameters.make, **options):
    """Make a parameter as if no other rank had a share in its gradient."""
    param = made(self, *arguments, **options)
    param.sync = ()
    return param


def swap_within_the_group(self, rank, right=Layout.runs):
    return right(self, rank ^ (self.slices > 1))


def sum_only(here):
    """Return a change of a trainer whose gradients are summed in groups alone for which `here` holds."""

    def change(trainer):
        for group in trainer.replicas._groups:
            if not here(group):
                group.reduction = Reduction()
        return trainer

    return change


TWO_RANKS, GROUPS, CONTEXT = Plan(cp=2), Plan(cp=4, **UNIFIED), with_sequence(TEXT, SEQUENCE)
SP = Plan(tp=2, sp=True)
GATHERED, ULYSSES = Plan(cp=2, context="all-gather"), Plan(cp=2, context="ulysses")
CONTIGUOUS = Layout(sequence=SEQUENCE, parts=2, placement="contiguous")
CANNON, SUMMA = grid(2, 2, 1, "cannon"), grid(2, 2, 1, "summa")
SHARDS = {zero: Plan(dp=2, zero=zero) for zero in (1, 2, 3)}
MISTAKES = {  # of a case and a plan: what is patched with what, or a change of each trainer
    "gradients of replicas": (TEXT, Plan(dp=2), sum_only(lambda _: False)),
    "gradients of norms": (
        *(TENSOR["gpt"], SP),
        sum_only(lambda group: "tp" not in group.pieces[0].unit.params[0].sync),
    ),
    "the sets of shards": (
        *(ZERO["gpt"], Plan(dp=4, shard=2, zero=2)),
        (ThreadAxis, "start_all_reduce", start_nothing),
    ),
    "updated weights": (ZERO["gpt"], SHARDS[1], (WholeWeights, "publish", nothing)),
    **{
        f"gradients of zero {zero}": (
            *(ZERO["gpt"], plan),
            (ThreadAxis, "start_reduce_scatter", start_keeping_own),
        )
        for zero, plan in SHARDS.items()
    },
    "sums of slices": (GPT, SP, (ThreadAxis, "reduce_scatter", keep_own)),
    "sums for gathered keys": (GPT, GATHERED, (ThreadAxis, "reduce_scatter", keep_own)),
    "heads of other ranks": (GPT, ULYSSES, (ThreadAxis, "all_to_all", lambda _, x, out: np.copyto(out, x))),
    "choices of other ranks": (
        *(MOE, TWO_RANKS),
        (expert.SharedPositions, "exchange", lambda _, counts: ExpertPositions(0).exchange(counts)),
    ),
    "the norm of other ranks": (GPT, Plan(tp=2), (Replicas, "square_norm", norm_of_own_parts)),
    "tokens for experts": (
        *(case_of(2, 8.0), Plan(ep=2)),
        (ThreadAxis, "all_to_all", lambda _, x, out: np.copyto(out, x)),
    ),
    "sums of input gradients": (
        *(TENSOR["gpt"], Plan(tp=2)),
        (tensor.ColumnParallelLinear, "backward", lambda layer, dy, x: layer.linear.backward(dy, x)),
    ),
    "sums of outputs": (
        *(TENSOR["gpt"], Plan(tp=2)),
        (tensor.ReduceFromTensorAxis, "forward", lambda _, x: (x, None)),
    ),
    **{
        f"gradients of keys on {where}": (
            *(CONTEXT, plan),
            (ring, "_sum", lambda arriving, mine, _: mine if arriving is None else arriving.wait()),
        )
        for where, plan in (("a ring", TWO_RANKS), ("a ring of groups", GROUPS))
    },
    "keys of others": (
        *(CONTEXT, TWO_RANKS),
        (Layout, "pieces", lambda self, rank: [self.piece(rank, rank), *[None] * (self.parts - 1)]),
    ),
    "positions of tokens": (CONTEXT, TWO_RANKS, (units, "layout_of", lambda *_: CONTIGUOUS)),
    "the order of slices": (CONTEXT, GROUPS, (Layout, "runs", swap_within_the_group)),
    "a shift": (TWO, CANNON, (ShiftedBlock, "start", nothing)),
    "the sum of blocks": (TWO, SUMMA, (ThreadAxis, "reduce", nothing)),
    "the sum of rows": (TWO, grid(1, 2, 2, "agarwal"), (ThreadAxis, "reduce_scatter", keep_own)),
    "weights of other ranks": (
        *(TWO, grid(1, 1, 3, "axonn")),
        (Depth, "add_product", lambda _, weight, *__: weight.accumulator()),
    ),
    "gradients of norms on a grid": (TWO, CANNON, (Parameters, "make", for_nobody)),
}
APART = [*MISTAKES][:4]  # of which replicas differ from each other as well

QUICK = {*APART[:2], "tokens for experts", "sums of input gradients", "sums of outputs"}
ROWS = [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in MISTAKES]


@pytest.mark.parametrize("missing", ROWS)
def test_what_is_missing_is_caught(missing, folder, monkeypatch):
    case, plan, mistake = MISTAKES[missing]
    serial(case, folder)
    if isinstance(mistake, tuple):
        monkeypatch.setattr(*mistake)
    error, spread = error_of(case, plan, folder, as_it_is if isinstance(mistake, tuple) else mistake)
    assert error > 1e-6
    assert missing not in APART or spread > 1e-6
