"""Cases that differ in one choice alone: what it saves and costs beside the case without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import records, shared_work
from pscale.analysis.memory import by_kind
from pscale.report import text
from pscale.report.table import Column, Table, TableRow
from pscale.report.topics.topic import Topic

ON_TIME = (
    "NumPy has no products of 16 bits: operands are upcast to float32 and results rounded, which takes "
    "time. Time is not what 16 bits would save on hardware that has them; bytes and memory are."
)
_OF_OPTIMIZERS = (  # what is chosen with an optimizer, as each of them needs other numbers
    *("optimizer", "lr", "lr_scaling", "lr_batch", "lr_schedule", "lr_warmup", "lr_final"),
    *("momentum", "beta1", "beta2", "epsilon", "weight_decay", "clip"),
)
_MOVED = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")
_RELATIVE = {  # what is beside the reference, and what is taken off the ratio
    **{f"{name}_ratio": (f"{name}_bytes", 0) for name in ("sent", "held", "memory")},
    "step_ratio": ("step_s", 0),
    "loss_more": ("loss_last", 1),
}
_WRITERS: Mapping[str, Callable[[Any], str]] = {  # by the ends of names, the first that fits
    "_bytes": text.size_of,
    "bytes_per_s": text.size_rate,
    "step_s": text.duration,
    "_s": text.duration_3,
    "_ratio": text.number_3,
    "_more": text.change,
    "loss_last": text.number,
}
Planned = Mapping[str, Any]  # the configuration of a case
Known = Mapping[str, float | None]  # values of a case by name


class Costs:
    """What is known of the cases of a run, by case: values by the names that programs read."""

    def __init__(self, findings: Findings):
        self._moved = _moved(findings)
        self._memory = findings.of_case("memory")
        self._phases = {(time.case, time.phase): time for time in findings.rows("phases")}
        self._sent_bytes: dict[str, float] = {}
        for call in findings.rows("calls"):
            self._sent_bytes[call.case] = self._sent_bytes.get(call.case, 0.0) + call.bytes

    def of(self, point: Row) -> Mapping[str, float | None]:
        """Return what a case costs and reaches: of a rank and step, as a mean, or of the fullest rank."""
        memory, moved = self._memory.get(point.case), self._moved.get(point.case, dict.fromkeys(_MOVED, 0.0))
        held = by_kind(memory) if memory else {}
        in_file = (memory.counted_offloaded_bytes, memory.predicted_offloaded_bytes) if memory else ()
        sync, update = (self._phases.get((point.case, phase)) for phase in ("sync", "update"))
        read_bytes, written_bytes, io_s = (
            moved[f"offload_{name}"] for name in ("read_bytes", "write_bytes", "io_s")
        )
        return {
            "sent_bytes": self._sent_bytes.get(point.case, 0.0),
            "held_bytes": sum(held.values()) if held else None,
            "state_bytes": held.get("optimizer"),
            "memory_bytes": memory.measured_bytes if memory else None,
            "file_bytes": next((size for size in in_file if size is not None), None),
            "read_bytes": read_bytes,
            "written_bytes": written_bytes,
            "bytes_per_s": (read_bytes + written_bytes) / io_s if io_s else None,
            "io_s": io_s,
            "stall_s": moved["offload_s"],
            "sync_compute_s": sync.compute_s if sync else 0.0,
            "update_s": update.inside_s if update else None,
            "update_compute_s": update.compute_s if update else None,
            "step_s": point.step_s.value if point.step_s else None,
            "loss_last": point.loss_last,
        }


def _moved(findings: Findings) -> Mapping[str, Mapping[str, Any]]:
    """Return what a rank moved to and from a file in a step, and how long that took."""
    run = findings.source
    sums = run.phases.groupby("case", observed=True)[list(_MOVED)].sum()
    steps = run.seats.groupby("case", observed=True)["steps"].sum()
    means = sums.div(steps, axis=0).dropna().reset_index().astype({"case": str})
    return {row["case"]: row for row in records(means)}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What cases of a group differ in, and what is compared.

    They may differ in the members `differ` of their groups of settings; `settings` returns those for
    programs, the first of which is what was chosen. The reference is the case that has chosen the first of
    `plain` that there is; without `plain`, the least value of the group. `measures` are headings by the names
    of Costs, and of what is made of them and the reference; `wide` ones need a wide terminal.
    """

    differ: Mapping[str, Collection[str]]
    settings: Callable[[Planned], Mapping[str, Any]]
    plain: Sequence[str] = ()
    title: str
    caption: str
    measures: Mapping[str, str]
    wide: Collection[str] = ()

    def tables(self, findings: Findings) -> Iterator[Table]:
        """Yield the table of the cases that were measured beside another choice."""
        if (table := self.data(findings)).rows:
            yield table.filled()

    def data(self, findings: Findings) -> Table:
        """Return the same table with or without rows."""
        columns = (
            *(Column("", key="case"), Column("case", fold=True, key="label")),
            *(Column("", key=name) for name in self.settings({})),
            *(
                Column(said, _writer(name), name in self.wide, key=name)
                for name, said in self.measures.items()
            ),
        )
        return Table(
            title=self.title, columns=columns, rows=tuple(self._rows(findings)), caption=self.caption
        )

    def _rows(self, findings: Findings) -> Iterator[TableRow]:
        planned = findings.source.planned
        chosen = {case: self._chosen(settings) for case, settings in planned.items()}
        if not self._differ(chosen.values()):
            return  # as in most runs, and cases to group may be thousands
        costs = Costs(findings)
        for members in matched(planned, findings.rows("cases"), self.differ):
            kinds = [chosen[point.case] for point in members]
            if self._differ(kinds):
                known = [costs.of(point) for point in members]
                plain = next((known[kinds.index(kind)] for kind in self.plain if kind in kinds), None)
                for point, mine in zip(members, known, strict=True):
                    values = (self._value(name, mine, plain, known) for name in self.measures)
                    yield "", (point.case, point.label, *self.settings(planned[point.case]).values(), *values)

    def _chosen(self, planned: Planned) -> str:
        kind = next(iter(self.settings(planned).values()))
        return str(kind if kind is not None or not self.plain else self.plain[0])

    def _differ(self, kinds: Collection[str]) -> bool:
        """Tell whether there is something to compare: a choice that is not plain, or several."""
        if self.plain:
            return any(kind not in self.plain for kind in kinds)
        return len({*kinds} - {"None"}) > 1

    def _value(self, name: str, mine: Known, plain: Known | None, group: Sequence[Known]) -> float | None:
        """Return a value of a case, or what is made of it and that of the reference."""
        source, minus = _RELATIVE.get(name, (name, None))
        value = mine[source]
        if minus is None or value is None:
            return value
        others = [known for each in group if (known := each[source]) is not None]
        reference = plain[source] if plain else None if self.plain else min(others)
        return value / reference - minus if reference else None


