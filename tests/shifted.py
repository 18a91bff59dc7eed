"""Clocks that are wrong on purpose, and by how much is known."""

from dataclasses import dataclass
from time import perf_counter_ns

PARTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """The clock of this process, ahead by `offset_ns` and by `drift_ppm` of all time since it began."""

    offset_ns: int = 0
    drift_ppm: int = 0

    def __call__(self) -> int:
        return self.of(perf_counter_ns())

    def of(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + true_ns * self.drift_ppm // PARTS

    def true_ns(self, time_ns: int) -> int:
        """Return the true time, to a nanosecond."""
        return round((time_ns - self.offset_ns) * PARTS / (PARTS + self.drift_ppm))
