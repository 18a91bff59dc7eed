"""Many numbers in few words, as in /proc."""

from __future__ import annotations

from collections.abc import Iterable


def as_ranges(numbers: Iterable[int], between: str = ",") -> str:
    """Write sorted numbers: [0, 1, 2, 8] is "0-2,8"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return between.join("-".join(str(end) for end in span) for span in spans)


def numbers_in(ranges: str) -> frozenset[int]:
    """Read what `as_ranges` writes."""
    spans = [part.partition("-") for part in ranges.split(",") if part]
    return frozenset(number for low, _, high in spans for number in range(int(low), int(high or low) + 1))
