"""What to know before a verdict is trusted, in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Tone
from pscale.report.warnings import told


def marks(summary: Summary) -> Iterator[tuple[str, Tone]]:
    """Yield what failed, is still to come, fell short or is warned of, alike warnings as one."""
    if failed := sum(len(failure.repeats) for failure in summary.failures):
        yield f"{text.plural(failed, 'launch')} without a valid result", "bad"
    if pending := sum(point.pending for point in summary.points):
        yield f"{text.plural(pending, 'launch')} still to come", ""
    if broken := sum(each.held is False for each in summary.expectations):
        yield f"{text.plural(broken, 'expectation')} not held", "bad"
    if warnings := told(summary.remarks):
        yield text.plural(len(warnings), "warning"), ""


def distrust(summary: Summary) -> str:
    """Say in one sentence what to read before the verdict is trusted; may be empty."""
    said = ", ".join(words for words, _ in marks(summary))
    return f"What to distrust: {said}; see below." if said else ""
