"""A file of reference values, for people to keep beside a suite and to read changes of."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pscale import __version__
from pscale.analysis.reference import ALONE, LEAST, case_names, references
from pscale.analysis.summary import Summary
from pscale.report.text import clean, plural


def render_references(summary: Summary) -> str:
    """Return the values of a run as YAML: the same bytes for the same run."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Summary) -> Iterator[str]:
    yield f"# Written by `pscale check --update` (pscale {__version__}); numbers may be changed by hand."
    yield f"# From the run {clean(summary.run)}, {plural(summary.launches, 'launch')}."
    for name, value in summary.machine:
        yield f"# {name}: {clean(value)}"
    yield "# A bound lies on the worse side of its value, √2 times as far away as the 95 % interval reaches"
    yield f"# (two runs differ by so much more than one is off), and {LEAST:.0%} of the value away at least;"
    yield f"# {ALONE:.0%} where there is no interval."
    yield "# `pscale check --reference FILE` holds later runs to it."
    yield f"suite: {json.dumps(summary.suite, ensure_ascii=False)}"
    yield "expect:"
    found, names = references(summary), case_names(summary.points)
    for point in summary.points:
        own = [entry for entry in found if entry.case == names[point.case]]
        if not own:
            yield f"# {clean(names[point.case])}: {point.status}, so nothing is known of it"
        for entry in own:
            bound = "lower" if entry.lower is not None else "upper"
            limit = entry.lower if entry.lower is not None else entry.upper
            case = json.dumps(clean(entry.case), ensure_ascii=False)
            numbers = f"value: {entry.value!r}, {bound}: {limit!r}, unit: {json.dumps(entry.unit)}"
            yield f"- {{case: {case}, metric: {entry.metric}, {numbers}}}"
    if not found:
        yield "  []"
