"""Whether launches that train the same begin with the same loss: that of the serial program.

The first loss is that of the initial weights, which are drawn alike under every plan, on the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

TOLERANCE = {
    "float32": 1e-4,
    "float64": 1e-9,
    "fp16": 5e-4,
    "bf16": 4e-3,
}  # of the loss; what other orders of summation leave is far less
_NOT_THE_TRAINING = ("ranks", "threads", "plan", "timing", "launch", "require", "inject", "jitter")
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
                "starts from the same weights and data: prove the plan with `pscale verify`",
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
