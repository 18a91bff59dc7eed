"""The four ways to multiply, on paper: what they take from the pool and give back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pscale.config.choices import MatrixAlgorithm
from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal import Weight
from pscale.parallel.matrix.multiplication import Multiplication
from pscale.parallel.matrix.summa import count_panels


class Product(Protocol):
    """What stands for a way to multiply."""

    def __init__(self, paper: Paper, one: Multiplication, weight: Weight): ...

    def multiply(self, a: Sheet) -> Sheet:
        """Take and give as it does."""
        ...

    def differentiate(self, dc: Sheet, a: Sheet) -> Sheet:
        """Take and give as it does."""
        ...


class _Blocks:
    """Sizes of the blocks, and the depth that shares those of weights."""

    def __init__(self, paper: Paper, one: Multiplication, weight: Weight):
        self.paper, self.one, self.weight = paper, one, weight
        self.a, self.b, self.c = one.a, one.b, one.c

    def whole_weight(self) -> list[Sheet]:
        return [self.paper.take_exchange(self.b)] if self.one.size(self.one.depth) > 1 else []

    def add_product(self) -> None:
        depth = self.one.size(self.one.depth)
        if depth == 1:
            self.weight.add_product()
        else:
            self.paper.give(self.paper.take_exchange(self.b), self.paper.take_exchange(self.b // depth))


class Axonn(_Blocks):
    """Blocks of activations that ranks repeat."""

    def multiply(self, a: Sheet) -> Sheet:  # noqa: ARG002
        """Gather weights."""
        b, c = self.whole_weight(), self.paper.take(self.c)
        self.paper.give(*b)
        return c

    def differentiate(self, dc: Sheet, a: Sheet) -> Sheet:
        """Gather them again."""
        b, da = self.whole_weight(), self.paper.take(self.a)
        self.paper.give(*b)
        self.add_product()
        self.paper.give(dc, a)
        return da


class Agarwal(_Blocks):
    """Blocks of activations of which ranks have some rows each."""

    def multiply(self, a: Sheet) -> Sheet:
        """Gather both factors, scatter the result."""
        one = self.one
        whole, b = self._gathered(a, self.a, one.output), self.whole_weight()
        partial = self.paper.take(self.c)
        self.paper.give(*b, whole)
        return self._scattered(partial, self.c, one.contraction)

    def differentiate(self, dc: Sheet, a: Sheet) -> Sheet:
        """Do the same with gradients."""
        one = self.one
        whole = self._gathered(dc, self.c, one.contraction)
        self.paper.give(dc)
        b, partial = self.whole_weight(), self.paper.take(self.a)
        self.paper.give(*b)
        da = self._scattered(partial, self.a, one.output)
        whole_a = self._gathered(a, self.a, one.output)
        self.add_product()
        self.paper.give(whole, whole_a, a)
        return da

    def _gathered(self, x: Sheet, whole: int, dim: str) -> Sheet:
        if self.one.size(dim) > 1:
            return self.paper.take(whole)
        self.paper.share(x)
        return x

    def _scattered(self, x: Sheet, whole: int, dim: str) -> Sheet:
        if self.one.size(dim) == 1:
            return x
        mine = self.paper.take(whole // self.one.size(dim))
        self.paper.give(x)
        return mine


class Summa(_Blocks):
    """Panels of others that are here for a turn."""

    def multiply(self, a: Sheet) -> Sheet:  # noqa: ARG002
        """Take in a panel of each factor, unless it is one's own."""
        c = self.paper.take(self.c)
        for number in range(count_panels(self.one)):
            panels = [*self._of_a(number), *self._of_b(number)]
            if number:
                self.paper.use(self.c)
            self.paper.give(*panels)
        return c

    def differentiate(self, dc: Sheet, a: Sheet) -> Sheet:
        """Take in a panel of a factor, and a partial sum that goes to its owner."""
        da, db = self.paper.take(self.a), self.paper.take(self.b)
        for number in range(count_panels(self.one)):
            for factor, result in ((self._of_b, self._of_a), (self._of_a, self._of_b)):
                panel = factor(number)
                self.paper.give(*result(number))
                self.paper.give(*panel)
        self.paper.give(db, dc, a)
        return da

    def _of_a(self, number: int) -> list[Sheet]:
        """Take room for a panel of A, of columns, which do not lie together where there are others."""
        return self._panel(self.a, self.one.output, number, together=False)

    def _of_b(self, number: int) -> list[Sheet]:
        return self._panel(self.b, self.one.contraction, number, together=True)

    def _panel(self, block: int, dim: str, number: int, *, together: bool) -> list[Sheet]:
        each = count_panels(self.one) // self.one.size(dim)
        mine = self.one.place[dim] == number // each
        in_place = mine and (together or each == 1)
        return [] if in_place else [self.paper.take_exchange(block // each)]


class Traveller:
    """A block on its way; None is one that is somebody else's."""

    def __init__(self, paper: Paper, size: int, ranks: int, own: Sheet | None = None):
        self.paper, self.size, self.ranks, self.block = paper, size, ranks, own
        self._arriving: Sheet | None = None

    def start(self, ranks: int = 1) -> None:
        """Take room for what comes."""
        if ranks % self.ranks:
            self._arriving = self.paper.take_exchange(self.size)

    def arrive(self) -> None:
        """Give back what has left."""
        if self._arriving is not None:
            self.give()
            self.block, self._arriving = self._arriving, None
            self.paper.end_exchange(self.block)

    def move(self, ranks: int) -> None:
        """Do both."""
        self.start(ranks)
        self.arrive()

    def give(self) -> None:
        """Give back what is one's own."""
        if self.block is not None:
            self.paper.give(self.block)


class Cannon(_Blocks):
    """Blocks that travel."""

    def multiply(self, a: Sheet) -> Sheet:  # noqa: ARG002
        """Let blocks of both factors come and go."""
        across, down = self.one.output, self.one.contraction
        c, product = self.paper.take(self.c), self.paper.take(self.c)
        moving = [self._skewed(self.a, down), self._skewed(self.b, across)]
        for turn in range(self._q):
            for traveller in moving:
                traveller.arrive()
            if turn < self._q - 1:
                for traveller in moving:
                    traveller.start()
        self.paper.give(product)
        for traveller in moving:
            traveller.give()
        return c

    def differentiate(self, dc: Sheet, a: Sheet) -> Sheet:
        """Let a factor and sums come and go."""
        across, down = self.one.output, self.one.contraction
        da = self._travelling_sum(self.a, down, self._skewed(self.b, across))
        self.paper.give(self._travelling_sum(self.b, across, self._skewed(self.a, down)), dc, a)
        return da

    @property
    def _q(self) -> int:
        return self.one.size(self.one.output)

    def _skewed(self, size: int, late: str) -> Traveller:
        traveller = Traveller(self.paper, size, self._q)
        traveller.move(self.one.place[late])
        return traveller

    def _travelling_sum(self, size: int, late: str, factor: Traveller) -> Sheet:
        total: Traveller | None = None
        for turn in range(self._q):
            factor.arrive()
            if turn < self._q - 1:
                factor.start()
            mine = self.paper.take(size)
            if total is not None:
                total.arrive()
                total.give()
            total = Traveller(self.paper, size, self._q, own=mine)
            if turn < self._q - 1:
                total.start()
        assert total is not None
        total.move(1 - self.one.place[late])
        factor.give()
        assert total.block is not None
        return total.block


PRODUCTS: Mapping[MatrixAlgorithm, type[Product]] = {
    "axonn": Axonn,
    "agarwal": Agarwal,
    "summa": Summa,
    "cannon": Cannon,
}
