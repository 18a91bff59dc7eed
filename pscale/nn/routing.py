"""Which expert gets which token: the rule, and its gradient.

Everything is decided within one sequence of the batch: the choice of a token by its own probabilities, the
capacity of an expert and who finds no place by the tokens of that sequence alone, the auxiliary loss as a
mean over sequences. Ranks that share a sequence exchange each other how often they choose whom (`queue`), so
that a token stands where it would if one rank had them all: the result does not depend on how many ranks,
micro-batches or stages there are, with or without dropping.

* p = softmax(x W). Top 1 (Switch, Fedus et al., 2021): the expert of the largest p, weighted by that p.
  Top 2 (GShard, Lepikhin et al., 2020): the two of the largest p, each weighted by its p over the sum of
  both; that is before dropping, and the second choice is not drawn at random. Of equal p the lower number
  is chosen.
* An expert takes at most C = ceil(top_k capacity_factor T / experts) of a sequence's T tokens (at most T).
  Tokens queue by their position, a token's first choice before its second; who comes after the C-th is
  dropped: this choice adds nothing to the token. GShard seats all first choices before any second one, by
  which a later token could take the place of an earlier one; here what is said of a token never
  depends on those after it.
* Auxiliary loss of a sequence: experts sum_e f_e P_e, f_e the share of tokens whose first choice is e
  (dropped or not), P_e the mean of p_e; 1 where all are chosen alike. f is taken as constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.config import Model
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.dtypes import compute_dtype
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param


def capacity(model: Model) -> int:
    """Return how many tokens of one sequence an expert takes."""
    fair = model.top_k * model.capacity_factor * model.sequence / model.experts
    return min(model.sequence, math.ceil(round(fair, 9)))  # 1.1 x 10 is 11.000000000000002


def room(model: Model, parts: int) -> int:
    """Return how many tokens an expert may take of a rank that has one of `parts` parts of a sequence."""
    return min(capacity(model), model.sequence // parts)


class ExpertPositions:
    """Where the tokens of this rank stand in their sequences, of which it has all `tokens`.

    `runs` are the lengths of the runs of consecutive tokens that are here of every sequence.
    """

    def __init__(self, tokens: int):
        self.runs: Sequence[int] = (tokens,)

    def exchange(self, counts: Array) -> tuple[Array, Array]:
        """Turn what is chosen here, (top_k, runs, sequences, experts) numbers, into what is chosen elsewhere.

        Return the choices of tokens on other ranks that come before each run, (runs, sequences, experts), and
        the first choices of all tokens, (sequences, experts).
        """
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


def has_experts(model: Model, block: int) -> bool:
    """Tell whether block `block`, counted from 0, has experts in place of its MLP."""
    return model.kind == "moe" and (block + 1) % model.every == 0


@dataclass(kw_only=True)
class RouterStats:
    """What the router of one block has decided since the last `clear`."""

    block: int
    loads: NDArray[np.int64]  # choices of each expert, dropped or not
    dropped: int = 0
    loss: float = 0.0  # weighted auxiliary loss
    paused: bool = False  # what is decided now was decided before
    scale: float = 1.0  # of the loss, by which its gradient is larger
    review: Callable[[Array, Array], None] | None = None  # sees probabilities, may change what was chosen

    def add(self, loads: Array, dropped: int, loss: float) -> None:
        """Note what was decided for some tokens."""
        if not self.paused:
            self.loads += loads
            self.dropped += dropped
            self.loss += loss

    def clear(self) -> None:
        """Forget all."""
        self.loads.fill(0)
        self.dropped, self.loss = 0, 0.0


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Where n tokens go. Slots are the places of the experts: (experts, sequences, room), flat.

    Choices and slots point to each other: `slots` and `tokens` are 0 where `kept` and `filled` are false.
    """

    probabilities: Array  # (n, experts)
    chosen: Array  # (n, top_k) expert of each choice
    gates: Array  # (n, top_k) weight of each choice, before dropping
    kept: Array  # (n, top_k)
    slots: Array  # (n, top_k)
    tokens: Array  # (slots,)
    filled: Array  # (slots,)
    pull: Array  # (sequences, experts) derivative of the weighted auxiliary loss by every p of a sequence

    def slot_gates(self) -> Array:
        """Return the weight of what lies in each slot, 0 in empty ones."""
        gates = np.zeros(self.filled.shape, self.gates.dtype)
        gates[self.slots[self.kept]] = self.gates[self.kept]
        return gates


