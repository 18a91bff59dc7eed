"""Sums of 16 bits by messages, of ranks that ask for them in any order; a message needs both sides."""

import numpy as np
import pytest

from pscale.mesh.axis import Tag
from pscale.mesh.sums import Sums
from pscale.nn.dtypes import combine, dtype_of


class Posted:
    """A message of the double: memory is read only once its receiver asks, so that reusing it early shows."""

    def __init__(self, network, key, memory, *, sends):
        self.network, self.key, self.memory, self.sends, self.done = network, key, memory, sends, False
        network.setdefault(key, []).append(self)

    def Test(self):  # noqa: N802
        sides = self.network[self.key]
        if not self.done and not self.sends and len(sides) == 2:
            (sent,) = (side for side in sides if side.sends)
            self.memory[...] = sent.memory
            self.done = sent.done = True
        return self.done

    def Wait(self):  # noqa: N802
        assert self.Test(), "nobody else runs meanwhile"


class Comm:
    def __init__(self, network, rank, size):
        self.network, self.rank, self.size = network, rank, size

    def Isend(self, memory, to, tag):  # noqa: N802
        return Posted(self.network, (self.rank, to, tag), memory, sends=True)

    def Irecv(self, memory, source, tag):  # noqa: N802
        return Posted(self.network, (source, self.rank, tag), memory, sends=False)


def test_no_message_of_a_sum_has_a_tag_that_others_receive_or_one_that_some_library_lacks():
    network, half = {}, np.zeros(2, np.float16)
    alone = Sums(Comm(network, 0, 2)), Sums(Comm(network, 1, 2))
    for _ in range(8192):
        under_way = [each.reduce(half.copy()) for each in alone]
        while False in [one.Test() for one in under_way]:  # both move, also while the first one waits
            pass
    tags = {tag for _, _, tag in network}
    assert max(Tag) < min(tags)
    assert max(tags) < 2**15
    assert len(tags) == 2 * 8192


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_get_the_sums_in_order_whatever_moves_first(dtype, ranks, seed):
    random, network = np.random.default_rng(seed), {}
    sums = [Sums(Comm(network, rank, ranks)) for rank in range(ranks)]
    sizes = (7, 1, 5 * ranks, 24 * ranks)
    given = [[random.normal(size=size).astype(dtype_of(dtype)) for size in sizes] for _ in sums]
    expected = [np.empty(size, dtype_of(dtype)) for size in sizes]
    functions = (np.add, np.maximum, np.add, np.add)
    for place, (out, function) in enumerate(zip(expected, functions, strict=True)):
        combine([of_rank[place] for of_rank in given], out, function)
    parts = [of_rank[2][:5] for of_rank in given]  # the first part of what is summed
    under_way = [
        [each.reduce(a), each.reduce(b, "max"), each.scatter(c, part), each.reduce(d, root=ranks - 1)]
        for each, (a, b, c, d), part in zip(sums, given, parts, strict=True)
    ]
    waiting = [one for of_rank in under_way for one in of_rank]
    for _ in range(400):
        waiting[random.integers(len(waiting))].Test()
    assert all(one.complete for one in waiting)
    for rank, (a, b, _, d) in enumerate(given):
        np.testing.assert_array_equal(a, expected[0])
        np.testing.assert_array_equal(b, expected[1])
        np.testing.assert_array_equal(parts[rank], expected[2][5 * rank : 5 * rank + 5])
        if rank == ranks - 1:
            np.testing.assert_array_equal(d, expected[3])
