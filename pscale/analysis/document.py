"""What a run planned, from `run.json` or its rows, and whether its launches agree on the first loss.

The first loss is that of the initial weights, which are drawn the same under every plan, on the first
batch: that of the serial program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pscale import atomic_files
from pscale.config.axes import PLAN_AXES
from pscale.errors import ResultsError
from pscale.run_folders import check
from pscale.run_shape import check_document

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
