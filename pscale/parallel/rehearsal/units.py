"""The units of one rank, as `worker.build` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pscale.config import Case
from pscale.mesh.grid import coordinates, spanned
from pscale.nn import rehearsal as nn
from pscale.nn.kernels.piece import scores_per_head
from pscale.nn.paper import Paper
from pscale.nn.queue import room
from pscale.nn.rehearsal import Chain, Heads, Step, Weight
from pscale.parallel import collectives, division, pipeline
from pscale.parallel.rehearsal.context import attention
from pscale.parallel.rehearsal.exchanges import Collectives, EnterLinear, Exchange, Moved
from pscale.parallel.replicas import SETS, TOKENS


class Units:
    """Makes what stands for each unit, with the sizes that the plan leaves this rank."""

    def __init__(self, case: Case, rank: int, paper: Paper):
        self.case, self.rank, self.paper = case, rank, paper
        model, plan, self.cut = case.model, case.plan, case.plan.tp
        self.sequences, self.width = division.sequences(case), model.width
        self.tokens = model.sequence // plan.cp
        self.sliced = plan.sp and self.cut > 1
        self.outside = self.tokens // self.cut if self.sliced else self.tokens  # between layers
        self.rows, self.rows_outside = self.sequences * self.tokens, self.sequences * self.outside
        self.features = model.width  # of a row between layers
        self.vocabulary = division.vocabulary(case, rank)
        splits = pipeline.timetable(plan, case.train.micro_batches).splits
        self.later: list[Callable[[], None]] | None = [] if splits else None

    @property
    def stream(self) -> int:
        """Return the elements of activations between layers."""
        return self.rows_outside * self.features

    def loss(self) -> nn.Loss:
        """Return what stands for the loss."""
        tokens = self.case.model.kind in ("gpt", "moe")
        return nn.Loss(self.paper, 3 * self.rows if tokens and self.cut > 1 else 0)

    def made(self, name: str) -> Step:
        """Return what stands for the unit of this name."""
        kind = name.partition(".")[0]
        if kind == "linear":
            linear = nn.Linear(self.paper, self.sequences, self._weight(self.width))
            return nn.First(self.paper, self.sequences * self.width, linear)
        if kind == "collectives":
            sizes = [self.case.plan.sizes[axis] for axis in collectives.AXES]
            exchanged = self.case.model.message_bytes // collectives.ITEM.itemsize
            return Collectives(self.paper, exchanged * any(size > 1 for size in sizes), self.sequences)
        if kind == "embedding":
            return self._embedding()
        if kind == "head":
            return Chain(self._norm(), self._columns(self.vocabulary))
        block = self._block(mixture=division.with_experts(self.case, name))
        if self.case.model.kind == "block":
            return nn.First(self.paper, self.stream, block)
        return block

    def _embedding(self) -> Step:
        paper, C = self.paper, self.width
        positions = nn.Positions(paper, self.outside, C)
        whole, mine = self.rows * C, self.rows * C // self.cut
        if self.case.plan.embedding == "row" or self.cut == 1:
            tokens = nn.Tokens(paper, self.rows, C)
            return Chain(tokens, *self._leave(), positions)
        tokens = nn.Tokens(paper, self.rows, C // self.cut)
        join = Moved(paper, mine, mine, (mine, mine)) if self.sliced else Moved(paper, whole, mine)
        return Chain(tokens, join, positions)

    def _block(self, *, mixture: bool) -> Step:
        paper, C, inside = self.paper, self.width, 4 * self.width // self.cut
        attend = self._residual(
            self._norm(),
            self._columns(3 * C // self.cut, bias=True),
            self._attention(),
            self._rows(C // self.cut),
        )
        if mixture:
            return Chain(attend, nn.Residual(paper, None, self._norm(), self._mixture()))
        gelu = nn.BiasGelu(paper, self.rows, inside)
        return Chain(attend, self._residual(self._norm(), self._columns(inside), gelu, self._rows(inside)))

    def _attention(self) -> Step:
        """Return attention; with ulysses it is the inner one that is computed again."""
        ulysses = self.case.plan.cp > 1 and self.case.plan.context == "ulysses"
        again = self.case.plan.checkpoint == "selective" and not ulysses
        made = self._attention_once()
        return nn.Recomputed(self.paper, made) if again else made

    def _attention_once(self) -> Step:
        model = self.case.model
        heads = model.heads // self.cut
        sizes = Heads(
            sequences=self.sequences,
            tokens=self.tokens,
            heads=heads,
            width=model.width // model.heads,
        )
        if self.case.plan.cp == 1:
            scores = scores_per_head(model.sequence) if model.keeps_scores else None
            return nn.Attention(self.paper, sizes, scores)
        return attention(self.case, coordinates(self.case.plan.sizes, self.rank)["cp"], self.paper, sizes)

    def _mixture(self) -> Step:
        model, plan, C, paper = self.case.model, self.case.plan, self.width, self.paper
        slots = model.experts * room(model, plan.sequence_parts) * self.sequences
        mine = model.experts // plan.ep
        sync = tuple(dim for dim in self._whole if dim != "ep")

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(paper, slots * outputs, self._weight(mine * inputs * outputs, sync))

        gelu = nn.BiasGelu(paper, slots // mine, 4 * C, mine)
        experts: Step = Chain(linear(C, 4 * C), gelu, linear(4 * C, C))
        if plan.ep > 1:
            experts = Exchange(paper, slots * C, swaps=mine > 1, experts=experts)
        sizes = nn.Experts(
            tokens=self.rows_outside,
            sequences=self.sequences,
            width=C,
            experts=model.experts,
            top_k=model.top_k,
            slots=slots,
        )
        return nn.Mixture(paper, sizes, self._weight(C * model.experts, self._whole), experts)

    def _residual(self, *branch: Step | Sequence[Step]) -> Step:
        """Return a branch with a bias; a row-cut product brings the way out with it."""
        steps = [step for part in branch for step in (part if isinstance(part, Sequence) else (part,))]
        bias = Weight(self.paper, self.features, adds=self._adds(self._whole), later=None)
        return nn.Residual(self.paper, bias, *steps)

    def _norm(self) -> Step:
        return nn.LayerNorm(self.paper, self.rows_outside, self.width)

    def _columns(self, columns: int, *, bias: bool = False) -> Step:
        linear = nn.Linear(
            self.paper,
            self.rows * columns,
            self._weight(self.width * columns),
            Weight(self.paper, columns, adds=self._adds(TOKENS), later=None) if bias else None,
        )
        return EnterLinear(self.paper, self.rows * self.width, self.cut, linear) if self.sliced else linear

    def _rows(self, inputs: int) -> Sequence[Step]:
        linear = nn.Linear(self.paper, self.rows * self.width, self._weight(inputs * self.width))
        return linear, *self._leave()

    def _leave(self) -> Sequence[Step]:
        whole = self.rows * self.width
        return (Moved(self.paper, whole // self.cut, whole),) if self.sliced else ()

    @property
    def _whole(self) -> tuple[str, ...]:
        return (*TOKENS, "tp") if self.sliced else TOKENS

    def _weight(self, size: int, sync: tuple[str, ...] = TOKENS) -> Weight:
        return Weight(self.paper, size, adds=self._adds(sync), later=self.later)

    def _adds(self, sync: tuple[str, ...]) -> bool:
        """Tell whether micro-batches add up in place: ZeRO 2 and 3 sum each by itself."""
        shared = [dim for dim in spanned(self.case.plan.sizes, sync) if dim != SETS]
        return not (self.case.plan.zero >= 2 and shared)
