"""What one case is: the values that cross from the suite to the job.

Frozen, keyword-only and of the standard library alone, so that every package may read them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_type_hints

from pscale.lateness import NO_DELAY, NO_JITTER, Inject, Jitter, in_words

Scaling = Literal["weak", "strong", "throughput"]
ModelKind = Literal["gpt", "moe", "block", "linear", "collectives"]
DataKind = Literal["text", "synthetic", "linear"]
Loading = Literal["memory", "mpi-io", "scatter", "files"]
Split = Literal["partition", "sample"]
Reduction = Literal["bucketed", "all-reduce", "gather-broadcast"]
Compression = Literal["none", "fp16", "int8", "sign", "topk", "powersgd"]
Offload = Literal["none", "optimizer", "activations", "both"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Context = Literal["ring", "ulysses", "all-gather"]
Placement = Literal["zigzag", "contiguous"]
Attention = Literal["auto", "plain", "block"]
Embedding = Literal["row", "column"]
ZeroStage = Literal[0, 1, 2, 3]
MatrixAlgorithm = Literal["axonn", "agarwal", "summa", "cannon"]
Optimizer = Literal["sgd", "adam", "adamw", "lamb", "adafactor"]
LrSchedule = Literal["constant", "cosine"]
LrScaling = Literal["none", "linear", "sqrt"]
Dtype = Literal["float32", "float64", "fp16", "bf16"]
Reduce = Literal["wire", "float32"]
LossScaling = Literal["auto", "none", "dynamic"]
Bind = Literal["core", "socket", "numa", "none"]
ProcBind = Literal["close", "spread"]
Places = Literal["threads", "cores", "ll_caches", "numa_domains", "sockets"]
WaitPolicy = Literal["active", "passive"]
SchedulerChoice = Literal["auto", "none", "slurm", "pbs", "lsf", "flux"]
Packing = Literal["nodes", "case", "all"]
Blas = Literal["openblas", "mkl", "blis"]
KernelsChoice = Literal["auto", "fused", "numpy"]
BlasThreading = Literal["openmp", "pthreads"]

# Tokens of a sequence from which on computing scores again takes no longer than keeping them, within 2 %, and
# needs a third of the memory (benchmarks/attention.py).
BLOCKS_FROM = 2048
NARROW: frozenset[str] = frozenset({"fp16"})  # types whose least numbers are larger than many gradients


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of the network. `block` has one layer and no vocabulary; `linear` is `width` weights.

    `collectives` computes nothing and has the last two fields alone.

    `moe` is a `gpt` in which every `every`-th block has experts; the fields from `experts` on are its alone.
    """

    kind: ModelKind = "gpt"
    layers: int = 4
    width: int = 256
    heads: int = 4
    sequence: int = 256
    vocabulary: int = 256
    dtype: Dtype = "float32"  # a suite says `precision`
    attention: Attention = "auto"  # keep the scores, or compute them again block by block
    experts: int = 8  # of a block
    top_k: int = 1  # experts of a token, 1 or 2
    capacity_factor: float = 1.25  # places of the experts over choices of the tokens
    every: int = 2
    balance_weight: float = 0.01  # of the auxiliary loss
    message_bytes: int = 1 << 20
    calls: int = 10  # of each verb in a step

    @property
    def keeps_scores(self) -> bool:
        """Whether attention keeps its scores for backward; `auto` as benchmarks/attention.py found best."""
        return self.attention == "plain" or (self.attention == "auto" and self.sequence < BLOCKS_FROM)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where samples come from, which rank gets which, and how they are read."""

    kind: DataKind = "text"
    source: str = "python-stdlib"
    split: Split = "partition"
    loading: Loading = "memory"
    samples: int = 0  # `linear` only: size of the data set


@dataclass(frozen=True, kw_only=True)
class Train:
    """One optimizer step and how many of them. `batch` is global: sequences (or samples) per step."""

    batch: int = 8
    micro_batches: int = 1
    optimizer: Optimizer = "adamw"
    lr: float = 3e-4
    lr_scaling: LrScaling = "none"
    lr_batch: int = 0  # that `lr` is for; 0: that of one replica
    lr_schedule: LrSchedule = "constant"
    lr_warmup: int = 0  # steps in which the rate grows
    lr_final: float = 0.1  # share of the rate that is left in the last step
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0  # global gradient norm
    steps: int = 30
    warmup: int = 5
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How a model whose numbers have few bits is trained; which numbers those are is the model's `dtype`."""

    reduce: Reduce = "wire"  # gradients are summed as they are sent, or in float32, which is sent too
    loss_scale: LossScaling | float = "auto"  # how many times larger the loss is made; auto: see `Case`
    initial_scale: float = 2.0**16  # of dynamic
    growth_interval: int = 2000  # steps without overflow after which dynamic doubles


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
    offload_chunk_bytes: int = (
        4 << 20
    )  # of each array of an optimizer's state, at most: benchmarks/offload.py

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


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is measured beside the steps."""

    gemm_peak: bool = True
    overhead_steps: int = 4  # steps with recording off, each beside one with it on
    trace: bool = False  # keep every note of every rank


@dataclass(frozen=True, kw_only=True)
class Omp:
    """Where the OpenMP threads of a rank run and how they wait for work; None: as the runtime likes."""

    proc_bind: ProcBind | None = None
    places: Places | None = None
    wait_policy: WaitPolicy | None = None


@dataclass(frozen=True, kw_only=True)
class Require:
    """The BLAS without which a measurement is not what was asked for; None: any."""

    blas: Blas | None = None
    blas_threading: BlasThreading | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How processes are started."""

    launcher: str = "auto"
    bind: Bind = "core"
    time_limit_s: float = 600.0
    hang_after_s: float | None = 60.0  # without progress; None: nobody watches
    memory_limit_bytes: int | None = None  # of all ranks of a host; None: its memory
    oversubscribe: bool = False
    omp: Omp = Omp()
    kernels: KernelsChoice = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    ranks_per_node: int = 0  # 0: as many as have cores
    scheduler: SchedulerChoice = "auto"
    packing: Packing = "nodes"  # what one job runs: all cases of so many nodes, one case, everything
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gpus: int = 0  # of a node
    job_time_limit_s: float | None = None  # of a job; None: the sum of its launches' limits
    directives: tuple[str, ...] = ()  # options for the scheduler
    modules: tuple[str, ...] = ()
    setup: str = ""  # lines of shell before the launches


