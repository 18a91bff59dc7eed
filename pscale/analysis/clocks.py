"""Waits that the clocks of several nodes cannot tell from transfer: the two are then one, `together_s`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

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
    sums = calls.groupby(_GROUP, observed=True)[["bound_s", "wait_s", "count"]].sum().reset_index()
    found = sums[(sums["bound_s"] > 0) & (sums["bound_s"] > LIMIT * sums["wait_s"])].astype(
        dict.fromkeys(_GROUP, str)
    )
    means = found.assign(bound_s=found["bound_s"] / found["count"], wait_s=found["wait_s"] / found["count"])
    return tuple(
        Unclear(**{str(name): value for name, value in row.items()})
        for row in means.drop(columns="count").to_dict("records")
    )


def joined(steps: pd.DataFrame, calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.DataFrame:
    """Return rows of steps with a column `together_s`, to which wait and transfer of unclear calls go."""
    moved = calls.loc[of_unclear(calls, found)].groupby(_PLACE, observed=True)[["wait_s", "transfer_s"]].sum()
    parts = moved.reindex(pd.MultiIndex.from_frame(steps[_PLACE]), fill_value=0.0).set_axis(steps.index)
    return _moved(steps, parts)


def blurred_sums(calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.DataFrame:
    """Return sums of calls with a column `together_s`, as `joined` does."""
    if not found:
        return calls.assign(together_s=0.0)
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
        together_s=parts["wait_s"] + parts["transfer_s"],
    )
