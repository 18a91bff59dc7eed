"""What `pscale check` writes: JUnit's XML for servers, and reference values to keep beside a suite.

JUnit has a test for each case and each demand. The elements and attributes are those that Jenkins, GitLab and
GitHub's readers share: testsuites, testsuite, testcase and in it failure, error or skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from pscale import __version__
from pscale.analysis.columns import Row
from pscale.analysis.expect import ALONE, LEAST, REACH, case_names, references
from pscale.analysis.findings import Findings
from pscale.report.text import clean, plural
from pscale.report.topics.problems import bounds, interval, measured

Ending = Literal["", "failure", "error", "skipped"]


@dataclass(frozen=True, kw_only=True)
class _Test:
    """One test: `ending` is empty if it passed."""

    name: str
    ending: Ending = ""
    kind: str = ""
    message: str = ""
    time_s: float = 0.0
    said: str = ""  # what was measured, of one that passed too


def render_junit(findings: Findings) -> str:
    """Return the findings of a check as XML."""
    tests = [*_of_cases(findings), *map(_of_demand, findings.rows("expectations"))]
    counts = {
        "tests": str(len(tests)),
        "failures": _count(tests, "failure"),
        "errors": _count(tests, "error"),
        "skipped": _count(tests, "skipped"),
        "time": f"{sum(test.time_s for test in tests):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": "pscale check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(findings.suite or "pscale"), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", findings.run), *findings.machine):
        ElementTree.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
    for test in tests:
        _add(suite, test, findings.suite or "pscale")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _of_cases(findings: Findings) -> Iterator[_Test]:
    """Yield a test a case: whether all its launches ended well."""
    reasons: dict[str, list[tuple[str, str]]] = {}
    for failure in findings.rows("failures"):
        reasons.setdefault(failure.case, []).append((failure.status, failure.reason))
    for point in findings.rows("cases"):
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


_ENDINGS: dict[str, Ending] = {
    "holds": "",
    "undecided": "skipped",
    "falls short": "failure",
    "unknown": "error",
}


def _of_demand(entry: Row) -> _Test:
    name = f"{entry.label}: {entry.demand}" if entry.label else entry.demand
    found = f"measured {measured(entry)}, expected {bounds(entry)}" if entry.value else ""
    if entry.value and (known := interval(entry)):
        found = f"measured {measured(entry)} (95% interval {known}), expected {bounds(entry)}"
    message = entry.text + (f": {found}" if found else "")
    return _Test(name=name, ending=_ENDINGS[entry.answer], kind=entry.metric, message=message, said=found)


def _add(suite: ElementTree.Element, test: _Test, class_name: str) -> None:
    attributes = {"classname": _xml(class_name), "name": _xml(test.name), "time": f"{test.time_s:.3f}"}
    element = ElementTree.SubElement(suite, "testcase", attributes)
    if test.ending:
        kind = {"type": test.kind} if test.ending != "skipped" else {}
        ending = ElementTree.SubElement(element, test.ending, {"message": _xml(test.message), **kind})
        ending.text = _xml(test.message)
    if test.said:
        ElementTree.SubElement(element, "system-out").text = _xml(test.said)


def _count(tests: list[_Test], ending: Ending) -> str:
    return str(sum(test.ending == ending for test in tests))


def _seconds(point: Row) -> float:
    return point.wall_s if point.wall_s is not None and math.isfinite(point.wall_s) else 0.0


def _xml(words: str) -> str:
    """Return text without characters that XML cannot hold at all; the others are escaped on writing."""
    return "".join(letter if letter not in "\ufffe\uffff" else " " for letter in clean(words))


def render_references(findings: Findings) -> str:
    """Return the values of a run as YAML: the same bytes for the same run."""
    return "\n".join(_reference_lines(findings)) + "\n"


def _reference_lines(findings: Findings) -> Iterator[str]:
    yield f"# Written by `pscale check --update` (pscale {__version__}); numbers may be changed by hand."
    yield f"# From the run {clean(findings.run)}, {plural(findings.launches, 'launch')}."
    for name, value in findings.machine:
        yield f"# {name}: {clean(value)}"
    yield f"# A bound lies on the worse side of its value, {REACH:.3g} times as far away as the 95 % interval"
    yield "# reaches, so that all of the interval of a run that is as good holds, and at least"
    yield f"# {LEAST:.0%} of the value away; {ALONE:.0%} where there is no interval."
    yield "# `pscale check --reference FILE` compares later runs with it."
    yield f"suite: {json.dumps(findings.suite, ensure_ascii=False)}"
    yield "expect:"
    found, names = (
        references(findings.rows("cases"), findings.rows("merits")),
        case_names(findings.rows("cases")),
    )
    for point in findings.rows("cases"):
        own = [entry for entry in found if entry.case == names[point.case]]
        if not own:
            yield f"# {clean(names[point.case])}: {point.status}, so it has no values"
        for entry in own:
            bound = "lower" if entry.lower is not None else "upper"
            limit = entry.lower if entry.lower is not None else entry.upper
            case = json.dumps(clean(entry.case), ensure_ascii=False)
            numbers = f"value: {entry.value!r}, {bound}: {limit!r}"
            numbers += f", unit: {json.dumps(entry.unit)}" if entry.unit else ""
            yield f"- {{case: {case}, metric: {entry.metric}, {numbers}}}"
    if not found:
        yield "  []"
