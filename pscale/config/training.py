"""Where samples come from, what a step does with them, and in which numbers."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config.choices import (
    DataKind,
    Loading,
    LossScaling,
    LrScaling,
    LrSchedule,
    Optimizer,
    Reduce,
    Split,
)


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
