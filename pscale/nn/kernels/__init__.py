"""The inner loops of the layers: in NumPy for any machine and any reader, fused in C where that was built.

Which of the two computes, on how many threads, is a property of the process, as it is with the BLAS.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.tiles import scratch

__all__ = ["Kernels", "current", "in_this_thread", "scratch", "use"]

_current = Kernels()


class _OfThread(threading.local):
    kernels: Kernels | None = None  # in place of those of the process


_of_thread = _OfThread()


def current() -> Kernels:
    """Return the kernels that compute."""
    return _of_thread.kernels or _current


def use(kernels: Kernels) -> None:
    """Let other kernels compute from now on, in all threads of the process."""
    global _current  # noqa: PLW0603 – as the BLAS, one for all
    _current = kernels


@contextmanager
def in_this_thread(kernels: Kernels) -> Iterator[None]:
    """Let other kernels compute during the block, in this thread alone."""
    before, _of_thread.kernels = _of_thread.kernels, kernels
    try:
        yield
    finally:
        _of_thread.kernels = before
