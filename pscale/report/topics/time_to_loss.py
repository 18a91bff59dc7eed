"""How soon a training reaches a validation loss: steps, seconds and core-hours, by ranks and batch."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis import messages, text
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report.blocks import Topic
from pscale.report.table import Column, Columns, Table, listed

_COLUMNS: Columns = (
    *("ranks", "batch", "seeds"),
    Column("steps", text.number_3, get="to_loss_steps"),
    Column("time", get="to_loss_s"),
    Column(get="to_loss_s", interval=True),
    Column("core-hours", text.number_3, get="to_loss_core_hours"),
    Column("× fewer ranks", get="over"),
    "answer",
)


def _tables(findings: Findings) -> Iterator[Table]:
    """Yield a table for each model and data."""
    for target, trainings in grouped(findings.rows("time_to_loss"), lambda row: row.target).items():
        said = messages.stops_paying(trainings)
        yield from listed(
            f"Time to a validation loss of {text.number(target)}",
            trainings,
            _COLUMNS,
            caption=f"{said}." * bool(said),
            explain=("to_loss_s", "over"),
            filled=True,
        )


TOPIC = Topic(
    name="time-to-loss",
    title="Time to loss",
    lead="A larger batch keeps more ranks busy, and takes more text to reach the same loss.",
    tables=_tables,
)
