"""Truncation of a run of very many cases to those that a report shows; files for programs have all of them.

A run is truncated before anything is computed, so that a report of ten thousand cases costs little more than
reading them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from pscale.analysis.frames import CASE_TABLES, Run, grouped

MANY = 1000  # cases that are shown one by one
SHOWN = 200  # of more than that

Planned = Mapping[str, Any]


def shortened(run: Run) -> Run:
    """Return a run of more than `MANY` cases with the first of them, by series and size; else the run.

    What a sentence on a series is about stays as well: its base, its largest measured case, and all larger
    ones, which have no result.
    """
    if len(run.planned) <= MANY:
        return run
    series = grouped(run.planned.values(), lambda case: case.get("series") or "")
    ordered = [sorted(members, key=_size) for members in series.values()]
    first = {case["id"] for case in [case for members in ordered for case in members][:SHOWN]}
    measured = _measured(run)
    kept = first.union(
        *(_told(members, measured) for members in ordered if any(case["id"] in first for case in members))
    )
    note = (
        f"Tables and figures show the first {SHOWN} of {len(run.planned)} cases; "
        "`pscale report --format csv` and `--format json` have all."
    )
    return replace(restricted(run, kept), gaps=(note, *run.gaps))


def _size(case: Planned) -> tuple[int, int]:
    """Return cores and ranks, by which reports put cases in order."""
    ranks, threads = int(case.get("ranks") or 1), int(case.get("threads") or 1)
    return ranks * threads, ranks


def _measured(run: Run) -> set[str]:
    stated = run.cases.loc[(run.cases["status"] == "ok") & run.cases["step_s"].notna(), "case"]
    return {*stated, *run.ends["case"].unique()}


def _told(members: Sequence[Planned], measured: Collection[str]) -> Iterator[str]:
    """Yield the cases of a series, in order of size, of which the sentence on it speaks."""
    yield from (case["id"] for case in members if case.get("base"))
    good = [case for case in members if case["id"] in measured]
    if good:
        largest = next(case for case in good if _size(case) == _size(good[-1]))
        yield from (good[0]["id"], largest["id"])
        yield from (case["id"] for case in members if _size(case) > _size(largest))


def restricted(run: Run, kept: Collection[str]) -> Run:
    """Return the run as if these were its only cases."""

    def rows(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["case"].isin(kept)]

    tables: dict[str, Any] = {name: rows(getattr(run, name)) for name in CASE_TABLES}
    return replace(
        run,
        document={
            **run.document,
            "cases": [case for case in run.document["cases"] if case["id"] in kept],
            "expect": list(_expected(run.document.get("expect") or [], kept)),
        },
        cases=rows(run.cases).reset_index(drop=True),
        unclear=tuple(call for call in run.unclear if call.case in kept),
        pending=Counter({case: count for case, count in run.pending.items() if case in kept}),
        **tables,
    )


def _expected(entries: Iterable[Planned], kept: Collection[str]) -> Iterator[Planned]:
    """Yield the expectations that are about some of these cases, or about none at all."""
    for entry in entries:
        about = entry.get("cases")
        if not about or any(case in kept for case in about):
            yield entry
