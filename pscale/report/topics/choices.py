"""Cases side by side: cost, figures of merit, and what one choice saves beside the case without it."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.findings import Findings
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.table import Column, Columns, Table, listed
from pscale.report.topics.topic import Topic, case_column

ON_TIME = (
    "NumPy has no products of 16 bits: operands are upcast to float32 and results rounded, which takes "
    "time. Time is not what 16 bits would save on hardware that has them; bytes and memory are."
)


def _costs(findings: Findings) -> Iterator[Table]:
    """Yield the cost of every measured case."""
    rows = findings.rows("costs")
    work = "samples" if {cost.unit for cost in rows} - {""} == {"sample"} else "units of work"
    columns: Columns = (
        *(case_column(findings), "cores"),
        Column("core time of a step", text.duration, get="core_s"),
        Column(f"core-hours for 1M {work}", get="core_hours", write=text.number_3),
        *(Column("cost over base", get="relative"), Column(get="relative", interval=True, wide=True)),
    )
    caption = "cost over base: core time for the same work, over that of the base case (1 / efficiency)"
    caption *= any(cost.relative for cost in rows)
    return listed("Cost", rows, columns, caption=caption, filled=True)


COSTS = Topic(
    name="costs",
    title="Cost",
    lead="Core time is cores × step time: what an allocation is charged for.",
    tables=_costs,
    files=("costs",),
    rows_per_case="cases",
)


def _merits(findings: Findings) -> Iterator[Table]:
    """Yield every figure of every case."""

    def bounds(value: Estimate) -> str:
        return "–".join(map(text.number, value.stated)) if value.stated else text.MISSING

    interval = Column("95% interval", bounds, interval=True, get="value")
    launches = Column(get="launches", wide=True)
    columns = (case_column(findings), "figure", "value", interval, "unit", "better", launches)
    return listed("Figures of merit", findings.rows("merits"), columns, grouped=True, filled=True)


MERITS = Topic(
    name="merits",
    title="Figures of merit",
    lead="Figures of merit printed by the program: means over launches.",
    tables=_merits,
    files=("merits",),
)


def _over(name: str, heading: str = "×") -> Column:
    """Return the column of a ratio to the reference."""
    return Column(heading, get=f"{name}_ratio")


_STEP = Column(write=text.duration, get="step_s")
_LOSS = (Column("loss", get="loss_last"), Column("more", get="loss_more"))


def _topic(name: str, title: str, lead: str, frame: str, *columns: Column | str, caption: str) -> Topic:
    """Return the topic of a choice, with these columns of its frame."""

    def tables(findings: Findings) -> Iterator[Table]:
        shown, rows = (case_column(findings), *columns, "answer"), findings.rows(frame)
        heading = f"{title} (per rank and step)"
        yield from listed(heading, rows, shown, caption=caption, filled=True, files=(frame,))

    return Topic(name=name, title=title, lead=lead, tables=tables, files=(frame,))


COMPRESSION = _topic(
    "compression",
    "Compressed gradients",
    "What compression saves and costs, relative to the same cases without it.",
    "compressed",
    *("sent_bytes", _over("sent", "× none"), _STEP, _over("step", "× none's"), "sync_compute_s", *_LOSS),
    caption="sent: payload of all calls; × none: relative to the same case without compression; "
    "sync compute: encoding, decoding, summing; loss: of the last measured step; "
    "more: than without compression",
)
PRECISION = _topic(
    "precision",
    "Precision",
    ON_TIME,
    "precision",
    *("sent_bytes", _over("sent"), "held_bytes", _over("held"), _STEP, _over("step"), *_LOSS),
    caption="sent: payload of all calls; held: by the fullest rank; ×: relative to the same case in "
    f"float32; loss: of the last measured step; more: than in float32. {ON_TIME}",
)
OFFLOAD = _topic(
    "offload",
    "Offload",
    "What moves from memory to a file, what that saves, and what it costs.",
    "offloaded",
    *("memory_bytes", _over("memory", "× none"), Column("in a file", get="file_bytes")),
    *("read_bytes", "written_bytes", Column("at", text.size_rate, wide=True, get="bytes_per_s")),
    *(Column("moving", wide=True, get="io_s"), Column("stalled", get="stall_s")),
    *(_STEP, _over("step", "× none's")),
    caption="memory: peak resident memory of the fullest rank, minus that of the process without "
    "its model; at: bytes read and written per second of the I/O thread; "
    "stalled: wait of the step for it; × none: relative to the same case without offload",
)
OPTIMIZERS = _topic(
    "optimizers",
    "Optimizers",
    "Loss after the same number of steps, and the cost of state and update.",
    "optimizers",
    *(*_LOSS, "state_bytes", "update_s", Column("computing", wide=True, get="update_compute_s"), _STEP),
    Column("× fastest", wide=True, get="step_ratio"),
    caption="loss: of the last measured step; more: above the lowest among cases that only differ "
    "in optimizer and learning rate; state: of the optimizer, on the fullest rank; "
    "update: the whole phase, including its communication; × fastest: of the same cases",
)
