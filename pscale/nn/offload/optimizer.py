"""An optimizer whose state is in chunks: it sees each of them as a flat memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.nn.buffers import Array
from pscale.nn.offload.chunks import even, longest, of_tensors
from pscale.nn.offload.state import InChunks
from pscale.nn.optim import Flat, Optimizer


class Chunked:
    """Updates flat memories chunk by chunk; `chunks` says how many each has."""

    def __init__(self, inner: Optimizer, state: InChunks, chunks: Sequence[int]):
        self._inner = inner
        self.state: Sequence[Array] = state.at_hand
        self._chunks: list[range] = []
        first = 0
        for count in chunks:
            self._chunks.append(range(first, first + count))
            first += count

    def begin(self, lr: float, scale: float) -> None:
        """Leave it to the optimizer."""
        self._inner.begin(lr, scale)

    def apply(self, part: int) -> None:
        """Update one chunk after another."""
        for chunk in self._chunks[part]:
            self._inner.apply(chunk)


def cut(flats: Sequence[Flat], chunk_bytes: int, *, whole_tensors: bool) -> list[list[Flat]]:
    """Cut flat memories into chunks: anywhere, or between tensors for an optimizer that sums over them."""
    total = sum(flat.data.size for flat in flats)
    most = longest(total, flats[0].data.itemsize, chunk_bytes) if flats else 0
    if not whole_tensors:
        slices = even([flat.data.size for flat in flats], most)
        return [[_part(flat, each) for each in cuts] for flat, cuts in zip(flats, slices, strict=True)]
    sizes = [[run.size for run in flat.runs()] for flat in flats]
    return [
        [_tensors(flat, each) for each in cuts]
        for flat, cuts in zip(flats, of_tensors(sizes, most), strict=True)
    ]


def _part(flat: Flat, here: slice) -> Flat:
    return Flat(flat.data[here], flat.grad[here], flat.params, flat.start + here.start)


def _tensors(flat: Flat, numbers: slice) -> Flat:
    """Return what a flat memory has of some parameters in a row."""
    runs = flat.runs()[numbers]
    here = slice(runs[0].place.start, runs[-1].place.stop)
    return Flat(flat.data[here], flat.grad[here], flat.params[numbers], runs[0].first)
