"""What was predicted before the run, beside what it measured, kind by kind, and the score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pscale.analysis.findings import Findings
from pscale.analysis.predicted import Held, KindTime, Score, score
from pscale.report import text
from pscale.report.table import Column, Table, Written, listed
from pscale.report.topics.topic import Topic, case_column


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the step and every kind of time, predicted and measured."""
    kinds = list(dict.fromkeys(time.kind for held in findings.predictions for time in held.kinds))
    inside = Column("inside", str, get=_inside)
    columns = (
        case_column(findings),
        Column("predicted", text.duration_3, get="predicted_s"),
        Column("90% of launches", str, get=_bounds),
        Column("measured", text.duration_3, get="measured_s"),
        Column("error", text.change, get="error"),
        inside,
        *(Column(kind, str, wide=True, get=_both(kind)) for kind in kinds),
    )
    caption = "by kind: predicted → measured, per step of the mean rank" * bool(kinds)
    yield from listed("Predicted beside measured", findings.predictions, columns, caption=caption)
    found = score(findings.predictions)
    scored = (
        Column("cases", str, get="cases"),
        Column("mean error", text.percent_1, get="mean_error"),
        Column("largest error", text.percent_1, get="largest_error"),
        inside,
    )
    caption = "inside: launches in the interval that should hold nine in ten of them"
    yield from listed("Score of the predictions", [found] if found else [], scored, caption=caption)


def _inside(found: Held | Score) -> Written:
    return Written(found.inside, f"{found.inside} of {found.launches}")


def _bounds(held: Held) -> Written:
    words = f"{text.duration_3(held.low_s)} to {text.duration_3(held.high_s)}"
    return Written(held.high_s / held.low_s, words)


def _of(held: Held, kind: str) -> KindTime | None:
    return next((time for time in held.kinds if time.kind == kind), None)


def _both(kind: str) -> Callable[[Held], Written | None]:
    def both(held: Held) -> Written | None:
        found = _of(held, kind)
        words = found and f"{text.duration_3(found.predicted_s)} → {text.duration_3(found.measured_s)}"
        return Written(found.predicted_s, words) if found and words else None

    return both


def data(findings: Findings) -> Mapping[str, Table]:
    """Return predictions with what was measured, and the same kind by kind."""
    fields = ("ranks", "made_unix_s", "predicted_s", "low_s", "high_s", "measured_s", "launches", "inside")
    steps = [
        (held.case, findings.labels[held.case], *(getattr(held, name) for name in fields))
        for held in findings.predictions
    ]
    kinds = [
        (held.case, findings.labels[held.case], time.kind, time.predicted_s, time.measured_s)
        for held in findings.predictions
        for time in held.kinds
    ]
    return {
        "predicted": Table.of(steps, "case", "label", *fields),
        "predicted_kinds": Table.of(kinds, "case", "label", "kind", "predicted_s", "measured_s"),
    }


TOPIC = Topic(
    name="prediction",
    title="Predicted beside measured",
    lead="Predictions that `pscale predict` recorded before these launches, and what was measured.",
    tables=tables,
    data=data,
    files=("predicted", "predicted_kinds"),
)
