"""What is trained: the network, its samples, what a step does with them, and in which numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pscale.config.choices import (
    LARGEST_SCALE,
    Bytes,
    Dtype,
    Fraction,
    Group,
    Hint,
    InSuite,
    LossScaling,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    Optimizer,
    Parts,
    PositiveFloat,
    PositiveInt,
    Text,
)

# Tokens of a sequence from which on computing scores again takes no longer than keeping them, within 4 % with
# fused kernels and by a quarter less in NumPy, and needs half of the memory or less: benchmarks/attention.py.
BLOCKS_FROM = 1024

ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # the most by which rounding changes a number, relative to it
ROUNDINGS = 16  # of the largest value of a tensor: see docs/precision.md

_DEEP = InSuite(kinds=("gpt", "moe"))
_TOKENS = InSuite(kinds=("gpt", "moe", "block"))
_MOE = InSuite(kinds=("moe",))
_COLLECTIVES = InSuite(kinds=("collectives",))
_TEXT = InSuite(kinds=("text",))
Hints = Mapping[
    Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]{0,30}", "the name of a hint, such as striping_factor")],
    Annotated[bool | int | str, Hint()],
]


@dataclass(frozen=True, kw_only=True)
class Model(Group):
    """Sizes of the network; a kind without a field has one layer, no vocabulary, and so on."""

    kind: Literal["gpt", "moe", "block", "linear", "collectives"] = "gpt"
    """`gpt`: decoder with a head; `moe`: the same with a mixture of experts; `block`: one transformer
    block that learns a regression; `linear`: five weights of a linear equation; `collectives`: every exchange
    of the mesh and nothing else: [collectives.md](collectives.md)."""
    layers: Annotated[Parts, _DEEP] = 4
    """Pre-norm transformer blocks."""
    width: Annotated[PositiveInt, _TOKENS] = 256
    """Features of a token."""
    heads: Annotated[PositiveInt, _TOKENS] = 4
    """Attention heads; must divide `width`."""
    kv_heads: Annotated[NonNegativeInt, _TOKENS] = 0
    """Heads of keys and values, each for `heads` / `kv_heads` queries of a token (grouped-query attention);
    0: as many as `heads`. Must divide `heads`; `tp`, Ulysses and `ty` of a grid divide them."""
    sequence: Annotated[int, Number(ge=1, le=1 << 18), _TOKENS] = 256
    """Tokens of a sequence."""
    norm: Annotated[Literal["layernorm", "rmsnorm"], _TOKENS] = "layernorm"
    """Norms of rows: `layernorm`; or `rmsnorm`, which neither centres them nor adds a bias."""
    bias: Annotated[bool, _TOKENS] = True
    """Whether products in blocks, and layer norms, add a bias."""
    mlp: Annotated[Literal["gelu", "swiglu"], _TOKENS] = "gelu"
    """MLPs, and experts: `gelu`, two matrices; `swiglu`, three, silu(x gate) × (x up) between them."""
    mlp_width: Annotated[NonNegativeInt, _TOKENS] = 0
    """Features inside an MLP; 0: four times `width`."""
    positions: Annotated[Literal["learned", "rope"], _TOKENS] = "learned"
    """`learned`: a table that the embedding adds (a `block` has none); `rope`: queries and keys of every head
    turned by their positions."""
    rope_base: Annotated[float, Number(ge=1), _TOKENS] = 10_000.0
    """`rope`: the base of its wavelengths; Llama 3 has 500,000."""
    vocabulary: Annotated[int, Number(ge=1, le=10**7), _DEEP] = 256
    """Size of the vocabulary; text needs at least 256."""
    dropout: Annotated[Fraction, _TOKENS] = 0.0
    """Share that is dropped of features, after the embedding and at the end of both branches of a block, and
    of attention's probabilities; every plan drops those that one rank does."""
    tied: Annotated[bool, _DEEP] = False
    """Whether the head is the table of the embedding: both ends of the model have it, and sum gradients."""
    dtype: Annotated[Dtype, InSuite(kinds=("",))] = "float32"  # a suite says `precision`
    experts: Annotated[Parts, _MOE] = 8
    """MLPs in each block with experts."""
    top_k: Annotated[int, Number(ge=1, le=2), _MOE] = 1
    """Experts per token: 1 as in Switch, 2 as in GShard."""
    capacity_factor: Annotated[PositiveFloat, _MOE] = 1.25
    """An expert takes at most `top_k` × `capacity_factor` × `sequence` / `experts` tokens of a sequence,
    rounded up; later ones are dropped, the same under every plan."""
    every: Annotated[PositiveInt, _MOE] = 2
    """One in this many blocks has experts instead of its MLP; at most `layers`."""
    balance_weight: Annotated[NonNegativeFloat, _MOE] = 0.01
    """Weight of the auxiliary loss for even use of the experts; the loss includes it."""
    attention: Annotated[Literal["auto", "plain", "block"], _TOKENS] = "auto"
    """`plain`: keep all scores for backward; `block`: recompute them tile by tile; `auto`: `block` from a
    `sequence` of 1,024 on: faster in NumPy, up to a tenth of attention's time slower with fused
    [kernels](kernels.md#attention), and smaller at any length (`benchmarks/attention.py`)."""
    message_bytes: Annotated[Bytes, _COLLECTIVES] = 1 << 20
    """Size of the larger array of every exchange."""
    calls: Annotated[PositiveInt, _COLLECTIVES] = 10
    """Calls of every verb per step."""
    op: Annotated[Literal["sum", "min", "max"], _COLLECTIVES] = "sum"
    """What all-reduce, reduce-scatter and reduce do with the numbers of ranks, of the type that `precision`
    names. Other verbs reduce nothing, and take no notice of it."""

    @property
    def key_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def queries(self) -> int:
        """Heads of queries for each of keys."""
        return self.heads // self.key_heads

    @property
    def key_width(self) -> int:
        """Features of a token's keys, and of its values."""
        return self.width // self.queries

    @property
    def mlp_features(self) -> int:
        """Features inside an MLP."""
        return self.mlp_width or 4 * self.width

    @property
    def mlp_parts(self) -> int:
        """Matrices that lie side by side in the first product of an MLP: gate and up, or one."""
        return 2 if self.mlp == "swiglu" else 1

    @property
    def keeps_scores(self) -> bool:
        """Whether attention keeps its scores for backward; `auto` as benchmarks/attention.py found best."""
        return self.attention == "plain" or (self.attention == "auto" and self.sequence < BLOCKS_FROM)


