"""Kernels for numbers of 16 bits, which other kernels compute with in float32: upcast, and rounded once.

A processor without units for 16 bits does so in its registers; here copies lie in scratch memory, a tile
of them at a time where rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, Softmax
from pscale.nn.kernels.costs import KERNELS, Declaration
from pscale.nn.kernels.fused import FusedKernels
from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.tiles import Copies, tiles

_ROWS = 512  # of a product at once: enough for the BLAS to be at full speed


class HalfKernels(Kernels):
    """The kernels that follow in the order of inheritance, for 16 bits."""

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """Round sums of float32 once; of a matrix by its rows."""
        multiply = super().multiply
        for rows, factor, part in _row_products(a, b, out):
            with Copies() as copies:
                multiply(copies.read(rows), factor, copies.write(part))

    def multiply_add(self, a: Array, b: Array, out: Array) -> None:
        """Round sums of float32 once, with what was there."""
        add = super().multiply_add
        for rows, factor, part in _row_products(a, b, out):
            with Copies() as copies:
                add(copies.read(rows), factor, copies.change(part))

    def attend(self, of: AttentionOperands) -> None:
        """Compute as many heads at once as there are threads; what goes on from block to block is float32."""
        for part in self._of_heads(of.y):
            with Copies() as copies:
                y = copies.change(of.y[part])
                super().attend(replace(of, y=y, **_operands(of, part, copies, scores=copies.write)))

    def attend_backward(self, of: AttentionGradients) -> None:
        """Compute as many heads at once as there are threads."""
        for part in self._of_heads(of.y):
            with Copies() as copies:
                y, dy = copies.read(of.y[part]), copies.read(of.dy[part])
                of_q = copies.write if of.first else copies.change
                of_keys = copies.write if of.first_of_keys else copies.change
                grads = [of_q(of.grads[0][part]), *(of_keys(x[part]) for x in of.grads[1:])]
                operands = _operands(of, part, copies, scores=copies.read)
                super().attend_backward(replace(of, y=y, dy=dy, grads=grads, **operands))

    def _of_heads(self, y: Array) -> list[tuple[slice, slice]]:
        """Cut (B, H, …) into sequences and some heads."""
        sequences, heads = y.shape[:2]
        return [
            (slice(b, b + 1), slice(h, h + self.threads))
            for b in range(sequences)
            for h in range(0, heads, self.threads)
        ]


def _row_products(a: Array, b: Array, out: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield rows of `a`, of a stack or not, with the other factor in float32 and what they are of `out`."""
    if a.ndim > 2:
        for x, y, z in zip(a, b, out, strict=True):
            yield from _row_products(x, y, z)
        return
    with Copies() as whole:
        factor = whole.read(b)
        for start in range(0, len(a), _ROWS) if a.ndim > 1 else (None,):
            rows = slice(None) if start is None else slice(start, start + _ROWS)
            yield a[rows], factor, out[rows]


def _operands(
    of: AttentionOperands, part: tuple[slice, slice], copies: Copies, scores: Callable[[Array], Array]
) -> dict[str, Any]:
    """Return inputs, softmax and what is dropped of some heads; `scores` copies exponentials."""
    softmax = of.softmax
    kept = softmax.exponentials
    return {
        "inputs": [copies.read(x[part]) for x in of.inputs],
        "dropped": of.dropped and of.dropped.part(*part),
        "softmax": Softmax(
            None if kept is None else scores(kept[part]),
            *(x[part] for x in (softmax.factors, softmax.maximum, softmax.total)),
        ),
    }


def _by_tiles(name: str, declared: Declaration) -> Callable[..., float]:
    """Return the method that computes a kernel tile by tile; sums over all tiles are rounded at their end."""

    def call(self: HalfKernels, *given: Any, **named: Any) -> float:
        inner, values, result = getattr(super(HalfKernels, self), name), declared.bind(given, named), 0.0
        with Copies() as whole:
            for each, mode in declared.modes.items():
                if each not in declared.rows and values[each] is not None:
                    values[each] = getattr(whole, mode)(values[each])
            for tile in tiles(declared.like(values)):
                with Copies() as copies:
                    result += (
                        inner(
                            *(
                                getattr(copies, declared.modes[each])(value[tile])
                                if each in declared.rows and value is not None
                                else value
                                for each, value in values.items()
                            )
                        )
                        or 0.0
                    )
        return result

    return call


for _name, _declared in KERNELS.items():
    if _declared.rows:
        setattr(HalfKernels, _name, _by_tiles(_name, _declared))


class HalfFusedKernels(HalfKernels, FusedKernels):
    """Those in C, for 16 bits."""
