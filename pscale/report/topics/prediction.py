"""What was predicted before the run, beside what it measured, kind by kind, and the score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.predicted import Score, score
from pscale.report import text
from pscale.report.table import Column, Table, Written, listed
from pscale.report.topics.topic import Topic, case_column


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the step and every kind of time, predicted and measured."""
    predictions, times = findings.rows("predicted"), findings.rows("predicted_kinds")
    kinds = list(dict.fromkeys(time.kind for time in times))
    of_kinds = {(time.case, time.kind): time for time in times}
    inside = Column("inside", str, get=_inside)
    columns = (
        case_column(findings),
        Column("predicted", text.duration_3, get="predicted_s"),
        Column("90% of launches", str, get=_bounds),
        Column("measured", text.duration_3, get="measured_s"),
        Column("error", text.change, get="error"),
        inside,
        *(Column(kind, str, wide=True, get=_both(of_kinds, kind)) for kind in kinds),
    )
    caption = "by kind: predicted → measured, per step of the mean rank" * bool(kinds)
    yield from listed("Predicted beside measured", predictions, columns, caption=caption)
    found = score(predictions)
    scored = (
        Column("cases", str, get="cases"),
        Column("mean error", text.percent_1, get="mean_error"),
        Column("largest error", text.percent_1, get="largest_error"),
        inside,
    )
    caption = "inside: launches in the interval that should hold nine in ten of them"
    yield from listed("Score of the predictions", [found] if found else [], scored, caption=caption)


def _inside(found: Row | Score) -> Written:
    return Written(found.inside, f"{found.inside} of {found.launches}")


def _bounds(held: Row) -> Written:
    words = f"{text.duration_3(held.low_s)} to {text.duration_3(held.high_s)}"
    return Written(held.high_s / held.low_s, words)


def _both(times: Mapping[tuple[str, str], Row], kind: str) -> Callable[[Row], Written | None]:
    def both(held: Row) -> Written | None:
        found = times.get((held.case, kind))
        if found is None:
            return None
        measured = "unknown" if found.measured_s is None else text.duration_3(found.measured_s)
        return Written(found.predicted_s, f"{text.duration_3(found.predicted_s)} → {measured}")

    return both


TOPIC = Topic(
    name="prediction",
    title="Predicted beside measured",
    lead="Predictions that `pscale predict` recorded before these launches, and what was measured.",
    tables=tables,
    files=("predicted", "predicted_kinds"),
)
