"""One rank's step on paper: how much its pool of activations will hold, exactly, before a process starts.

`nn.rehearsal` has the layers of one process; here are those that exchange, and the order of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pscale.config import Case
from pscale.mesh.axis import Axis
from pscale.mesh.grid import coordinates, spanned
from pscale.nn import rehearsal as nn
from pscale.nn.buffers import Buffers
from pscale.nn.kernels.piece import scores_per_head
from pscale.nn.offload.keeping import Keeping
from pscale.nn.offload.rehearsal import OnPaper
from pscale.nn.paper import Paper, Sheet
from pscale.nn.queue import room
from pscale.nn.rehearsal import Chain, Heads, Step, Weight
from pscale.parallel import collectives, division, pipeline
from pscale.parallel.pipeline import Boundary
from pscale.parallel.recompute import Segment, stage_segments
from pscale.parallel.rehearsal_context import attention
from pscale.parallel.replicas import SETS, TOKENS
from pscale.parallel.schedule import Action


class EnterLinear:
    """A product with tokens that are gathered, forward and backward, from slices of `whole` elements."""

    def __init__(self, paper: Paper, whole: int, size: int, linear: nn.Linear):
        self.paper, self.whole, self.size, self.linear = paper, whole, size, linear

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Keep the slice alone."""
        whole = self.paper.take(self.whole)
        y, _ = self.linear.forward(whole)
        self.paper.give(whole)
        return y, x

    def backward(self, dy: Sheet, x: Sheet) -> Sheet:
        """Gather again; scatter the gradient."""
        dx = self.linear.backward(dy, self.paper.take(self.whole))
        mine = self.paper.take(self.whole // self.size)
        self.paper.give(dx, x)
        return mine


class Moved(nn.Forgetful):
    """A layer that gives up its input for an array of `there` elements, backward for one of `back`.

    `between` is what it needs meanwhile.
    """

    def __init__(self, paper: Paper, there: int, back: int, between: Sequence[int] = ()):
        self.paper, self.there, self.back, self.between = paper, there, back, between

    def forward(self, x: Sheet) -> tuple[Sheet, None]:
        """Move."""
        return self._moved(x, self.there), None

    def backward(self, dy: Sheet, cache: None) -> Sheet:  # noqa: ARG002
        """Move back."""
        return self._moved(dy, self.back)

    def _moved(self, x: Sheet, size: int) -> Sheet:
        y = self.paper.take(size)
        self.paper.give(*[self.paper.take_exchange(part) for part in self.between], x)
        return y


class Collectives:
    """Two arrays of a message's size, forward and backward, one axis after another."""

    def __init__(self, paper: Paper, message: int, size: int):
        self.paper, self.message, self.size = paper, message, size

    def forward(self, x: None) -> tuple[Sheet, None]:  # noqa: ARG002
        """Exchange, and return what the loss is given."""
        self._exchange()
        return self.paper.take(self.size), None

    def backward(self, dy: Sheet, cache: None) -> None:  # noqa: ARG002
        """Exchange."""
        self.paper.give(dy)
        self._exchange()

    def _exchange(self) -> None:
        if self.message:
            self.paper.give(*[self.paper.take_exchange(self.message) for _ in range(2)])


class Exchange:
    """Experts elsewhere: `slots` elements travel, and are put in order where `swaps` says so."""

    def __init__(self, paper: Paper, slots: int, *, swaps: bool, experts: Step):
        self.paper, self.slots, self.swaps, self.experts = paper, slots, swaps, experts

    def forward(self, x: Sheet) -> tuple[Sheet, Any]:
        """Away, and home."""
        y, cache = self.experts.forward(self._passed(x, first_exchanged=True))
        return self._passed(y, first_exchanged=False), cache

    def backward(self, dy: Sheet, cache: Any) -> Sheet:
        """Do the same with gradients."""
        dx = self.experts.backward(self._passed(dy, first_exchanged=True), cache)
        return self._passed(dx, first_exchanged=False)

    def _passed(self, x: Sheet, *, first_exchanged: bool) -> Sheet:
        for exchanged in (first_exchanged, not first_exchanged):
            if exchanged or self.swaps:
                y = self.paper.take(self.slots)
                if exchanged:
                    self.paper.begin_exchange(y)
                    self.paper.end_exchange(y)
                self.paper.give(x)
                x = y
        return x


class _Message:
    """A message that is on its way until it is asked for the second time."""

    def __init__(self) -> None:
        self._asked = False

    def poll(self) -> bool:
        arrived, self._asked = self._asked, True
        return arrived

    def wait(self) -> None:
        pass


class _Paper:
    """What `Boundary` needs of an axis and of a pool."""

    def __init__(self, paper: Paper, stage: int):
        self.rank, self._paper = stage, paper
        self.give, self.begin_exchange, self.end_exchange = (
            paper.give,
            paper.begin_exchange,
            paper.end_exchange,
        )

    def take_exchange(self, shape: tuple[int], dtype: str) -> Sheet:  # noqa: ARG002
        return self._paper.take_exchange(*shape)

    def start_send(self, x: Sheet, to: int) -> _Message:  # noqa: ARG002
        return _Message()

    def start_receive(self, out: Sheet, source: int) -> _Message:  # noqa: ARG002
        return _Message()


class Rank:
    """The units of one rank, and its step, as `worker.build` and `worker.trainer` have them."""

    def __init__(self, case: Case, rank: int, paper: Paper):
        self.case, self.rank, self.paper = case, rank, paper
        model, plan, self.cut = case.model, case.plan, case.plan.tp
        self.sequences, self.width = division.sequences(case), model.width
        self.tokens = model.sequence // plan.cp
        self.sliced = plan.sp and self.cut > 1
        self.outside = (
            self.tokens // self.cut if self.sliced else self.tokens
        )  # of a sequence, between layers
        self.rows, self.rows_outside = self.sequences * self.tokens, self.sequences * self.outside
        self.features = model.width  # of a row between layers
        self.vocabulary = division.vocabulary(case, rank)
        self.stage = pipeline.stage_of(plan, rank)
        self.table = pipeline.timetable(plan, case.train.micro_batches)
        self.later: list[Callable[[], None]] | None = [] if self.table.splits else None
        self.units: dict[int, Step] = {}
        self.blocks: set[int] = set()
        self.away = OnPaper(paper) if plan.offloads_activations else None
        self.keeping: Keeping[Sheet] = Keeping(self.away)

    @property
    def stream(self) -> int:
        """Return the elements of activations between layers."""
        return self.rows_outside * self.features

    def step(self) -> None:
        """Do what the trainer does."""
        names = division.units(self.case, self.rank)
        numbers = pipeline.held_units(self.case, self.rank)
        self.units = {number: self._unit(name) for number, name in zip(numbers, names, strict=True)}
        self.blocks = {
            number for number, name in zip(numbers, names, strict=True) if name.startswith("block.")
        }
        edge = _Paper(self.paper, self.stage)
        boundary = Boundary(
            cast(Axis, edge), self.table, (self.stream,), dtype="", buffers=cast(Buffers, edge)
        )
        parts = stage_segments(self.case, self.stage)
        under_way: dict[tuple[int, int], list[Any]] = {}
        boundary.start_step()
        for action in boundary.actions:
            key = action.micro, action.part
            if action.kind == "forward":
                under_way[key] = self._forward(boundary, action, parts[action.part])
            elif action.kind == "weight":
                for multiply in under_way.pop(key):
                    multiply()
            else:
                self._backward(boundary, action, parts[action.part], under_way.pop(key))
                if self.later is not None:
                    under_way[key], self.later[:] = list(self.later), []
        boundary.finish()

    def _forward(self, boundary: Boundary, action: Action, parts: Sequence[Segment]) -> list[Any]:
        x: Any = cast(Any, boundary).receive(action) if boundary.receives(action) else None
        kept = []
        for segment in parts:
            goes = self.keeping.moves and segment.units[0] in self.blocks
            mark, taken_over = self.paper.holdings() if goes else {}, x
            x, cache = self._forgetting(segment, x) if segment.recomputed else self._one(segment.units[0], x)
            kept.append(self.keeping.put(cache, mark, taken_over, x, goes=goes))
        if boundary.sends(action):
            boundary.send(action, x)
        else:
            kept.append(self._loss().forward(x))
        return kept

    def _backward(
        self, boundary: Boundary, action: Action, parts: Sequence[Segment], kept: list[Any]
    ) -> None:
        begins = not boundary.receives(action)
        of_loss = kept.pop() if begins else None
        self.keeping.begin(kept)
        dx: Any = of_loss if begins else cast(Any, boundary).receive(action)
        for segment in reversed(parts):
            cache = self.keeping.get(kept)
            caches = self._again(segment, cache) if segment.recomputed else [cache]
            for unit in reversed(segment.units):
                dx = self.units[unit].backward(dx, caches.pop())
        if dx is not None:
            boundary.send(action, dx)

    def _one(self, unit: int, x: Any) -> tuple[Any, Any]:
        return self.units[unit].forward(x)

    def _forgetting(self, segment: Segment, x: Sheet) -> tuple[Sheet, Sheet]:
        first, mark = x, self.paper.holdings()
        self.paper.share(first)
        for unit in segment.units:
            x, _ = self._one(unit, x)
            self.paper.forget_since(mark, x)
        return x, first

    def _again(self, segment: Segment, x: Sheet) -> list[Any]:
        *before, last = segment.units
        caches = []
        for unit in before:
            x, cache = self._one(unit, x)
            caches.append(cache)
        return [*caches, nn.remember(self.units[last], x, self.paper)]

    def _loss(self) -> nn.Loss:
        tokens = self.case.model.kind in ("gpt", "moe")
        return nn.Loss(self.paper, 3 * self.rows if tokens and self.cut > 1 else 0)

    def _unit(self, name: str) -> Step:
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
            tokens = nn.Tokens(paper, self.rows, self.vocabulary, C)
            return Chain(tokens, *self._leave(), positions)
        tokens = nn.Tokens(paper, self.rows, self.case.model.vocabulary, C // self.cut)
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
