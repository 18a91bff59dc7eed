"""What a rank holds by kind: predicted before the run, counted by the job, measured by the system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pscale.analysis.frames import Run, records
from pscale.metrics import MEMORY_KINDS as KINDS

Kinds = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one rank of a case: the one that is predicted to hold most, else that which counts most.

    Bytes; None where it is not known. Measured is the peak of resident memory above that of the process
    before it had a model; `of_steps` tells whether the peak is of the measured steps alone.
    """

    case: str
    rank: int
    predicted: Kinds | None
    counted: Kinds | None = None
    predicted_offloaded_bytes: int | None = None  # in a file beside memory
    counted_offloaded_bytes: int | None = None
    measured_bytes: int | None = None
    empty_bytes: int | None = None
    of_steps: bool = False

    @property
    def predicted_bytes(self) -> int | None:
        """All kinds together."""
        return sum(self.predicted.values()) if self.predicted else None

    @property
    def counted_bytes(self) -> int | None:
        """All kinds together."""
        return sum(self.counted.values()) if self.counted else None

    @property
    def library_bytes(self) -> int | None:
        """What was measured and not counted: the rest is MPI's and other libraries'."""
        counted = self.counted_bytes
        if self.measured_bytes is None or counted is None:
            return None
        return max(0, self.measured_bytes - counted)

    @property
    def offloaded_bytes(self) -> int | None:
        """The best that is known of the file: counted, else predicted."""
        known = self.counted_offloaded_bytes
        return self.predicted_offloaded_bytes if known is None else known

    @property
    def expected(self) -> Kinds | None:
        """The best that is known by kind: counted, else predicted."""
        return self.counted or self.predicted


def memory(run: Run) -> tuple[Memory, ...]:
    """Return the memory of every case of which something is known, those that were not started included."""
    counted = run.ranks.dropna(subset=[f"{kind}_bytes" for kind in KINDS])
    ranks = {str(case): rows for case, rows in counted.groupby("case", observed=True)}
    names = ["case", "peak_memory_rank", *(f"predicted_{kind}_bytes" for kind in KINDS)]
    names.append("predicted_offloaded_bytes")
    found = []
    for row in records(run.cases.drop_duplicates("case")[names]):
        case, predicted = row["case"], _kinds(row, "predicted_{}_bytes")
        if predicted or case in ranks:
            fullest = None if row["peak_memory_rank"] is None else int(row["peak_memory_rank"])
            offloaded = _whole(row["predicted_offloaded_bytes"])
            found.append(_of_rank(case, ranks.get(case), fullest, predicted, offloaded))
    return tuple(known for known in found if known.predicted or known.counted)


def _of_rank(
    case: str, rows: pd.DataFrame | None, fullest: int | None, predicted: Kinds | None, offloaded: int | None
) -> Memory:
    """Return what is known of the fullest rank; of several launches the one that measured most."""
    if rows is not None:
        rows = rows.assign(
            counted=rows[[f"{kind}_bytes" for kind in KINDS]].sum(axis=1, skipna=False),
            measured=rows["peak_rss_bytes"] - rows["baseline_rss_bytes"],
        )
        mine = rows[rows["rank"] == fullest] if fullest is not None else rows
        rows = mine.sort_values(["counted", "measured"], kind="stable")
    known = Memory(case=case, rank=fullest or 0, predicted=predicted, predicted_offloaded_bytes=offloaded)
    if rows is None or rows.empty:
        return known
    last = rows.iloc[-1]
    return replace(
        known,
        rank=int(last["rank"]),
        counted=_kinds(last, "{}_bytes"),
        counted_offloaded_bytes=_whole(last["offloaded_bytes"]),
        measured_bytes=_whole(last["measured"]),
        empty_bytes=_whole(last["baseline_rss_bytes"]),
        of_steps=bool(last["peak_rss_of_steps"]) if not pd.isna(last["peak_rss_of_steps"]) else False,
    )


def _kinds(row: Any, name: str) -> Kinds | None:
    sizes = {kind: _whole(row[name.format(kind)]) for kind in KINDS}
    known = {kind: size for kind, size in sizes.items() if size is not None}
    return known if len(known) == len(KINDS) else None


def _whole(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
