"""Sums of encoded gradients: what an encoding leaves out stays on the rank, for the next step.

What was sent so far and what is held back are together the sum of all gradients (Seide et al., Interspeech
2014; Karimireddy et al., ICML 2019). `Encoded` gathers what all ranks made with a codec, decodes it and adds
it up. `LowRank` is PowerSGD (Vogels et al., NeurIPS 2019): the sum of a matrix's gradients as a product of
two narrow ones, by one step of a power iteration that goes on from step to step. With M the gradient of a
rank and what it held back, P = sum M Q, P is made orthonormal, Q = sum Mᵀ P, and P Qᵀ stands for the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.nn.buffers import aligned, zeros
from pscale.parallel.reduction import Reduction

Array = NDArray[np.floating]
Message = NDArray[np.uint8]


class Codec(Protocol):
    """An encoding of flat gradients as a message of `message_bytes`, with `work_bytes` of memory."""

    message_bytes: int
    work_bytes: int

    def encode(self, x: Array, message: Message) -> None:
        """Write to `message` what is sent of `x`, and leave in `x` what is not."""
        ...

    def add_up(self, messages: Message, total: Array) -> None:
        """Replace `total` by the sum of what the rows of `messages` say, in their order."""
        ...


class Encoded(Reduction):
    """The sum of what all ranks have encoded: bit for bit the same on each of them."""

    factors: Sequence[Array | None] = ()  # that the next step goes on from: none

    def __init__(self, grad: Array, axis: Axis, codec: Codec):
        self._grad, self._axis, self._codec = grad, axis, codec
        [self.held_back] = zeros([grad.size], grad.dtype)
        self._message = aligned(codec.message_bytes)
        self._message.fill(0)  # what rounds it up as well
        self._everyone = aligned(axis.size * codec.message_bytes).reshape(axis.size, -1)
        self.buffer_bytes = (
            self.held_back.nbytes + self._message.nbytes + self._everyone.nbytes + codec.work_bytes
        )

    def finish(self) -> None:
        """Encode this rank's gradients and what it held back, gather, decode and add up."""
        self.held_back += self._grad
        self._codec.encode(self.held_back, self._message)
        self._axis.all_gather(self._message[None], self._everyone)
        self._codec.add_up(self._everyone, self._grad)


def whole_words(size_bytes: int) -> int:
    """Return the bytes of a message whose numbers stay aligned when messages lie one after another."""
    return -(-size_bytes // 8) * 8


_RUN = 1 << 14  # numbers of the held back that are found together


@dataclass(frozen=True, kw_only=True)
class Factors:
    """How many numbers a group of tensors sends, by a pair of factors each or as it is."""

    narrow: tuple[tuple[int, int], ...]  # rows and columns of the matrices
    rest: int  # numbers of all other tensors
    rank: int

    @property
    def first(self) -> int:
        """Numbers of the first sum: of all P, and of the tensors that are sent as they are."""
        return sum(rows for rows, _ in self.narrow) * self.rank + self.rest

    @property
    def second(self) -> int:
        """Numbers of the second sum: of all Q."""
        return sum(columns for _, columns in self.narrow) * self.rank


def factors(shapes: Sequence[tuple[int, ...]], rank: int) -> Factors:
    """Say how tensors are sent: those in factors whose factors are smaller."""
    matrices = [_matrix(shape) for shape in shapes]
    narrow = tuple(each for each in matrices if _narrows(each, rank))
    rest = sum(rows * columns for rows, columns in matrices if not _narrows((rows, columns), rank))
    return Factors(narrow=narrow, rest=rest, rank=rank)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """See a tensor as a matrix: experts one above the other."""
    size = int(np.prod(shape))
    return size // shape[-1], shape[-1]


def _narrows(matrix: tuple[int, int], rank: int) -> bool:
    return sum(matrix) * rank < matrix[0] * matrix[1]


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A matrix with its two factors, all views."""

    total: Array
    held_back: Array
    p: Array
    q: Array


class LowRank(Reduction):
    """Sums of factors of the gradients in `grad`, which lie there one after another in `shapes`."""

    def __init__(self, grad: Array, axis: Axis, shapes: Sequence[tuple[int, ...]], rank: int):
        self._grad, self._axis = grad, axis
        sizes = factors(shapes, rank)
        [self.held_back] = zeros([grad.size], grad.dtype)
        self._first: Array = aligned(sizes.first * grad.itemsize).view(grad.dtype)
        self._second: Array = aligned(sizes.second * grad.itemsize).view(grad.dtype)
        self._second[...] = np.random.default_rng(0).standard_normal(sizes.second)
        self._work: Array = aligned(_RUN * grad.itemsize).view(grad.dtype)
        self.factors: list[Array | None] = []  # of each tensor, that the next step goes on from
        self._pairs, self._rest = self._cut(shapes, rank)
        arrays = (self.held_back, self._first, self._second, self._work)
        self.buffer_bytes = sum(array.nbytes for array in arrays)

    def finish(self) -> None:
        """Sum both factors, multiply them, and hold back a rank's share of what they leave out."""
        self.held_back += self._grad
        for pair in self._pairs:
            np.matmul(pair.held_back, pair.q, out=pair.p)
        for grad, sent in self._rest:
            np.copyto(sent, grad)
        self._axis.all_reduce(self._first)
        for pair in self._pairs:
            # Of zeros this makes columns of the unit matrix, so that the iteration never comes to an end.
            pair.p[...] = np.linalg.qr(pair.p)[0]
            np.matmul(pair.held_back.T, pair.p, out=pair.q)
        if self._pairs:
            self._axis.all_reduce(self._second)
        for pair in self._pairs:
            np.matmul(pair.p, pair.q.T, out=pair.total)
        for grad, sent in self._rest:
            np.copyto(grad, sent)
        self._hold_back()

    def _hold_back(self) -> None:
        """Subtract a rank's share of the sum; of tensors that are sent as they are nothing is left."""
        for pair in self._pairs:
            total, held_back = pair.total.reshape(-1), pair.held_back.reshape(-1)
            for start in range(0, total.size, _RUN):
                part = total[start : start + _RUN]
                share = np.divide(part, self._axis.size, out=self._work[: part.size])
                held_back[start : start + _RUN] -= share
        for place in self._unheld:
            self.held_back[place] = 0

    def _cut(
        self, shapes: Sequence[tuple[int, ...]], rank: int
    ) -> tuple[list[_Pair], list[tuple[Array, Array]]]:
        """Return views of the matrices with their factors, and of other tensors with what is sent of them."""
        pairs, rest = [], []
        self._unheld: list[slice] = []
        sums, seconds, start = _Taken(self._first), _Taken(self._second), 0
        for rows, columns in map(_matrix, shapes):
            place = slice(start, start + rows * columns)
            if _narrows((rows, columns), rank):
                pairs.append(
                    _Pair(
                        total=self._grad[place].reshape(rows, columns),
                        held_back=self.held_back[place].reshape(rows, columns),
                        p=sums.take(rows * rank).reshape(rows, rank),
                        q=seconds.take(columns * rank).reshape(columns, rank),
                    )
                )
                self.factors.append(pairs[-1].q)
            else:
                self.factors.append(None)
                rest.append((self._grad[place], sums.take(rows * columns)))
                self._unheld.append(place)
            start = place.stop
        return pairs, rest


class _Taken:
    """Flat memory that is dealt out from its start."""

    def __init__(self, memory: Array):
        self._memory, self._start = memory, 0

    def take(self, size: int) -> Array:
        self._start += size
        return self._memory[self._start - size : self._start]
