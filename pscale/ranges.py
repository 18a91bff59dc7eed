"""Many numbers in few words."""

from __future__ import annotations

from collections.abc import Iterable


def as_ranges(numbers: Iterable[int], between: str = ",") -> str:
    """Write sorted numbers as in /proc: [0, 1, 2, 8] is "0-2,8"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return between.join("-".join(str(end) for end in span) for span in spans)
