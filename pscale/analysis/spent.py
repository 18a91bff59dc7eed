"""What the steps of a series took at every size, whole and in parts: what laws are fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.forecast import Observed
from pscale.analysis.frames import KINDS
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Sample

SMALL = 0.01  # of the step, at every size: not worth a law
_KINDS = tuple(kind for kind in KINDS if kind != "hidden_s")


class Spent:
    """The times of a series, whole and in parts, launch by launch."""

    def __init__(
        self,
        sizes: Sequence[int],
        measured: Sequence[Point],
        times: Mapping[str, Sample],
        phases: pd.DataFrame,
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.float64)
        cases = [point.case for point in measured]
        samples = [times[case] for case in cases]
        self.scale = np.array([sample.value for sample in samples])
        self.step = Observed(
            sizes=self.sizes,
            times=self.scale,
            scale=self.scale,
            launches=[np.array(sample.medians or (sample.value,)) for sample in samples],
        )
        own = phases[phases["case"].isin(cases)]
        kinds = own[[f"mean_{kind}" for kind in _KINDS]].div(own["steps"], axis=0)
        keys = [own["case"], own["repeat"]]
        by_phase = kinds.sum(axis=1).groupby([own["phase"].astype(str), *keys]).sum()
        self.phases = self._observed(by_phase, cases)
        by_kind = kinds.rename(columns=lambda name: name.removeprefix("mean_").removesuffix("_s"))
        of_launches = by_kind.groupby(keys).sum().stack().reorder_levels([2, 0, 1])
        self.kinds = self._observed(of_launches, cases)

    def _observed(self, table: Any, cases: Sequence[str]) -> dict[str, Observed]:
        """Return the times of each part that is worth a law; `table` is by part, case and launch."""
        found = {}
        for part, rows in table.groupby(level=0, sort=False):
            by_case = {case: np.asarray(of_case, np.float64) for case, of_case in rows.groupby(level=1)}
            launches = [by_case.get(case, np.zeros(1)) for case in cases]
            medians = np.array([np.median(seconds) for seconds in launches])
            if np.isfinite(medians).all() and (medians > SMALL * self.scale).any():
                found[str(part)] = Observed(
                    sizes=self.sizes, times=medians, scale=self.scale, launches=launches
                )
        return found
