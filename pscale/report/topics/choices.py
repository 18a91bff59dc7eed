"""Cases that differ in one choice alone: what it saves and costs beside the case without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Table, listed
from pscale.report.topics.topic import Topic, case_column

ON_TIME = (
    "NumPy has no products of 16 bits: operands are upcast to float32 and results rounded, which takes "
    "time. Time is not what 16 bits would save on hardware that has them; bytes and memory are."
)
_WRITERS: Mapping[str, Callable[[Any], str]] = {  # by the ends of names, the first that fits
    "_bytes": text.size_of,
    "bytes_per_s": text.size_rate,
    "step_s": text.duration,
    "_s": text.duration_3,
    "_ratio": text.number_3,
    "_more": text.change,
    "loss_last": text.number,
}


def _topic(
    name: str,
    title: str,
    lead: str,
    frame: str,
    *,
    caption: str,
    measures: Mapping[str, str],
    wide: Collection[str] = (),
) -> Topic:
    """Return the topic of a choice, whose `measures` are headings by columns of its frame."""

    def tables(findings: Findings) -> Iterator[Table]:
        columns = [
            case_column(findings),
            *(Column(said, _writer(name), name in wide, get=name) for name, said in measures.items()),
            Column("answer", get="answer"),
        ]
        rows = findings.rows(frame)
        heading = f"{title} (per rank and step)"
        yield from listed(heading, rows, columns, caption=caption, filled=True, files=(frame,))

    return Topic(name=name, title=title, lead=lead, tables=tables, files=(frame,))


def _writer(name: str) -> Callable[[Any], str]:
    """Return how a value is written: by its unit, which ends its name."""
    return next(write for ending, write in _WRITERS.items() if name.endswith(ending))


COMPRESSION = _topic(
    "compression",
    "Compressed gradients",
    "What compression saves and costs, relative to the same cases without it.",
    "compressed",
    caption="sent: payload of all calls; × none: relative to the same case without compression; "
    "sync compute: encoding, decoding, summing; loss: of the last measured step; "
    "more: than without compression",
    measures={
        "sent_bytes": "sent",
        "sent_ratio": "× none",
        "step_s": "step",
        "step_ratio": "× none's",
        "sync_compute_s": "sync compute",
        "loss_last": "loss",
        "loss_more": "more",
    },
)
PRECISION = _topic(
    "precision",
    "Precision",
    ON_TIME,
    "precision",
    caption="sent: payload of all calls; held: by the fullest rank; ×: relative to the same case in "
    f"float32; loss: of the last measured step; more: than in float32. {ON_TIME}",
    measures={
        "sent_bytes": "sent",
        "sent_ratio": "×",
        "held_bytes": "held",
        "held_ratio": "×",
        "step_s": "step",
        "step_ratio": "×",
        "loss_last": "loss",
        "loss_more": "more",
    },
)
OFFLOAD = _topic(
    "offload",
    "Offload",
    "What moves from memory to a file, what that saves, and what it costs.",
    "offloaded",
    caption="memory: peak resident memory of the fullest rank, minus that of the process without "
    "its model; at: bytes read and written per second of the I/O thread; "
    "stalled: wait of the step for it; × none: relative to the same case without offload",
    measures={
        "memory_bytes": "memory",
        "memory_ratio": "× none",
        "file_bytes": "in a file",
        "read_bytes": "read",
        "written_bytes": "written",
        "bytes_per_s": "at",
        "io_s": "moving",
        "stall_s": "stalled",
        "step_s": "step",
        "step_ratio": "× none's",
    },
    wide=("bytes_per_s", "io_s"),
)
OPTIMIZERS = _topic(
    "optimizers",
    "Optimizers",
    "Loss after the same number of steps, and the cost of state and update.",
    "optimizers",
    caption="loss: of the last measured step; more: above the lowest among cases that only differ "
    "in optimizer and learning rate; state: of the optimizer, on the fullest rank; "
    "update: the whole phase, including its communication; × fastest: of the same cases",
    measures={
        "loss_last": "loss",
        "loss_more": "more",
        "state_bytes": "state",
        "update_s": "update",
        "update_compute_s": "computing",
        "step_s": "step",
        "step_ratio": "× fastest",
    },
    wide=("update_compute_s", "step_ratio"),
)
