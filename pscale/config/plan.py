"""How the work is cut over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config.choices import (
    Compression,
    Context,
    Embedding,
    MatrixAlgorithm,
    Offload,
    Placement,
    Reduction,
    Schedule,
    ZeroStage,
)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A grid of ranks that share every product of matrices; of one rank: nobody does."""

    tx: int = 1
    ty: int = 1
    tz: int = 1
    algorithm: MatrixAlgorithm = "axonn"

    @property
    def ranks(self) -> int:
        """Processes of the grid."""
        return self.tx * self.ty * self.tz

    @property
    def sizes(self) -> dict[str, int]:
        """Degree of every dim of the grid, the slowest varying first; none for a grid of one rank."""
        return {"tz": self.tz, "tx": self.tx, "ty": self.ty} if self.ranks > 1 else {}

    @property
    def product(self) -> str:
        """The grid as people write it: 2 × 2 × 3 agarwal."""
        sides = (self.tx, self.ty) if self.tz == 1 else (self.tx, self.ty, self.tz)
        return f"{' × '.join(str(side) for side in sides)} {self.algorithm}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the work is cut over ranks: the degree of every mesh axis, and the choices of each strategy."""

    dp: int = 1  # data: replicas that split the batch
    tp: int = 1  # tensor: weights of a layer
    pp: int = 1  # pipeline: layers
    cp: int = 1  # context: the sequence
    ep: int = 1  # expert: experts, and the batch
    reduction: Reduction = "bucketed"
    bucket_bytes: int = 2 << 20  # hides most over a network, costs nothing in memory: benchmarks/overlap.py
    compression: Compression = "none"  # of gradients that are summed
    compression_share: float = 0.01  # topk: of all numbers, those that are sent
    compression_rank: int = 2  # powersgd: columns of a factor
    sp: bool = False  # sequence parallel inside the tensor axis
    embedding: Embedding = "row"  # how the tensor ranks cut the table of tokens: by tokens, or by features
    zero: ZeroStage = 0
    shard: int = 0  # ranks of dp that share one set of shards; 0: all of them
    reshard_after_forward: bool = True
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    context: Context = "ring"
    placement: Placement = "zigzag"
    matrix: Matrix = Matrix()
    checkpoint: str = "none"  # what backward computes again: none, selective, full, every-2, every-3, …
    offload: Offload = "none"  # what lies in a file while nobody needs it
    offload_folder: str = ""  # where; empty: the system's folder for temporary files
    offload_chunk_bytes: int = 4 << 20  # of each array of an optimizer's state at most: benchmarks/offload.py

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

    @property
    def sizes(self) -> dict[str, int]:
        """Degree of every mesh dim, the slowest varying first: tensor ranks are neighbours.

        With hybrid sharding "dp" is two dims: which set of shards, and which shard of it.
        """
        data = {"replica": self.dp // self.shard, "shard": self.shard} if self.hybrid else {"dp": self.dp}
        return {"pp": self.pp, **data, "ep": self.ep, "cp": self.cp, "tp": self.tp, **self.matrix.sizes}

    @property
    def hybrid(self) -> bool:
        """Whether there are several sets of shards."""
        return 0 < self.shard < self.dp

    @property
    def batch_parts(self) -> int:
        """Into how many parts the batch is cut."""
        return self.dp * self.ep

    @property
    def sequence_parts(self) -> int:
        """Into how many parts a sequence is cut between the layers."""
        return self.cp * (self.tp if self.sp else 1)

    @property
    def mixture_copies(self) -> int:
        """How many ranks route the same tokens, and multiply them with the same experts."""
        return 1 if self.sp else self.tp

    @property
    def ranks(self) -> int:
        """Processes that the plan needs."""
        return self.dp * self.tp * self.pp * self.cp * self.ep * self.matrix.ranks

    @property
    def product(self) -> str:
        """The degrees that are not 1, as people write them: dp 2 × tp 4."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        said = [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
        said += [f"matrix {self.matrix.product}"] * (self.matrix.ranks > 1)
        return " × ".join(said) or "dp 1"
