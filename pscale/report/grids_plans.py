"""The tables that compare plans: their ranking, what they hold in memory, bubbles, experts."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.memory import KINDS, Memory
from pscale.analysis.ranking import LOSSES, Place
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row, Tone

_SAME = 0.005  # counted and predicted are shown as one number up to here


def ranking(summary: Summary) -> Iterator[Grid]:
    """Yield, per group of plans of the same work, who is fastest and what costs the others."""
    groups: dict[str, list[Place]] = {}
    for place in summary.ranking:
        groups.setdefault(place.group, []).append(place)
    columns = (
        *(Column("#"), Column("plan", right=False, fold=True), Column("step"), Column("× fastest")),
        Column("95% interval"),
        *(Column(name, wide=True) for name in ("exchange", "bubble", "wait", "compute", "copies")),
        Column("largest loss", right=False),
    )
    for group, places in groups.items():
        title = "Which plan is fastest" + (f": {text.clean(group)}" if group and len(groups) > 1 else "")
        yield Grid(
            title=title,
            columns=columns,
            rows=tuple(_place(summary, place) for place in places),
            caption="shares of the plan's own step; = cannot be told apart from the fastest; "
            "? launches differ too much to tell; extra computing: beyond the plan that computes least",
        ).without(text.MISSING)


def _place(summary: Summary, place: Place) -> Row:
    point = summary.point(place.case)
    loss = f"{LOSSES[place.loss]} {getattr(place, place.loss):.0%}" if place.loss else "none"
    tone: Tone = "good" if place.place == 1 else ""
    return tone, (
        "=" if place.tied else "?" if place.vague else f"{place.place}",
        text.clean(place.plan) or text.clean(point.label),
        text.duration(point.step_s.value if point.step_s else None),
        f"{place.ratio.value:.3g}",
        _interval(place) if place.place != 1 or place.tied else "",
        *(text.percent(share) for share in (place.exchange, place.bubble or None, place.wait)),
        *(text.percent(share) for share in (place.compute, place.copies or None)),
        loss,
    )


def _interval(place: Place) -> str:
    low, high = place.ratio.low, place.ratio.high
    if low is None or high is None:
        return text.MISSING
    return "too wide" if place.vague else f"{low:.3g}–{high:.3g}"


def bubbles(summary: Summary) -> Iterator[Grid]:
    """Yield the idle time of pipelines, predicted and measured."""
    columns = (
        *(Column("case", right=False, fold=True), Column("stages"), Column("micro-batches")),
        *(Column("predicted"), Column("measured")),
    )
    rows: list[Row] = [
        (
            "",
            (
                text.clean(summary.point(bubble.case).label),
                f"{bubble.stages}" + (f" × {bubble.chunks}" if bubble.chunks > 1 else ""),
                f"{bubble.micro_batches}",
                text.percent(bubble.predicted, 1),
                text.percent(bubble.measured, 1),
            ),
        )
        for bubble in summary.bubbles
    ]
    if rows:
        yield Grid(
            title="Bubbles of pipelines (share of the step, mean over ranks)",
            columns=columns,
            rows=tuple(rows),
            caption="predicted: a dry run of the schedule whose parts cost what they multiply; "
            "measured: wait for other stages",
        )


def mixtures(summary: Summary) -> Iterator[Grid]:
    """Yield how evenly experts are used, and how many choices found no place."""
    columns = (
        *(Column("case", right=False, fold=True), Column("dropped choices"), Column("busiest expert")),
        Column("loss"),
    )
    rows: list[Row] = [
        (
            "",
            (
                text.clean(point.label),
                text.percent(point.dropped_share, 1),
                f"{point.expert_imbalance:.2f} × mean" if point.expert_imbalance else text.MISSING,
                text.number(point.loss_last),
            ),
        )
        for point in summary.points
        if point.dropped_share is not None
    ]
    if rows:
        yield Grid(title="Experts (mean over steps and blocks)", columns=columns, rows=tuple(rows))


def memory(summary: Summary) -> Iterator[Grid]:
    """Yield what the fullest rank of every case holds: predicted, counted, measured."""
    if not summary.memory:
        return
    columns = (
        *(Column("case", right=False, fold=True), *(Column(kind, wide=True) for kind in KINDS)),
        *(Column("predicted"), Column("counted"), Column("measured"), Column("libraries")),
        *(Column("÷ predicted"), Column("in a file")),
        Column("FLOPs done again"),
    )
    notes = [
        "measured: peak of resident memory above the process without its model; "
        "libraries: what of it was not counted, such as MPI's copies of sums under way"
    ]
    if any(memory.counted and not memory.of_steps for memory in summary.memory):
        notes.append("where the system keeps no peak of the measured steps, that of the whole process")
    if any("(" in _kind(memory, kind) for memory in summary.memory for kind in KINDS):
        notes.append("in brackets: predicted, where another size was counted")
    if any(memory.counted is None for memory in summary.memory):
        notes.append("dim: predicted alone, as the case has no result")
    yield Grid(
        title="Memory of the fullest rank",
        columns=columns,
        rows=tuple(_memory(summary, memory) for memory in summary.memory),
        caption="; ".join(notes),
    ).without(text.MISSING)


def _memory(summary: Summary, memory: Memory) -> Row:
    tone: Tone = "" if memory.counted else "pending"
    measured, predicted = memory.measured_bytes, memory.predicted_bytes
    return tone, (
        text.clean(summary.point(memory.case).label),
        *(_kind(memory, kind) for kind in KINDS),
        text.size_of(predicted),
        text.size_of(memory.counted_bytes) if memory.counted else summary.point(memory.case).status,
        text.size_of(measured),
        text.size_of(memory.library_bytes),
        text.percent(measured / predicted) if measured and predicted else text.MISSING,
        _in_a_file(memory),
        text.percent(summary.point(memory.case).recomputed_share),
    )


def _in_a_file(memory: Memory) -> str:
    """Return what is offloaded; where the counted size is not the predicted one, both."""
    counted, predicted = memory.counted_offloaded_bytes, memory.predicted_offloaded_bytes
    shown = text.size_of(memory.offloaded_bytes) if memory.offloaded_bytes else text.MISSING
    return f"{shown} ({text.size_of(predicted)})" if predicted and counted not in (None, predicted) else shown


def _kind(memory: Memory, kind: str) -> str:
    """Return the size of a kind; where the counted one is not the predicted one, both."""
    expected = memory.expected or {}
    shown = text.size_of(expected.get(kind))
    if memory.counted is None or memory.predicted is None:
        return shown
    counted, predicted = memory.counted[kind], memory.predicted[kind]
    if abs(counted - predicted) <= _SAME * max(counted, predicted):
        return shown
    return f"{shown} ({text.size_of(predicted)})"
