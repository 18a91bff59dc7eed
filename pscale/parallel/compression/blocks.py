"""Encodings that round: every number with fewer bits, and a float32 scale for every block of 1,024.

A small tensor is not lost beside a large one, nor is a gradient too small for 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from pscale.parallel.compression.feedback import Array, Message, whole_words

BLOCK = 1024
_ROWS = 16  # blocks that are encoded at once: they and what is made of them stay in the cache
_SCALE = np.dtype(np.float32)
_SMALLEST = np.finfo(_SCALE).tiny


class Rounding(Protocol):
    """How the numbers of a block are rounded; `x` and `work` are (blocks, elements), `scales` (blocks,)."""

    bits: int

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Choose the scales and write the numbers."""
        ...

    def read(self, scales: Array, payload: Message, out: Array) -> None:
        """Write to `out` what the numbers stand for."""
        ...


class Half:
    """16 bits of floating point, relative to the largest of the block."""

    bits = 16

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Round to 11 significant bits."""
        _largest(x, scales, work)
        np.divide(x, scales[:, None], out=work)
        np.copyto(payload.view(np.float16).reshape(x.shape), work, casting="same_kind")

    def read(self, scales: Array, payload: Message, out: Array) -> None:
        """Multiply by the scale."""
        np.multiply(payload.view(np.float16).reshape(out.shape), scales[:, None], out=out, dtype=out.dtype)


class Byte:
    """255 equal steps from the largest of the block, negative, to the same, positive."""

    bits = 8

    def write(self, x: Array, scales: Array, payload: Message, work: Array) -> None:
        """Round to the nearest step."""
        _largest(x, scales, work, steps=127)
        np.divide(x, scales[:, None], out=work)
        np.rint(work, out=work)
        with np.errstate(invalid="ignore"):  # what is not a number has such a scale
            np.copyto(payload.view(np.int8).reshape(x.shape), work, casting="unsafe")

    def read(self, scales: Array, payload: Message, out: Array) -> None:
        """Multiply by the step."""
        np.multiply(payload.view(np.int8).reshape(out.shape), scales[:, None], out=out, dtype=out.dtype)


class Sign:
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
        self._work = np.empty(_ROWS * BLOCK, dtype)
        self.message_bytes = message_bytes(size, rounding)
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


def message_bytes(size: int, rounding: Rounding) -> int:
    """Return the bytes of `size` numbers and of their scales."""
    return whole_words(-(-size // BLOCK) * _SCALE.itemsize + _payload_bytes(size, rounding))


def work_bytes(dtype: DTypeLike) -> int:
    """Return the memory for a run of blocks."""
    return _ROWS * BLOCK * np.dtype(dtype).itemsize


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
