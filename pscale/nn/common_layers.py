"""The layers of a transformer beside attention: products, activations, norms, embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.dtypes import compute_dtype
from pscale.nn.kernels.tiles import ones, rows_of
from pscale.nn.param import Param, Progress, parts_of


def product(x: Array, weight: Array, buffers: Buffers, progress: Progress | None = None) -> Array:
    """Return x @ weight: (..., inputs) to (..., outputs); calls `progress` between parts of the rows."""
    y = buffers.take((*x.shape[:-1], weight.shape[1]), x.dtype)
    for rows in parts_of(x.size // x.shape[-1], progress):
        kernels.current().multiply(rows_of(x)[rows], weight, rows_of(y)[rows])
    return y


class Linear:
    """x @ weight + bias: (..., inputs) to (..., outputs).

    `transposed`: x @ weight.T, for a table of tokens (Press and Wolf, 2017).
    """

    def __init__(
        self, weight: Param, bias: Param | None = None, *, transposed: bool = False, buffers: Buffers
    ):
        self.weight, self.bias, self.transposed, self.buffers = weight, bias, transposed, buffers
        self.params: Sequence[Param] = (weight,) if bias is None else (weight, bias)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the product; keeps the input."""
        y = self.multiply(x)
        if self.bias is not None:
            kernels.current().add(rows_of(y), None, self.bias.data, rows_of(y))
        return y, x

    def multiply(self, x: Array) -> Array:
        """Return the product alone."""
        return product(x, self._factor, self.buffers)

    def remember(self, x: Array) -> Array:
        """Return the input."""
        return x

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weight and bias."""
        self.add_gradients(dy, x)
        del x  # its memory is that of the result, unless somebody else keeps it
        return self.input_gradient(dy)

    def input_gradient(self, dy: Array, progress: Progress | None = None) -> Array:
        """Return dy @ weight.T."""
        return product(dy, self._factor.T, self.buffers, progress)

    def add_gradients(self, dy: Array, x: Array, progress: Progress | None = None) -> None:
        """Add to the gradients of weight and bias."""
        a, b = (dy, x) if self.transposed else (x, dy)
        self.weight.add_product(rows_of(a).T, rows_of(b), progress)
        if self.bias is not None:
            self.bias.add_column_sums(rows_of(dy))

    @property
    def _factor(self) -> Array:
        return self.weight.data.T if self.transposed else self.weight.data


class BiasGelu:
    """GELU(x + bias).

    Forward puts the derivative where its input was, so that backward is one product. A bias (G, C) has a
    row for each of the G equal parts of x, as experts do; there may be none.
    """

    def __init__(self, bias: Param | None, *, buffers: Buffers):
        self.bias, self.buffers = bias, buffers
        self.params: Sequence[Param] = () if bias is None else (bias,)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the activation; keeps its derivative."""
        y = self.buffers.take(x.shape, x.dtype)
        biases = (None,) if self.bias is None else rows_of(self.bias.data)
        for part, bias, out in zip(self._parts(x), biases, self._parts(y), strict=True):
            kernels.current().bias_gelu(part, bias, out, part)
        return y, x

    def backward(self, dy: Array, slope: Array) -> Array:
        """Multiply by the derivative, in its place."""
        bias_grad = None if self.bias is None else np.zeros(self.bias.shape, dy.dtype)
        grads = (None,) if bias_grad is None else rows_of(bias_grad)
        for part, out, sums in zip(self._parts(dy), self._parts(slope), grads, strict=True):
            kernels.current().bias_gelu_backward(part, out, out, sums)
        if self.bias is not None and bias_grad is not None:
            self.bias.add_grad(bias_grad)
        return slope

    def _parts(self, x: Array) -> Array:
        width = x.shape[-1]
        return x.reshape(1 if self.bias is None else self.bias.size // width, -1, width)


class SwiGlu:
    """silu(gate) up for a gate and an input side by side: (..., 2C) to (..., C).

    Forward puts both derivatives where they were, so that backward is two products.
    """

    params: Sequence[Param] = ()

    def __init__(self, *, buffers: Buffers):
        self.buffers = buffers

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the activation; keeps its derivatives."""
        y = self.buffers.take((*x.shape[:-1], x.shape[-1] // 2), x.dtype)
        kernels.current().swiglu(rows_of(y), rows_of(x))
        return y, x

    def backward(self, dy: Array, slopes: Array) -> Array:
        """Multiply by the derivatives, in their place."""
        kernels.current().swiglu_backward(rows_of(dy), rows_of(slopes))
        return slopes


@dataclass(kw_only=True)
class Draws:
    """Where random numbers are drawn: in a step, for sequences of the global batch from number `first` on.

    While they are `paused`, nothing is dropped.
    """

    paused: bool = False
    seed: int = 0
    step: int = 0
    first: int = 0


def positions_in(runs: Iterable[slice]) -> Array:
    """Return the positions of runs, one after another."""
    return np.concatenate([np.arange(run.start, run.stop) for run in runs])


class Dropout:
    """A share of the elements of (B, T, C) set to 0, in place, the others enlarged (Srivastava et al., 2014).

    Which, `draws`, `site` and an element's place in the global batch say: an array has positions `runs`,
    features from `column` on, and sequences from `offset` times their number on. Nothing is kept.
    """

    params: Sequence[Param] = ()

    def __init__(self, rate: float, site: int, draws: Draws, *, runs: Sequence[slice], buffers: Buffers):
        self.rate, self.site, self.draws, self.buffers = rate, site, draws, buffers
        self.positions = positions_in(runs)
        self.column = self.offset = 0

    def forward(self, x: Array) -> tuple[Array, None]:
        """Drop."""
        return self.dropped(x, x), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Drop the gradients of the same elements."""
        return self.dropped(dy, dy)

    def dropped(self, x: Array, out: Array) -> Array:
        """Write the elements that are left to `out`, enlarged."""
        draws, first = self.draws, self.draws.first + self.offset * len(x)
        if draws.paused:
            np.copyto(out, x)
            return out
        for number, (rows, left) in enumerate(zip(x, out, strict=True), first):
            key = self.site, draws.seed, draws.step
            kernels.current().dropout(rows, left, self.positions, self.column, number, *key, self.rate)
        return out


EPSILON = 1e-5

Cache = tuple[Array, Array | None, Array]


class LayerNorm:
    """(x - mean) / deviation * gain + bias over the last dim (Ba et al., 2016); there may be no bias.

    Without `centred` the mean is taken as zero: RMSNorm.
    """

    def __init__(self, gain: Param, bias: Param | None, *, centred: bool = True, buffers: Buffers):
        self.gain, self.bias, self.centred, self.buffers = gain, bias, centred, buffers
        self.params: Sequence[Param] = (gain,) if bias is None else (gain, bias)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Normalise; keeps the input and a number a row, or two."""
        y = self.buffers.take(x.shape, x.dtype)
        rows, bias = rows_of(x), None if self.bias is None else self.bias.data
        mean = self.buffers.take((len(rows),), compute_dtype(x.dtype)) if self.centred else None
        rstd = self.buffers.take((len(rows),), compute_dtype(x.dtype))  # of the deviation
        kernels.current().layer_norm(rows, self.gain.data, bias, rows_of(y), mean, rstd, EPSILON)
        return y, (x, mean, rstd)

    def backward(self, dy: Array, cache: Cache, skip: Array | None = None) -> Array:
        """Add to the gradients of gain and bias; return that of the input, in its place, with `skip`."""
        x, mean, rstd = cache
        grads = np.zeros((2, x.shape[-1]), x.dtype)
        kernels.current().layer_norm_backward(
            rows_of(x),
            mean,
            rstd,
            self.gain.data,
            rows_of(dy),
            rows_of(x),
            grads[0],
            None if self.bias is None else grads[1],
            None if skip is None else rows_of(skip),
        )
        for param, grad in zip(self.params, grads, strict=False):
            param.add_grad(grad)
        return x


class Tokens:
    """Row of each token: integers (B, T) to (B, T, C).

    The table may hold a part of the vocabulary, from token `first` on; a token that is not here becomes zero,
    so that the sum over all parts is the row.
    """

    def __init__(self, table: Param, *, first: int = 0, buffers: Buffers):
        self.table, self.first, self.buffers = table, first, buffers
        self.params: Sequence[Param] = (table,)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Look up; keeps the rows as a copy of the tokens, since they are data and stay the caller's."""
        rows = self.buffers.take(x.shape, np.intp)
        np.subtract(x, self.first, out=rows, dtype=np.intp, casting="unsafe")
        y = self.buffers.take((*x.shape, self.table.shape[1]), self.table.data.dtype)
        kernels.current().take_rows(self.table.data, rows, y)
        y[(rows < 0) | (rows >= len(self.table.data))] = 0
        return y, rows

    def backward(self, dy: Array, rows: Array) -> None:
        """Add each vector's gradient to its row."""
        kernels.current().add_to_rows(self.table.accumulator(), rows.ravel(), rows_of(dy))


class Positions:
    """x + row of its position: (B, T, C), the T positions being `runs`, one after another."""

    def __init__(self, table: Param, *, runs: Sequence[slice], buffers: Buffers):
        self.table, self.runs, self.buffers = table, runs, buffers
        self.params: Sequence[Param] = (table,)

    def forward(self, x: Array) -> tuple[Array, None]:
        """Add, in place; keeps nothing."""
        for run, here in self._pairs():
            np.add(x[:, here], self.table.data[run], out=x[:, here])
        return x, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Add to the gradients of the positions; that of `x` is what came."""
        B, T, C = dy.shape
        by_position = self.buffers.take((T * C,), dy.dtype)
        kernels.current().multiply(ones(B, dy.dtype), dy.reshape(B, T * C), by_position)
        grad, rows = self.table.accumulator(), by_position.reshape(T, C)
        for run, here in self._pairs():
            grad[run] += rows[here]
        return dy

    def _pairs(self) -> Iterator[tuple[slice, slice]]:
        """Yield the runs of the sequence and where they are in T."""
        start = 0
        for run in self.runs:
            stop = start + run.stop - run.start
            yield run, slice(start, stop)
            start = stop
