"""How precisely the step time of one case is known while its launches go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pscale.analysis.stats import estimate, samples
from pscale.results.store import read_part


@dataclass(frozen=True, kw_only=True)
class Known:
    """What some launches of a case have told; `half_width` is None with fewer than two good ones."""

    launches: int
    good: int
    half_width: float | None  # of the 95 % interval of the step time, over the step time


def known(data: Path, case: str, repeats: Iterable[int], seed: int) -> Known:
    """Return what is known from the launches `repeats`, which have ended; `seed` is that of the run."""
    rows = [read_part(data, "cases", case, repeat).select(["repeat", "status"]) for repeat in repeats]
    good = [row["repeat"][0].as_py() for row in rows if row["status"][0].as_py() == "ok"]
    if not good:
        return Known(launches=len(rows), good=0, half_width=None)
    columns = ["case", "repeat", "step", "end_s"]
    parts = [read_part(data, "steps", case, repeat).select(columns).to_pandas() for repeat in good]
    found = samples(pd.concat(parts), seed)[case]
    width = estimate(found.value, found.draws).half_width
    return Known(launches=len(rows), good=len(good), half_width=width)
