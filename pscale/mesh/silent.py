"""A recorder that notes nothing, for exchanges that belong to no step."""

# ruff: noqa: ARG002 - told like any recorder
from __future__ import annotations

from time import perf_counter_ns


class Silent:
    """Takes every note and keeps none."""

    now = staticmethod(perf_counter_ns)

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Forget a blocking call."""

    def copied(self, axis: str, enter: int, leave: int) -> None:
        """Forget a copy."""

    def posted(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, partner: int = -1
    ) -> int:
        """Forget that a call was started."""
        return 0

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Forget a question."""

    def found(self, request: int, enter: int, leave: int) -> None:
        """Forget that a started call was found complete."""

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Forget that a started call is relied on."""
