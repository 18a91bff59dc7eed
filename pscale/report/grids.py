"""The tables of a report as plain text cells, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.analysis.phases import CallTime, RankTime
from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row, Tone

_VARIANTS = 4  # side by side whose ranks are told of one by one


def phases(summary: Summary, most: int) -> Iterator[Grid]:
    """Yield, per series, every phase's kinds of time by case; at most `most` cases side by side.

    Where all cases are side by side, the ranking of plans says it in fewer words.
    """
    if summary.side_by_side and summary.ranking:
        return
    groups = {"": summary.points} if summary.side_by_side else summary.series
    for series, points in groups.items():
        measured = [point for point in points if any(time.case == point.case for time in summary.phases)]
        for start in range(0, len(measured), most):
            chosen = measured[start : start + most]
            columns = (Column("phase", right=False), Column("time", right=False))
            yield Grid(
                title=titled("Where a step goes (per step, mean over ranks)", series, summary),
                columns=(*columns, *(Column(name, fold=True) for name in _names(chosen))),
                rows=tuple(_phase_rows(summary, chosen)),
                caption="hidden: communication under way during compute; beside the others, not added",
            )


def _phase_rows(summary: Summary, points: Sequence[Point]) -> Iterator[Row]:
    times = {(time.case, time.phase): time for time in summary.phases}
    for phase in dict.fromkeys(phase for _, phase in times):
        name = phase
        for kind in ("compute", "transfer", "wait", "together", "copy", "offload", "hidden"):
            cells = [times.get((point.case, phase)) for point in points]
            values = [getattr(cell, f"{kind}_s") if cell else None for cell in cells]
            if any(values):
                yield "", (name, text.KINDS.get(kind, kind), *(text.duration(value, 3) for value in values))
                name = ""


def ranks(summary: Summary) -> Iterator[Grid]:
    """Yield the ranks that compute most in the largest case of every series, but not of many variants."""
    if summary.side_by_side and len({rank.case for rank in summary.ranks}) > _VARIANTS:
        return
    rows = []
    for points in summary.series.values():
        measured = [point for point in points if any(rank.case == point.case for rank in summary.ranks)]
        for point in measured[-1:]:
            rows += [_rank_row(summary, point, rank) for rank in summary.ranks if rank.case == point.case]
    columns = (
        *(Column("case", right=False, fold=True), Column("rank"), Column("host", right=False, fold=True)),
        *(Column("compute"), Column("beyond typical"), Column("most in", right=False)),
        *(Column("wait"), Column("transfer", wide=True), *together(summary.ranks)),
        Column("unaccounted", wide=True),
    )
    if rows:
        yield Grid(title="Slowest ranks (per step)", columns=columns, rows=tuple(rows))


def _rank_row(summary: Summary, point: Point, rank: RankTime) -> Row:
    return "", (
        text.clean(point.label),
        f"{rank.rank}",
        text.clean(rank.host),
        text.duration(rank.compute_s),
        f"{rank.excess:+.1%}",
        rank.phase,
        *(
            text.duration(known or (None if rank.together_s else 0))
            for known in (rank.wait_s, rank.transfer_s)
        ),
        *(text.duration(rank.together_s) for _ in together(summary.ranks)),
        text.percent(rank.unaccounted, 2),
    )


def together(times: Sequence[RankTime] | Sequence[CallTime]) -> tuple[Column, ...]:
    """Return the column for wait and transfer as one, if clocks could not always tell them apart."""
    return (Column(text.KINDS["together"]),) if any(time.together_s for time in times) else ()


def failures(summary: Summary) -> Iterator[Grid]:
    """Yield the launches that did not end well, with their reasons."""
    if not summary.failures:
        return
    columns = tuple(Column(name, right=False, fold=True) for name in ("case", "status", "launches", "reason"))
    rows: tuple[Row, ...] = tuple(
        (
            "bad",
            (
                text.clean(failure.label),
                failure.status,
                ", ".join(f"#{repeat + 1}" for repeat in failure.repeats),
                text.clean(failure.reason),
            ),
        )
        for failure in summary.failures
    )
    yield Grid(title="Failed and invalid launches", columns=columns, rows=rows)


def titled(title: str, series: str, summary: Summary) -> str:
    """Return a title with its series where there are several and each has a table of its own."""
    alone = len(summary.series) == 1 or summary.side_by_side
    return title if alone else f"{title}: {text.clean(series)}"


def _names(points: Sequence[Point]) -> list[str]:
    """Return what tells cases side by side apart: their sizes, or else their labels."""
    sizes = [_ranks(point) for point in points]
    return sizes if len({*sizes}) == len(sizes) else [text.clean(point.label) for point in points]


def _ranks(point: Point) -> str:
    ranks = text.plural(point.ranks, "rank")
    size = ranks if point.threads == 1 else f"{point.ranks}×{point.threads} thr."
    return f"{size} injected" if point.injected else size


def threaded(summary: Summary) -> bool:
    """Tell whether some ranks have several threads."""
    return any(point.threads > 1 for point in summary.points)


def size_tone(point: Point) -> Tone:
    """Return how the row of a case is drawn."""
    if point.status == "ok":
        return "base" if point.base else ""
    return "pending" if point.status == "pending" else "bad"
