"""What the machine gives and ranks use: bandwidths by themselves, cores by threads, memory by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.network import USUAL
from pscale.analysis.resources import by_kind
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.report.blocks import Topic, TopicFigure
from pscale.report.figure_style import MEMORY as COLOURS
from pscale.report.figure_style import QUIET
from pscale.report.table import CASE, Column, Columns, Table, Value, Written, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VERB = Column("verb", get=lambda each: each.verb.replace("_", "-"))
_NUMBERS: Columns = ("op", Column("type", get="dtype"))
_BANDWIDTHS: Columns = (
    "ranks",
    Column("size", get="message_bytes"),
    Column("time", get="call_s"),
    Column(wide=True, get="least_s"),
    Column(wide=True, get="most_s"),
    Column("algorithm B/s", get="algorithm_bytes_per_s"),
    Column("bus B/s", get="bus_bytes_per_s"),
    Column(write=text.percent_0, get="hidden"),
)
_MOST_THREADS = 8  # threads that are listed one by one
_SAME = 0.005  # counted and predicted are written as one number up to here
_MOST = 48  # bars
_LEAST_BYTES = 16 << 20  # a run whose ranks all hold less says nothing about memory
_COLOURS = dict(zip(KINDS, COLOURS, strict=True))
_FAINT = 0.35  # of a bar that is only predicted


def _bandwidths(findings: Findings) -> Iterator[Table]:
    """Yield, per axis, time and bandwidth of every verb and size, as OSU's benchmarks and nccl-tests do."""
    explain = ("message_bytes", "bus_bytes_per_s", "hidden")
    rows = findings.rows("bandwidths")
    usual = {(each.dtype, each.op or "sum") for each in rows} <= {(USUAL, "sum")}
    columns = (_VERB, *(() if usual else _NUMBERS), *_BANDWIDTHS)
    for axis, found in grouped(rows, lambda each: each.axis).items():
        yield from listed(f"Network performance on {axis} (per call)", found, columns, explain=explain)


def _threads(findings: Findings) -> Iterator[Table]:
    """Yield how the cores of a rank were used, if any case has several threads."""
    times = findings.rows("threads")
    if not any(time.threads > 1 for time in times):
        return

    def efficiency(time: Row) -> Value:
        most = "≤ " if time.spins and time.threads > 1 else ""
        return Written(time.efficiency, f"{most}{text.percent(time.efficiency)}")

    def split(time: Row) -> str:
        listed = ", ".join(f"{seconds * 1e3:.3g}" for seconds in time.cpu_s[:_MOST_THREADS])
        more = len(time.cpu_s) - _MOST_THREADS
        return f"{listed}{f' and {more} more' if more > 0 else ''} ms"

    columns: Columns = (
        *(CASE, Column("efficiency", text.percent, band=True, get=efficiency)),
        *(Column("in MPI", get="in_mpi"), "single", Column("imbal.", get="imbalance"), "off_core"),
        Column("split", fold=True, get=split, note="CPU time of the main thread and of the others, per step"),
    )
    caption = "shares of the cores' time"
    if any(time.spins for time in times):
        caption += (
            "; ≤: threads without work may spin, which is CPU time too: single and imbalance are at least "
            "what is stated (docs/measurement.md says how to let them sleep)"
        )
    yield from listed("Threads of a rank", times, columns, caption=caption)


def _memory(findings: Findings) -> Iterator[Table]:
    """Yield what the fullest rank of every case holds: predicted, counted, measured."""
    rows = findings.rows("memory")

    def counted(memory: Row) -> Value:
        return memory.counted_bytes or findings.case(memory.case).status  # type: ignore[no-any-return]

    def in_a_file(memory: Row) -> Value:
        sizes = memory.counted_offloaded_bytes, memory.predicted_offloaded_bytes
        return _both((sizes[1] if sizes[0] is None else sizes[0]) or None, sizes[0], sizes[1] or None, same=0)

    def ratio(memory: Row) -> Value:
        known = memory.measured_bytes and memory.predicted_bytes
        return memory.measured_bytes / memory.predicted_bytes if known else None

    def recomputed(memory: Row) -> Value:
        return findings.case(memory.case).recomputed_share  # type: ignore[no-any-return]

    columns: Columns = (
        CASE,
        *(Column(kind, text.size_of, wide=True, get=_sizes(kind)) for kind in KINDS),
        *("predicted_bytes", Column("counted", text.size_of, get=counted), "measured_bytes"),
        *(Column("libraries", get="library_bytes"), Column("of predicted", text.percent_0, get=ratio)),
        Column("in a file", text.size_of, get=in_a_file),
        Column("recomputed FLOPs", text.percent_0, get=recomputed),
    )
    how: dict[str, Any] = {"tone": lambda memory: "" if memory.counted_bytes else "pending", "filled": True}
    for table in listed("Memory of the fullest rank", rows, columns, **how):
        yield replace(table, caption="; ".join(_notes(rows, table)))


