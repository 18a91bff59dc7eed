"""Kernels for numbers of 16 bits, which other kernels compute with in float32: upcast, and rounded once.

A processor without units for 16 bits does so in its registers; here copies lie in scratch memory, a tile
of them at a time where rows do not depend on each other.
"""

from __future__ import annotations

from dataclasses import replace

from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, Softmax
from pscale.nn.kernels.fused import FusedKernels
from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.tiles import Copies, tiles

_ROWS = 512  # of a product at once: enough for the BLAS to be at full speed


class HalfKernels(Kernels):
    """The kernels that follow in the order of inheritance, for 16 bits."""

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """Round sums of float32 once; of a matrix by its rows."""
        if a.ndim > 2:
            for x, y, z in zip(a, b, out, strict=True):
                self.multiply(x, y, z)
            return
        with Copies() as whole:
            factor = whole.read(b)
            for start in range(0, len(a), _ROWS) if a.ndim > 1 else (None,):
                rows = slice(None) if start is None else slice(start, start + _ROWS)
                with Copies() as copies:
                    super().multiply(copies.read(a[rows]), factor, copies.write(out[rows]))

    def bias_gelu(self, x: Array, bias: Array, y: Array, slope: Array) -> None:
        """Compute tile by tile."""
        for group in range(len(bias)):
            here = slice(group, group + 1)
            for tile in tiles(x[group]):
                with Copies() as copies:
                    super().bias_gelu(
                        copies.read(x[here, tile]),
                        copies.read(bias[here]),
                        copies.write(y[here, tile]),
                        copies.write(slope[here, tile]),
                    )

    def bias_gelu_backward(self, dy: Array, slope: Array, dx: Array, bias_grad: Array) -> None:
        """Add up sums of all tiles before they are rounded."""
        with Copies() as whole:
            sums = whole.change(bias_grad)
            for group in range(len(sums)):
                here = slice(group, group + 1)
                for tile in tiles(dy[group]):
                    with Copies() as copies:
                        super().bias_gelu_backward(
                            copies.read(dy[here, tile]),
                            copies.read(slope[here, tile]),
                            copies.write(dx[here, tile]),
                            sums[here],
                        )

    def layer_norm(
        self, x: Array, gain: Array, bias: Array, y: Array, mean: Array, inverse: Array, epsilon: float
    ) -> None:
        """Compute tile by tile."""
        for tile in tiles(x):
            with Copies() as copies:
                super().layer_norm(
                    copies.read(x[tile]),
                    copies.read(gain),
                    copies.read(bias),
                    copies.write(y[tile]),
                    mean[tile],
                    inverse[tile],
                    epsilon,
                )

    def layer_norm_backward(
        self,
        x: Array,
        mean: Array,
        inverse: Array,
        gain: Array,
        dy: Array,
        dx: Array,
        gain_grad: Array,
        bias_grad: Array,
        skip: Array | None = None,
    ) -> None:
        """Add up sums of all tiles before they are rounded."""
        with Copies() as whole:
            sums = whole.change(gain_grad), whole.change(bias_grad)
            for tile in tiles(x):
                with Copies() as copies:
                    super().layer_norm_backward(
                        copies.read(x[tile]),
                        mean[tile],
                        inverse[tile],
                        copies.read(gain),
                        copies.read(dy[tile]),
                        copies.write(dx[tile]),
                        *sums,
                        None if skip is None else copies.read(skip[tile]),
                    )

    def add(self, x: Array, skip: Array | None, bias: Array | None, y: Array) -> None:
        """Round the sum of all that is added."""
        for tile in tiles(y):
            with Copies() as copies:
                super().add(
                    copies.read(x[tile]),
                    None if skip is None else copies.read(skip[tile]),
                    None if bias is None else copies.read(bias),
                    copies.write(y[tile]),
                )

    def add_to_rows(self, table: Array, rows: Array, x: Array) -> None:
        """Round what a row becomes once."""
        with Copies() as whole:
            wide_table = whole.change(table)
            for tile in tiles(x):
                with Copies() as copies:
                    super().add_to_rows(wide_table, rows[tile], copies.read(x[tile]))

    def attend(self, of: AttentionOperands) -> None:
        """Compute as many heads at once as there are threads; what goes on from block to block is float32."""
        for part in self._of_heads(of.y):
            with Copies() as copies:
                super().attend(
                    replace(
                        of,
                        inputs=[copies.read(x[part]) for x in of.inputs],
                        y=copies.change(of.y[part]),
                        softmax=_part(of.softmax, part, copies, written=True),
                    )
                )

    def attend_backward(self, of: AttentionGradients) -> None:
        """Compute as many heads at once as there are threads."""
        for part in self._of_heads(of.y):
            with Copies() as copies:
                of_q = copies.write if of.first else copies.change
                super().attend_backward(
                    replace(
                        of,
                        inputs=[copies.read(x[part]) for x in of.inputs],
                        y=copies.read(of.y[part]),
                        dy=copies.read(of.dy[part]),
                        grads=[of_q(of.grads[0][part]), *(copies.write(x[part]) for x in of.grads[1:])],
                        softmax=_part(of.softmax, part, copies, written=False),
                    )
                )

    def _of_heads(self, y: Array) -> list[tuple[slice, slice]]:
        """Cut (B, H, …) into sequences and some heads."""
        sequences, heads = y.shape[:2]
        return [
            (slice(b, b + 1), slice(h, h + self.threads))
            for b in range(sequences)
            for h in range(0, heads, self.threads)
        ]


def _part(softmax: Softmax, part: tuple[slice, slice], copies: Copies, *, written: bool) -> Softmax:
    exponentials = softmax.exponentials
    if exponentials is not None:
        exponentials = copies.write(exponentials[part]) if written else copies.read(exponentials[part])
    return replace(
        softmax,
        exponentials=exponentials,
        factors=softmax.factors[part],
        maximum=softmax.maximum[part],
        total=softmax.total[part],
    )


class HalfFusedKernels(HalfKernels, FusedKernels):
    """Those in C, for 16 bits."""
