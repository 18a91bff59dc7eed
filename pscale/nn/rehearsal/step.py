"""What stands for a layer, and layers made of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pscale.nn.paper import Paper, Sheet


class Step(Protocol):
    """What stands for a layer; data that come from outside of the pool are None."""

    def forward(self, x: Any) -> tuple[Sheet, Any]:
        """Take and give as forward does."""
        ...

    def backward(self, dy: Sheet, cache: Any) -> Any:
        """Take and give as backward does."""
        ...


class Weight:
    """A gradient: the first product of a step is written in place, others need memory; some are put off."""

    def __init__(self, paper: Paper, size: int, *, adds: bool = True, later: list[Callable[[], None]] | None):
        self._paper, self._size, self._adds, self._later = paper, size, adds, later
        self._fresh = True

    def add_product(self, *factors: Sheet) -> None:
        """Multiply now or, where there is a list for it, later."""
        if self._later is None:
            self._multiply()
            return
        for factor in factors:
            self._paper.share(factor)

        def multiply() -> None:
            self._multiply()
            self._paper.give(*factors)

        self._later.append(multiply)

    def _multiply(self) -> None:
        if not self._fresh and self._adds:
            self._paper.use(self._size)
        self._fresh = False


class Forgetful:
    """A layer that keeps nothing."""


class Chain:
    """Layers one after another."""

    def __init__(self, *steps: Step):
        self.steps = steps

    def forward(self, x: Any) -> tuple[Any, list[Any]]:
        """In order."""
        caches = []
        for step in self.steps:
            x, cache = step.forward(x)
            caches.append(cache)
        return x, caches

    def backward(self, dy: Sheet, caches: list[Any]) -> Any:
        """In reverse."""
        dx: Any = dy
        for step in reversed(self.steps):
            dx = step.backward(dx, caches.pop())
        return dx


class Residual:
    """A branch and what goes past it."""

    def __init__(self, paper: Paper, bias: Weight | None, *branch: Step):
        self.paper, self.bias, self.branch = paper, bias, Chain(*branch)

    def forward(self, x: Sheet) -> tuple[Sheet, Any]:
        """Add in place of the branch's output."""
        self.paper.share(x)
        branch, caches = self.branch.forward(x)
        y = self.paper.reuse(branch)
        self.paper.give(x)
        return y, caches

    def backward(self, dy: Sheet, caches: Any) -> Sheet:
        """Send the gradient both ways."""
        if self.bias:
            self.bias.add_product()
        self.paper.share(dy)
        dx = self.paper.reuse(self.branch.backward(dy, caches))
        self.paper.give(dy)
        return dx


class First:
    """A layer of data: `size` elements are copied in."""

    def __init__(self, paper: Paper, size: int, step: Step):
        self.paper, self.size, self.step = paper, size, step

    def forward(self, x: None) -> tuple[Sheet, Any]:  # noqa: ARG002
        """Copy."""
        return self.step.forward(self.paper.take(self.size))

    def backward(self, dy: Sheet, cache: Any) -> None:
        """Drop the gradient of the data."""
        self.paper.give(self.step.backward(dy, cache))
