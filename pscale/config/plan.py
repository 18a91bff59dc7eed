"""How the work is divided over ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pscale.config.axes import BATCH_AXES, GRID_AXES, PLAN_AXES, SEQUENCE_AXES, mesh_sizes
from pscale.config.choices import (
    Bytes,
    Context,
    Degree,
    Group,
    InSuite,
    MatrixAlgorithm,
    NonNegativeInt,
    Number,
    Placement,
    PositiveInt,
    Schedule,
    Text,
)

Folder = Annotated[str, Text(r"(/[^\0]*)?", "a folder that begins with /, or nothing")]
Checkpoint = Annotated[
    str,
    Text(
        r"none|selective|full|every-([2-9]|[1-9][0-9]{1,8})",
        "none, selective, full, or every-2, every-3 and so on (every-1 is full)",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Matrix(Group):
    """A grid of ranks that share every matrix product; a grid of one rank shares nothing."""

    tx: PositiveInt = 1
    """Ranks that cut the columns of activations between layers, and of every second matrix."""
    ty: PositiveInt = 1
    """Ranks that cut the columns within a pair of layers, such as heads, and of the other matrices."""
    tz: PositiveInt = 1
    """`axonn`, `agarwal`: ranks that split the batch and hold a part of every block of weights."""
    algorithm: Annotated[MatrixAlgorithm, InSuite(axes=GRID_AXES)] = "axonn"
    """`axonn`: activations replicated, weights gathered along `tz`; `agarwal`: nothing replicated, both
    factors gathered; `summa`: panels broadcast along rows and columns; `cannon`: blocks shifted around a
    square."""

    @property
    def ranks(self) -> int:
        """Processes of the grid."""
        return self.tx * self.ty * self.tz

    @property
    def sizes(self) -> dict[str, int]:
        """Degree of every axis of the grid; none for a grid of one rank."""
        return {"tx": self.tx, "ty": self.ty, "tz": self.tz} if self.ranks > 1 else {}

    @property
    def product(self) -> str:
        """The grid as people write it: 2 × 2 × 3 agarwal."""
        sides = (self.tx, self.ty) if self.tz == 1 else (self.tx, self.ty, self.tz)
        return f"{' × '.join(str(side) for side in sides)} {self.algorithm}"


@dataclass(frozen=True, kw_only=True)
class Plan(Group):
    """How the work is divided over ranks: dp x tp x pp x cp x ep of them, times a grid's tx x ty x tz.

    In a suite one degree may be `ranks`, or `rest`: what the others leave of the ranks, as dp is by default.
    """

    dp: Annotated[Degree, InSuite(default="rest")] = 1
    """Data parallel: replicas that split the batch."""
    reduction: Literal["bucketed", "all-reduce", "gather-broadcast"] = "bucketed"
    """Gradients: `bucketed` during backward; one `all-reduce` after it; or `gather-broadcast` through one
    rank."""
    bucket_bytes: Bytes = 2 << 20  # hides most over a network, costs nothing in memory: benchmarks/overlap.py
    """Size at which a bucket is sent; gradients of one block stay together."""
    compression: Literal["none", "fp16", "int8", "sign", "topk", "powersgd"] = "none"
    """Gradient compression: `fp16`, `int8` or `sign` (1 bit per number), the largest (`topk`), or low-rank
    factors (`powersgd`): [compression](compression.md)."""
    compression_share: Annotated[float, Number(gt=0, le=1), InSuite(omitted=False)] = 0.01
    """`topk`: share of a rank's gradients that is sent."""
    compression_rank: Annotated[PositiveInt, InSuite(omitted=False)] = 2
    """`powersgd`: rank of the factors."""
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage, what replicas shard: 1: optimizer state; 2: gradients too; 3: parameters too, gathered when
    needed."""
    shard: NonNegativeInt = 0
    """`zero`: ranks of `dp` that share one set of shards; the sets are replicas (hybrid sharding); 0: all of
    `dp`."""
    reshard_after_forward: bool = True
    """`zero: 3`: free gathered parameters after forward and gather them again; false: keep them until
    backward, with `pp` for most of the step."""
    tp: Degree = 1
    """Tensor parallel: ranks that cut the weights of every layer; must divide `heads`."""
    sp: Annotated[bool, InSuite(axes=("tp",))] = False
    """Sequence parallel: tensor ranks also cut the activations between layers; `tp` × `cp` must divide
    `sequence`."""
    embedding: Annotated[Literal["row", "column"], InSuite(named=True, axes=("tp",))] = "row"
    """How tensor ranks cut the token table: by tokens (`row`) or features (`column`)."""
    pp: Degree = 1
    """Pipeline parallel: stages of consecutive blocks; at most `layers`."""
    schedule: Annotated[Schedule, InSuite(axes=("pp",))] = "1f1b"
    """`gpipe`: all forward, then all backward; `1f1b`: in alternation; `interleaved`: the same with several
    parts per rank (`pp` must divide `micro_batches`); `zero-bubble`: weight gradients delayed into the
    bubble."""
    virtual_stages: Annotated[PositiveInt, InSuite(axes=("pp",))] = 1
    """`interleaved`: parts of the model per rank, at least 2; `pp` × `virtual_stages` is at most `layers`."""
    cp: Degree = 1
    """Context parallel: ranks that split the tokens of a sequence; must divide `sequence`, with `zigzag`
    twice `cp` must."""
    context: Annotated[Context, InSuite(axes=("cp",))] = "ring"
    """Attention: `ring`: keys and values travel around a ring; `ulysses`: all-to-all over heads (`tp` × `cp`
    must divide `heads`); `all-gather` of keys and values; `unified`: `ulysses` within groups, `ring` between
    them."""
    ulysses: Annotated[NonNegativeInt, InSuite(axes=("cp",))] = 0
    """`unified`: ranks of `cp` in a group; must divide `cp`, and `tp` × `ulysses` must divide `heads`."""
    placement: Annotated[Placement, InSuite(axes=("cp",))] = "zigzag"
    """Tokens of a rank: `zigzag`, a chunk from the front and one from the back, which balances causal
    attention; or `contiguous`."""
    ep: Degree = 1
    """Expert parallel: ranks that distribute the experts and also split the batch; model kind `moe` only;
    must divide `experts`."""
    matrix: Matrix = Matrix()
    """A grid of ranks that share every matrix product: [below](#planmatrix-a-grid-of-ranks)."""
    checkpoint: Checkpoint = "none"
    """What backward recomputes: `selective`: attention scores; `full`: every block from its input; `every-k`:
    k blocks from the input of the first: [checkpointing](checkpointing.md)."""
    offload: Annotated[Literal["none", "optimizer", "activations", "both"], InSuite(named=True)] = "none"
    """What is in a file while not needed: the optimizer's state, activations of blocks, or both:
    [offload](offload.md)."""
    offload_folder: Folder = ""
    """Folder of that unnamed file; empty: `TMPDIR`, else `/tmp`."""
    offload_chunk_bytes: Bytes = 4 << 20  # benchmarks/offload.py
    """Bytes of each array of the optimizer's state moved at once; at most an eighth of it."""

    @property
    def offloads_state(self) -> bool:
        """Whether the state of the optimizer lies in a file."""
        return self.offload in ("optimizer", "both")

    @property
    def offloads_activations(self) -> bool:
        """Whether what blocks keep for backward lies in a file."""
        return self.offload in ("activations", "both")

    @property
    def checkpoint_interval(self) -> int:
        """Of how many blocks the input of the first alone is kept; 0: all of them keep what they need."""
        return 1 if self.checkpoint == "full" else int(self.checkpoint.partition("-")[2] or 0)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Size of every axis of the mesh, the slowest varying first: tensor ranks are neighbours.

        With hybrid sharding "dp" is two axes: which set of shards, and which shard of it. With unified
        sequence parallelism "cp" is: which group of the ring, and which rank of the group.
        """
        inner = {"dp": self.shard, "cp": self.ulysses if self.context == "unified" else 0}
        return mesh_sizes({**self.degrees, **self.matrix.sizes}, inner)

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of every axis but those of the grid, as people write them."""
        return {axis: getattr(self, axis) for axis in PLAN_AXES}

    @property
    def hybrid(self) -> bool:
        """Whether there are several sets of shards."""
        return 0 < self.shard < self.dp

    @property
    def batch_parts(self) -> int:
        """Into how many parts the batch is cut."""
        return math.prod(int(getattr(self, axis)) for axis in BATCH_AXES)

    @property
    def sequence_parts(self) -> int:
        """Into how many parts a sequence is cut between the layers."""
        between = self.tp if self.sp else 1
        return between * math.prod(int(getattr(self, axis)) for axis in SEQUENCE_AXES)

    @property
    def mixture_copies(self) -> int:
        """How many ranks route the same tokens, and multiply them with the same experts."""
        return 1 if self.sp else self.tp

    @property
    def ranks(self) -> int:
        """Processes that the plan needs."""
        return math.prod(self.degrees.values()) * self.matrix.ranks

    @property
    def product(self) -> str:
        """The degrees that are not 1, as people write them: dp 2 × tp 4."""
        said = [f"{axis} {degree}" for axis, degree in self.degrees.items() if degree > 1]
        said += [f"matrix {self.matrix.product}"] * (self.matrix.ranks > 1)
        return " × ".join(said) or "dp 1"
