"""The queues of tokens before the experts: how many tokens an expert takes, and who stands where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pscale.config import Model
from pscale.nn.buffers import Array


def capacity(model: Model) -> int:
    """Return how many tokens of one sequence an expert takes."""
    fair = model.top_k * model.capacity_factor * model.sequence / model.experts
    return min(model.sequence, math.ceil(round(fair, 9)))  # 1.1 x 10 is 11.000000000000002


def room(model: Model, parts: int) -> int:
    """Return how many tokens an expert may take of a rank that has one of `parts` parts of a sequence."""
    return min(capacity(model), model.sequence // parts)


class Standing(Protocol):
    """Where the tokens of this rank stand in their sequences, of which other ranks may have the rest."""

    runs: Sequence[int]  # lengths of the runs of consecutive tokens that are here of every sequence

    def tell(self, counts: Array) -> tuple[Array, Array]:
        """Turn what is chosen here, (top_k, runs, sequences, experts) numbers, into what is chosen elsewhere.

        Return the choices of tokens on other ranks that come before each run, (runs, sequences, experts), and
        the first choices of all tokens, (sequences, experts).
        """
        ...


class Whole:
    """Sequences of which this rank has every token."""

    def __init__(self, tokens: int):
        self.runs: Sequence[int] = (tokens,)

    def tell(self, counts: Array) -> tuple[Array, Array]:
        """Return that nobody comes before, and who is here."""
        return np.zeros_like(counts[0]), counts[0, 0]


def choices(chosen: Array, sequences: int, experts: int, runs: Sequence[int]) -> Array:
    """Count how often each expert is chosen: (top_k, runs, sequences, experts), from (n, top_k)."""
    n, top_k = chosen.shape
    run = np.tile(run_numbers(runs), sequences)
    sequence = np.arange(n) // (n // sequences)
    first = (np.arange(top_k) * len(runs) + run[:, None]) * sequences + sequence[:, None]
    shape = (top_k, len(runs), sequences, experts)
    return np.bincount((first * experts + chosen).ravel(), minlength=math.prod(shape)).reshape(shape)


def places(
    chosen: Array, sequences: int, experts: int, runs: Sequence[int], ahead: Array
) -> tuple[Array, Array]:
    """Return how many stand before each choice among those here, (n, top_k), and among all."""
    n = len(chosen)
    sequence = np.arange(n)[:, None] // (n // sequences)
    queues = (sequence * experts + chosen).ravel()
    order = np.argsort(queues, kind="stable")
    lengths = np.bincount(queues, minlength=sequences * experts)
    here = np.empty_like(order)
    here[order] = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    here = here.reshape(chosen.shape)
    run = np.tile(run_numbers(runs), sequences)[:, None]
    return here, here + ahead[run, sequence, chosen]


def run_numbers(runs: Sequence[int]) -> Array:
    """Return to which run each token of a sequence belongs."""
    return np.repeat(np.arange(len(runs)), runs)
