"""What cases would take on other networks, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def what_ifs(summary: Summary) -> Iterator[Grid]:
    """Yield the mean step of every traced case on the networks that were asked about."""
    rows: list[Row] = []
    for entry in summary.what_ifs:
        label = text.clean(summary.point(entry.case).label)
        times = (entry.measured_s, entry.replayed_s, entry.expected_s)
        rows.append(
            (
                "",
                (label, text.clean(entry.network), *map(text.duration, times), f"{entry.change:+.1%}"),
            )
        )
    if rows:
        yield Grid(
            title="What if (mean step)",
            columns=(
                *(Column("case", right=False, fold=True), Column("network", right=False, fold=True)),
                *(Column("measured"), Column("replayed"), Column("expected"), Column("change")),
            ),
            rows=tuple(rows),
            caption="replayed: on the network as it was; expected: on the other; change: from that to this",
        )
