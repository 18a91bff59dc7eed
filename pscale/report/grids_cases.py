"""The tables of cases: step time, and by size speed-up and efficiency."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid
from pscale.report.grids import size_tone, threaded, titled
from pscale.report.spark import sparkline

_WIDE = ("of peak", "launches", "steps", "memory", "loss", "tokens/s", "GFLOP/s")


def scaling(summary: Summary) -> Iterator[Grid]:
    """Yield, per series, step time, speed-up and efficiency of every case."""
    if summary.side_by_side or any(point.run for point in summary.points):
        yield cases(summary)
        return
    columns = (
        _size(summary),
        *(Column("step"), Column("95% interval")),
        *(Column("speed-up"), Column("efficiency"), Column("95% interval"), Column("samples/s")),
        *(Column(name, wide=True) for name in _WIDE),
    )
    for series, points in summary.series.items():
        rows = tuple((size_tone(point), _scaling_row(point)) for point in points)
        caption = "" if any(point.efficiency for point in points) else "No base case, so no efficiency."
        yield Grid(title=titled("Scaling", series, summary), columns=columns, rows=rows, caption=caption)


def cases(summary: Summary) -> Grid:
    """Return all cases in one table, without the columns that none of them has a value for.

    Names of runs and cases leave narrow terminals little room for figures.
    """
    columns = [Column("run", right=False, fold=True), Column("case", right=False, fold=True), _size(summary)]
    columns += [Column("step"), Column("95% interval", wide=True), Column("speed-up", wide=True)]
    columns += [Column("efficiency"), Column("95% interval"), Column("samples/s", wide=True)]
    columns += [Column(name, wide=True) for name in _WIDE]
    rows = [(size_tone(point), (*_name(point), *_scaling_row(point))) for point in summary.points]
    return Grid(title="Cases", columns=tuple(columns), rows=tuple(rows)).without(text.MISSING)


def _size(summary: Summary) -> Column:
    return Column("ranks × threads", fold=True) if threaded(summary) else Column("ranks")


def _name(point: Point) -> tuple[str, str]:
    """Return run and label; an overlay's labels end in their runs."""
    return text.clean(point.run), text.clean(point.label.removesuffix(f" · {point.run}"))


def _scaling_row(point: Point) -> tuple[str, ...]:
    samples, tokens = point.samples_per_s, point.tokens_per_s
    known = point.efficiency
    return (
        text.size(point),
        text.duration(point.step_s.value) if point.step_s else point.status,
        text.duration_interval(point.step_s),
        text.number(point.speedup.value if point.speedup else None, 3),
        text.percent(known.value if known else None, 1),
        "base" if point.base else text.percent_interval(known),
        text.rate(samples.value if samples else None),
        text.percent(point.peak_fraction),
        _launches(point),
        sparkline(point.course_s),
        text.size_of(point.peak_rss_bytes),
        text.number(point.loss_last),
        text.rate(tokens.value if tokens else None),
        text.number(point.gflops, 3),
    )


def _launches(point: Point) -> str:
    total = point.launches + point.failed + point.pending
    return f"{point.launches}" if point.launches == total else f"{point.launches} of {total}"
