"""What a call costs on a network that was not there: latency and bandwidth along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pscale.results.events import BETWEEN_TWO


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a rank is connected by to the others of an axis. Without numbers: at no cost."""

    latency_s: float = 0.0  # of one message
    bytes_per_s: float = math.inf  # out of a rank

    def sending_ns(self, verb: str, size: int, payload_bytes: int) -> float:
        """Return for how long a call of `size` ranks keeps a rank's link busy."""
        return moved_bytes(verb, size, payload_bytes) / self.bytes_per_s * 1e9

    def latency_ns(self, verb: str, size: int) -> float:
        """Return the latency of a call: of as many messages as have to follow one another."""
        return rounds(verb, size) * self.latency_s * 1e9


IDEAL = Link()


def rounds(verb: str, size: int) -> int:
    """Return how many messages a call needs one after another, at least.

    What one rank knows can reach 2^k ranks in k messages, so log2 of the ranks, rounded up (Chan et al.,
    Collective communication: theory, practice, and experience, 2007, section 4).
    """
    return 1 if verb in BETWEEN_TWO else math.ceil(math.log2(size))


def moved_bytes(verb: str, size: int, payload_bytes: int) -> float:
    """Return how many bytes the busiest rank has to send or receive, at least (same source).

    `payload_bytes` is what this rank handed to the call: the whole array, or its part of what is gathered.
    """
    match verb:
        case "barrier" | "receive":
            return 0.0
        case "all_reduce":
            return 2 * payload_bytes * (size - 1) / size
        case "reduce_scatter" | "all_to_all" | "scatter":
            return payload_bytes * (size - 1) / size
        case "all_gather" | "gather":
            return float(payload_bytes * (size - 1))
    return float(payload_bytes)
