"""The seam between the backward pass and the strategies that keep replicas of parameters alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Replicas(Protocol):
    """Copies of the same parameters on several ranks, each with the gradient of its own samples."""

    def ready(self, unit: int) -> None:
        """Be told that the gradients of unit `unit` are final for this step; units come in reverse order."""
        ...

    def finish(self) -> None:
        """Return when every gradient is the sum over all replicas."""
        ...


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call that a strategy makes: what to expect, and what to count."""

    axis: str
    verb: str
    sent_bytes: int  # payload handed to the call by one rank
    count: int = 1  # per step

    @property
    def step_bytes(self) -> int:
        """Payload of one step."""
        return self.sent_bytes * self.count


def buckets(unit_bytes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Group consecutive units, last first, into the smallest buckets of at least `bucket_bytes`.

    Units are not cut: the gradient of a unit becomes final as a whole. The bucket that holds the first unit
    may be smaller.
    """
    made: list[range] = []
    stop = len(unit_bytes)
    for first in range(len(unit_bytes) - 1, -1, -1):
        if sum(unit_bytes[first:stop]) >= bucket_bytes or first == 0:
            made.append(range(first, stop))
            stop = first
    return made
