"""A run's folder, read: its document, its tables, and whether its launches agree on the first loss.

Small tables are read whole, those of steps and calls summed batch by batch. Where the clocks of several nodes
cannot distinguish the wait of calls from their transfer, the two are one. The first loss is that of the
initial weights, which are drawn the same under every plan, on the first batch: that of the serial program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pscale.config.axes import PLAN_AXES
from pscale.errors import ResultsError
from pscale.runs import atomic_files, store, sums
from pscale.runs.run_folders import check
from pscale.runs.run_shape import check_document
from pscale.runs.schema import Table

FORMAT = 1
LOST = "run_json_lost"  # set in a document that was made up from rows
_MODEL = ("layers", "width", "heads", "sequence", "vocabulary", "dtype", "attention")
_PLAN = (*PLAN_AXES, "sp", "zero", "shard", "schedule", "virtual_stages", "reduction")
_TRAIN = ("batch", "micro_batches", "optimizer", "steps", "warmup")
_OF_CASE = ("label", "series", "scaling", "ranks", "threads")


def read_document(path: Path) -> Mapping[str, Any] | None:
    """Return the document of the run in folder `path`; None where it is lost but rows are there.

    Raises ResultsError for a folder that is none of a run, and for a document that is damaged or newer.
    """
    file = path / "run.json"
    if not path.is_dir():
        raise ResultsError(f"{path}: no such folder; name a run such as reports/weak/<run>")
    check(path)
    if not file.exists() and any((path / "data").glob("cases*.parquet")):
        return None
    try:
        document = atomic_files.read_json(file)
    except FileNotFoundError:
        raise ResultsError(f"{path}: not a run's folder: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(
            f"{file}: cannot be read as JSON ({error}); restore it, or remove it to see what the rows tell"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ResultsError(f"{file}: not written by pscale")
    if document["format"] > FORMAT:
        raise ResultsError(
            f"{file}: written by a newer pscale: format {document['format']}, "
            f"this one reads up to {FORMAT}; upgrade pscale"
        )
    check_document(document, file)
    return document


def document_from_rows(cases: pd.DataFrame) -> Mapping[str, Any]:
    """Return what the rows of `cases` tell of a run whose document is lost; nothing is pending then."""
    suite = {name: _first(cases[column], "") for name, column in (("name", "suite"), ("scaling", "scaling"))}
    return {
        "format": FORMAT,
        LOST: True,
        "suite": suite,
        "cases": planned_from_rows(cases),
        "repeats": 1,
    }


def planned_from_rows(cases: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the configuration of every case, as far as its row has it."""
    names = ["case", "base", "model", *_OF_CASE, *_MODEL, *_PLAN, *_TRAIN]
    return [_planned(row) for row in cases[names].drop_duplicates("case").to_dict("records")]


def _planned(row: Mapping[Any, Any]) -> dict[str, Any]:
    known = {name: value for name, value in row.items() if not pd.isna(value)}

    def part(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: known[name] for name in names if name in known}

    return {
        "id": known["case"],
        **part(_OF_CASE),
        "base": bool(known.get("base", False)),
        "model": {"kind": known.get("model", ""), **part(_MODEL)},
        "train": part(_TRAIN),
        "plan": {name: _whole(value) for name, value in part(_PLAN).items()},
    }


def _first(column: pd.Series[Any], otherwise: str) -> str:
    known = column.dropna()
    return str(known.iloc[0]) if len(known) else otherwise


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value


TOLERANCE = {
    "float32": 1e-4,
    "float64": 1e-9,
    "fp16": 5e-4,
    "bf16": 4e-3,
}  # of the loss; what other orders of summation leave is far less
_NOT_THE_TRAINING = ("ranks", "threads", "plan", "timing", "launch", "require", "inject", "jitter", "ghost")
_NAMES = ("id", "suite", "label", "series", "base", "scaling")


def with_disagreement(cases: pd.DataFrame, planned: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cases with launches marked invalid whose first loss is not that of their reference.

    The reference of a training is its launch on fewest ranks that ended well, the serial one if there is any.
    """
    good = cases[(cases["status"] == "ok") & cases["loss_first"].notna()]
    trainings: dict[str, list[tuple[Any, ...]]] = {}
    known = {case: _training(planned.get(case, {"id": case})) for case in good["case"].unique()}
    columns = ("case", "ranks", "threads", "repeat", "loss_first", "dtype")
    values = [good[name].tolist() for name in columns]
    for place, row in zip(good.index, zip(*values, strict=True), strict=True):
        trainings.setdefault(known[row[0]], []).append((*row[1:], place))
    wrong = {place: reason for rows in trainings.values() for place, reason in _wrong(rows)}
    if not wrong:
        return cases
    marked = cases.copy()
    marked.loc[list(wrong), "status"] = "invalid"
    marked.loc[list(wrong), "reason"] = list(wrong.values())
    return marked


def _wrong(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, str]]:
    """Yield place and reason of each launch of a training that begins with another loss."""
    ranks, _, _, expected, dtype, _ = min(rows, key=lambda row: row[:3])
    tolerance = TOLERANCE.get(dtype, TOLERANCE["float32"])
    for *_, loss, _, place in rows:
        if abs(loss - expected) > tolerance * abs(expected):
            yield (
                place,
                f"its first loss is {loss:.8g}, but {expected:.8g} on {_size(ranks)}, which "
                "starts from the same weights and data: check the plan with `pscale verify`",
            )


def _training(planned: Mapping[str, Any]) -> str:
    """Return what decides the first loss of a case."""
    same = {name: value for name, value in planned.items() if name not in (*_NAMES, *_NOT_THE_TRAINING)}
    if "data" in same:
        same["data"] = {name: value for name, value in same["data"].items() if name != "loading"}
    if "train" in same:
        same["train"] = {name: same["train"].get(name) for name in ("batch", "seed")}
    return json.dumps(same or planned, sort_keys=True, default=str)


def _size(ranks: float) -> str:
    return "1 rank" if ranks == 1 else f"{ranks:.0f} ranks"


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
_KEYS = {"repeat", "rank", "step"}


def frame(data: Path, table: Table, damaged: list[store.Damaged] | None = None) -> pd.DataFrame:
    """Read a whole table."""
    return _as_frame(store.read_table(data, table, damaged=damaged), table)


def rows_of(
    data: Path, table: Table, case: str, repeat: int | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read the rows of one case, or of one launch of it; `columns` are all by default."""
    return _as_frame(store.read_case(data, table, case, repeat, columns), table)


def _as_frame(rows: Any, table: Table) -> pd.DataFrame:
    return _small(rows.to_pandas(categories=_CATEGORIES[table]))


def _small(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its keys in 32 bits, which are never null."""
    for name in _KEYS.intersection(table.columns):
        table[name] = table[name].to_numpy(np.int32)
    return table


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
    return _small(sums.joined(parts).to_pandas())


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


class Unclear(NamedTuple):
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