@dataclass(frozen=True, kw_only=True)
class Data(Group):
    """Where samples come from, which rank gets which, and how they are read."""

    kind: Literal["text", "synthetic", "linear"] = "text"
    """`text`: bytes of files (gpt, moe); `synthetic`: random tokens (gpt, moe) or a random regression (block;
    collectives ignore it); `linear`: samples of the linear equation (linear)."""
    source: Annotated[NonEmpty, _TEXT] = "python-stdlib"
    """`python-stdlib`: the source of Python's standard library; or a file or a glob, relative to the file
    that names it (`--set`: to the current folder)."""
    split: Annotated[Literal["partition", "sample"], _TEXT] = "partition"
    """`partition`: a part of the text for each sequence of the batch; `sample`: windows of all of it in
    random order."""
    loading: Annotated[Literal["memory", "mpi-io", "scatter", "files"], _TEXT] = "memory"
    """`memory`: every rank holds the text; `mpi-io`: read by MPI-IO; `scatter`: one rank scatters it;
    `files`: a file per rank (not with `sample`)."""
    prefetch: Annotated[bool, _TEXT] = False
    """Read the next micro-batch while this one computes: of `mpi-io` and `files`."""
    hints: Annotated[Hints, _TEXT] = field(default_factory=dict, hash=False)
    """`mpi-io`: what the library is told of the file, such as `{striping_factor: 8, striping_unit: 4MiB}`:
    the report says which it took."""
    samples: Annotated[PositiveInt, InSuite(kinds=("linear",), default=10_000)] = 0
    """Size of the data set; at least the global batch."""


