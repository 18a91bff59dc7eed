"""Where a step goes, by phase and kind of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.figure_style import QUIET, Colour, narrow, of_phases, sized, wrapped
from pscale.report.table import Column, Columns, Table, listed
from pscale.report.topics.topic import Topic, TopicFigure, case_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pscale.report import drawing

MOST = 48  # bars; of larger runs only the smallest and largest case of a series are drawn, as far as they fit
_KINDS = ("compute", "transfer", "wait", "wait_or_transfer", "copy", "offload", "hidden")
_DRAWN = ("compute", "transfer", "wait_or_transfer", "wait", "copy", "offload")
_BAR, _AXIS, _LINE = 0.30, 0.75, 0.17  # inches: a bar with its gap, the axis below, a line of the legend
_COLUMN, _NARROW = 0.13, 0.25  # of the width: a column of the legend
_VISIBLE = 0.001  # of a step: what is smaller has no place in the legend

Part = tuple[str, str]  # kind and phase
Groups = Sequence[tuple[str, list[Row]]]


def _ranked(findings: Findings) -> bool:
    """Tell whether the ranking of plans says the same in fewer words."""
    return findings.side_by_side and bool(len(findings.ranking))


def _times(findings: Findings) -> Iterator[Table]:
    """Yield every phase's kinds of time by case."""
    kinds = [kind for kind in _KINDS if any(getattr(time, f"{kind}_s") for time in findings.rows("phases"))]
    columns: Columns = (
        case_column(findings),
        "phase",
        Column("of step", get="share", bar=True),
        *(Column(text.KINDS.get(kind, kind), get=f"{kind}_s") for kind in kinds),
    )
    hidden = (
        "hidden: communication that overlaps compute; overlapping calls are summed; not part of the step time"
    )
    return listed(
        "Time by phase and kind (per step, mean over ranks)",
        findings.rows("phases"),
        columns,
        caption=hidden if "hidden" in kinds else "",
        grouped=True,
    )


def figure(findings: Findings) -> Figure | None:
    """Draw the shares of every measured case's step; None without any, or where plans are ranked."""
    from pscale.report import drawing

    if _ranked(findings):
        return None
    of_case = findings.by_case("phases")
    measured = {
        name: known
        for name, points in findings.series.items()
        if (known := [point for point in points if point.case in of_case])
    }
    groups = [*measured.items()]
    if sum(map(len, measured.values())) > MOST:
        groups = [(name, [*dict.fromkeys((points[0], points[-1]))]) for name, points in groups][: MOST // 2]
    rows = sum(len(points) for _, points in groups)
    if not rows:
        return None
    colours = _colours(findings.rows("phases"))
    legend = _LINE * (1.5 + max(Counter(kind for kind, _ in colours).values()))
    bars = _BAR * (rows + (len(groups) if len(groups) > 1 else 0)) + _AXIS
    figure = drawing.canvas(9.2, legend + bars, text.heading(findings))
    above, axes = figure.subplots(2, 1, height_ratios=(legend, bars))
    _legend(above, colours)
    _bars(axes, groups, colours, of_case)
    drawing.count_drawn(figure, len(groups), len(measured), "series")
    if rows < len(of_case):
        axes.set_title("smallest and largest case of each series", fontsize=sized(8.5), color=QUIET)
    return figure


def _colours(phases: Sequence[Row]) -> dict[Part, Colour | str]:
    """Return a colour for every part that is visible in some bar: a hue by kind, a shade by phase."""
    from pscale.report import drawing

    compute = of_phases(time.phase for time in phases)
    names = dict.fromkeys(time.phase for time in phases)
    seen = {
        (kind, time.phase)
        for kind in _DRAWN
        for time in phases
        if getattr(time, f"{kind}_s") > _VISIBLE * time.step_s
    }
    return {
        (kind, phase): compute[phase] if kind == "compute" else drawing.shade(kind, phase)
        for kind in _DRAWN
        for phase in names
        if (kind, phase) in seen
    }


def _bars(
    axes: Axes, groups: Groups, colours: Mapping[Part, Colour | str], times: Mapping[str, Sequence[Row]]
) -> None:
    from pscale.report import drawing

    rows, heads = drawing.in_rows(groups)
    for at, series in heads.items():
        name = wrapped(series, 90, most=1) or "unnamed"
        axes.text(0, at, name, fontweight="bold", va="center", ha="left")
    drawing.stacked(axes, {at: [*_lengths(point, colours, times[point.case])] for at, point in rows.items()})
    for at, point in rows.items():
        where = {"transform": axes.get_yaxis_transform(), "ha": "left"}
        drawing.write_beside(axes, 1.012, at, text.duration_3(times[point.case][0].step_s), **where)
    axes.set_yticks(list(rows), [_name(point) for point in rows.values()])
    axes.set_ylim(len(rows) + len(heads) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share of the step (mean over ranks and steps)")
    above: dict[str, Any] = {"transform": axes.transAxes, "va": "bottom", "color": QUIET}
    axes.text(1.012, 1.0, "mean step", fontsize=sized(8.5), **above)


def _lengths(
    point: Row, colours: Mapping[Part, Colour | str], times: Sequence[Row]
) -> Iterator[drawing.Part]:
    from pscale.report import drawing

    by_phase = {time.phase: time for time in times}
    for (kind, phase), colour in colours.items():
        if time := by_phase.get(phase):
            time_s = getattr(time, f"{kind}_s")
            share = time_s / time.step_s
            said = f"{point.label}: {text.KINDS.get(kind, kind)} in {phase}, "
            said += f"{text.duration_3(time_s)}, {text.percent_1(share)} of the step"
            yield drawing.Part(share, colour, said, point.case, text.duration_3(time_s))


def _legend(axes: Axes, colours: Mapping[Part, Colour | str]) -> None:
    """Put the kinds side by side, each with its phases in the order of the bars."""
    from matplotlib.legend import Legend
    from matplotlib.patches import Patch

    axes.set_axis_off()
    columns = {kind: [part for part in colours if part[0] == kind] for kind in _DRAWN}
    for place, (kind, parts) in enumerate((kind, parts) for kind, parts in columns.items() if parts):
        legend = Legend(
            axes,
            [Patch(color=colours[part]) for part in parts],
            [phase for _, phase in parts],
            title=text.KINDS.get(kind, kind),
            title_fontproperties={"weight": "bold"},
            alignment="left",
            loc="upper left",
            bbox_to_anchor=((_NARROW if narrow() else _COLUMN) * place, 1.0),
            borderaxespad=0,
            borderpad=0,
            handlelength=1.0,
            handleheight=0.9,
            labelspacing=0.25,
        )
        axes.add_artist(legend)


def _name(point: Row) -> str:
    return text.ranks_and_threads(point) + (", injected" if point.injected else "")


TOPIC = Topic(
    name="phases",
    title="Where a step goes",
    lead="Each moment of a step is in one category: compute, transfer (in a call, once all ranks "
    "have arrived), wait (in a call, before that), copy, or offload (waiting for a file). "
    "Means over ranks and steps.",
    tables=lambda findings: () if _ranked(findings) else _times(findings),
    details=lambda findings: _times(findings) if _ranked(findings) else (),
    files=("phases",),
    rows_per_case="phases",
    figure=TopicFigure(
        name="breakdown",
        title="Shares of the step",
        description="One bar a case, from 0 to 100 percent of its mean step: compute, transfer, wait, copies "
        "and stalls of offload, each by phase.",
        draw=figure,
    ),
)
