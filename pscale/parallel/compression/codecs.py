"""Encodings of gradients: `Blocks` rounds every number, `Largest` picks some; `Encoded` sums them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.mesh.axis import Axis
from pscale.nn.buffers import aligned, zeros
from pscale.nn.dtypes import convert
from pscale.parallel.reduction import Reduction

Array = NDArray[np.floating]
Message = NDArray[np.uint8]

BLOCK = 1024
_ROWS = 16  # blocks that are encoded at once: they and what is made of them stay in the cache
_SCALE = np.dtype(np.float32)
_SMALLEST = np.finfo(_SCALE).tiny


class Rounding:
    """How the numbers of a block are rounded: to numbers of `kind`, relative to the scale of the block.

    `x` and `work` are (blocks, elements), `scales` (blocks,).
    """

    bits: int
    kind: type[np.number]

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Choose the scales and write the numbers."""
        raise NotImplementedError

    def read(self, scales: Array, payload: Message, out: Array) -> None:
        """Write to `out` what the numbers stand for."""
        np.multiply(payload.view(self.kind).reshape(out.shape), scales[:, None], out=out, dtype=out.dtype)


class Half(Rounding):
    """16 bits of floating point, relative to the largest of the block."""

    bits, kind = 16, np.float16

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Round to 11 significant bits."""
        _largest(x, scales, work)
        np.divide(x, scales[:, None], out=work)
        convert(work, payload.view(np.float16).reshape(x.shape))


class Byte(Rounding):
    """255 equal steps from the largest of the block, negative, to the same, positive."""

    bits, kind = 8, np.int8

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Round to the nearest step."""
        _largest(x, scales, work, steps=127)
        np.divide(x, scales[:, None], out=work)
        np.rint(work, out=work)
        with np.errstate(invalid="ignore"):  # what is not a number has such a scale
            np.copyto(payload.view(np.int8).reshape(x.shape), work, casting="unsafe")


