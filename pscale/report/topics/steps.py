"""Where a step goes: by phase and kind of time, through the stages of a pipeline, waiting for whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.steps import cells
from pscale.analysis.timeline import kinds_of
from pscale.report.blocks import Topic, TopicFigure, show
from pscale.report.figure_style import (
    CLIPPED,
    MAP,
    QUIET,
    Colour,
    describe,
    narrow,
    of_phases,
    sized,
    wrapped,
)
from pscale.report.table import CASE, Column, Columns, Table, Value, Written, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pscale.report import drawing

_MOST_BARS = 48
_KINDS = ("compute", "transfer", "wait", "wait_or_transfer", "copy", "offload", "hidden")
_DRAWN = ("compute", "transfer", "wait_or_transfer", "wait", "copy", "offload")
_LINE = 0.17  # inches: a line of the legend
_COLUMN, _NARROW = 0.13, 0.25  # of the width: a column of the legend
_VISIBLE = 0.001  # of a step: what is smaller has no place in the legend

Part = tuple[str, str]  # kind and phase


def _ranked(findings: Findings) -> bool:
    """Tell whether the ranking of plans says the same in fewer words."""
    return findings.side_by_side and bool(findings.ranked("plan"))


def _times(findings: Findings) -> Iterator[Table]:
    """Yield every phase's kinds of time by case."""
    rows = findings.rows("phases")
    kinds = [kind for kind in _KINDS if any(getattr(time, f"{kind}_s") for time in rows)]
    columns: Columns = (
        *(CASE, "phase", Column("of step", get="share", bar=True)),
        *(Column(text.KINDS.get(kind, kind), get=f"{kind}_s") for kind in kinds),
    )
    title = "Time by phase and kind (per step, mean over ranks)"
    return listed(title, rows, columns, explain=("hidden_s",), grouped=True)


def breakdown_figure(findings: Findings) -> Figure | None:
    """Draw the shares of every measured case's step; None without any, or where plans are ranked."""
    from pscale.report import drawing

    if _ranked(findings):
        return None
    of_case, colours = findings.by_case("phases"), _colours(findings.rows("phases"))
    series = ((name, [row for row in rows if row.case in of_case]) for name, rows in findings.series.items())
    bars = [
        (name, [_bar(point, of_case[point.case], colours) for point in points])
        for name, points in series
        if points
    ]
    if not bars:
        return None
    legend = _LINE * (1.5 + max(Counter(kind for kind, _ in colours).values()))
    figure, (above, axes) = drawing.bar_chart(
        findings.heading, bars, most=_MOST_BARS, noun="cases", legend=legend
    )
    _legend(above, colours)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share of the step (mean over ranks and steps)")
    axes.set_title("mean step", loc="right", fontsize=sized(8.5), color=QUIET)
    return figure


def _colours(phases: Sequence[Row]) -> dict[Part, Colour | str]:
    """Return a colour for every part that is visible in some bar: a hue by kind, a shade by phase."""
    from pscale.report import drawing

    compute = of_phases(time.phase for time in phases)
    seen = {
        (kind, time.phase): None
        for kind in _DRAWN
        for time in phases
        if getattr(time, f"{kind}_s") > _VISIBLE * time.step_s
    }
    order = [*dict.fromkeys(time.phase for time in phases)]
    return {
        (kind, phase): compute[phase] if kind == "compute" else drawing.shade(kind, phase)
        for kind, phase in sorted(seen, key=lambda part: (_DRAWN.index(part[0]), order.index(part[1])))
    }


def _bar(point: Row, phases: Sequence[Row], colours: Mapping[Part, Colour | str]) -> drawing.Bar:
    from pscale.report import drawing

    by_phase, parts = {time.phase: time for time in phases}, []
    for (kind, phase), colour in colours.items():
        if time := by_phase.get(phase):
            time_s = getattr(time, f"{kind}_s")
            share, said = time_s / time.step_s, text.duration_3(time_s)
            words = f"{point.label}: {text.KINDS.get(kind, kind)} in {phase}, {said}"
            parts.append(drawing.Part(share, colour, f"{words}, {text.percent(share)} of the step", said))
    name = messages.size(point) + ", injected" * bool(point.injected)
    return drawing.Bar(name, point.case, parts, text.duration_3(phases[0].step_s))


def _legend(axes: Axes, colours: Mapping[Part, Colour | str]) -> None:
    """Put the kinds side by side, each with its phases in the order of the bars."""
    from matplotlib.legend import Legend
    from matplotlib.patches import Patch

    axes.set_axis_off()
    columns = grouped(colours, lambda part: part[0])
    look: dict[str, Any] = {"alignment": "left", "loc": "upper left", "borderaxespad": 0, "borderpad": 0}
    look |= {"handlelength": 1.0, "handleheight": 0.9, "labelspacing": 0.25}
    for place, (kind, parts) in enumerate(columns.items()):
        legend = Legend(
            axes,
            [Patch(color=colours[part]) for part in parts],
            [phase for _, phase in parts],
            title=text.KINDS.get(kind, kind),
            title_fontproperties={"weight": "bold"},
            bbox_to_anchor=((_NARROW if narrow() else _COLUMN) * place, 1.0),
            **look,
        )
        axes.add_artist(legend)


