"""What is trained: the network, its data, and the step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pscale import config
from pscale.config import choices
from pscale.suite.quantities import (
    Bytes,
    Count,
    CountOrNone,
    Fraction,
    NotNegative,
    OneOrTwo,
    Positive,
    Seed,
    Share,
)
from pscale.suite.schema.group import Group


class Gpt(Group):
    """A decoder: embeddings, `layers` pre-norm blocks, an untied head."""

    kind: Literal["gpt"]
    layers: Count = config.Model.layers
    width: Count = config.Model.width
    heads: Count = config.Model.heads
    sequence: Count = config.Model.sequence
    vocabulary: Count = config.Model.vocabulary
    attention: choices.Attention = config.Model.attention


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
    attention: choices.Attention = config.Model.attention


class Block(Group):
    """One attention block that learns a regression: the fundamental element."""

    kind: Literal["block"]
    width: Count = config.Model.width
    heads: Count = config.Model.heads
    sequence: Count = config.Model.sequence
    attention: choices.Attention = config.Model.attention


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
    split: choices.Split = config.Data.split
    loading: choices.Loading = config.Data.loading


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
    optimizer: choices.Optimizer = config.Train.optimizer
    lr: Positive = config.Train.lr
    lr_scaling: choices.LrScaling = config.Train.lr_scaling
    lr_batch: CountOrNone = config.Train.lr_batch
    lr_schedule: choices.LrSchedule = config.Train.lr_schedule
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


# Where a suite does not say:
MODEL = Gpt(kind="gpt")
DATA_OF: dict[str, Text | Synthetic | LinearData] = {  # by the kind of model
    "gpt": Text(kind="text"),
    "moe": Text(kind="text"),
    "block": Synthetic(kind="synthetic"),
    "linear": LinearData(kind="linear"),
    "collectives": Synthetic(kind="synthetic"),
}
