"""PowerSGD (Vogels et al., NeurIPS 2019): the sum of a matrix's gradients as a product of two narrow ones.

One step of a power iteration goes on from step to step. With M the gradient of a rank and what it held back,
P = sum M Q, P is made orthonormal, Q = sum Mᵀ P, and P Qᵀ stands for the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.nn.buffers import aligned, zeros
from pscale.parallel.reduction import Reduction

Array = NDArray[np.floating]
_RUN = 1 << 14  # numbers of the held back that are found together


class _Pair(NamedTuple):
    """A matrix with its two factors, all views."""

    total: Array
    held_back: Array
    p: Array
    q: Array


class LowRank(Reduction):
    """Sums of factors of the gradients in `grad`, which lie there one after another in `shapes`."""

    def __init__(self, grad: Array, axis: Axis, shapes: Sequence[tuple[int, ...]], rank: int):
        self._grad, self._axis = grad, axis
        [self.held_back] = zeros([grad.size], grad.dtype)
        matrices = [(math.prod(shape) // shape[-1], shape[-1]) for shape in shapes]  # experts in a column
        narrow = [
            sum(each) * rank < math.prod(each) for each in matrices
        ]  # what two factors are smaller than
        firsts = [
            (rank if less else columns) * rows for (rows, columns), less in zip(matrices, narrow, strict=True)
        ]
        seconds = [rank * columns * less for (_, columns), less in zip(matrices, narrow, strict=True)]
        self._first: Array = aligned(sum(firsts) * grad.itemsize).view(grad.dtype)
        self._second: Array = aligned(sum(seconds) * grad.itemsize).view(grad.dtype)
        self._second[...] = np.random.default_rng(0).standard_normal(sum(seconds))
        self._work: Array = aligned(_RUN * grad.itemsize).view(grad.dtype)
        arrays = (self.held_back, self._first, self._second, self._work)
        self.buffer_bytes = sum(array.nbytes for array in arrays)
        sizes = [math.prod(shape) for shape in shapes]
        tensors = (_dealt(grad, sizes), _dealt(self.held_back, sizes))
        self.factors: list[Array | None] = []  # of each tensor, that the next step goes on from
        self._pairs: list[_Pair] = []
        self._rest: list[tuple[Array, Array, Array]] = []  # the other tensors, with what is sent of them
        sent = zip(
            matrices,
            narrow,
            *tensors,
            _dealt(self._first, firsts),
            _dealt(self._second, seconds),
            strict=True,
        )
        for matrix, less, total, held_back, first, second in sent:
            if less:
                p, q = first.reshape(-1, rank), second.reshape(-1, rank)
                self._pairs.append(_Pair(total.reshape(matrix), held_back.reshape(matrix), p, q))
            else:
                self._rest.append((total, held_back, first))
            self.factors.append(self._pairs[-1].q if less else None)

    def finish(self) -> None:
        """Sum both factors, multiply them, and hold back a rank's share of what they leave out."""
        self.held_back += self._grad
        for pair in self._pairs:
            np.matmul(pair.held_back, pair.q, out=pair.p)
        for total, _, sent in self._rest:
            np.copyto(sent, total)
        self._axis.all_reduce(self._first)
        for pair in self._pairs:
            # Of zeros this makes columns of the unit matrix, so that the iteration never comes to an end.
            pair.p[...] = np.linalg.qr(pair.p)[0]
            np.matmul(pair.held_back.T, pair.p, out=pair.q)
        if self._pairs:
            self._axis.all_reduce(self._second)
        for pair in self._pairs:
            np.matmul(pair.p, pair.q.T, out=pair.total)
        for total, _, sent in self._rest:
            np.copyto(total, sent)
        self._hold_back()

    def _hold_back(self) -> None:
        """Subtract a rank's share of the sum; of tensors that are sent as they are nothing is left."""
        for pair in self._pairs:
            total, held_back = pair.total.reshape(-1), pair.held_back.reshape(-1)
            for start in range(0, total.size, _RUN):
                part = total[start : start + _RUN]
                share = np.divide(part, self._axis.size, out=self._work[: part.size])
                held_back[start : start + _RUN] -= share
        for _, held_back, _ in self._rest:
            held_back[...] = 0


def _dealt(memory: Array, sizes: Sequence[int]) -> list[Array]:
    """Return parts of flat memory, one after another."""
    starts = accumulate(sizes, initial=0)
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