def _writer(name: str) -> Callable[[Any], str]:
    """Return how a value is written: by its unit, which ends its name."""
    return next(write for ending, write in _WRITERS.items() if name.endswith(ending))


def matched(
    planned: Mapping[str, Planned], points: Sequence[Row], differ: Mapping[str, Collection[str]]
) -> list[list[Row]]:
    """Group the measured cases that are equal but for the members `differ` of their groups of settings."""
    groups: dict[str, list[Row]] = {}
    for point in points:
        case = planned.get(point.case, {})
        if point.step_s and differ.keys() <= case.keys():
            groups.setdefault(shared_work(case, **differ), []).append(point)
    return list(groups.values())


def _topic(name: str, title: str, lead: str, csv: str, choice: Choice) -> Topic:
    return Topic(
        name=name,
        title=title,
        lead=lead,
        tables=choice.tables,
        data=lambda findings: {csv: choice.data(findings)},
        computed=(csv,),
        files=(csv,),
    )


COMPRESSION = _topic(
    "compression",
    "Compressed gradients",
    "What compression saves and costs, relative to the same cases without it.",
    "compressed",
    Choice(
        differ={"plan": ("compression", "compression_share", "compression_rank")},
        settings=lambda case: {"compression": case.get("plan", {}).get("compression")},
        plain=("none",),
        title="Compressed gradients (per rank and step)",
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
    ),
)
PRECISION = _topic(
    "precision",
    "Precision",
    ON_TIME,
    "precision",
    Choice(
        differ={
            "model": ("dtype",),
            "precision": ("reduce", "loss_scale", "initial_scale", "growth_interval"),
        },
        settings=lambda case: {
            "precision": case.get("model", {}).get("dtype"),
            "reduce": case.get("precision", {}).get("reduce", "wire"),
        },
        plain=("float32", "float64"),
        title="Precision (per rank and step)",
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
    ),
)
OFFLOAD = _topic(
    "offload",
    "Offload",
    "What moves from memory to a file, what that saves, and what it costs.",
    "offloaded",
    Choice(
        differ={"plan": ("offload", "offload_folder", "offload_chunk_bytes")},
        settings=lambda case: {"offload": case.get("plan", {}).get("offload")},
        plain=("none",),
        title="Offload (per rank and step)",
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
    ),
)
OPTIMIZERS = _topic(
    "optimizers",
    "Optimizers",
    "Loss after the same number of steps, and the cost of state and update.",
    "optimizers",
    Choice(
        differ={"train": _OF_OPTIMIZERS},
        settings=lambda case: {name: case.get("train", {}).get(name) for name in ("optimizer", "lr")},
        title="Optimizers (per rank and step)",
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
    ),
)
