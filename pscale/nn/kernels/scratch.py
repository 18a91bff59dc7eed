"""Memory in which kernels work: small, and not of the model's activations."""

from __future__ import annotations

import threading

from pscale.nn.buffers import Buffers

_of_thread = threading.local()


def scratch() -> Buffers:
    """Return this thread's pool."""
    if not hasattr(_of_thread, "pool"):
        _of_thread.pool = Buffers()
    pool: Buffers = _of_thread.pool
    return pool
