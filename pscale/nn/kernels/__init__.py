"""The inner loops of the layers: in NumPy for any machine and any reader, fused in C where that was built.

Which of the two computes, on how many threads, is a property of the process, as it is with the BLAS.
"""

from __future__ import annotations

from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.scratch import scratch

__all__ = ["Kernels", "current", "scratch", "use"]

_current = Kernels()


def current() -> Kernels:
    """Return the kernels that compute."""
    return _current


def use(kernels: Kernels) -> None:
    """Let other kernels compute from now on, in all threads of the process."""
    global _current  # noqa: PLW0603 – as the BLAS, one for all
    _current = kernels
