"""Every case: step time, speed-up and efficiency over its sizes; evidence for a proposal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log2
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.difference import EQUAL
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.stats import Estimate
from pscale.report.blocks import Topic, TopicFigure
from pscale.report.figure_style import BAD, FAINT, QUIET, Colour, describe, mark, narrow, sized, wrapped
from pscale.report.table import Column, Columns, Table, Tone, Value, Written, listed
from pscale.report.topics import predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARGIN = 0.35  # of a doubling, beside the smallest and largest size
_ASIDE = 0.035  # of a doubling, between series, so that their intervals do not hide each other
_ASIDES = 0.3  # of a doubling, between the first and the last of many series
_DOTS = 2  # so many cases of a series make no curve
_LAUNCHES = 40  # of a case, drawn one by one
_BESIDE = 2**0.045  # of a size: where the dots of its launches are
_NAMED = 8  # series with a colour and a name of their own
_TICK_GAP = 0.055  # of the axis, so that tick labels stay apart


class _Panel(NamedTuple):
    """A column of cases over sizes: how it is written, and the name of its axis with how ticks are."""

    column: str
    write: Callable[[float], str]
    axis: str
    ticks: Callable[[float], str] | None


_PANELS = {
    "Step time": _Panel("step_s", text.duration_3, "step time", text.duration_3),
    "Efficiency": _Panel("efficiency", text.percent, "efficiency (base = 100%)", "{:.0%}".format),
    "Speed-up": _Panel(
        "speedup", lambda value: f"{text.number_3(value)}×", "speed-up (base = 1)", "{:.4g}".format
    ),
    "Throughput": _Panel("samples_per_s", text.rate, "samples/s", None),
}


def tables(findings: Findings) -> Iterator[Table]:
    """Yield all cases in one table, without the columns that none of them has a value for.

    Names of runs and cases leave narrow terminals little room for figures.
    """
    points = findings.rows("cases")
    several = len(findings.series) > 1 or any(point.run for point in points)
    case = Column("case", fold=True, get=lambda point: point.label.removesuffix(f" · {point.run}"))
    columns = (Column(get="run", fold=True), case) * several + _columns(findings, wide=several)
    compares = findings.side_by_side or any(point.efficiency for point in points)
    caption = "" if compares else "No base case, so no efficiency."
    title = "Scaling" if _compares(findings) else "Cases"
    return listed(title, points, columns, caption=caption, tone=size_tone, filled=True)


def size_tone(point: Row) -> Tone:
    """Return how the row of a case is drawn."""
    if point.status == "ok":
        return "base" if point.base else ""
    return "pending" if point.status == "pending" else "bad"


def size_column(findings: Findings) -> Column:
    """Return the column of sizes, sorted by cores."""
    threaded = any(point.threads > 1 for point in findings.rows("cases"))
    name = "ranks × threads" if threaded else "ranks"
    return Column(name, str, fold=threaded, get=lambda row: Written(row.cores, messages.short_size(row)))


def _launches(point: Row) -> Value:
    total = point.launches + point.failed + point.pending
    return Written(point.launches, f"{point.launches}" + (f" of {total}" if total > point.launches else ""))


def _columns(findings: Findings, *, wide: bool) -> tuple[Column, ...]:
    """Return the columns of a case; with `wide`, some of them need a wide terminal."""
    return (
        size_column(findings),
        Column("step", text.duration, get=lambda point: point.step_s or point.status),
        Column(get="step_s", interval=True),
        Column("speed-up", get="speedup", wide=wide),
        Column(get="efficiency", band=True),
        Column(
            "95% interval",
            text.percent_interval,
            interval=True,
            get=lambda point: "base" if point.base else point.efficiency,
        ),
        Column("samples/s", get="samples_per_s", wide=wide),
        Column("of peak", text.percent_0, wide=True, get="peak_fraction"),
        Column("launches", str, wide=True, get=_launches),
        Column("steps", str, wide=True, get=lambda point: text.sparkline(point.course_s)),
        Column("memory", get="peak_rss_bytes", wide=True),
        Column("loss", get="loss_last", wide=True),
        Column("tokens/s", get="tokens_per_s", wide=True),
        Column("GFLOP/s", get="gflops", wide=True),
    )


def _compares(findings: Findings) -> bool:
    return not findings.side_by_side and any(
        point.efficiency and not point.base for point in findings.rows("cases")
    )


def scaling_figure(findings: Findings) -> Figure | None:
    """Draw speed-up and efficiency, or the throughput where there is nothing to compare.

    None where neither was measured, or where cases are not sizes of something.
    """
    points = findings.rows("cases")
    if findings.side_by_side:
        return None
    if sum(point.efficiency is not None for point in points) > 1:
        laws = predictions.drawn(findings)
        return of_sizes(findings, findings.series, "Efficiency", "Speed-up", laws=laws)
    trained = any(point.samples_per_s for point in points)
    return of_sizes(findings, findings.series, "Throughput") if trained else None


def of_sizes(
    findings: Findings,
    series: Mapping[str, Sequence[Row]],
    *panels: str,
    laws: Sequence[Sequence[Row]] = (),
) -> Figure:
    """Draw values of every size of some series, a panel each."""
    from pscale.report import drawing

    named = sum(any(point.efficiency for point in points) for points in series.values()) > 1
    several = len(panels) > 1
    height = 5.8 if narrow() and several else 3.7
    figure = drawing.canvas((10.8 if named else 9.2) if several else 5.8, height, findings.heading)
    across = figure.subplots(*((len(panels), 1) if narrow() else (1, len(panels))), squeeze=False)
    for axes, panel in zip(across.flat, panels, strict=True):
        _panel(axes, findings, series, panel, laws if panel == "Efficiency" else ())
    return figure


def _panel(
    axes: Axes,
    findings: Findings,
    series: Mapping[str, Sequence[Row]],
    title: str,
    laws: Sequence[Sequence[Row]] = (),
) -> None:
    from pscale.report import drawing

    everything = [point for points in series.values() for point in points]
    sizes, count = sorted({point.cores for point in everything}), len(series)
    colours = dict(zip(_named(series), drawing.distinct(_NAMED), strict=False))
    threaded = any(point.threads > 1 for point in everything)
    _size_axis(axes, predictions.reached(laws, sizes), threaded=threaded)
    some = f" ({len(colours)} best and worst of {count} named)" if len(colours) < count else ""
    dashed = "; dashed: model" if laws else ""
    describe(axes, f"{title}, with 95% intervals{dashed}{some}")
    value = attrgetter(_PANELS[title].column)
    ends: dict[tuple[str, Colour], tuple[float, float]] = {}
    for place, (name, points) in enumerate(series.items()):
        aside = 2 ** (min(_ASIDE, _ASIDES / count) * (place - (count - 1) / 2))
        known = [point for point in points if value(point)]
        colour = colours.get(name, FAINT)
        places, values = [point.cores * aside for point in known], [value(point).value for point in known]
        if len(known) > _DOTS:
            axes.plot(places, values, color=colour, zorder=3)
        for size, point in zip(places, known, strict=True):
            _interval_bar(axes, size, value(point), colour)
        if name in colours:
            for size, point in zip(places, known, strict=True):
                times_s = findings.launch_steps_s.get(point.case, ())
                _dots(axes, title, size, point, colour, times_s=times_s)
        else:  # one of very many
            axes.plot(places, values, "o", color=FAINT, markersize=3, zorder=2)
        _missing(axes, [point for point in points if not value(point)])
        for law in laws:
            if law[0].series == name:
                predictions.draw(axes, law, colour)
        if known and name in colours:
            ends[wrapped(name or "unnamed", 26), colour] = known[-1].cores, values[-1]
    _value_axis(axes, title, [value(point) for point in everything if value(point)])
    _ideal(axes, title, [point for point in everything if value(point)], sizes[-1])
    if count > 1 and title != "Efficiency":
        drawing.name_ends(axes, ends, 0.16 if narrow() else 0.12, weight="bold")


def _named(series: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the series to distinguish: all, or of many the worst and the best by their largest case."""
    if len(series) <= _NAMED:
        return list(series)
    values = {
        name: [known.value for point in points if (known := point.efficiency or point.samples_per_s)]
        for name, points in series.items()
    }
    order = sorted(filter(values.get, values), key=lambda name: values[name][-1])
    return order[: _NAMED // 2] + order[-(_NAMED // 2) :]


def _dots(
    axes: Axes, title: str, size: float, point: Row, colour: Colour, *, times_s: Sequence[float]
) -> None:
    """Draw one case and, beside it, what the step time of each launch alone gives; both say their values."""
    known = getattr(point, _PANELS[title].column)
    dots: list[tuple[float, Estimate, str, dict[str, Any]]] = [
        (size, known, "", {"markeredgecolor": "white", "markeredgewidth": 0.8, "zorder": 5})
    ]
    for time_s in times_s if point.step_s and 1 < len(times_s) <= _LAUNCHES else ():
        pace = point.step_s.value / time_s
        alone = Estimate(value=known.value / pace if title == "Step time" else known.value * pace)
        dots.append((size * _BESIDE, alone, ", one launch", {"markersize": 2.6, "alpha": 0.5, "zorder": 2}))
    for place, value, which, look in dots:
        (dot,) = axes.plot([place], [value.value], "o", color=colour, **look)
        mark(dot, f"{point.label}{which}: {title.lower()} {_said(title, value)}", point.case)


def _said(title: str, known: Estimate) -> str:
    """Return a value of a panel with its interval, in words."""
    write = _PANELS[title].write
    if known.low is None or known.high is None or known.low == known.high:
        return write(known.value)
    bounds = (write(bound).rstrip("×") for bound in (known.low, known.high))
    return f"{write(known.value)} (95% interval {' to '.join(bounds)})"


def _interval_bar(axes: Axes, size: float, known: Estimate, colour: Colour) -> None:
    """Draw an interval; one that is too wide for the picture reaches its edges, faded, with arrows there."""
    if known.stated:
        axes.plot([size, size], known.stated, color=colour, linewidth=1.1, zorder=4)
    elif known.low is not None:
        where: Any = {"transform": axes.get_xaxis_transform(), "color": colour, "alpha": 0.4, "zorder": 4}
        axes.plot([size, size], [0, 1], linewidth=1.1, **where)
        for edge, arrow in ((0, "v"), (1, "^")):
            axes.plot([size], [edge], arrow, markersize=5, clip_on=False, **where)


def _missing(axes: Axes, points: Sequence[Row]) -> None:
    """Mark cases without a value on the lower edge, in the words of their status."""
    where: Any = {"transform": axes.get_xaxis_transform(), "color": BAD, "zorder": 6}
    for point in points:
        label = "no base" if point.status == "ok" else point.status
        axes.plot([point.cores], [0.03], "x", markersize=6, markeredgewidth=1.6, clip_on=False, **where)
        axes.text(
            point.cores, 0.075, label, ha="center", va="bottom", rotation=90, fontsize=sized(8), **where
        )


def _ideal(axes: Axes, title: str, points: Sequence[Row], largest: int) -> None:
    """Draw what perfect scaling from the base would give, and the efficiency that is asked for."""
    look: dict[str, Any] = {"color": QUIET, "linewidth": 1.2, "zorder": 1}
    words: Any = {"textcoords": "offset points", "ha": "right", "color": QUIET}
    if title == "Step time":
        for sizes in grouped(points, lambda point: point.series).values():
            ideal_s = [point.step_s.value * point.efficiency.value for point in sizes]
            axes.plot([point.cores for point in sizes], ideal_s, "--", **look)
            axes.annotate("ideal", (sizes[-1].cores, ideal_s[-1]), xytext=(-8, 0), va="center", **words)
    if title in ("Step time", "Throughput"):
        return
    starts = sorted({point.cores for point in points if point.base})
    for start in starts:
        top = largest / start if title == "Speed-up" else 1.0
        axes.plot([start, max(largest, start)], [1.0, top], "--", **look)
    for target in {point.target for point in points if hasattr(point, "target")}:
        axes.axhline(target, linestyle=":", **look)
        axes.annotate("target", (starts[0], target), xytext=(4, -3), va="top", **words | {"ha": "left"})
    if starts and title == "Speed-up" and largest > starts[0]:
        middle = (starts[0] * largest) ** 0.5
        axes.annotate("ideal", (middle, middle / starts[0]), xytext=(-4, 4), va="bottom", **words)


def _size_axis(axes: Axes, sizes: Sequence[int], *, threaded: bool) -> None:
    axes.set_xscale("log", base=2)
    low, high = log2(sizes[0]) - _MARGIN, log2(sizes[-1]) + _MARGIN
    axes.set_xlim(2**low, 2**high)
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or log2(kept[-1] / size) >= _TICK_GAP * (high - low):
            kept.append(size)
    axes.set_xticks(kept, [str(size) for size in kept])
    axes.minorticks_off()
    axes.set_xlabel("cores (ranks × threads)" if threaded else "ranks")


def _value_axis(axes: Axes, title: str, values: Sequence[Estimate]) -> None:
    top = max(max((known.value, *(known.stated or ()))) for known in values)
    ticks = _PANELS[title].ticks
    axes.set_ylabel(_PANELS[title].axis)
    if title in ("Efficiency", "Throughput"):
        axes.set_ylim(0, max(1.08, 1.05 * top) if title == "Efficiency" else 1.08 * top)
    else:
        axes.set_yscale("log", base=2)
        axes.minorticks_off()
    if ticks:
        axes.yaxis.set_major_formatter(lambda value, _: ticks(value))


SCALING = Topic(
    name="scaling",
    title=lambda findings: "Efficiency and speed-up" if _compares(findings) else "Cases",
    lead=lambda findings: (
        "Bars are 95% intervals, small dots single launches; the dashed line is ideal scaling from the "
        "base case."
        if _compares(findings)
        else ""
    ),
    tables=tables,
    figure=TopicFigure(
        name="scaling",
        title="Efficiency and speed-up by size",
        description="Two panels over the number of cores: efficiency in percent of the base case, and "
        "speed-up beside the ideal line; each case with its 95% interval and, as small dots, its launches.",
        draw=scaling_figure,
    ),
    most=2000,
)


# Evidence for a proposal

_PARAGRAPHS = 8  # series with a paragraph
_TARGET = {"holds": "yes", "falls short": "no", "": "base"}


def _sizes_of_series(findings: Findings) -> dict[str, list[Row]]:
    """Return the sizes of every series, smallest first."""
    return grouped(findings.rows("evidence"), lambda row: row.series)


def paragraphs(findings: Findings) -> Iterator[str]:
    """Yield what every series shows, to be pasted; all numbers are in the tables."""
    of_series, about = _sizes_of_series(findings), dict(_basis(findings))
    for name, rows in [*of_series.items()][:_PARAGRAPHS]:
        said = messages.evidence(rows, about[_limit(name)], about)
        yield text.clean(f"{name}: {said}" if len(of_series) > 1 else said)


def _basis(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield what the paragraphs name besides sizes, as names and values."""
    rows = findings.rows("evidence")
    if not rows:
        return
    machine, known = dict(findings.machine), dict(findings.provenance)
    facts = {
        "program": f"'{findings.program}'" if findings.program else f"the training '{findings.title}'",
        "target": f"an efficiency of at least {text.percent(rows[0].target)}",
        "launches": messages.launched(rows),
        "±": "half of a 95% interval",
        "equal": f"less than {EQUAL:.0%} apart",
        "work": rows[0].units and messages.work(rows[0], rows[0].units),
        "CPU": machine.get("CPU"),
        "hosts": machine.get("Hosts"),
        "MPI": machine.get("MPI"),
        "BLAS": machine.get("BLAS"),
        "system": known.get("kernel"),
        "pscale": known.get("packages.pscale") and f"pscale {known['packages.pscale']}",
    }
    yield from ((name, value) for name, value in facts.items() if value)
    verdicts = {row.series: row for row in findings.rows("verdicts")}
    yield from ((_limit(name), messages.limit(verdicts[name])) for name in _sizes_of_series(findings))


def _limit(name: str) -> str:
    return f"limit of {name}" if name else "limit"


def _evidence(findings: Findings) -> Iterator[Table]:
    """Yield every size, and what the figures rest on."""
    rows = findings.rows("evidence")
    if not rows:
        return
    first = rows[0]
    columns: Columns = (
        *([Column("series", fold=True, get="series")] if len(_sizes_of_series(findings)) > 1 else []),
        "ranks",
        *(["threads"] if any(row.threads > 1 for row in rows) else []),
        "nodes",
        Column(
            first.timed,
            text.duration,
            get=lambda row: Written(row.step_s.value, messages.spread(row.step_s)),
        ),
        Column("speed-up", get="speedup"),
        Column("efficiency", text.percent, band=True, get=_efficiency),
        Column(f"≥ {text.percent(first.target)}", get=lambda row: _TARGET.get(row.answer, row.answer)),
        Column("core-h", text.number_3, get="core_hours"),
        Column("work", text.number_3, get="units_core_hours"),
        Column("to decide", fold=True, wide=True, get=lambda row: row.to_decide or None),
    )
    caption = f"base: the smallest size measured; core-h: core-hours for {messages.work(first, first.per)}"
    if first.units:
        caption += f"; work: core-hours for {messages.work(first, first.units)}"
    how: dict[str, Any] = {"filled": True, "tone": lambda row: "base" if row.base else ""}
    yield from listed("Evidence by size", rows, columns, caption=caption, **how)
    basis = (Column("basis", get=lambda fact: fact[0]), Column("value", fold=True, get=lambda fact: fact[1]))
    yield from listed("Basis of the evidence", _basis(findings), basis)


def _efficiency(row: Row) -> Written:
    known = row.efficiency
    return Written(known.value, text.percent(known.value) if row.base else messages.efficiency(known))


EVIDENCE = Topic(
    name="evidence",
    title="Evidence",
    lead="For a proposal for compute time: how far the program scales, and what its work costs.",
    paragraphs=paragraphs,
    tables=_evidence,
    figure=TopicFigure(
        name="evidence",
        title="Step time and efficiency by size",
        description="Two panels over the number of cores: step time on logarithmic axes beside ideal scaling "
        "from the smallest size, and efficiency beside the target; each size with its 95% interval.",
        draw=lambda findings: (
            of_sizes(findings, series, "Step time", "Efficiency")
            if (series := _sizes_of_series(findings))
            else None
        ),
    ),
)