def _notes(rows: Sequence[Row], table: Table) -> Iterator[str]:
    yield (
        "measured: peak resident memory minus that of the process without its model; "
        "libraries: measured but not counted, such as MPI's copies during reductions"
    )
    if any(memory.counted_bytes and not memory.of_steps for memory in rows):
        yield "where the system keeps no peak for the measured steps: peak of the whole process"
    if any(isinstance(value, Written) and "(" in value.text for _, values in table.rows for value in values):
        yield "in brackets: predicted, if the counted size differs"
    if any(memory.counted_bytes is None for memory in rows):
        yield "dim: predicted only, because the case has no result"


def _sizes(kind: str) -> Callable[[Row], Value]:
    def both(memory: Row) -> Value:
        sizes = (getattr(memory, f"{source}_{kind}_bytes") for source in ("counted", "predicted"))
        return _both(by_kind(memory).get(kind), *sizes)

    return both


def _both(known: float | None, counted: float | None, predicted: float | None, same: float = _SAME) -> Value:
    """Return a size; where the counted one is not the predicted one, both."""
    if counted is None or predicted is None or abs(counted - predicted) <= same * max(counted, predicted):
        return known
    return None if known is None else Written(known, f"{text.size_of(known)} ({text.size_of(predicted)})")


def figure(findings: Findings) -> Figure | None:
    """Draw one bar a case; None where no rank holds much."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from pscale.report import drawing

    known, bars = findings.rows("memory"), []
    largest = max((max(sum(by_kind(row).values()), row.measured_bytes or 0) for row in known), default=0)
    if largest < _LEAST_BYTES:
        return None
    unit, name = (1 << 30, "GiB") if largest >= 4 << 30 else (1 << 20, "MiB")
    for row in known:
        alpha, sizes, measured = 1.0 if row.counted_bytes else _FAINT, by_kind(row), row.measured_bytes
        parts = [
            drawing.Part(size / unit, (_COLOURS[kind], alpha), f"{row.label}: {kind} {text.size_of(size)}")
            for kind, size in sizes.items()
        ]
        said = text.size_of(sum(sizes.values()) if measured is None else measured)
        beside = None if measured is None else (measured / unit, f"{row.label}: measured {said}")
        said += ", predicted" * (measured is None and not row.counted_bytes)
        bars.append(drawing.Bar(row.label, row.case, parts, said, beside=beside))
    figure, (axes,) = drawing.bar_chart(findings.title, [("", bars)], most=_MOST, noun="cases")
    axes.set_xlabel(f"memory of the fullest rank, {name}")
    others: list[tuple[Any, str]] = []
    if any(row.measured_bytes is not None for row in known):
        others.append((Line2D([], [], **drawing.BESIDE), "measured"))
    if any(row.counted_bytes is None for row in known):
        others.append((Patch(color=QUIET, alpha=_FAINT), "pale: predicted only"))
    drawing.below(figure, _COLOURS, *others)
    return figure


COLLECTIVES = Topic(
    name="collectives",
    title="Bare collectives",
    lead="Time and bandwidth of each operation by message size, without training.",
    tables=_bandwidths,
)
THREADS = Topic(
    name="threads",
    title="Threads",
    lead="How the cores of a rank were used.",
    tables=_threads,
)
MEMORY = Topic(
    name="memory",
    title="Memory",
    lead="Predicted before the run, counted by the job, measured by the system.",
    tables=_memory,
    figure=TopicFigure(
        name="memory",
        title="Memory of the fullest rank by kind",
        description="One bar a case, made of parameters, gradients, optimizer, activations and exchange, as "
        "predicted; a mark where the system measured the peak.",
        draw=figure,
    ),
)
