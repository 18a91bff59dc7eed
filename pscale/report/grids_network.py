"""The table of bare collectives, as OSU's benchmarks and nccl-tests print them."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def bandwidths(summary: Summary) -> Iterator[Grid]:
    """Yield, per axis, time and bandwidth of every verb and size."""
    columns = (
        *(Column("verb", right=False), Column("ranks"), Column("size"), Column("time")),
        *(Column("least", wide=True), Column("most", wide=True)),
        *(Column("algorithm B/s"), Column("bus B/s"), Column("hidden")),
    )
    for axis in dict.fromkeys(each.axis for each in summary.bandwidths):
        rows: list[Row] = [
            (
                "",
                (
                    each.verb.replace("_", "-"),
                    f"{each.ranks}",
                    text.size_of(each.message_bytes),
                    *(text.duration(seconds, 3) for seconds in (each.call_s, each.least_s, each.most_s)),
                    text.rate(each.algorithm_bytes_per_s),
                    text.rate(each.bus_bytes_per_s),
                    text.percent(each.hidden),
                ),
            )
            for each in summary.bandwidths
            if each.axis == axis
        ]
        yield Grid(
            title=f"What the network gives on {axis} (per call)",
            columns=columns,
            rows=tuple(rows),
            caption="size: of the larger array; time: mean over ranks; bus: algorithm × 2 (p − 1) / p for "
            "all-reduce, × (p − 1) / p for others but broadcast, reduce and send; hidden: of started "
            "calls, under way while the rank computed",
        )
