"""Layers that exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pscale.nn import rehearsal as nn
from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal import Step


class EnterLinear:
    """A product with tokens that are gathered, forward and backward, from slices of `whole` elements."""

    def __init__(self, paper: Paper, whole: int, size: int, linear: nn.Linear):
        self.paper, self.whole, self.size, self.linear = paper, whole, size, linear

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Keep the slice alone."""
        whole = self.paper.take(self.whole)
        y, _ = self.linear.forward(whole)
        self.paper.give(whole)
        return y, x

    def backward(self, dy: Sheet, x: Sheet) -> Sheet:
        """Gather again; scatter the gradient."""
        dx = self.linear.backward(dy, self.paper.take(self.whole))
        mine = self.paper.take(self.whole // self.size)
        self.paper.give(dx, x)
        return mine


class Moved(nn.Forgetful):
    """A layer that gives up its input for an array of `there` elements, backward for one of `back`.

    `between` is what it needs meanwhile.
    """

    def __init__(self, paper: Paper, there: int, back: int, between: Sequence[int] = ()):
        self.paper, self.there, self.back, self.between = paper, there, back, between

    def forward(self, x: Sheet) -> tuple[Sheet, None]:
        """Move."""
        return self._moved(x, self.there), None

    def backward(self, dy: Sheet, cache: None) -> Sheet:  # noqa: ARG002
        """Move back."""
        return self._moved(dy, self.back)

    def _moved(self, x: Sheet, size: int) -> Sheet:
        y = self.paper.take(size)
        self.paper.give(*[self.paper.take_exchange(part) for part in self.between], x)
        return y


class Collectives:
    """Two arrays of a message's size, forward and backward, one axis after another."""

    def __init__(self, paper: Paper, message: int, size: int):
        self.paper, self.message, self.size = paper, message, size

    def forward(self, x: None) -> tuple[Sheet, None]:  # noqa: ARG002
        """Exchange, and return what the loss is given."""
        self._exchange()
        return self.paper.take(self.size), None

    def backward(self, dy: Sheet, cache: None) -> None:  # noqa: ARG002
        """Exchange."""
        self.paper.give(dy)
        self._exchange()

    def _exchange(self) -> None:
        if self.message:
            self.paper.give(*[self.paper.take_exchange(self.message) for _ in range(2)])


class Exchange:
    """Experts elsewhere: `slots` elements travel, and are put in order where `swaps` says so."""

    def __init__(self, paper: Paper, slots: int, *, swaps: bool, experts: Step):
        self.paper, self.slots, self.swaps, self.experts = paper, slots, swaps, experts

    def forward(self, x: Sheet) -> tuple[Sheet, Any]:
        """Away, and home."""
        y, cache = self.experts.forward(self._passed(x, first_exchanged=True))
        return self._passed(y, first_exchanged=False), cache

    def backward(self, dy: Sheet, cache: Any) -> Sheet:
        """Do the same with gradients."""
        dx = self.experts.backward(self._passed(dy, first_exchanged=True), cache)
        return self._passed(dx, first_exchanged=False)

    def _passed(self, x: Sheet, *, first_exchanged: bool) -> Sheet:
        for exchanged in (first_exchanged, not first_exchanged):
            if exchanged or self.swaps:
                y = self.paper.take(self.slots)
                if exchanged:
                    self.paper.begin_exchange(y)
                    self.paper.end_exchange(y)
                self.paper.give(x)
                x = y
        return x
