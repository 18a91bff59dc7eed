"""A model on one process with its memory bound: the program that every plan is compared with."""

from dataclasses import dataclass

from arena import Arena

from pscale.config import Model, Plan
from pscale.mesh.alone import SelfMesh
from pscale.nn.dtypes import dtype_of
from pscale.training.build import Stage, build


@dataclass(frozen=True)
class Serial:
    stage: Stage
    arena: Arena

    def __getattr__(self, name):
        return getattr(self.stage, name)


def serial(model: Model, seed: int) -> Serial:
    stage = build(model, Plan(), SelfMesh())
    arena = Arena([param for unit in stage.units for param in unit.layer.params], dtype_of(model.dtype))
    arena.fill(seed)
    return Serial(stage, arena)
