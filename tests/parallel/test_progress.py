import numpy as np
import pytest

from pscale.mesh.solo import SoloMesh
from pscale.nn.layer import Chain
from pscale.parallel.progress import interspersed


class Layer:
    params = ()

    def __init__(self, name, log):
        self.name, self.log = name, log

    def forward(self, x):
        self.log.append(self.name)
        return x, None

    def backward(self, dy, _cache):
        self.log.append(self.name)
        return dy


class Mesh(SoloMesh):
    """A mesh that notes when it is given a chance."""

    def __init__(self, ranks, log):
        super().__init__()
        self.world.size, self.log = ranks, log

    def progress(self):
        self.log.append("progress")


@pytest.mark.parametrize("ranks", [1, 2])
def test_exchanges_may_move_between_layers_in_both_directions_unless_a_rank_is_alone(ranks):
    log, x = [], np.zeros(3)
    chain = Chain(*interspersed([Layer("a", log), Layer("b", log)], Mesh(ranks, log)))
    y, cache = chain.forward(x)
    dx = chain.backward(y, cache)
    assert y is x
    assert dx is x
    between = ["progress"] if ranks > 1 else []
    assert log == ["a", *between, "b", *between, *between, "b", *between, "a"]
