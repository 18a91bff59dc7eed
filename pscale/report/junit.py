"""What `pscale check` found, for servers that read JUnit's XML: a test for each case and each demand.

The elements and attributes are those that Jenkins, GitLab and GitHub's readers share: testsuites, testsuite,
testcase and in it failure, error or skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from pscale.analysis.expect import Expectation
from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report.grids_expect import bounds, measured
from pscale.report.text import clean

Ending = Literal["", "failure", "error", "skipped"]


@dataclass(frozen=True, kw_only=True)
class _Test:
    """One test: `ending` is empty if it passed."""

    name: str
    ending: Ending = ""
    kind: str = ""
    message: str = ""
    time_s: float = 0.0


def render_junit(summary: Summary) -> str:
    """Return the findings of a check as XML."""
    tests = [*_of_cases(summary), *map(_of_demand, summary.expectations)]
    counts = {
        "tests": str(len(tests)),
        "failures": _count(tests, "failure"),
        "errors": _count(tests, "error"),
        "skipped": _count(tests, "skipped"),
        "time": f"{sum(test.time_s for test in tests):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": "pscale check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(summary.suite or "pscale"), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", summary.run), *summary.machine):
        ElementTree.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
    for test in tests:
        _add(suite, test, summary.suite or "pscale")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _of_cases(summary: Summary) -> Iterator[_Test]:
    """Yield a test a case: whether all its launches ended well."""
    reasons: dict[str, list[tuple[str, str]]] = {}
    for failure in summary.failures:
        reasons.setdefault(failure.case, []).append((failure.status, failure.reason))
    for point in summary.points:
        name, time_s = f"{point.label}: runs", _seconds(point)
        bad = reasons.get(point.case, [])
        if bad:
            message = "; ".join(f"{status}: {reason}" for status, reason in bad)
            yield _Test(name=name, ending="error", kind=bad[0][0], message=message, time_s=time_s)
        elif point.status == "skipped":
            yield _Test(name=name, ending="skipped", message=point.reason)
        elif point.status == "pending":
            yield _Test(name=name, ending="error", kind="pending", message="not measured yet")
        else:
            yield _Test(name=name, time_s=time_s)


def _of_demand(entry: Expectation) -> _Test:
    name = f"{entry.label}: {entry.demand}" if entry.label else entry.demand
    if entry.held:
        return _Test(name=name)
    ending: Ending = "error" if entry.held is None else "failure"
    message = f"measured {measured(entry)}, expected {bounds(entry)}" if entry.value else entry.text
    return _Test(name=name, ending=ending, kind=entry.metric, message=message)


def _add(suite: ElementTree.Element, test: _Test, class_name: str) -> None:
    shown = {"classname": _xml(class_name), "name": _xml(test.name), "time": f"{test.time_s:.3f}"}
    element = ElementTree.SubElement(suite, "testcase", shown)
    if test.ending:
        kind = {"type": test.kind} if test.ending != "skipped" else {}
        ending = ElementTree.SubElement(element, test.ending, {"message": _xml(test.message), **kind})
        ending.text = _xml(test.message)


def _count(tests: list[_Test], ending: Ending) -> str:
    return str(sum(test.ending == ending for test in tests))


def _seconds(point: Point) -> float:
    return point.wall_s if point.wall_s is not None and math.isfinite(point.wall_s) else 0.0


def _xml(words: str) -> str:
    """Return text without characters that XML cannot hold at all; the others are escaped on writing."""
    return "".join(letter if letter not in "\ufffe\uffff" else " " for letter in clean(words))
