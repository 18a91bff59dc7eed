"""The tables of a run, read: small ones whole, those of steps and calls summed batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis import reduce
from pscale.analysis.clocks import Unclear, joined
from pscale.results import store
from pscale.results.schema import Table

_CATEGORIES: dict[Table, list[str]] = {
    "cases": [],
    "steps": ["case", "phase"],
    "calls": ["case", "phase", "axis", "verb"],
    "events": ["case", "phase", "kind", "label", "axis", "verb"],
    "ranks": ["case", "host", "cpus", "blas", "blas_version", "blas_architecture", "blas_threading"],
}
_SMALL = ("repeat", "rank", "step")  # these keys are never null and fit in 32 bits
_STEP_TEXTS, _CALL_TEXTS = ("case", "phase"), ("case", "axis", "verb")
_TEXTS = ("case", "phase", "axis", "verb")
_STEP_TABLES = ("phases", "seats", "ends", "blame", "waited", "broken")


def frame(data: Path, table: Table, damaged: list[store.Damaged] | None = None) -> pd.DataFrame:
    """Read a whole table."""
    return _as_frame(store.read_table(data, table, damaged=damaged), table)


def rows_of(data: Path, table: Table, case: str, repeat: int | None = None) -> pd.DataFrame:
    """Read the rows of one case, or of one launch of it."""
    return _as_frame(store.read_case(data, table, case, repeat), table)


def _as_frame(rows: Any, table: Table) -> pd.DataFrame:
    found: pd.DataFrame = rows.to_pandas(categories=_CATEGORIES[table])
    return found.astype({name: "int32" for name in _SMALL if name in found.columns})


class Reader:
    """Sums the steps and calls of a run; texts get the same numbers in all batches of both."""

    def __init__(self, data: Path, damaged: list[store.Damaged]):
        self._data, self._damaged = data, damaged
        self._words: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}

    def calls(self) -> dict[str, pd.DataFrame]:
        """Return the tables of `reduce.CallSums`."""
        batches = store.batches(self._data, "calls", reduce.CALL_COLUMNS, self._damaged, _CALL_TEXTS)
        sums = [reduce.calls(self._batch(rows)) for rows in _ahead(batches) if len(rows)]
        nothing = reduce.calls(_nothing(reduce.CALL_COLUMNS))
        return self._tables(("calls", "broken"), sums, nothing)

    def steps(self, unclear: Sequence[Unclear]) -> dict[str, pd.DataFrame]:
        """Return the tables of `reduce.StepSums`; wait and transfer of `unclear` calls are together."""
        batches = store.batches(self._data, "steps", reduce.STEP_COLUMNS, self._damaged, _STEP_TEXTS)
        calls = frame(self._data, "calls", []) if unclear else None
        sums = []
        for rows in _ahead(batches):
            if len(rows):
                batch = self._batch(rows)
                sums.append(reduce.steps(batch if calls is None else _blurred(batch, rows, calls, unclear)))
        return self._tables(_STEP_TABLES, sums, reduce.steps(_nothing(reduce.STEP_COLUMNS)))

    def _batch(self, rows: Any) -> reduce.Batch:
        """Return rows of Arrow as numbers."""
        columns: dict[str, NDArray[Any]] = {}
        broken = {}
        for name in rows.column_names:
            if name in _TEXTS:
                columns[name] = self._numbered(name, rows[name])
            elif name in reduce.OFFLOAD and rows[name].null_count == len(rows):
                columns[name] = np.zeros(len(rows))
            else:
                columns[name], wrong = _numbers(rows[name])
                if wrong is not None:
                    broken[name] = wrong
        columns.setdefault("together_s", np.zeros(len(rows)))
        columns |= {name: np.nan_to_num(columns[name]) for name in reduce.OFFLOAD if name in broken}
        words = {name: list(known) for name, known in self._words.items()}
        return reduce.Batch(columns=columns, words=words, broken=broken)

    def _numbered(self, name: str, column: Any) -> NDArray[np.int64]:
        known, codes = self._words[name], [np.zeros(0, np.int64)]
        for coded in column.chunks:
            numbers = [known.setdefault(word or "", len(known)) for word in coded.dictionary.to_pylist()]
            codes.append(np.array(numbers, np.int64)[coded.indices.to_numpy()])
        return np.concatenate(codes)

    def _tables(self, names: Sequence[str], sums: Sequence[Any], nothing: Any) -> dict[str, pd.DataFrame]:
        return {
            name: self._named([getattr(nothing, name).iloc[:0], *(getattr(one, name) for one in sums)])
            for name in names
        }

    def _named(self, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Join the sums of all batches, with words for numbers again."""
        whole = pd.concat([part for part in parts[1:] if len(part)] or parts[:1], ignore_index=True)
        for name in _TEXTS:
            if name in whole.columns:
                categories = pd.Index(list(self._words[name]), dtype=object)
                whole[name] = pd.Categorical.from_codes(whole[name].to_numpy(np.int64), categories=categories)
        return whole.astype({name: "int32" for name in _SMALL if name in whole.columns})


def _numbers(column: Any) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return numbers, NaN where there are none, and which are NaN or infinite themselves; None: not one."""
    values: NDArray[Any] = column.to_numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype != np.float64 or np.isfinite(values.sum()):  # sooner known than of each by itself
            return values, None
    return values, ~(np.isfinite(values) | column.is_null().to_numpy())


def _blurred(batch: reduce.Batch, rows: Any, calls: pd.DataFrame, unclear: Sequence[Unclear]) -> reduce.Batch:
    """Return a batch in which wait and transfer of unclear calls are together."""
    blurred = joined(_as_frame(rows, "steps"), calls, unclear)
    times = {name: blurred[name].to_numpy(np.float64) for name in ("wait_s", "transfer_s", "together_s")}
    return replace(batch, columns={**batch.columns, **times})


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and read each while the one before it is summed: Arrow needs no lock of Python."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (rows := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield rows


def _nothing(columns: Sequence[str]) -> reduce.Batch:
    """Return a row of zeros, whose sums have the columns that sums of no rows have."""
    whole = {"case", "repeat", "rank", "step", "phase", "axis", "verb", "count", "bytes"}
    zeros = {name: np.zeros(1, np.int64 if name in whole else np.float64) for name in columns}
    words = {name: [""] for name in _TEXTS}
    return reduce.Batch(columns={**zeros, "together_s": np.zeros(1)}, words=words, broken={})