class Router:
    """Chooses `top_k` experts for every token of x (B, T, C), all of a sequence or those `positions` says.

    `capacity` and `loss_weight` are of one sequence, which has `sequence` tokens.
    """

    def __init__(
        self,
        weight: Param,
        *,
        top_k: int,
        capacity: int,
        sequence: int,
        positions: ExpertPositions,
        loss_weight: float,
        stats: RouterStats,
        buffers: Buffers,
    ):
        self.weight, self.top_k, self.capacity = weight, top_k, capacity
        self.sequence, self.positions = sequence, positions
        self.loss_weight, self.stats, self.buffers = loss_weight, stats, buffers
        self.experts = weight.shape[1]

    def forward(self, x: Array) -> Routing:
        """Decide."""
        B, T, _ = x.shape
        p = self.buffers.take((B * T, self.experts), compute_dtype(x.dtype))
        kernels.current().multiply(rows_of(x), self.weight.data, p)
        p -= np.maximum.reduce(p, axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= np.add.reduce(p, axis=1, keepdims=True)
        chosen, gates = self._choose(p)
        counts = choices(chosen, B, self.experts, self.positions.runs)
        ahead, firsts = self.positions.exchange(counts)
        here, place = places(chosen, B, self.experts, self.positions.runs, ahead)
        kept = np.less(place, self.capacity, out=self.buffers.take(chosen.shape, np.bool_))
        pull = self.buffers.take(firsts.shape, p.dtype)
        weight = self.stats.scale * self.loss_weight * self.experts / self.sequence**2
        np.multiply(firsts, weight, out=pull)
        self.stats.add(
            counts.sum((0, 1, 2)),
            kept.size - int(np.count_nonzero(kept)),
            float(np.vdot(pull, np.sum(p.reshape(B, T, -1), axis=1, dtype=np.float64))) / self.stats.scale,
        )
        slots, tokens, filled = self._seat(chosen, here, kept, B)
        return Routing(
            probabilities=p,
            chosen=chosen,
            gates=gates,
            kept=kept,
            slots=slots,
            tokens=tokens,
            filled=filled,
            pull=pull,
        )

    def backward(self, dgates: Array, routing: Routing, x: Array) -> Array:
        """Add to the gradient of the weight; return that of the logits, (n, experts).

        `dgates` (n, top_k) is the gradient of the gates, 0 where a choice was dropped.
        """
        p, chosen, gates = routing.probabilities, routing.chosen, routing.gates
        everyone = np.arange(len(p))
        dp = self.buffers.take(p.shape, p.dtype)
        dp.reshape(len(x), -1, self.experts)[...] = routing.pull[:, None]
        if self.top_k > 1:  # of g = p / (sum of the chosen p)
            total = np.add.reduce(p[everyone[:, None], chosen], axis=1, keepdims=True)
            dgates = (dgates - np.vecdot(dgates, gates)[:, None]) / total
        for choice in range(self.top_k):
            dp[everyone, chosen[:, choice]] += dgates[:, choice]
        dp -= np.vecdot(dp, p)[:, None]
        dp *= p
        self.weight.add_product(rows_of(x).T, dp)
        return dp

    def _choose(self, p: Array) -> tuple[Array, Array]:
        """Return experts and gates of every token, both (n, top_k)."""
        shape, everyone = (len(p), self.top_k), np.arange(len(p))
        chosen = self.buffers.take(shape, np.intp)
        gates = self.buffers.take(shape, p.dtype)
        for choice in range(self.top_k):
            best = np.argmax(p, axis=1)
            chosen[:, choice], gates[:, choice] = best, p[everyone, best]
            p[everyone, best] = -1  # out of the next round
        np.put_along_axis(p, chosen, gates, axis=1)
        if self.stats.review and not self.stats.paused:
            self.stats.review(p, chosen)
            gates[...] = np.take_along_axis(p, chosen, axis=1)
        if self.top_k > 1:
            gates /= np.add.reduce(gates, axis=1, keepdims=True)
        return chosen, gates

    def _seat(self, chosen: Array, here: Array, kept: Array, B: int) -> tuple[Array, Array, Array]:
        """Return the slots of the choices, and the tokens of the slots with whether there is one.

        Who is kept of the tokens here stands before those who are not, so the first places here will do.
        """
        n, take = len(chosen), self.buffers.take
        room = min(self.capacity, n // B)
        slots = take(chosen.shape, np.intp)
        sequences = np.arange(n)[:, None] // (n // B)
        np.multiply(chosen, B, out=slots)
        slots += sequences
        slots *= room
        slots += here
        slots *= kept
        tokens, filled = (take((self.experts * B * room,), kind) for kind in (np.intp, np.bool_))
        tokens.fill(0)
        filled.fill(False)
        taken = slots[kept]
        tokens[taken] = np.nonzero(kept)[0]
        filled[taken] = True
        return slots, tokens, filled
