"""What is said of plans: what each loses by its prediction, and how a measurement agrees with predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pscale.analysis.columns import Row
from pscale.analysis.messages import need
from pscale.analysis.stats import Estimate
from pscale.analysis.text import number_3
from pscale.config import Case
from pscale.predict.engine import Prediction

_SMALL = 0.01  # of the least computing: a smaller loss is not worth a word
_NAMED = 3  # losses in a line
_WORDS = {
    "bubble": "bubble",
    "imbalance": "uneven compute",
    "jitter": "late ranks",
    "transfer": "communication not hidden",
    "copy": "copies",
    "offload": "waits for a file",
    "injected": "injected delay",
    "compute": "more or slower compute",
}
_FEWEST = 3  # plans whose order can agree


@dataclass(frozen=True, kw_only=True)
class Advised:
    """A plan with its prediction. Plans that are as fast as far as is known share a `place`, from 1."""

    prediction: Prediction
    place: int
    losses: str  # relative to the plan that computes least


def advised(found: Sequence[Prediction]) -> list[Advised]:
    """Return plans by their predicted steps, which are in order."""
    least_s = min((each.losses.get("compute", 0.0) for each in found), default=0.0)
    return [
        Advised(
            prediction=each,
            place=1 + sum(other.step_s.high < each.step_s.low for other in found),
            losses=losses(each, least_s),
        )
        for each in found
    ]


def losses(prediction: Prediction, least_s: float) -> str:
    """Say what a step takes beyond computing for `least_s`, the largest first."""
    if least_s <= 0:
        return ""
    shares = {kind: seconds / least_s for kind, seconds in prediction.losses.items()}
    shares["compute"] = shares.get("compute", 0.0) - 1
    ordered = sorted((kind for kind, share in shares.items() if share >= _SMALL), key=lambda k: -shares[k])
    return "; ".join(f"+{shares[kind]:.0%}: {_words(kind, prediction)}" for kind in ordered[:_NAMED])


def _words(kind: str, prediction: Prediction) -> str:
    if kind != "transfer" or not prediction.transfers:
        return _WORDS[kind]
    most = max(prediction.transfers, key=lambda call: prediction.transfers[call])
    return f"{_WORDS[kind]} ({most.replace('_', '-')})"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A plan as measured; `error` is the predicted step time over the measured, less 1."""

    prediction: Prediction
    step_s: Estimate
    place: int  # plans that are equal to the fastest share the first
    answer: str  # beside the fastest
    predicted_place: int
    error: float

    @property
    def case(self) -> Case:
        """The plan with its work."""
        return self.prediction.case


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Predictions beside what was measured, the fastest first, and sentences on both."""

    rows: tuple[Measured, ...]
    sentences: tuple[str, ...]


def agreement(found: Sequence[Prediction], points: Mapping[str, Row], places: Sequence[Row]) -> Agreement:
    """Compare the predictions of measured plans, in order, with what was measured."""
    known = {place.case: place for place in places}
    rows = []
    for rank, each in enumerate(found, 1):
        step_s, place = points[each.case.id].step_s, known.get(each.case.id)
        assert step_s is not None, "it was measured"
        rows.append(
            Measured(
                prediction=each,
                step_s=step_s,
                place=place.place if place else 1,
                answer=_answer(place),
                predicted_place=rank,
                error=each.step_s.value / step_s.value - 1,
            )
        )
    ordered = sorted(rows, key=lambda row: row.step_s.value)
    return Agreement(rows=tuple(ordered), sentences=tuple(_sentences(rows, ordered, known)))


def _answer(place: Row | None) -> str:
    if place is None or not place.answer:
        return "fastest"
    return f"{number_3(place.ratio.value)} × as long, {place.answer}"


def _sentences(
    rows: Sequence[Measured], ordered: Sequence[Measured], known: Mapping[str, Row]
) -> Iterator[str]:
    first, fastest = rows[0], ordered[0]
    regret = first.step_s.value / fastest.step_s.value - 1
    if first is fastest:
        yield "Regret 0%: the plan that was predicted fastest is the one measured fastest"
    else:
        place = known.get(first.case.id)
        sure = "" if place and place.answer == "slower" else ", which these launches do not tell from none"
        yield f"Regret {regret:.1%}: the plan that was predicted fastest takes so much longer{sure}"
    undecided = [row for row in ordered if (place := known.get(row.case.id)) and place.answer == "undecided"]
    if undecided:
        what = need(known[undecided[0].case.id])
        yield f"{len(undecided)} of {len(rows)} plans may be as fast as the fastest; {what} would decide"
    if len(rows) >= _FEWEST:
        places = [row.predicted_place for row in ordered]
        order = np.corrcoef(places, sorted(places))[0, 1]
        yield f"Rank correlation of predicted and measured steps (Spearman): {order:.2f}"
    mean = sum(abs(row.error) for row in rows) / len(rows)
    yield f"Mean error of the predicted steps: {mean:.1%}"
