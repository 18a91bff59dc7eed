"""What one case is: the values that cross from the suite to the job.

Frozen, keyword-only and of the standard library alone, so that every package may read them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_type_hints

Scaling = Literal["weak", "strong", "throughput"]
ModelKind = Literal["gpt", "block", "linear"]
DataKind = Literal["text", "synthetic", "linear"]
Loading = Literal["memory", "mpi-io", "scatter", "files"]
Split = Literal["partition", "sample"]
Reduction = Literal["bucketed", "all-reduce", "gather-broadcast"]
Optimizer = Literal["sgd", "adamw"]
LrScaling = Literal["none", "linear", "sqrt"]
Dtype = Literal["float32", "float64"]
Bind = Literal["core", "socket", "numa", "none"]
ProcBind = Literal["close", "spread"]
Places = Literal["threads", "cores", "ll_caches", "numa_domains", "sockets"]
WaitPolicy = Literal["active", "passive"]
Blas = Literal["openblas", "mkl", "blis"]
BlasThreading = Literal["openmp", "pthreads"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of the network. `block` has one layer and no vocabulary; `linear` is `width` weights."""

    kind: ModelKind = "gpt"
    layers: int = 4
    width: int = 256
    heads: int = 4
    sequence: int = 256
    vocabulary: int = 256
    dtype: Dtype = "float32"


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
class Plan:
    """How the work is cut over ranks: the degree of every mesh axis, and the choices of each strategy."""

    dp: int = 1
    reduction: Reduction = "bucketed"
    bucket_bytes: int = 4 << 20

    @property
    def sizes(self) -> dict[str, int]:
        """Degree of every mesh dim, the slowest varying first."""
        return {"dp": self.dp}

    @property
    def ranks(self) -> int:
        """Processes that the plan needs."""
        return math.prod(self.sizes.values())


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is measured beside the steps."""

    gemm_peak: bool = True
    overhead_steps: int = 4  # steps with recording off, each beside one with it on


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
    oversubscribe: bool = False
    omp: Omp = Omp()
    env: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()


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
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()

    @property
    def id(self) -> str:
        """Ten hexadecimal digits of the content: the same work has the same id in every suite."""
        content = dataclasses.asdict(self)
        for name in ("suite", "label", "series", "base", "require"):
            del content[name]
        del content["launch"]["time_limit_s"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


T = TypeVar("T")


def to_dict(value: Any) -> dict[str, Any]:
    """Turn a configuration into plain dictionaries, for JSON."""
    return dataclasses.asdict(value)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration of class `kind` from what `to_dict` made."""
    hints = get_type_hints(kind)
    return kind(**{name: _restored(hints[name], value) for name, value in values.items()})


def _restored(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    return tuple(value) if isinstance(value, list) else value