@dataclass(frozen=True, kw_only=True)
class Save(Group):
    """The state of the training in files: weights, the optimizer's state and the step."""

    every: NonNegativeInt = 0
    """Save after every n-th training step, warm-up included, outside the step time; 0: never."""
    folder: str = ""
    """Folder of saved states, the newest of each training, relative to the file that names it; empty: none is
    kept."""
    check: bool = False
    """Load every state as soon as it is saved, and compare: how long loading takes is measured too."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Group):
    """The loss of a part of the text that is never trained on: its last tenth."""

    every: NonNegativeInt = 0
    """Evaluate after every n-th training step, warm-up included, outside the step time; 0: never, and all of
    the text is trained on."""
    batches: PositiveInt = 1
    """Batches of an evaluation, always the same."""


@dataclass(frozen=True, kw_only=True)
class Train(Group):
    """Batch, optimizer and number of steps. With weak scaling a suite gives the `batch` of one replica."""

    batch: PositiveInt = 8
    """Sequences (linear: samples) per step; weak: of one replica, else of all."""
    micro_batches: Parts = 1
    """Micro-batches of a replica's batch, with gradients accumulated."""
    optimizer: Optimizer = "adamw"
    """The optimizer; [optimizers.md](optimizers.md) lists the fields that each reads."""
    lr: PositiveFloat = 3e-4
    """Learning rate; adafactor: the maximum, relative to the weights."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiplies `lr` by 1, by global batch / `lr_batch`, or by its square root."""
    lr_batch: NonNegativeInt = 0
    """The global batch that `lr` is for; 0: that of one replica, so `lr` is multiplied by `dp` × `ep`."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: `constant`, or `cosine` down to `lr_final` × `lr` in the last measured step."""
    lr_warmup: NonNegativeInt = 0
    """First steps, in which the rate grows to `lr`; fewer than `warmup` + `steps`."""
    lr_final: Annotated[float, Number(ge=0, le=1)] = 0.1
    """`cosine`: share of `lr` in the last step."""
    momentum: Fraction = 0.0
    """Decay rate of the velocity."""
    beta1: Fraction = 0.9
    """Decay rate of the first moment."""
    beta2: Fraction = 0.95
    """Decay rate of the second moment (lion: of the momentum)."""
    epsilon: PositiveFloat = 1e-8
    """Added to roots of second moments, or to squares."""
    weight_decay: NonNegativeFloat = 0.1
    """Times the rate; for weight matrices, not for embeddings, biases and norms."""
    clip: PositiveFloat | None = 1.0
    """Largest global norm of the gradient; `null`: no clipping."""
    steps: PositiveInt = 30
    """Measured steps."""
    warmup: NonNegativeInt = 5
    """Training steps before the measured ones."""
    seed: Annotated[int, Number(ge=0, le=2**32 - 1)] = 1
    """Seed of initial weights and samples."""
    save: Save = Save()
    """Saved state: [below](#trainsave-saved-state)."""
    evaluate: Evaluate = Evaluate()
    """Validation loss: [below](#trainevaluate-validation-loss)."""
    load: str = ""
    """Go on from a saved state: its folder, or one with the states of one training, under any plan, precision
    and number of ranks; relative to the file that names it. Empty: begin."""
    load_by: Annotated[Literal["read", "broadcast"], InSuite(named=True)] = "read"
    """Loading: every rank reads what it holds (`read`), or one rank reads all and sends it to all
    (`broadcast`)."""


@dataclass(frozen=True, kw_only=True)
class Precision(Group):
    """How a model is trained whose numbers have few bits; which numbers those are is the model's `dtype`."""

    reduce: Annotated[Literal["wire", "float32"], InSuite(omitted=True, named=True)] = "wire"
    """16-bit gradients are summed as stored (`wire`), or in `float32`, which doubles the bytes."""
    loss_scale: Annotated[
        LossScaling | float,
        Number(gt=0, le=LARGEST_SCALE, words=tuple((word, word) for word in get_args(LossScaling))),
        InSuite(omitted=True, named=True),
    ] = "auto"
    """Factor of the loss, so that small gradients do not vanish; every rank skips a step whose gradients
    overflow. `auto`: `dynamic` for fp16, else `none`."""
    initial_scale: Annotated[float, Number(gt=0, le=LARGEST_SCALE)] = 2.0**16
    """First scale of `dynamic`; an overflow halves it."""
    growth_interval: Annotated[PositiveInt, InSuite(omitted=False)] = 2000
    """Steps without overflow after which `dynamic` doubles the scale."""


def is_16_bit(dtype: str) -> bool:
    """Tell whether numbers of a type have 16 bits."""
    return dtype in ROUNDOFF
