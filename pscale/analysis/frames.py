"""A run's folder as data frames: what was planned, what was measured, what is still to come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.agreement import with_disagreement
from pscale.analysis.clocks import Unclear, joined, unclear
from pscale.errors import ResultsError
from pscale.results import store
from pscale.results.schema import Table

FORMAT = 1
KINDS = ("compute_s", "transfer_s", "wait_s", "together_s", "copy_s", "hidden_s")
_CATEGORIES: dict[Table, list[str]] = {
    "cases": [],
    "steps": ["case", "phase"],
    "calls": ["case", "phase", "axis", "verb"],
    "events": ["case", "phase", "kind", "label", "axis", "verb"],
    "ranks": ["case", "host", "cpus", "blas", "blas_version", "blas_architecture", "blas_threading"],
}
_SMALL = ("repeat", "rank", "step")  # these keys are never null and fit in 32 bits


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as stored. `document` is run.json; `pending` are launches planned and without a row.

    `cases` has every launch that ended; steps, calls and ranks are those of launches that ended well. Steps
    and calls have a further kind of time, `together_s`: wait and transfer of the `unclear` calls.
    """

    path: Path
    document: Mapping[str, Any]
    cases: pd.DataFrame
    steps: pd.DataFrame
    calls: pd.DataFrame
    ranks: pd.DataFrame
    unclear: tuple[Unclear, ...]
    pending: tuple[tuple[str, int], ...]

    @property
    def planned(self) -> Mapping[str, Mapping[str, Any]]:
        """The configuration of every case of the suite, by case id, in the suite's order."""
        return {case["id"]: case for case in self.document["cases"]}

    @property
    def suite(self) -> Mapping[str, Any]:
        """The suite's name, title, scaling and text."""
        suite: Mapping[str, Any] = self.document.get("suite", {})
        return suite


def load(path: Path) -> Run:
    """Read the run in folder `path`, as far as it has got; raises ResultsError for anything else."""
    document = _document(path)
    data = path / "data"
    if not data.is_dir():
        raise ResultsError(f"{path}: has no folder 'data', so nothing was measured; run the suite again")
    cases = _frame(data, "cases").sort_values(["case", "repeat"], ignore_index=True)
    cases = with_disagreement(cases, {case["id"]: case for case in document["cases"]})
    calls = _of_good(_frame(data, "calls"), cases)
    blurred = unclear(calls)
    steps, calls = joined(_of_good(_frame(data, "steps"), cases), calls, blurred)
    return Run(
        path=path,
        document=document,
        cases=cases,
        steps=steps,
        calls=calls,
        ranks=_of_good(_frame(data, "ranks"), cases),
        unclear=blurred,
        pending=_pending(document, cases),
    )


def events(run: Run) -> pd.DataFrame:
    """Return the notes of the traced launches that ended well; read when asked for, as they are many."""
    return _of_good(_frame(run.path / "data", "events"), run.cases)


def newest(root: Path) -> Path:
    """Return the folder of the run under `root` (reports/<suite>/<run>) that was begun last."""
    found = list(root.glob("*/*/run.json")) if root.is_dir() else []
    if not found:
        raise ResultsError(f"{root}: no runs here; make one with 'pscale run SUITE', or name a run's folder")
    return max(found, key=lambda file: (file.stat().st_mtime_ns, str(file))).parent


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a small table as dictionaries of plain Python values; nulls are None."""
    columns = {str(name): frame[name].astype(object) for name in frame.columns}
    rows = pd.DataFrame(columns).to_dict("records")
    return [{str(name): None if pd.isna(value) else value for name, value in row.items()} for row in rows]


def _document(path: Path) -> Mapping[str, Any]:
    file = path / "run.json"
    if not path.is_dir():
        raise ResultsError(f"{path}: no such folder; name a run such as reports/weak/<run>")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path}: not a run's folder: it has no run.json") from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ResultsError(f"{file}: not written by pscale")
    if document["format"] > FORMAT:
        raise ResultsError(
            f"{file}: written by a newer pscale: format {document['format']}, "
            f"this one reads up to {FORMAT}; upgrade pscale"
        )
    cases = document.get("cases")
    if not isinstance(cases, list) or not all(isinstance(case, dict) and "id" in case for case in cases):
        raise ResultsError(f"{file}: lists no cases; it is damaged, or not written by pscale")
    return document


def _frame(data: Path, table: Table) -> pd.DataFrame:
    frame: pd.DataFrame = store.read_table(data, table).to_pandas(categories=_CATEGORIES[table])
    small = {name: "int32" for name in _SMALL if name in frame.columns}
    return frame.astype(small)


def _of_good(table: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of launches that ended well; whole numbers are compared, as there may be millions."""
    good = cases.loc[cases["status"] == "ok", ["case", "repeat"]]
    numbers = pd.Index(table["case"].cat.categories).get_indexer(good["case"])
    repeats = 1 + max(table["repeat"].max(), good["repeat"].max()) if len(table) and len(good) else 1
    launch = table["case"].cat.codes.astype(np.int64) * repeats + table["repeat"]
    kept = launch.isin((numbers * repeats + good["repeat"])[numbers >= 0])
    return table if kept.all() else table[kept]


def _pending(document: Mapping[str, Any], cases: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    done = set(zip(cases["case"], cases["repeat"], strict=True))
    launches = [(case["id"], repeat) for case in document["cases"] for repeat in range(_repeats(document))]
    return tuple(launch for launch in launches if launch not in done)


def _repeats(document: Mapping[str, Any]) -> int:
    repeats = document.get("repeats")
    return repeats if isinstance(repeats, int) else 1