_NOT_THE_WORK = (  # fields of Launch that say where and how long, not what is measured
    *(
        "time_limit_s",
        "hang_after_s",
        "memory_limit_bytes",
        "scheduler",
        "packing",
        "partition",
        "account",
        "qos",
        "constraint",
    ),
    *("gpus", "job_time_limit_s", "directives", "modules", "setup"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a suite: everything that a job needs to know."""

    suite: str
    label: str
    series: str = ""  # cases of one series differ in size alone
    base: bool = False  # the case that efficiencies refer to; none marked: the smallest of the series
    scaling: Scaling = "weak"
    ranks: int = 1
    threads: int = 1
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = NO_DELAY
    jitter: Jitter = NO_JITTER

    @property
    def injected(self) -> str:
        """What makes ranks late on purpose, in words; empty for a healthy case."""
        return in_words(self.inject, self.jitter)

    @property
    def loss_scale(self) -> LossScaling | float:
        """`none`, `dynamic` or a number: numbers with a narrow range need a scale, others none."""
        asked = self.precision.loss_scale
        return ("dynamic" if self.model.dtype in NARROW else "none") if asked == "auto" else asked

    @property
    def asks_for_norm(self) -> bool:
        """Whether a step needs the norm of the gradient: to clip it, or to find that it overflowed."""
        return self.train.clip is not None or self.loss_scale != "none"

    @functools.cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the content: the same work has the same id in every suite."""
        content = _unlike_default(self)
        for name in ("suite", "label", "series", "base", "require"):
            content.pop(name, None)
        for name in _NOT_THE_WORK:
            content.get("launch", {}).pop(name, None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def _unlike_default(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, so that a field that is added changes no old id."""
    content: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        held = getattr(value, each.name)
        if dataclasses.is_dataclass(held):
            if inner := _unlike_default(held):
                content[each.name] = inner
        elif held != (each.default_factory() if callable(each.default_factory) else each.default):
            content[each.name] = held
    return content


T = TypeVar("T")


def to_dict(value: Any) -> dict[str, Any]:
    """Turn a configuration into plain dictionaries, for JSON."""
    return dataclasses.asdict(value)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration of class `kind` from what `to_dict` made."""
    hints = _hints(cast("Hashable", kind))
    return kind(**{name: _restored(hints[name], value) for name, value in values.items()})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _restored(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    return tuple(value) if isinstance(value, list) else value
