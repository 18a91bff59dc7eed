"""How much of a step the stages of a pipeline wait for each other, beside what the schedule foresees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pscale.analysis.frames import Run
from pscale.analysis.phases import CallTime, PhaseTime
from pscale.analysis.ranking import waits_for_stages


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """The idle time of the stages of one case, as a share of the step: a mean over ranks.

    Predicted: by a dry run of the schedule in which parts cost what they multiply and messages nothing.
    Measured: wait in calls between stages.
    """

    case: str
    schedule: str
    stages: int
    chunks: int  # parts of the model on a stage
    micro_batches: int
    predicted: float | None
    measured: float


def bubbles(run: Run, phases: Sequence[PhaseTime], calls: Sequence[CallTime]) -> tuple[Bubble, ...]:
    """Return the bubble of every measured case that has stages."""
    waits, step_s = waits_for_stages(calls), {time.case: time.step_s for time in phases}
    good = run.cases[(run.cases["status"] == "ok") & (run.cases["pp"] > 1)].drop_duplicates("case")
    return tuple(
        Bubble(
            case=str(row["case"]),
            schedule=str(row["schedule"]),
            stages=int(row["pp"]),
            chunks=int(row["virtual_stages"]),
            micro_batches=int(row["micro_batches"]),
            predicted=None if pd.isna(row["predicted_bubble"]) else float(row["predicted_bubble"]),
            measured=waits.get(str(row["case"]), 0.0) / step_s[str(row["case"])],
        )
        for _, row in good.iterrows()
        if str(row["case"]) in step_s
    )
