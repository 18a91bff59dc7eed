"""Chances for the MPI library to move what was started, between the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Mesh
from pscale.nn.layer import Forgetful, Layer
from pscale.nn.param import Param

Array = NDArray[np.floating]


class Progress(Forgetful):
    """The identity, which lets exchanges that are under way move on."""

    params: Sequence[Param] = ()

    def __init__(self, progress: Callable[[], None]):
        self._progress = progress

    def forward(self, x: Array) -> tuple[Array, None]:
        """Return the input."""
        self._progress()
        return x, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Return the gradient of the output."""
        self._progress()
        return dy


def interspersed(layers: Sequence[Layer], mesh: Mesh) -> Iterator[Layer]:
    """Yield the layers with a chance for progress after each; just the layers where one rank is alone."""
    for layer in layers:
        yield layer
        if mesh.world.size > 1:
            yield Progress(mesh.progress)
