import numpy as np

from pscale.nn.buffers import Buffers, zeros


def test_the_memory_of_an_array_and_its_views_is_taken_again_when_the_last_of_them_goes():
    buffers = Buffers()
    first = buffers.take((3, 4), np.float32)
    at, last = first.ctypes.data, first.reshape(2, 6)[1:].T.view(np.int32)
    del first
    assert buffers.held_bytes == buffers.total_bytes == 48
    assert buffers.take((2, 3), np.float64).ctypes.data != at
    del last
    assert (buffers.held_bytes, buffers.total_bytes) == (0, 96)
    assert {buffers.take((3, 4), np.float32).ctypes.data for _ in range(2)} == {at}


def test_memory_is_of_exchanges_until_they_end_or_it_goes():
    buffers = Buffers()
    sent, arrived = (buffers.take_exchange((4,), np.float32) for _ in range(2))
    assert (buffers.kept_bytes, buffers.exchange_bytes) == (0, 32)
    buffers.end_exchange(arrived)
    buffers.begin_exchange(sent[:2])  # again
    assert (buffers.kept_bytes, buffers.exchange_bytes) == (16, 32)
    del sent
    assert (buffers.kept_bytes, buffers.held_bytes) == (16, 16)


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
