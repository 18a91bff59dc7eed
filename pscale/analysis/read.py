"""The tables of a run, read: small ones whole, those of steps and calls summed batch by batch.

Where the clocks of several nodes cannot distinguish the wait of calls from their transfer, the two are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pscale.results import store, sums
from pscale.results.schema import Table

_CATEGORIES: dict[Table, list[str]] = {
    "cases": [],
    "steps": ["case", "phase"],
    "calls": ["case", "phase", "axis", "verb"],
    "events": ["case", "phase", "kind", "label", "axis", "verb"],
    "kernels": ["case", "phase", "kernel"],
    "figures": ["case", "figure", "unit", "better"],
    "ranks": [
        "case",
        "host",
        "cpus",
        "blas",
        "blas_version",
        "blas_architecture",
        "blas_threading",
        "blas_library",
    ],
}
_SMALL = ("repeat", "rank", "step")  # these keys are never null and fit in 32 bits


def frame(data: Path, table: Table, damaged: list[store.Damaged] | None = None) -> pd.DataFrame:
    """Read a whole table."""
    return _as_frame(store.read_table(data, table, damaged=damaged), table)


def rows_of(data: Path, table: Table, case: str, repeat: int | None = None) -> pd.DataFrame:
    """Read the rows of one case, or of one launch of it."""
    return _as_frame(store.read_case(data, table, case, repeat), table)


def _as_frame(rows: Any, table: Table) -> pd.DataFrame:
    found: pd.DataFrame = rows.to_pandas(categories=_CATEGORIES[table])
    return found.astype({name: "int32" for name in _SMALL if name in found.columns})


def call_sums(data: Path, damaged: list[store.Damaged]) -> dict[str, pd.DataFrame]:
    """Return the tables of `sums.calls`."""
    return _summed(data, "calls", sums.CALL_COLUMNS, sums.calls, damaged)


def step_sums(
    data: Path, damaged: list[store.Damaged], unclear: Sequence[Unclear]
) -> dict[str, pd.DataFrame]:
    """Return the tables of `sums.steps`; wait and transfer of `unclear` calls are one."""
    calls = frame(data, "calls", []) if unclear else None

    def summed(rows: Any) -> dict[str, Any]:
        return sums.steps(rows if calls is None else _blurred(rows, calls, unclear))

    found = _summed(data, "steps", sums.STEP_COLUMNS, summed, damaged)
    phases = found["phases"]
    known = {"wait_or_transfer_s": phases.get("wait_or_transfer_s", 0.0)}
    offload = {name: phases[name].fillna(0.0) for name in sums.OFFLOAD}
    return {**found, "phases": phases.assign(**known, **offload)}


def _summed(
    data: Path,
    table: Table,
    columns: Sequence[str],
    reduction: Callable[[Any], dict[str, Any]],
    damaged: list[store.Damaged],
) -> dict[str, pd.DataFrame]:
    """Return the sums of all batches of a table, by name."""
    texts = [name for name in columns if name in _CATEGORIES[table]]
    batches = store.batches(data, table, columns, damaged, texts)
    found = [reduction(rows.unify_dictionaries()) for rows in _ahead(batches) if len(rows)]
    found = found or [reduction(store.schema_of(table, columns, texts).empty_table())]
    return {name: _joined([part[name] for part in found]) for name in found[0]}


def _joined(parts: Sequence[Any]) -> pd.DataFrame:
    whole: pd.DataFrame = sums.joined(parts).to_pandas()
    return whole.astype({name: "int32" for name in _SMALL if name in whole.columns})


def _blurred(rows: Any, calls: pd.DataFrame, unclear: Sequence[Unclear]) -> Any:
    """Return rows in which wait and transfer of unclear calls are one."""
    blurred = joined(_as_frame(rows, "steps"), calls, unclear)
    times = ("wait_s", "transfer_s", "wait_or_transfer_s")
    return sums.with_columns(rows, {name: blurred[name].to_numpy(np.float64) for name in times})


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and read each while the one before it is summed: Arrow needs no lock of Python."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (rows := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield rows


LIMIT = 0.10  # of a call's mean wait: beyond it, the bound of the clocks leaves too little of the wait sure
_GROUP = ["case", "axis", "verb"]
_PLACE = ["case", "repeat", "rank", "step", "phase"]


@dataclass(frozen=True, kw_only=True)
class Unclear:
    """Calls of one verb on one axis in a case, whose wait is known worse than `LIMIT`; means per call."""

    case: str
    axis: str
    verb: str
    bound_s: float
    wait_s: float


def unclear(calls: pd.DataFrame) -> tuple[Unclear, ...]:
    """Return the calls whose wait and transfer must be read as one, from sums with `bound_s`."""
    if not calls["bound_s"].any():
        return ()
    of_all = calls.groupby(_GROUP, observed=True)[["bound_s", "wait_s", "count"]].sum().reset_index()
    found = of_all[(of_all["bound_s"] > 0) & (of_all["bound_s"] > LIMIT * of_all["wait_s"])].astype(
        dict.fromkeys(_GROUP, str)
    )
    means = found.assign(bound_s=found["bound_s"] / found["count"], wait_s=found["wait_s"] / found["count"])
    return tuple(
        Unclear(**{str(name): value for name, value in row.items()})
        for row in means.drop(columns="count").to_dict("records")
    )


def joined(steps: pd.DataFrame, calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.DataFrame:
    """Return rows of steps with wait and transfer of unclear calls moved to `wait_or_transfer_s`."""
    moved = calls.loc[of_unclear(calls, found)].groupby(_PLACE, observed=True)[["wait_s", "transfer_s"]].sum()
    parts = moved.reindex(pd.MultiIndex.from_frame(steps[_PLACE]), fill_value=0.0).set_axis(steps.index)
    return _moved(steps, parts)


def blurred_sums(calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.DataFrame:
    """Return sums of calls with a column `wait_or_transfer_s`, as `joined` does."""
    if not found:
        return calls.assign(wait_or_transfer_s=0.0)
    return _moved(calls, calls[["wait_s", "transfer_s"]].mul(of_unclear(calls, found), axis=0))


def of_unclear(calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.Series[bool]:
    """Tell which rows are of unclear calls."""
    names = {(call.case, call.axis, call.verb) for call in found}
    return pd.Series(pd.MultiIndex.from_frame(calls[_GROUP].astype(str)).isin(names), index=calls.index)


def _moved(table: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    rest = table[["wait_s", "transfer_s"]] - parts
    return table.assign(
        wait_s=rest["wait_s"].clip(lower=0.0),
        transfer_s=rest["transfer_s"].clip(lower=0.0),
        wait_or_transfer_s=parts["wait_s"] + parts["transfer_s"],
    )
