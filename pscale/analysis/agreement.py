"""Whether launches that train the same begin with the same loss: that of the serial program.

The first loss is that of the initial weights, which are drawn alike under every plan, on the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

TOLERANCE = {
    "float32": 1e-4,
    "float64": 1e-9,
}  # of the loss; what other orders of summation leave is far less
_NOT_THE_TRAINING = ("ranks", "threads", "plan", "timing", "launch", "require", "inject", "jitter")
_NAMES = ("id", "suite", "label", "series", "base", "scaling")


def with_disagreement(cases: pd.DataFrame, planned: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cases with launches marked invalid whose first loss is not that of their reference.

    The reference of a training is its launch on fewest ranks that ended well, the serial one if there is any.
    """
    good = cases[(cases["status"] == "ok") & cases["loss_first"].notna()]
    marked = cases.copy()
    for _, rows in good.groupby(good["case"].map(lambda case: _training(planned.get(case, {"id": case})))):
        reference = rows.sort_values(["ranks", "threads", "repeat"], kind="stable").iloc[0]
        expected, tolerance = reference["loss_first"], TOLERANCE.get(reference["dtype"], TOLERANCE["float32"])
        wrong = rows[(rows["loss_first"] - expected).abs() > tolerance * abs(expected)]
        for place, row in wrong.iterrows():
            marked.loc[place, "status"] = "invalid"
            marked.loc[place, "reason"] = (
                f"its first loss is {row['loss_first']:.8g}, but {expected:.8g} on {_size(reference)}, which "
                "starts from the same weights and data: prove the plan with `pscale verify`"
            )
    return marked


def _training(planned: Mapping[str, Any]) -> str:
    """Return what decides the first loss of a case."""
    same = {name: value for name, value in planned.items() if name not in (*_NAMES, *_NOT_THE_TRAINING)}
    if "data" in same:
        same["data"] = {name: value for name, value in same["data"].items() if name != "loading"}
    if "train" in same:
        same["train"] = {name: same["train"].get(name) for name in ("batch", "seed")}
    return json.dumps(same or planned, sort_keys=True, default=str)


def _size(row: Any) -> str:
    return "1 rank" if row["ranks"] == 1 else f"{row['ranks']:.0f} ranks"
