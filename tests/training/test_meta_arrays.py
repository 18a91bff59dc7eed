"""Arrays without memory have the shapes and types of real ones, and take none."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from pscale.nn import buffers, kernels
from pscale.nn.buffers import Buffers
from pscale.nn.kernels import scratch
from pscale.training.meta_arrays import Compute, MetaArray, meta_array, meta_arrays

OPERATIONS = {
    "sum": lambda a: a.x + a.y,
    "in place": lambda a: a.x.__iadd__(a.y),
    "with a number": lambda a: 2 * a.x / 3,
    "row": lambda a: a.x * a.y[..., :1],
    "compared": lambda a: a.x < a.y,
    "wider": lambda a: np.subtract(a.x, a.y, dtype=np.float64),
    "product": lambda a: a.x @ a.y.swapaxes(-1, -2),
    "matrix and vector": lambda a: a.x @ a.y[0, 0],
    "vector and matrix": lambda a: a.x[0, 0] @ a.y[0].T,
    "inner products": lambda a: np.vecdot(a.x, a.y),
    "reduced": lambda a: np.maximum.reduce(a.x, axis=1, keepdims=True),
    "reduced to a number": lambda a: np.sum(a.x),
    "methods": lambda a: a.x.sum(axis=(0, 1)),
    "slices": lambda a: a.x[1:, ..., ::2],
    "new dim": lambda a: a.x[:, None, 1],
    "rows": lambda a: a.x[a.i],
    "apart": lambda a: a.x[a.i, :, a.i],
    "together": lambda a: a.x[:, a.i, a.i],
    "beside a number": lambda a: a.x[0, a.i],
    "condition": lambda a: a.x[np.ones(a.x.shape[:2], bool)],
    "largest": lambda a: np.argmax(a.x, axis=1),
    "sorted": lambda a: np.argsort(a.x, kind="stable"),
    "counted": lambda a: np.bincount(a.i, minlength=5),
    "axes": lambda a: np.moveaxis(a.x, 0, 2).reshape(-1, 2),
    "flat": lambda a: a.x.transpose(2, 0, 1).ravel(),
    "other numbers": lambda a: a.x.ravel().view(np.uint8),
    "another type": lambda a: a.x.astype(np.float16),
    "like": lambda a: np.zeros_like(a.x),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_results_have_the_shape_and_the_type_of_real_ones(operation):
    shape, kind = (2, 3, 4), np.float32
    real = operation(SimpleNamespace(x=np.zeros(shape, kind), y=np.zeros(shape, kind), i=np.array([1, 0])))
    found = operation(
        SimpleNamespace(x=meta_array(shape, kind), y=meta_array(shape, kind), i=meta_array((2,), np.intp))
    )
    assert isinstance(found, MetaArray)
    assert (found.shape, found.dtype) == (real.shape, real.dtype)


def test_what_cannot_be_known_without_values_is_refused():
    with pytest.raises(NotImplementedError, match=r"add\.accumulate"):
        np.add.accumulate(meta_array((2,), np.float32))


def test_a_pool_knows_its_arrays_and_allocates_next_to_nothing():
    tracemalloc.start()
    with meta_arrays():
        pool = Buffers()
        x, y = (pool.take((1 << 20, 1 << 10), np.float32) for _ in range(2))
        z = x.ravel().view(np.int32)[1:]
        del x
        assert (pool.total_bytes, pool.held_bytes) == (2 << 32, 2 << 32)
        del y, z
        z = pool.take((1 << 30,), np.float32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pool.total_bytes == 2 << 32, f"{z.shape} lies where x or y did"
    assert peak < 1 << 20


def test_afterwards_memory_and_kernels_are_as_before():
    work, before, pool = [], (kernels.current(), buffers.source()), scratch()
    with meta_arrays(work.append):
        a = meta_array((3, 4), np.float32)
        kernels.current().multiply(a, meta_array((4, 5), np.float32), meta_array((3, 5), np.float32))
        assert isinstance(scratch().take((2,), np.float32), MetaArray)
    a += 1
    assert work == [Compute("multiply", "product", (3, 4, 5), 120, 4 * (12 + 20 + 15))]
    assert (kernels.current(), buffers.source()) == before
    assert type(scratch().take((2,), np.float32)) is np.ndarray
    assert pool is not scratch()
