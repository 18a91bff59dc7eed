"""Independent random numbers for every purpose, so that no draw depends on the number of ranks."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What numbers are drawn for."""

    ORDER = 0  # of windows, per epoch
    SAMPLES = 1  # per step and place in the global batch
    TEACHER = 2
    FEATURES = 3


def generator(seed: int, stream: Stream, *place: int) -> np.random.Generator:
    """Return the generator of one place in a stream.

    The place goes into the spawn key: as further words of entropy, (1,) and (1, 0) would draw alike.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, *place)))
