"""Sizes of the network."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config.choices import Attention, Dtype, ModelKind

# Tokens of a sequence from which on computing scores again takes no longer than keeping them, within 4 % with
# fused kernels and by a quarter less in NumPy, and needs half of the memory or less: benchmarks/attention.py.
BLOCKS_FROM = 1024


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