PHASES = Topic(
    name="phases",
    title="Where a step goes",
    lead="Each moment of a step is in one category: compute, transfer (in a call, once all ranks "
    "have arrived), wait (in a call, before that), copy, or offload (waiting for a file). "
    "Means over ranks and steps.",
    tables=lambda findings: () if _ranked(findings) else _times(findings),
    details=lambda findings: _times(findings) if _ranked(findings) else (),
    figure=TopicFigure(
        name="breakdown",
        title="Shares of the step",
        description="One bar a case, from 0 to 100 percent of its mean step: compute, transfer, wait, copies "
        "and stalls of offload, each by phase.",
        draw=breakdown_figure,
    ),
)


# Pipelines: bubbles, and timelines of traced cases


def _stages(row: Row) -> Written:
    return Written(row.stages, f"{row.stages}" + (f" × {row.chunks}" if row.chunks > 1 else ""))


_bubbles = show(
    "Bubbles of pipelines (share of the step, mean over ranks)",
    "bubbles",
    (
        *(CASE, Column("stages", str, get=_stages), Column("micro-batches", get="micro_batches")),
        *("predicted", "measured"),
    ),
    explain=("predicted", "measured"),
)


def _kinds_by_rank(findings: Findings) -> Iterator[Table]:
    """Yield how long each rank of the drawn steps did what."""
    spans = findings.rows("timeline")
    lengths: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for span in spans:
        lengths[span.case, span.rank, span.kind] += span.stop_s - span.start_s
    used = {span.kind for span in spans}

    def time_s(kind: str) -> Callable[[Row], float]:
        return lambda row: lengths.get((row.case, row.rank, kind), 0.0)

    columns = (
        CASE,
        Column("rank", str, get="rank"),
        *(Column(kind, text.duration_3, get=time_s(kind)) for kind in kinds_of(spans) if kind in used),
        Column("waits", text.percent, get=lambda row: time_s("wait")(row) / row.length_s),
    )
    return listed(
        "What every rank did in these steps",
        [*{(span.case, span.rank): span for span in spans}.values()],
        columns,
        caption="Wait and exchange lie in the parts before them. Waits: share of the step.",
    )


def timeline_figure(findings: Findings) -> Figure | None:
    """Draw the steps that were chosen of traced cases; None where nothing was traced."""
    from pscale.report.drawing import draw_steps

    drawn = [*findings.by_case("timeline").values()]
    titles = [_title(findings, step) for step in drawn]
    return draw_steps(drawn, titles, findings.heading) if drawn else None


def _title(findings: Findings, step: Sequence[Row]) -> str:
    span, of_ranks = step[0], findings.case(step[0].case).ranks
    ranks = len({each.rank for each in step})
    if narrow():
        return str(span.label)
    some = f", {ranks} of {of_ranks} ranks" if ranks < of_ranks else ""
    return f"{span.label}, launch {span.repeat + 1}, step {span.step}: {text.duration_3(span.length_s)}{some}"


def _has_stages(findings: Findings) -> bool:
    return not findings.bubbles.empty


PIPELINE = Topic(
    name="pipeline",
    title=lambda findings: "Pipeline" if _has_stages(findings) else "Timeline",
    lead=lambda findings: (
        "A stage is idle until the stage before it has sent: that is the bubble. More "
        "micro-batches make it smaller."
        if _has_stages(findings)
        else "One step as it was recorded."
    ),
    tables=_bubbles,
    details=_kinds_by_rank,
    figure=TopicFigure(
        name="timeline",
        title="Timeline as it ran",
        description="A row a rank, time to the right: what each rank did when, and where it was idle.",
        draw=timeline_figure,
    ),
)


# Who waits, when, and for whom

_VARIANTS = 4  # cases side by side whose ranks are listed
_LATE = 8  # rows on late ranks
_LABELS = 16  # on an axis of the figure, at most
_LINED, _VECTORS = 512, 2048  # cells: up to these they are parted by lines, and drawn one by one
_SHADES = 48  # of a cell; with 50 and more matplotlib draws the scale as a picture
_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def _known(name: str) -> Callable[[Row], Value]:
    return lambda rank: getattr(rank, name) or (None if rank.wait_or_transfer_s else 0.0)


