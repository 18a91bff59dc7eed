"""Tensors in files of the format safetensors, with an index: a reader need not hold what a writer held.

A file has the size of a header in 8 bytes, the header in JSON, then the numbers. `index.json` says of every
piece of a tensor where it lies, which elements of the whole tensor it is, and its CRC-32.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.errors import ResultsError
from pscale.runs import atomic_files

Array = NDArray[Any]
INDEX = "index.json"
_FORMAT = 1
_CHANGED = "{} was changed after it was written: its checksum differs"
_TYPES = {"float32": "F32", "float64": "F64"}
_CHUNK = 1 << 18  # elements that are found together


class Elements(NamedTuple):
    """`size` elements of a box in a whole tensor, from its element `first` on, in the order of memory.

    `dims` are start, count and stride of every dim of the box; strides are those of the whole tensor.
    """

    dims: Sequence[tuple[int, int, int]]
    first: int
    size: int

    def part(self, here: slice) -> Elements:
        """Return some of them."""
        return Elements(self.dims, self.first + here.start, here.stop - here.start)

    def numbers(self, here: slice) -> NDArray[np.int64]:
        """Return the places in the whole, flat tensor of some of them."""
        left = np.arange(self.first + here.start, self.first + here.stop)
        total = np.zeros_like(left)
        for start, count, stride in reversed(self.dims):
            left, index = np.divmod(left, count)
            total += (start + index) * stride
        return total

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of these elements lies at each place of the whole tensor; -1: none."""
        left, at, inside = numbers, np.zeros_like(numbers), np.ones(numbers.shape, np.bool_)
        for start, count, stride in self.dims:
            index, left = np.divmod(left, stride)
            index -= start
            inside &= (index >= 0) & (index < count)
            at = at * count + index
        at -= self.first
        return np.where(inside & (at >= 0) & (at < self.size), at, -1)


class Tensor(NamedTuple):
    """Numbers in memory that are `elements` of the tensor `name`."""

    name: str
    elements: Elements
    memory: Array


class Piece(NamedTuple):
    """Where in a file the elements of a tensor lie."""

    file: str
    offset: int
    dtype: str
    crc: int
    elements: Elements


def write(path: Path, tensors: Callable[[], Iterable[Tensor]]) -> list[tuple[str, Piece]]:
    """Write a file of tensors, which are asked for twice; return its pieces by names of tensors."""
    header: dict[str, Any] = {}
    stop = 0
    for number, tensor in enumerate(tensors()):
        start, stop = stop, stop + tensor.memory.nbytes
        kind, shape = _TYPES[tensor.memory.dtype.name], list(tensor.memory.shape)
        header[f"{tensor.name}#{number}"] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces, offset = [], 8 + len(text)
    with atomic_files.replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors():
            content = np.ascontiguousarray(tensor.memory).data.cast("B")
            place = offset, tensor.memory.dtype.name, zlib.crc32(content)
            pieces.append((tensor.name, Piece(path.name, *place, tensor.elements)))
            offset += file.write(content)
    return pieces


def write_index(folder: Path, facts: Mapping[str, Any], pieces: Iterable[tuple[str, Piece]]) -> None:
    """Write the index of a folder of files: what it says of the whole, and its pieces by tensor."""
    tensors: dict[str, list[Piece]] = {}
    for name, piece in pieces:
        tensors.setdefault(name, []).append(piece)
    names = {piece.file for rows in tensors.values() for piece in rows}
    files = {name: [(folder / name).stat().st_size, _header_crc(folder / name)] for name in sorted(names)}
    content = {"format": _FORMAT, "facts": dict(facts), "files": files, "tensors": tensors}
    atomic_files.write(folder / INDEX, json.dumps({"crc": _crc_of(content), **content}))


class TensorFolder:
    """A folder of tensors, of which any elements can be read.

    Raises ResultsError where a file is missing, cut short or changed.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            content = json.loads(atomic_files.read(folder / INDEX))
            crc = content.pop("crc")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ResultsError(f"{folder / INDEX} cannot be read as an index of tensors: {error}") from error
        if crc != _crc_of(content):
            raise ResultsError(_CHANGED.format(folder / INDEX))
        if content["format"] != _FORMAT:
            raise ResultsError(f"{folder / INDEX} has format {content['format']}, not {_FORMAT}")
        self.facts: dict[str, Any] = content["facts"]
        self._files, self._tensors = content["files"], content["tensors"]
        self.names: tuple[str, ...] = tuple(self._tensors)
        self.read_bytes = 0

    def check(self) -> None:
        """Raise ResultsError unless every file is there and as long as when it was written."""
        for name, (size, crc) in self._files.items():
            path = self.folder / name
            try:
                found = path.stat().st_size
            except OSError as error:
                raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
            if found != size:
                raise ResultsError(f"{path} has {found} bytes, but {size} were written")
            if _header_crc(path) != crc:
                raise ResultsError(_CHANGED.format(f"the header of {path}"))

    def whole(self, name: str) -> Array:
        """Return memory for all of a tensor."""
        pieces = [*self._pieces(name)]
        return np.empty(1 + max(map(_last, pieces)), pieces[0].dtype)

    def fill(self, name: str, elements: Elements, out: Array) -> None:
        """Read some elements of a tensor into flat memory, whatever its type."""
        left = np.ones(elements.size, np.bool_)
        for piece in self._pieces(name):
            values: Array | None = None
            for here in (each for each in _chunks(elements.size) if left[each].any()):
                at = piece.elements.find(elements.numbers(here))
                which = np.flatnonzero(at >= 0)
                if which.size:
                    values = self.read(piece, name) if values is None else values
                    out[here][which] = values[at[which]]
                    left[here][which] = False
        if left.any():
            raise ResultsError(f"{self.folder} lacks {np.count_nonzero(left)} elements of tensor {name}")

    def _pieces(self, name: str) -> Iterator[Piece]:
        if name not in self._tensors:
            raise ResultsError(f"{self.folder} has no tensor {name}")
        for file, offset, dtype, crc, elements in self._tensors[name]:
            yield Piece(file, offset, dtype, crc, Elements(*elements))

    def read(self, piece: Piece, name: str) -> Array:
        """Return the elements of a piece of a tensor."""
        path = self.folder / piece.file
        with atomic_files.open_file(path) as file:
            file.seek(piece.offset)
            values = np.fromfile(file, piece.dtype, piece.elements.size)
        if zlib.crc32(values.data.cast("B")) != piece.crc:
            raise ResultsError(_CHANGED.format(f"tensor {name} in {path}"))
        self.read_bytes += values.nbytes
        return values


def _last(piece: Piece) -> int:
    return sum((start + count - 1) * stride for start, count, stride in piece.elements.dims)


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK))


def _crc_of(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _header_crc(path: Path) -> int:
    with atomic_files.open_file(path) as file:
        size = file.read(8)
        return zlib.crc32(size + file.read(int.from_bytes(size, "little")))
