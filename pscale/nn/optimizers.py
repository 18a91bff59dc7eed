"""The table of optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Train
from pscale.nn.adafactor import Adafactor
from pscale.nn.lamb import Lamb
from pscale.nn.masters import Masters, needs_masters
from pscale.nn.offload.optimizer import Chunked, cut
from pscale.nn.offload.state import IN_MEMORY, InChunks, StateMemory
from pscale.nn.offload.storage import Storage
from pscale.nn.optim import ALONE, Adam, Elsewhere, Flat, Optimizer, Sgd


def make_optimizer(
    train: Train, flats: Sequence[Flat], elsewhere: Elsewhere = ALONE, storage: Storage | None = None
) -> Optimizer:
    """Return the optimizer that `train` names, for tensors of which `elsewhere` has the rest.

    Its state is in memory, or in chunks in `storage`; copies of weights with too few bits stay here.
    """
    if any(needs_masters(flat.data.itemsize) for flat in flats):
        return Masters(flats, lambda copies: _placed(train, copies, elsewhere, storage))
    return _placed(train, flats, elsewhere, storage)


def _placed(train: Train, flats: Sequence[Flat], elsewhere: Elsewhere, storage: Storage | None) -> Optimizer:
    if storage is None:
        return _make(train, flats, elsewhere, IN_MEMORY)
    chunks = cut(flats, storage.chunk_bytes, whole_tensors=train.optimizer == "lamb")
    state = InChunks(storage)
    inner = _make(train, [chunk for each in chunks for chunk in each], elsewhere, state)
    return Chunked(inner, state, [len(each) for each in chunks])


def _make(train: Train, flats: Sequence[Flat], elsewhere: Elsewhere, memory: StateMemory) -> Optimizer:
    match train.optimizer:
        case "sgd":
            return Sgd(flats, train, memory=memory)
        case "adam":
            return Adam(flats, train, decay=0.0, memory=memory)
        case "adamw":
            return Adam(flats, train, decay=train.weight_decay, memory=memory)
        case "lamb":
            return Lamb(flats, train, elsewhere, memory=memory)
        case "adafactor":
            return Adafactor(flats, train, elsewhere)
