"""Parameters with memory of their own, as units of a trainer have it, and the program on one process."""

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from pscale.config import Model, Plan
from pscale.mesh.alone import SelfMesh
from pscale.nn.buffers import zeros
from pscale.nn.dtypes import dtype_of
from pscale.nn.param import Param, Share, fill, views
from pscale.training.build import Stage, build


class Arena:
    """All parameters of a stage in one flat array and all gradients in another, in forward order."""

    def __init__(self, params: Sequence[Param], dtype: DTypeLike, gradients: DTypeLike | None = None):
        self.params = tuple(params)
        size = sum(param.size for param in self.params)
        [self.data], [self.grad] = zeros([size], dtype), zeros([size], gradients or dtype)
        for param, data in views(self.params, self.data):
            param.data = data
        for param, grad in views(self.params, self.grad):
            param.grad = grad

    def fill(self, seed: int, share: Share | None = None) -> None:
        """Give every parameter its initial value."""
        fill(self.params, seed, share)

    def clear_grads(self) -> None:
        """Begin a step: the first contribution to each gradient replaces what is there.

        No memory is touched. Every layer contributes to all of its gradients in every backward, so
        none is left stale; that is cheaper than zeroing all and adding.
        """
        for param in self.params:
            param.stale = True


@dataclass(frozen=True)
class Serial:
    """A model on one process with its memory bound: what every plan is compared with."""

    stage: Stage
    arena: Arena

    def __getattr__(self, name):
        return getattr(self.stage, name)


def serial(model: Model, seed: int) -> Serial:
    stage = build(model, Plan(), SelfMesh())
    arena = Arena([param for unit in stage.units for param in unit.layer.params], dtype_of(model.dtype))
    arena.fill(seed)
    return Serial(stage, arena)
