"""Copies in float32 of weights that are stored in 16 bits: small updates are not rounded away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pscale.nn.buffers import Array, zeros
from pscale.nn.optim import Flat, Optimizer

MASTER = np.dtype(np.float32)


def needs_masters(itemsize: int) -> bool:
    """Tell whether numbers of `itemsize` bytes are too coarse for updates to be added to them."""
    return itemsize < MASTER.itemsize


class Masters:
    """Any optimizer on copies (Micikevicius et al., 2018), which are part of its state; so are its moments.

    Gradients stay as they are stored: kernels widen them a piece at a time.
    """

    def __init__(self, flats: Sequence[Flat], make: Callable[[Sequence[Flat]], Optimizer]):
        self._flats = flats
        copies = zeros([flat.data.size for flat in flats], MASTER)
        self._copies = [replace(flat, data=copy) for flat, copy in zip(flats, copies, strict=True)]
        self._optimizer = make(self._copies)
        self.state: Sequence[Array] = [*(copy.data for copy in self._copies), *self._optimizer.state]
        self._copied = False

    def begin(self, lr: float, scale: float) -> None:
        """Begin a step; the first one begins with the weights that are stored."""
        if not self._copied:
            for flat, copy in zip(self._flats, self._copies, strict=True):
                copy.data[...] = flat.data
            self._copied = True
        self._optimizer.begin(lr, scale)

    def apply(self, part: int) -> None:
        """Update the copies and round them to what is stored."""
        self._optimizer.apply(part)
        self._flats[part].data[...] = self._copies[part].data
