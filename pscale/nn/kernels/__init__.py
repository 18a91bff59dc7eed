"""The inner loops of the layers: in NumPy for any machine and any reader, fused in C where that was built.

Which of the two computes, on how many threads, is a property of the process, as it is with the BLAS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.tiles import scratch

__all__ = ["Kernels", "current", "in_this_thread", "scratch", "use"]

_current = Kernels()
_of_thread: ContextVar[Kernels | None] = ContextVar("kernels", default=None)  # instead of the process's


def current() -> Kernels:
    """Return the kernels that compute."""
    return _of_thread.get() or _current


def use(kernels: Kernels) -> None:
    """Let other kernels compute from now on, in all threads of the process."""
    global _current  # noqa: PLW0603 – as the BLAS, one for all
    _current = kernels


@contextmanager
def in_this_thread(kernels: Kernels) -> Iterator[None]:
    """Let other kernels compute during the block, in this thread alone."""
    before = _of_thread.set(kernels)
    try:
        yield
    finally:
        _of_thread.reset(before)
