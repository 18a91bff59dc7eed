"""What was predicted before the run, beside what it measured, kind by kind, and the score."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Columns, Table, Written, listed
from pscale.report.topics.topic import Topic, case_column

_INSIDE = Column("inside", str, get=lambda row: Written(row.inside, f"{row.inside} of {row.launches}"))


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the step and every kind of time, predicted and measured."""
    times = {(row.case, row.kind): row for row in findings.rows("predicted_kinds")}
    kinds = dict.fromkeys(kind for _, kind in times)

    def both(kind: str) -> Callable[[Row], Written | None]:
        return lambda row: _both(times.get((row.case, kind)))

    columns: Columns = (
        case_column(findings),
        "predicted_s",
        Column("90% of launches", str, get=_bounds),
        "measured_s",
        "error",
        _INSIDE,
        *(Column(kind, str, wide=True, get=both(kind)) for kind in kinds),
    )
    caption = "by kind: predicted → measured, per step of the mean rank" * bool(kinds)
    yield from listed("Predicted beside measured", findings.rows("predicted"), columns, caption=caption)
    columns = ("cases", "mean_error", "largest_error", _INSIDE)
    caption = "inside: launches in the interval that should hold nine in ten of them"
    scores = findings.rows("prediction_score")
    yield from listed("Score of the predictions", scores, columns, caption=caption)


def _bounds(row: Row) -> Written:
    return Written(row.high_s / row.low_s, f"{text.duration_3(row.low_s)} to {text.duration_3(row.high_s)}")


def _both(row: Row | None) -> Written | None:
    if row is None:
        return None
    measured = "unknown" if row.measured_s is None else text.duration_3(row.measured_s)
    return Written(row.predicted_s, f"{text.duration_3(row.predicted_s)} → {measured}")


TOPIC = Topic(
    name="prediction",
    title="Predicted beside measured",
    lead="Predictions that `pscale predict` recorded before these launches, and what was measured.",
    tables=tables,
    files=("predicted", "predicted_kinds", "prediction_score"),
)
