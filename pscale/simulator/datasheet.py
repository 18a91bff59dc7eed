"""A machine by its data sheet: what is said of it, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pscale.simulator.network import Tiers


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """An accelerator, one to a rank, or a node whose `cores` ranks share; `origin` is its file.

    `peak` is in FLOP/s by number type, of which matrix products reach the share `products`; of `memory` there
    are so many bytes, of which `bandwidth` pass in a second. `price` is of an hour. `network` joins ranks.
    """

    name: str
    peak: Mapping[str, float]
    products: float
    memory: int
    bandwidth: float
    cores: int | None = None
    price: float | None = None
    network: Tiers | None = None
    origin: str = ""

    def share(self, threads: int) -> float:
        """Return which part of the machine a rank has."""
        return threads / self.cores if self.cores else 1.0

    def kernel_s(self, flops: float, moved_bytes: float, dtype: str, threads: int) -> float:
        """Return the seconds of a kernel: those of its FLOPs as products, or of its bytes, the longer."""
        computing_s = flops / (self.peak[dtype] * self.products)
        return max(computing_s, moved_bytes / self.bandwidth) / self.share(threads)
