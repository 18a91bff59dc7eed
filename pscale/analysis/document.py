"""What a run was to be: its `run.json`, or, where that is lost, what its rows tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pscale.errors import ResultsError

FORMAT = 1
LOST = "run_json_lost"  # set in a document that was made up from rows
_MODEL = ("layers", "width", "heads", "sequence", "vocabulary", "dtype", "attention")
_PLAN = ("dp", "tp", "pp", "cp", "ep", "sp", "zero", "shard", "schedule", "virtual_stages", "reduction")
_TRAIN = ("batch", "micro_batches", "optimizer", "steps", "warmup")
_OF_CASE = ("label", "series", "scaling", "ranks", "threads")


def read_document(path: Path) -> Mapping[str, Any] | None:
    """Return the document of the run in folder `path`; None where it is lost but rows are there.

    Raises ResultsError for a folder that is none of a run, and for a document that is damaged or newer.
    """
    file = path / "run.json"
    if not path.is_dir():
        raise ResultsError(f"{path}: no such folder; name a run such as reports/weak/<run>")
    if not file.exists() and any((path / "data").glob("cases*.parquet")):
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path}: not a run's folder: it has no run.json") from None
    except (OSError, ValueError) as error:
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
    cases = document.get("cases")
    if not isinstance(cases, list) or not all(isinstance(case, dict) and "id" in case for case in cases):
        raise ResultsError(f"{file}: lists no cases; it is damaged, or not written by pscale")
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
