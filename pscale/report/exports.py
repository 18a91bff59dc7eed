"""A run's findings for other programs: JSON of everything, CSV of every table, JUnit, reference values."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import pandas as pd

from pscale import __version__
from pscale.analysis.columns import FRAMES, SERIES, Row
from pscale.analysis.expect import ALONE, LEAST, REACH, case_names, references
from pscale.analysis.findings import FORMAT, Findings
from pscale.analysis.frames import records
from pscale.analysis.text import clean, plural
from pscale.report.brief import write_changed
from pscale.report.topics.problems import bounds, interval, measured
from pscale.runs.atomic_files import to_json

DATA = (*FRAMES, "loss")  # names of CSV files
_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet would compute


def render_json(findings: Findings) -> str:
    """Return all findings as JSON with its format's version; what is not finite is null."""
    document: dict[str, Any] = {"format": FORMAT, "kind": "pscale findings"}
    document |= {name: _plain(getattr(findings, name)) for name in findings.names}
    return to_json(document) + "\n"


def _plain(value: Any) -> Any:
    """Return a finding as lists and dictionaries."""
    if isinstance(value, pd.DataFrame):
        return records(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def write_csv(findings: Findings, folder: Path) -> list[Path]:
    """Write one tidy table a kind of finding into `folder`; returns the files.

    A table without rows has no file; one that an earlier report left is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in csv_tables(findings).items():
        file = folder / f"{name}.csv"
        if content.count("\n") > 1:
            written.append(write_changed(file, content))
        else:
            file.unlink(missing_ok=True)
    return written


def csv_tables(findings: Findings) -> dict[str, str]:
    """Return the text of every CSV table by name; the bounds of an interval are `_low` and `_high`."""
    return {name: csv_text(data_table(findings, name)) for name in DATA}


def data_table(findings: Findings, name: str) -> pd.DataFrame:
    """Return a table for programs, with or without rows."""
    if name in FRAMES:
        return getattr(findings, name).drop(columns=SERIES[name])  # type: ignore[no-any-return]
    trained = findings.cases.loc[findings.cases["losses"].map(len) > 0, ["case", "label", "losses"]]
    losses = trained.explode("losses", ignore_index=True).rename(columns={"losses": "loss"})
    losses.insert(2, "step", losses.groupby("case").cumcount())
    return losses.astype({"loss": "float64"})


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV with a heading; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_cell(value) for value in row.values()] for row in records(table))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; nulls and what is not finite are empty."""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return "" if isinstance(value, float) and not math.isfinite(value) else value


# What `pscale check` writes
#
# JUnit has a test for each case and each demand. The elements and attributes are those that Jenkins, GitLab
# and GitHub's readers share: testsuites, testsuite, testcase and in it failure, error or skipped.


def render_junit(findings: Findings) -> str:
    """Return the findings of a check as XML."""
    tests = [*_of_cases(findings), *map(_of_demand, findings.rows("expectations"))]
    endings = Counter(each.tag for test in tests for each in test)
    counted = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {
        "tests": str(len(tests)),
        **{name: str(endings[ending]) for name, ending in counted.items()},
        "time": f"{sum(map(_seconds, findings.rows('cases'))):.3f}",
    }
    name = _xml(findings.suite or "pscale")
    root = Element("testsuites", {"name": "pscale check", **counts})
    suite = SubElement(root, "testsuite", {"name": name, **counts})
    properties = SubElement(suite, "properties")
    for key, value in (("run", findings.run), *findings.machine):
        SubElement(properties, "property", {"name": _xml(key), "value": _xml(value)})
    for test in tests:
        test.set("classname", name)
        suite.append(test)
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test(
    name: str, ending: str = "", message: str = "", *, kind: str = "", time_s: float = 0.0, output: str = ""
) -> Element:
    """Return one test; without an `ending` it passed."""
    test = Element("testcase", {"classname": "", "name": _xml(name), "time": f"{time_s:.3f}"})
    if ending:
        of_kind = {"type": kind} if ending != "skipped" else {}
        SubElement(test, ending, {"message": _xml(message), **of_kind}).text = _xml(message)
    if output:
        SubElement(test, "system-out").text = _xml(output)
    return test


def _of_cases(findings: Findings) -> Iterator[Element]:
    """Yield a test a case: whether all its launches ended well."""
    failures = findings.by_case("failures")
    for point in findings.rows("cases"):
        name, time_s, bad = f"{point.label}: runs", _seconds(point), failures.get(point.case, [])
        if bad:
            message = "; ".join(f"{failure.status}: {failure.reason}" for failure in bad)
            yield _test(name, "error", message, kind=bad[0].status, time_s=time_s)
        elif point.status == "skipped":
            yield _test(name, "skipped", point.reason)
        elif point.status == "pending":
            yield _test(name, "error", "not measured yet", kind="pending")
        else:
            yield _test(name, time_s=time_s)


_ENDINGS = {
    "holds": "",
    "undecided": "skipped",
    "falls short": "failure",
    "unknown": "error",
}


def _of_demand(entry: Row) -> Element:
    name = f"{entry.label}: {entry.demand}" if entry.label else entry.demand
    figures = ""
    if entry.value:
        spread = f" (95% interval {known})" if (known := interval(entry)) else ""
        figures = f"measured {measured(entry)}{spread}, expected {bounds(entry)}"
    message = ": ".join(filter(None, (entry.text, figures)))
    return _test(name, _ENDINGS[entry.answer], message, kind=entry.metric, output=figures)


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
    points = findings.rows("cases")
    entries, names = references(points, findings.rows("merits")), case_names(points)
    for point in points:
        of_case = [entry for entry in entries if entry.case == names[point.case]]
        if not of_case:
            yield f"# {clean(names[point.case])}: {point.status}, so it has no values"
        for entry in of_case:
            bound = "lower" if entry.lower is not None else "upper"
            case = json.dumps(clean(entry.case), ensure_ascii=False)
            numbers = f"value: {entry.value!r}, {bound}: {getattr(entry, bound)!r}"
            numbers += f", unit: {json.dumps(entry.unit)}" if entry.unit else ""
            yield f"- {{case: {case}, metric: {entry.metric}, {numbers}}}"
    if not entries:
        yield "  []"
