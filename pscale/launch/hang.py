"""The roll-call of a job that stands still: which ranks are in which call, who is missing, and where."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.ranges import as_ranges

_PATTERN = "hang-*.jsonl"  # a file for each host, a line for each rank
_ANSWER_S = 3.0  # ranks notice at different moments
_ANSWER_SHARE = 0.25  # of the time that they were allowed to stand still

Report = Mapping[str, Any]


class RollCall:
    """Tells when the ranks of the job in `folder` have said that they stand still."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._first: float | None = None

    def is_over(self) -> bool:
        """Tell whether all ranks have answered, or the first of them has waited long enough."""
        found = list(_reports(self._folder))
        if not found:
            return False
        if len(found) >= int(found[0]["ranks"]):
            return True
        if self._first is None:
            self._first = time.monotonic()
            return False
        patience_s = max(_ANSWER_S, _ANSWER_SHARE * max(float(report["still_s"]) for report in found))
        return time.monotonic() - self._first > patience_s


def told(folder: Path) -> str:
    """Return the roll-call of the job in `folder` in one line; nothing where no rank said that it hangs."""
    reports = sorted(_reports(folder), key=lambda report: int(report["rank"]))
    if not reports:
        return ""
    silent = set(range(reports[0]["ranks"])) - {report["rank"] for report in reports}
    calls: dict[tuple[str, str, tuple[int, ...]], list[Report]] = defaultdict(list)
    elsewhere = []
    for report in reports:
        if report["verb"]:
            calls[report["verb"], report["axis"], tuple(report["group"])].append(report)
        else:
            elsewhere.append(report)
    parts = [_call(verb, axis, found) for (verb, axis, _), found in calls.items()]
    parts += [f"rank {report['rank']} is in no call but{_place(report)}" for report in elsewhere]
    if silent:
        parts.append(f"no word from {ranks(sorted(silent))}: ended, stopped or still at work")
    still_s = max(report["still_s"] for report in reports)
    return f"no progress for {still_s:.3g} s: {'; '.join(parts)} [{folder / _PATTERN}]"


def ranks(numbers: Sequence[int]) -> str:
    """Write ranks as people do: "rank 3", "ranks 0-2, 5"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {as_ranges(numbers, ', ')}"


def _call(verb: str, axis: str, found: Sequence[Report]) -> str:
    """Say who is in a call, and who of those that belong to it is not."""
    inside = [int(report["rank"]) for report in found]
    missing = sorted(set(found[0]["group"]) - set(inside))
    absent = f", {ranks(missing)} missing" if missing else ""
    step = (
        "" if found[0]["step"] is None else f" (step {found[0]['step']}, {found[0]['phase'] or 'no phase'})"
    )
    return f"{ranks(inside)} in {verb} over {axis}{step}{absent}"


def _place(report: Report) -> str:
    """Return the innermost line of a stack, without the folders."""
    if not report["stack"]:
        return " in an unknown place"
    where, _, line = str(report["stack"][-1]).partition(": ")
    path, _, function = where.partition(" ")
    return f" at {Path(path).name} {function}: {line}"


def _reports(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob(_PATTERN):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            yield from [json.loads(line) for line in lines]
        except (OSError, ValueError):  # a line is being written
            continue
