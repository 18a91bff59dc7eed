"""How far to trust predictions from a profile: what came of those that could be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pscale.analysis.columns import Row
from pscale.analysis.frames import Run
from pscale.predict.engine import Prediction, predict
from pscale.predict.profile import Profile, case_of

_MOST = 8  # cases that are replayed
_DRAWS = 80


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A case of the profile's run, predicted from its parts and as its traced launches measured it."""

    label: str
    ranks: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """By how much more was predicted than measured, as a fraction."""
        return self.predicted_s / self.measured_s - 1


def replays(run: Run, profile: Profile) -> list[Replay]:
    """Predict cases of the profile's own run, those on most ranks, from its traced launches."""
    traced = {(pace.case, pace.repeat) for pace in profile.paces}
    largest = sorted({pace.case: pace.ranks for pace in profile.paces}.items(), key=lambda item: -item[1])
    found = []
    for case, ranks in largest[:_MOST]:
        rows = run.cases[(run.cases["case"] == case) & (run.cases["step_s"] > 0)]
        keys = zip(rows["case"], rows["repeat"], rows["step_s"], strict=True)
        steps_s = [step_s for case_, repeat, step_s in keys if (case_, repeat) in traced]
        if steps_s:
            again = predict(case_of(run, case), profile, draws=_DRAWS)
            measured_s = float(np.exp(np.log(steps_s).mean()))
            label = again.case.label
            found.append(
                Replay(label=label, ranks=ranks, predicted_s=again.step_s.value, measured_s=measured_s)
            )
    return found


def sentences(
    replayed: Sequence[Replay], score: Row | None, predictions: Sequence[Prediction], network: str
) -> list[str]:
    """Say how far to trust predictions, each sentence with its numbers."""
    found = []
    if replayed:
        errors, most = [abs(each.error) for each in replayed], max(each.ranks for each in replayed)
        found.append(
            f"Predicted again from their own parts, the steps of {_cases(len(replayed))} of the traced run "
            f"on up to {most:,} ranks are off by {np.mean(errors):.1%} on average, at most {max(errors):.1%}."
        )
    if score is None:
        found.append("No earlier prediction for this machine has been measured since.")
    else:
        found.append(
            f"Of earlier predictions for this machine {_cases(score.cases)} were measured since, on up "
            f"to {score.largest_ranks:,} ranks: error {score.mean_error:.1%} on average, at most "
            f"{score.largest_error:.1%}; {score.inside} of {score.launches} launches lie in their 90% "
            "interval."
        )
    beyond = [each for each in predictions if each.case.ranks > each.checked_ranks]
    if beyond:
        found.append(
            f"No interval is given for {_cases(len(beyond))}, marked *: on this machine no prediction for "
            f"more than {beyond[0].checked_ranks:,} ranks was ever checked."
        )
    if network:
        found.append(f"No prediction on the network {network} was checked; its figures are taken as given.")
    return found


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"
