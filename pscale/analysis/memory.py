"""Memory of a rank by kind: predicted before the run, counted by the job, measured by the system."""

from __future__ import annotations

import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.frames import Run
from pscale.config.metrics import MEMORY_KINDS as KINDS

_BYTES = [f"{kind}_bytes" for kind in KINDS]
_PREDICTED, _COUNTED = ([f"{source}_{name}" for name in _BYTES] for source in ("predicted", "counted"))


def memory(run: Run) -> pd.DataFrame:
    """Return the memory of the rank of every case that is predicted to hold most, else counts most.

    Of several launches that which counted, then measured most; kinds are known together or not at all.
    """
    cases = run.cases.drop_duplicates("case").astype({"case": str}).set_index("case")
    predicted = cases[_PREDICTED].dropna()
    ranks = run.ranks.dropna(subset=_BYTES).astype({"case": str})
    fullest = ranks["case"].map(cases["peak_memory_rank"])
    ranks = ranks[fullest.isna() | (ranks["rank"] == fullest)]
    ranks = ranks.rename(columns=dict(zip(_BYTES, _COUNTED, strict=True))).assign(
        counted_bytes=ranks[_BYTES].sum(axis=1),
        counted_offloaded_bytes=ranks["offloaded_bytes"],
        measured_bytes=ranks["peak_rss_bytes"] - ranks["baseline_rss_bytes"],
        empty_bytes=ranks["baseline_rss_bytes"],
        of_steps=ranks["peak_rss_of_steps"].fillna(False).astype(bool),
    )
    ranks = ranks.sort_values(["counted_bytes", "measured_bytes"], kind="stable")
    counted = ranks.drop_duplicates("case", keep="last").set_index("case")
    names = ["rank", *_COUNTED, "counted_bytes", "counted_offloaded_bytes", "measured_bytes", "empty_bytes"]
    table = cases[["peak_memory_rank", "predicted_offloaded_bytes"]].join(predicted)
    table = table.join(counted[[*names, "of_steps"]])
    beyond = (table["measured_bytes"] - table["counted_bytes"]).clip(lower=0)
    table = table.assign(
        rank=table["rank"].fillna(table["peak_memory_rank"]),
        predicted_bytes=table[_PREDICTED].sum(axis=1, skipna=False),
        library_bytes=beyond,
        of_steps=table["of_steps"].fillna(False).astype(bool),
    )
    known = table["predicted_bytes"].notna() | table["counted_bytes"].notna()
    return table[known].reset_index()


def by_kind(row: Row) -> dict[str, int]:
    """Return the bytes of each kind: counted, else predicted; empty where neither is known."""
    source = "counted" if row.counted_bytes is not None else "predicted"
    return {kind: size for kind in KINDS if (size := getattr(row, f"{source}_{kind}_bytes")) is not None}
