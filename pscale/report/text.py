"""Numbers and names as people read them; what a suite says is untrusted and never becomes markup."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pscale import errors
from pscale.analysis import wording
from pscale.analysis.wording import digits, unit_of

if TYPE_CHECKING:  # `pscale show` writes numbers too, and has no use for pandas
    from pscale.analysis.columns import Row
    from pscale.analysis.findings import Findings
    from pscale.analysis.stats import Estimate

clean, plural = errors.clean, wording.plural
MISSING, VAGUE = "-", "too wide"
WAIT_OR_TRANSFER = "wait + transfer"
KINDS = {"wait_or_transfer": WAIT_OR_TRANSFER}  # kinds of time that are not written as they are called
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MEDIAN = 3  # the block of the median, and of what is less than half a block away
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(seconds: float | None, count: int = 4) -> str:
    """Return a time with the unit that suits it."""
    return MISSING if seconds is None else wording.duration(seconds, count)


def duration_interval(value: Estimate | None, count: int = 4) -> str:
    """Return the bounds of a time in the unit of its value."""
    bounds = value.stated if value else None
    if value is None or bounds is None:
        return _unstated(value)
    factor, _ = unit_of(value.value)
    return f"{digits(bounds[0] * factor, count)}–{digits(bounds[1] * factor, count)}"


def percent(value: float | None, places: int = 0) -> str:
    """Return a fraction in percent."""
    return MISSING if value is None else wording.percent(value, places)


def percent_interval(value: Estimate | None) -> str:
    """Return the bounds of a fraction in percent."""
    bounds = value.stated if value else None
    return _unstated(value) if bounds is None else f"{100 * bounds[0]:.1f}–{bounds[1]:.1%}"


def _unstated(value: Estimate | None) -> str:
    """Return what stands for bounds: nothing is known, or so little that numbers would mislead."""
    return MISSING if value is None or value.low is None else VAGUE


percent_1, percent_2 = (partial(percent, places=places) for places in (1, 2))
duration_3 = partial(duration, count=3)


def ratio_interval(value: Estimate | None) -> str:
    """Return the bounds of a ratio."""
    bounds = value.stated if value else None
    return _unstated(value) if bounds is None else f"{digits(bounds[0], 3)}–{digits(bounds[1], 3)}"


def change_interval(value: Estimate | None) -> str:
    """Return the bounds of a relative change."""
    if value is None or value.low is None or value.high is None:
        return MISSING
    return f"{value.low:+.1%} to {value.high:+.1%}"


def change(value: float) -> str:
    """Return a fraction by which something is more or less."""
    return f"{value:+.1%}"


def size_of(count: float | None) -> str:
    """Return a number of bytes."""
    if count is None:
        return MISSING
    for factor, unit in _BYTES:
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def rate(value: float | None, unit: str = "") -> str:
    """Return a large number, such as one per second, with k, M, G or T."""
    return MISSING if value is None else wording.rate(value, unit)


def size_rate(value: float) -> str:
    """Return bytes per second."""
    return f"{size_of(value)}/s"


def number(value: float | None, count: int = 4) -> str:
    """Return a plain number."""
    return MISSING if value is None else digits(value, count)


number_2, number_3 = (partial(number, count=count) for count in (2, 3))


def size(point: Row) -> str:
    """Return the size of a case as a table shows it; with injected delays it never looks healthy."""
    ranks = f"{point.ranks}" if point.threads == 1 else f"{point.ranks}×{point.threads}"
    return f"{ranks} injected" if point.injected else ranks


def ranks_and_threads(point: Row) -> str:
    """Return the size of a case in words."""
    threads = f" × {plural(point.threads, 'thread')}" if point.threads > 1 else ""
    return plural(point.ranks, "rank") + threads


def label(point: Row) -> str:
    """Return the name of a case as a table shows it."""
    return clean(point.label)


def heading(findings: Findings) -> str:
    """Return the title of a figure of times, which says so where ranks share cores."""
    return f"{findings.title} (ranks share cores)" if findings.oversubscribed else findings.title


def titled(title: str, series: str, findings: Findings) -> str:
    """Return a title with its series where there are several and each has a table of its own."""
    alone = len(findings.series) == 1 or findings.side_by_side
    return title if alone else f"{title}: {clean(series)}"


def sparkline(values: Sequence[float], cells: int = 10, per_block: float = 1 / 8) -> str:
    """Return at most `cells` blocks, each as high as the largest of its values beside the median of all.

    Heights mean the same in every line: the median is ▄, and each block `per_block` of it.
    """
    middle = median(values) if values else 0.0
    if not middle > 0:
        return ""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    tops = [max(values[start:stop]) for start, stop in pairwise(edges)]
    heights = [_MEDIAN + round((top / middle - 1) / per_block) for top in tops]
    return "".join(_HEIGHTS[min(len(_HEIGHTS) - 1, max(0, height))] for height in heights)
