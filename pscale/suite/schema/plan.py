"""How the work is cut over ranks, and in which numbers it is done."""

from __future__ import annotations

from typing import Any, Self, cast

from pydantic import Field, model_validator

from pscale import config
from pscale.config import choices
from pscale.suite.quantities import (
    Bytes,
    Checkpoint,
    Count,
    CountOrNone,
    Degree,
    Folder,
    Formula,
    LossScale,
    Scale,
    SomeShare,
)
from pscale.suite.schema.group import Group

AXES = ("dp", "tp", "pp", "cp", "ep")
GRID = ("tx", "ty", "tz")
_REST = Formula("=rest")


class Matrix(Group):
    """A grid of ranks that share every product of matrices; of one rank: nobody does."""

    tx: Count = config.Matrix.tx
    ty: Count = config.Matrix.ty
    tz: Count = config.Matrix.tz
    algorithm: choices.MatrixAlgorithm = config.Matrix.algorithm


class Plan(Group):
    """How the work is cut over ranks: their number is dp x tp x pp x cp x ep, times a grid's tx x ty x tz.

    One degree may be `ranks`, or `rest`: what the others leave of the ranks. Without a word, that is dp.
    """

    dp: Degree = Field(
        default_factory=lambda: cast(int, _REST), json_schema_extra={"default": _REST.removeprefix("=")}
    )
    reduction: choices.Reduction = config.Plan.reduction
    bucket: Bytes = config.Plan.bucket_bytes
    compression: choices.Compression = config.Plan.compression
    compression_share: SomeShare = config.Plan.compression_share
    compression_rank: Count = config.Plan.compression_rank
    zero: choices.ZeroStage = config.Plan.zero
    shard: CountOrNone = config.Plan.shard
    reshard_after_forward: bool = config.Plan.reshard_after_forward
    tp: Degree = config.Plan.tp
    sp: bool = config.Plan.sp
    embedding: choices.Embedding = config.Plan.embedding
    pp: Degree = config.Plan.pp
    schedule: choices.Schedule = config.Plan.schedule
    virtual_stages: Count = config.Plan.virtual_stages
    cp: Degree = config.Plan.cp
    context: choices.Context = config.Plan.context
    placement: choices.Placement = config.Plan.placement
    ep: Degree = config.Plan.ep
    matrix: Matrix = Matrix()
    checkpoint: Checkpoint = config.Plan.checkpoint
    offload: choices.Offload = config.Plan.offload
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

    type: choices.Dtype | None = None
    reduce: choices.Reduce = config.Precision.reduce
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
