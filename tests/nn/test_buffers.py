import numpy as np
import pytest

from pscale.nn.buffers import Buffers, zeros


def test_an_array_given_back_is_handed_out_again_and_nothing_new_is_allocated():
    buffers = Buffers()
    first = buffers.take((3, 4), np.float32)
    assert buffers.held_bytes == buffers.total_bytes == 48
    buffers.give(first)
    second = buffers.take((2, 3), np.float64)  # as many bytes
    assert np.shares_memory(first, second)
    assert (buffers.held_bytes, buffers.total_bytes) == (48, 48)


def test_arrays_held_at_the_same_time_do_not_overlap_and_start_on_a_cache_line():
    buffers = Buffers()
    arrays = [buffers.take((5,), np.float32) for _ in range(4)]
    for number, array in enumerate(arrays):
        array[:] = number
        assert array.ctypes.data % 64 == 0
    assert [array.tolist() for array in arrays] == [[number] * 5 for number in range(4)]


def test_zeros_side_by_side_share_a_piece_of_memory_do_not_overlap_and_start_on_a_cache_line():
    arrays = zeros([3, 0, 17, 1], np.float32)
    assert [array.tolist() for array in arrays] == [[0] * size for size in (3, 0, 17, 1)]
    assert len({id(array.base) for array in arrays}) == 1
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        array[:] = number
    assert [array.tolist() for array in arrays] == [[0] * 3, [], [2] * 17, [3]]


def test_a_shared_array_lives_until_its_last_holder_gives_it_back():
    buffers = Buffers()
    array = buffers.take((8,), np.float32)
    buffers.share(array)
    buffers.give(array.reshape(2, 4))  # any view that starts where the array does
    assert not np.shares_memory(array, buffers.take((8,), np.float32))
    buffers.give(array)
    assert np.shares_memory(array, buffers.take((8,), np.float32))


def test_only_a_sole_holder_may_write_into_an_array():
    buffers = Buffers()
    array = buffers.take((8,), np.float32)
    assert buffers.reuse(array) is array
    buffers.share(array)
    other = buffers.reuse(array)
    assert not np.shares_memory(array, other)
    assert other.shape == array.shape
    assert buffers.reuse(array) is array


@pytest.mark.parametrize("misuse", ["give", "share", "reuse"])
def test_an_array_that_was_given_back_cannot_be_used(misuse):
    buffers = Buffers()
    array = buffers.take((8,), np.float32)
    buffers.give(array)
    with pytest.raises(AssertionError, match="given back"):
        getattr(buffers, misuse)(array)