class Sign(Rounding):
    """One bit: above zero or not, times the mean size of the block's numbers (Bernstein et al., 2018)."""

    bits = 1

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Pack the signs."""
        np.abs(x, out=work)
        np.sum(work, axis=1, dtype=work.dtype, out=scales)
        scales /= x.shape[1]
        payload[...] = np.packbits(x.reshape(-1) >= 0)

    def read(self, scales: Array, payload: Message, out: Array) -> None:
        """Make one or minus one of a bit, and multiply."""
        out.reshape(-1)[...] = np.unpackbits(payload, count=out.size)
        out *= 2
        out -= 1
        out *= scales[:, None]


ROUNDINGS: dict[str, Rounding] = {"fp16": Half(), "int8": Byte(), "sign": Sign()}


class Blocks:
    """Gradients of `size` numbers, rounded block by block; the last block may be shorter."""

    def __init__(self, size: int, dtype: DTypeLike, rounding: Rounding):
        self._size, self._rounding = size, rounding
        self._scales = -(-size // BLOCK)
        self._work: Array = aligned(_ROWS * BLOCK * np.dtype(dtype).itemsize).view(dtype)
        self.message_bytes = whole_words(self._scales * _SCALE.itemsize + _payload_bytes(size, rounding))
        self.work_bytes = self._work.nbytes

    def encode(self, x: Array, message: Message) -> None:
        """Write scales and numbers, and leave in `x` what rounding took away."""
        for place in self._places():
            part = x[place].reshape(_shape(place))
            work = self._work[: part.size].reshape(part.shape)
            scales, payload = self._seen(message, place)
            self._rounding.write(part, scales, payload, work)
            self._rounding.read(scales, payload, work)
            part -= work

    def add_up(self, messages: Message, total: Array) -> None:
        """Replace `total` by the sum of what the rows of `messages` say."""
        for place in self._places():
            part = total[place].reshape(_shape(place))
            work = self._work[: part.size].reshape(part.shape)
            for number, message in enumerate(messages):
                self._rounding.read(*self._seen(message, place), work if number else part)
                if number:
                    part += work

    def _places(self) -> Iterator[slice]:
        """Yield where runs of whole blocks lie, then a shorter last block."""
        whole = self._size // BLOCK * BLOCK
        for start in range(0, whole, _ROWS * BLOCK):
            yield slice(start, min(start + _ROWS * BLOCK, whole))
        if whole < self._size:
            yield slice(whole, self._size)

    def _seen(self, message: Message, place: slice) -> tuple[Array, Message]:
        """Return the scales and the numbers at `place` of a message."""
        scales = message[: self._scales * _SCALE.itemsize].view(_SCALE)
        payload = message[self._scales * _SCALE.itemsize :]
        start, stop = (_payload_bytes(edge, self._rounding) for edge in (place.start, place.stop))
        return scales[place.start // BLOCK : -(-place.stop // BLOCK)], payload[start:stop]


def _payload_bytes(size: int, rounding: Rounding) -> int:
    return -(-size * rounding.bits // 8)


def _shape(place: slice) -> tuple[int, int]:
    size = place.stop - place.start
    return -(-size // BLOCK), min(size, BLOCK)


def _largest(x: Array, scales: Array, work: Array, steps: int = 1) -> None:
    """Write the largest size of each block over `steps`; never zero, for dividing by it."""
    np.abs(x, out=work)
    np.max(work, axis=1, out=scales)
    scales /= steps
    np.maximum(scales, _SMALLEST, out=scales)


_RUN = 4096  # numbers that are looked at together
MOST = np.iinfo(np.int32).max  # numbers that indices of 32 bits tell apart


class Largest:
    """A share of the `size` gradients of a rank, each with its index; what is not sent is held back."""

    def __init__(self, size: int, dtype: DTypeLike, share: float):
        self._kind, self._count = np.dtype(dtype), min(size, max(1, round(size * share)))
        self._index = np.dtype(np.int32 if size <= MOST else np.int64)
        self._sizes: Array = aligned(size * self._kind.itemsize).view(self._kind)
        self._work: Array = aligned(_RUN * self._kind.itemsize).view(self._kind)
        self.message_bytes = whole_words(self._count * (self._kind.itemsize + self._index.itemsize))
        self.work_bytes = self._sizes.nbytes + self._work.nbytes

    def encode(self, x: Array, message: Message) -> None:
        """Write the largest numbers and their indices, and leave zeros in their place."""
        np.abs(x, out=self._sizes)
        self._sizes.partition(x.size - self._count)
        least = self._sizes[x.size - self._count]
        values, indices = self._seen(message)
        for start, found in _first(self._count, self._picked(x, least)):
            indices[start : start + found.size] = found
        for mine in self._runs():
            np.take(x, indices[mine], out=values[mine], mode="clip")
            x[indices[mine]] = 0

    def add_up(self, messages: Message, total: Array) -> None:
        """Replace `total` by the sum of what the rows of `messages` say."""
        total.fill(0)
        for message in messages:
            values, indices = self._seen(message)
            for mine in self._runs():
                work = self._work[: mine.stop - mine.start]
                np.take(total, indices[mine], out=work, mode="clip")
                work += values[mine]
                total[indices[mine]] = work

    def _picked(self, x: Array, least: np.floating) -> Iterator[np.ndarray]:
        """Yield the indices of what is larger than `least`, or no number, run by run; then of its equals."""
        for larger in (True, False):
            for start in range(0, x.size, _RUN):
                part = x[start : start + _RUN]
                size = np.abs(part, out=self._work[: part.size])
                found = np.flatnonzero(~(size <= least) if larger else size == least)
                found += start
                yield found

    def _runs(self) -> Iterator[slice]:
        """Yield where runs of what is sent lie."""
        for start in range(0, self._count, _RUN):
            yield slice(start, min(start + _RUN, self._count))

    def _seen(self, message: Message) -> tuple[Array, np.ndarray]:
        """Return the numbers and the indices of a message."""
        stop = self._count * self._kind.itemsize
        indices = message[stop : stop + self._count * self._index.itemsize].view(self._index)
        return message[:stop].view(self._kind), indices


def _first(count: int, found: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first `count` of all that is found, run by run, and how many came before."""
    done = 0
    for run in found:
        taken = run[: count - done]
        if taken.size:
            yield done, taken
        done += taken.size
        if done == count:
            return


class Encoded(Reduction):
    """The sum of what all ranks have encoded: bit for bit the same on each of them.

    A codec writes to a message what is sent of gradients, and leaves in them what is not.
    """

    factors: Sequence[Array | None] = ()  # that the next step goes on from: none

    def __init__(self, grad: Array, axis: Axis, codec: Blocks | Largest):
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