def _late_ranks(findings: Findings) -> Iterator[Table]:
    """Yield the ranks that compute most in the largest case of every series, but not of many variants.

    Then those that the others wait for.
    """
    of_case = findings.by_case("ranks")
    if findings.side_by_side and len(of_case) > _VARIANTS:
        return
    columns = (
        *(CASE, "rank", Column(get="host", fold=True)),
        *(Column("compute", text.duration, get="compute_s"), Column("above median", get="excess")),
        *(Column("most in", get="phase"), Column("wait", text.duration, get=_known("wait_s"))),
        Column("transfer", text.duration, wide=True, get=_known("transfer_s")),
        Column(text.WAIT_OR_TRANSFER, text.duration, get=lambda rank: rank.wait_or_transfer_s or None),
        Column("unaccounted", text.percent_2, wide=True, get="unaccounted"),
    )
    series = ([row.case for row in rows if row.case in of_case][-1:] for rows in findings.series.values())
    largest = [case for cases in series for case in cases]
    slowest = [row for case in largest for row in of_case[case]]
    yield from listed("Slowest ranks (per step)", slowest, columns, filled=True)

    def late_steps(each: Row) -> Written:
        return Written(each.late_steps, f"{each.late_steps} of {each.steps} steps")

    yield from listed(
        "Ranks that the others wait for",
        sorted(findings.rows("stragglers"), key=lambda each: each.case not in largest)[
            : max(
                _LATE, len(largest)
            )  # of the largest of each series something is said above
        ],
        (
            *(*columns[:3], Column("of the step", get="step_share"), Column("of all wait", get="wait_share")),
            Column("late in", str, get=late_steps),
            *(Column("late by", get="late_s"), Column("most in", get="phase")),
        ),
        explain=("step_share",),
    )


def _waited(findings: Findings) -> bool:
    return bool(findings.wait["rank"].max() > 0)  # one rank alone never waits


def _waits_by_rank(findings: Findings) -> Iterator[Table]:
    if not _waited(findings):
        return
    case, _, repeat, *_ = findings.wait.iloc[0]
    columns = (
        Column("rank", str, get=lambda row: row[0]),
        Column("mean wait", text.duration_3, get=lambda row: float(row[1].mean())),
        Column("longest", text.duration_3, get=lambda row: float(row[1].max())),
        Column("in step", str, get=lambda row: int(row[1].argmax())),
    )
    title = f"Wait of every rank: {text.clean(findings.case(case).label)}, launch {repeat + 1}"
    yield from listed(title, enumerate(cells(findings.wait)), columns, case=lambda _: case)


def wait_figure(findings: Findings) -> Figure | None:
    """Draw the waits of the findings's map; None without one, or with one rank, which never waits."""
    import seaborn as sns
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    from pscale.report import drawing

    if not _waited(findings):
        return None
    waits, (case, _, repeat, *_) = cells(findings.wait), findings.wait.iloc[0]
    kind = text.KINDS["wait_or_transfer"] if findings.wait["wait_or_transfer_s"].any() else "wait"
    ranks, steps = waits.shape
    top = float(np.percentile(waits, CLIPPED)) or float(waits.max())
    _, factor, unit = next(scale for scale in _UNITS if waits.max() >= scale[0])
    figure = drawing.canvas(9.2, min(6.0, max(2.0, 1.1 + 0.22 * ranks)), findings.title)
    axes = figure.subplots()
    scale: dict[str, Any] = {"label": f"{kind} ({unit})", "pad": 0.015, "fraction": 0.05, "aspect": 24}
    scale["extend"] = "max" if top < waits.max() else "neither"
    sns.heatmap(
        waits * factor,
        ax=axes,
        vmin=0,
        vmax=top * factor or 1.0,
        cmap=LinearSegmentedColormap.from_list("map", MAP, _SHADES),
        linewidths=0.4 if waits.size <= _LINED else 0,
        rasterized=waits.size > _VECTORS,
        cbar_kws={**scale, "ticks": MaxNLocator(5)},
    )
    figure.axes[-1].spines[:].set_visible(False)
    axes.set_xticks(*_ticks(steps), rotation=0)
    axes.set_yticks(*_ticks(ranks), rotation=0)
    axes.set(xlabel="measured step", ylabel="rank")
    axes.tick_params(length=0)
    name = wrapped(findings.case(case).label, 60, most=1)
    hint = "dark cells wait for a rank with pale cells" if waits.any() else "no rank waited"
    clipped = f"; darkest: more than {text.duration_3(top)}" if top < waits.max() else ""
    describe(axes, f"{name}, launch {repeat + 1}: {hint}{clipped}")
    return figure


def _ticks(count: int) -> tuple[list[float], list[str]]:
    """Return the middles and numbers of evenly spread cells."""
    steps = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, count)
    every = next(step for step in steps if step * _LABELS >= count)
    return [place + 0.5 for place in range(0, count, every)], [str(place) for place in range(0, count, every)]


WAITS = Topic(
    name="waits",
    title="Who waits",
    lead="A rank waits in a call until the ranks that it depends on have arrived. A pale row between dark "
    "ones is a straggler: the others wait for it.",
    tables=_late_ranks,
    details=_waits_by_rank,
    figure=TopicFigure(
        name="wait",
        title="Wait by rank and step",
        description="A heat map of the case that waits most: one row per rank, one column per step; the "
        "darker, the longer the rank waited.",
        draw=wait_figure,
    ),
)
