"""The network by itself: bare collectives, and recorded steps replayed on others."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report import text
from pscale.report.table import Column, Columns, Table, listed
from pscale.report.topics.topic import Topic, case_column

_BANDWIDTHS: Columns = (
    Column("verb", get=lambda each: each.verb.replace("_", "-")),
    "ranks",
    Column("size", get="message_bytes"),
    Column("time", get="call_s"),
    Column(wide=True, get="least_s"),
    Column(wide=True, get="most_s"),
    Column("algorithm B/s", get="algorithm_bytes_per_s"),
    Column("bus B/s", get="bus_bytes_per_s"),
    Column(write=text.percent, get="hidden"),
)


def _bandwidths(findings: Findings) -> Iterator[Table]:
    """Yield, per axis, time and bandwidth of every verb and size, as OSU's benchmarks and nccl-tests do."""
    caption = (
        "size: of the larger array; time: mean over ranks; bus: algorithm × 2 (p − 1) / p for "
        "all-reduce, × (p − 1) / p for others except broadcast, reduce and send; hidden: share of "
        "nonblocking calls that overlaps compute"
    )
    for axis, found in grouped(findings.rows("bandwidths"), lambda each: each.axis).items():
        yield from listed(f"Network performance on {axis} (per call)", found, _BANDWIDTHS, caption=caption)


def _what_ifs(findings: Findings) -> Iterator[Table]:
    """Yield the mean step of every traced case on the networks that were asked about."""
    columns: Columns = (
        case_column(findings),
        Column(fold=True, get="network"),
        *(Column(write=text.duration, get=name) for name in ("measured_s", "replayed_s", "expected_s")),
        "change",
    )
    caption = "replayed: on the original network; expected: on the other; change: from replayed"
    return listed("What if (mean step)", findings.rows("what_if"), columns, caption=caption)


COLLECTIVES = Topic(
    name="collectives",
    title="Bare collectives",
    lead="Time and bandwidth of each operation by message size, without training.",
    tables=_bandwidths,
    files=("bandwidths",),
)
WHAT_IF = Topic(
    name="what-if",
    title="What if",
    lead="The recorded steps, replayed on other networks.",
    tables=_what_ifs,
    files=("what_if",),
)
