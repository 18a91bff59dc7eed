"""What a suite file may say: its fields, their types, ranges and defaults."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from pscale import config, lateness
from pscale.metrics import Metric
from pscale.suite.demand import check_demand
from pscale.suite.quantities import (
    MOST_REPEATS,
    Bytes,
    Checkpoint,
    Count,
    CountOrNone,
    Degree,
    Folder,
    Formula,
    Fraction,
    Gpus,
    LossScale,
    NotNegative,
    OneOrTwo,
    Positive,
    Repeat,
    Scale,
    Seconds,
    SecondsOrNone,
    Seed,
    Share,
    SomeShare,
)
from pscale.suite.sweep import Sweep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WORD = re.compile(r"""[^\s'"`$\\]+""")
_OPTION = re.compile(r"-[^\n\r\0]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Group(BaseModel):
    """Fields that belong together. Nothing is guessed: no other fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Gpt(Group):
    """A decoder: embeddings, `layers` pre-norm blocks, an untied head."""

    kind: Literal["gpt"]
    layers: Count = config.Model.layers
    width: Count = config.Model.width
    heads: Count = config.Model.heads
    sequence: Count = config.Model.sequence
    vocabulary: Count = config.Model.vocabulary
    attention: config.Attention = config.Model.attention


class Moe(Group):
    """A `gpt` in which every `every`-th block has experts in place of its MLP."""

    kind: Literal["moe"]
    layers: Count = config.Model.layers
    width: Count = config.Model.width
    heads: Count = config.Model.heads
    sequence: Count = config.Model.sequence
    vocabulary: Count = config.Model.vocabulary
    experts: Count = config.Model.experts
    top_k: OneOrTwo = config.Model.top_k
    capacity_factor: Positive = config.Model.capacity_factor
    every: Count = config.Model.every
    balance_weight: NotNegative = config.Model.balance_weight
    attention: config.Attention = config.Model.attention


class Block(Group):
    """One attention block that learns a regression: the fundamental element."""

    kind: Literal["block"]
    width: Count = config.Model.width
    heads: Count = config.Model.heads
    sequence: Count = config.Model.sequence
    attention: config.Attention = config.Model.attention


class Linear(Group):
    """Five weights of a linear equation."""

    kind: Literal["linear"]


class Collectives(Group):
    """Every verb on every axis, and nothing else: what the network gives."""

    kind: Literal["collectives"]
    message: Bytes = config.Model.message_bytes
    calls: Count = config.Model.calls


class Text(Group):
    """Bytes of files: the standard library's source, a path, or a glob."""

    kind: Literal["text"]
    source: str = Field(default=config.Data.source, min_length=1)
    split: config.Split = config.Data.split
    loading: config.Loading = config.Data.loading


class Synthetic(Group):
    """Samples drawn from the seed: tokens for `gpt` and `moe`, a regression for `block`."""

    kind: Literal["synthetic"]


class LinearData(Group):
    """Samples of the linear equation."""

    kind: Literal["linear"]
    samples: Count = 10_000


class Train(Group):
    """One optimizer step, and how many. `batch`: weak, of one data-parallel rank; else of all."""

    batch: Count = config.Train.batch
    micro_batches: Count = config.Train.micro_batches
    optimizer: config.Optimizer = config.Train.optimizer
    lr: Positive = config.Train.lr
    lr_scaling: config.LrScaling = config.Train.lr_scaling
    lr_batch: CountOrNone = config.Train.lr_batch
    lr_schedule: config.LrSchedule = config.Train.lr_schedule
    lr_warmup: CountOrNone = config.Train.lr_warmup
    lr_final: Share = config.Train.lr_final
    momentum: Fraction = config.Train.momentum
    beta1: Fraction = config.Train.beta1
    beta2: Fraction = config.Train.beta2
    epsilon: Positive = config.Train.epsilon
    weight_decay: NotNegative = config.Train.weight_decay
    clip: Positive | None = config.Train.clip
    steps: Count = config.Train.steps
    warmup: CountOrNone = config.Train.warmup
    seed: Seed = config.Train.seed


AXES = ("dp", "tp", "pp", "cp", "ep")
GRID = ("tx", "ty", "tz")
_REST = Formula("=rest")


class Matrix(Group):
    """A grid of ranks that share every product of matrices; of one rank: nobody does."""

    tx: Count = config.Matrix.tx
    ty: Count = config.Matrix.ty
    tz: Count = config.Matrix.tz
    algorithm: config.MatrixAlgorithm = config.Matrix.algorithm


class Plan(Group):
    """How the work is cut over ranks: their number is dp x tp x pp x cp x ep, times a grid's tx x ty x tz.

    One degree may be `ranks`, or `rest`: what the others leave of the ranks. Without a word, that is dp.
    """

    dp: Degree = Field(
        default_factory=lambda: cast(int, _REST), json_schema_extra={"default": _REST.removeprefix("=")}
    )
    reduction: config.Reduction = config.Plan.reduction
    bucket: Bytes = config.Plan.bucket_bytes
    compression: config.Compression = config.Plan.compression
    compression_share: SomeShare = config.Plan.compression_share
    compression_rank: Count = config.Plan.compression_rank
    zero: config.ZeroStage = config.Plan.zero
    shard: CountOrNone = config.Plan.shard
    reshard_after_forward: bool = config.Plan.reshard_after_forward
    tp: Degree = config.Plan.tp
    sp: bool = config.Plan.sp
    embedding: config.Embedding = config.Plan.embedding
    pp: Degree = config.Plan.pp
    schedule: config.Schedule = config.Plan.schedule
    virtual_stages: Count = config.Plan.virtual_stages
    cp: Degree = config.Plan.cp
    context: config.Context = config.Plan.context
    placement: config.Placement = config.Plan.placement
    ep: Degree = config.Plan.ep
    matrix: Matrix = Matrix()
    checkpoint: Checkpoint = config.Plan.checkpoint
    offload: config.Offload = config.Plan.offload
    offload_folder: Folder = config.Plan.offload_folder
    offload_chunk: Bytes = config.Plan.offload_chunk_bytes

    @model_validator(mode="after")
    def _rest_of_the_ranks(self) -> Self:
        open_ = [axis for axis in AXES if getattr(self, axis) == _REST]
        if len(open_) > 1 and "dp" not in self.model_fields_set:
            self.dp = 1
            open_.remove("dp")
        if len(open_) > 1:
            raise ValueError(f"{' and '.join(open_)} cannot both be rest, what the others leave of the ranks")
        for axis in open_:
            others = " * ".join([*(other for other in AXES if other != axis), *GRID])
            setattr(self, axis, Formula(f"=max(1, ranks // ({others}))"))
        return self


class Precision(Group):
    """The numbers of the model. In a suite, `precision: float64` is `precision: {type: float64}`."""

    type: config.Dtype | None = None
    reduce: config.Reduce = config.Precision.reduce
    loss_scale: LossScale = config.Precision.loss_scale
    initial_scale: Scale = config.Precision.initial_scale
    growth_interval: Count = config.Precision.growth_interval

    @model_validator(mode="before")
    @classmethod
    def _no_number(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError(
                f"expected a type of numbers, such as float32, got {value}; "
                "how well `repeat: auto` gets to know step times is `known_to`"
            )
        return value


class Timing(Group):
    """What is measured beside the steps."""

    gemm_peak: bool = config.Timing.gemm_peak
    overhead_steps: CountOrNone = config.Timing.overhead_steps
    trace: bool = config.Timing.trace


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"'{name}' is not a name for an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} holds a null character")
    return values


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError(f"expected one word without quotes, got '{value}'")
    return value


def _option(value: str) -> str:
    if not _OPTION.fullmatch(value):
        raise ValueError(f"expected one option of the scheduler such as '--exclusive', got '{value}'")
    return value


Word = Annotated[str, AfterValidator(_word)]
WordOrNothing = Annotated[str, AfterValidator(lambda value: value and _word(value))]
Option = Annotated[str, AfterValidator(_option)]


class Omp(Group):
    """Where the OpenMP threads of a rank run, and how they wait for work."""

    proc_bind: config.ProcBind | None = config.Omp.proc_bind
    places: config.Places | None = config.Omp.places
    wait_policy: config.WaitPolicy | None = config.Omp.wait_policy


class Require(Group):
    """The BLAS without which nothing shall be measured."""

    blas: config.Blas | None = config.Require.blas
    blas_threading: config.BlasThreading | None = config.Require.blas_threading


class Launch(Group):
    """How processes are started."""

    launcher: str = Field(default=config.Launch.launcher, min_length=1)
    bind: config.Bind = config.Launch.bind
    time_limit: Seconds = config.Launch.time_limit_s
    hang_after: Seconds | None = config.Launch.hang_after_s
    memory_limit: Bytes | None = config.Launch.memory_limit_bytes
    oversubscribe: bool = config.Launch.oversubscribe
    omp: Omp = Omp()
    kernels: config.KernelsChoice = config.Launch.kernels
    env: Annotated[dict[str, str], AfterValidator(_variables)] = {}
    extra: list[str] = []
    ranks_per_node: CountOrNone = config.Launch.ranks_per_node
    scheduler: config.SchedulerChoice = config.Launch.scheduler
    packing: config.Packing = config.Launch.packing
    partition: WordOrNothing = config.Launch.partition
    account: WordOrNothing = config.Launch.account
    qos: WordOrNothing = config.Launch.qos
    constraint: WordOrNothing = config.Launch.constraint
    gpus: Gpus = config.Launch.gpus
    job_time_limit: Seconds | None = config.Launch.job_time_limit_s
    directives: list[Option] = []
    modules: list[Word] = []
    setup: str = config.Launch.setup


class Inject(Group):
    """One rank that is made late, to ask what that would cost."""

    rank: CountOrNone = lateness.Inject.rank
    phase: lateness.Phase = lateness.Inject.phase
    delay: SecondsOrNone = lateness.Inject.delay_s
    every: Count = lateness.Inject.every


class Jitter(Group):
    """Ranks that are made late at random."""

    distribution: lateness.Distribution = lateness.Jitter.distribution
    mean: SecondsOrNone = lateness.Jitter.mean_s
    phase: lateness.Phase = lateness.Jitter.phase
    ranks: list[Annotated[int, Field(ge=0)]] = []


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"expected letters, digits, '.', '_' and '-' (a folder is named after it), got '{value}'"
        )
    return value


class Expect(Group):
    """A demand on a metric of the report, in `unit`, of the cases that `where` selects or `case` names."""

    metric: Metric
    where: str = ""
    case: str = ""
    at_least: float | None = None
    at_most: float | None = None
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str | None = None

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        check_demand(self.model_dump())
        return self


class References(Group):
    """A file of demands, as `pscale check --update` writes it."""

    suite: str = ""
    expect: list[Expect] = []


# Where a suite does not say:
MODEL = Gpt(kind="gpt")
DATA_OF: dict[str, Text | Synthetic | LinearData] = {  # by the kind of model
    "gpt": Text(kind="text"),
    "moe": Text(kind="text"),
    "block": Synthetic(kind="synthetic"),
    "linear": LinearData(kind="linear"),
    "collectives": Synthetic(kind="synthetic"),
}


class File(Group):
    """A suite: one experiment whose cases differ in what `sweep` names.

    `scaling: weak` gives every data-parallel rank a `batch` of its own; with `strong` and `throughput` all
    ranks share one, and `throughput` has no ideal to be compared with.
    """

    name: Annotated[str, AfterValidator(_name)]
    title: str = ""
    extends: str | None = Field(default=None, min_length=1)
    scaling: config.Scaling
    ranks: Count = 1
    threads: Count = 1
    model: Annotated[Gpt | Moe | Block | Linear | Collectives, Field(discriminator="kind")] = MODEL
    data: Annotated[Text | Synthetic | LinearData, Field(discriminator="kind")] | None = None
    train: Train = Train()
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = Inject()
    jitter: Jitter = Jitter()
    sweep: Sweep = Sweep()
    exclude: list[str] = []
    base: str | None = None
    repeat: Repeat = 3
    known_to: Annotated[float, Gt(0), Lt(1)] = 0.02
    max_repeats: Annotated[int, Ge(1), Le(MOST_REPEATS)] = 30
    expect: list[Expect] = []

    @model_validator(mode="after")
    def _defaults_that_fit(self) -> Self:
        if self.data is None:
            self.data = DATA_OF[self.model.kind]
        if self.precision.type is None:
            usual: config.Dtype = "float64" if self.model.kind == "linear" else config.Model.dtype
            self.precision = self.precision.model_copy(update={"type": usual})
        return self
