"""Which of two variants is faster over a swept number, and where that turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.compare import RELEVANT, crossovers, decided
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report import text
from pscale.report.figure_style import INK, QUIET, Colour, describe, sized, wrapped
from pscale.report.table import Column, Table, listed
from pscale.report.topics.topic import Topic, TopicFigure
from pscale.report.vector import mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 4  # panels
_LINE = 3  # values from which on a curve is drawn
_FIRST = 2  # colour of a curve: a light band of it is not grey
_ROOM = 1.6  # times the largest ratio, or the smallest: an interval that reaches further ends at the edge
_ENDLESS = 1e3  # a ratio beyond every edge
_DOUBLINGS = 4.0  # largest over smallest value from which on the axis is logarithmic


def tables(findings: Findings) -> Iterator[Table]:
    """Yield, for every reference, the variants beside it at every value of the swept number."""
    for rows in _groups(findings):
        first, several = rows[0], len({row.variant for row in rows}) > 1
        reference = ": ".join(filter(None, (first.common, first.reference)))
        title = f"Variants beside {reference}" if several else messages.variants(first)
        caption = (
            f"ratio: step time relative to {text.clean(first.reference)}, for launches paired by round; "
            "faster: decided if p < 0.05, corrected for the number of values (Holm)"
        )
        yield from listed(
            f"{text.clean(title)}, over {_field(first)}",
            rows,
            _columns(first),
            caption=caption,
            grouped=True,
            tone=lambda row: "pending" if row.answer == "undecided" else "",
        )


def _groups(findings: Findings) -> list[list[Row]]:
    """Return the variants by what they are compared with."""
    rows = findings.rows("crossings")
    return list(grouped(rows, lambda row: (row.common, row.reference)).values())


def _field(row: Row) -> str:
    return str(row.field).rpartition(".")[2]


def _columns(first: Row) -> Sequence[Column]:
    return (
        Column("variant", fold=True, get="variant"),
        Column(_field(first), text.number, get="value"),
        Column(f"{text.clean(first.reference)}, step", text.duration, get="reference_step_s"),
        Column("step", text.duration, get="step_s"),
        Column("ratio", text.number_3, get="ratio"),
        Column("95% interval", text.ratio_interval, interval=True, get="ratio"),
        Column("rounds", str, wide=True, get="rounds"),
        Column("rounds needed", str, wide=True, get="rounds_needed"),
        Column("p", text.number_2, wide=True, get="p"),
        Column("faster", fold=True, get=_faster),
    )


def _faster(row: Row) -> str:
    names = {"faster": row.variant, "slower": row.reference, "undecided": "undecided"}
    return str(names.get(row.answer, f"within {RELEVANT:.0%}"))


def figure(findings: Findings) -> Figure | None:
    """Draw the ratio of step times over the swept number, a panel a reference; None without variants."""
    from pscale.report import drawing

    every = _groups(findings)
    groups = every[:_MOST]
    if not groups:
        return None
    figure = drawing.canvas(9.2, 3.6 * len(groups), text.heading(findings))
    drawing.count_drawn(figure, len(groups), len(every), "groups")
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, rows in zip(panels, groups, strict=True):
        variants = list(grouped(rows, lambda row: row.variant).items())
        colours = drawing.distinct(_FIRST + len(variants))[_FIRST:]
        curves = [(curve, colour) for (_, curve), colour in zip(variants, colours, strict=True)]
        for curve, colour in curves:
            _curve(axes, curve, colour)
        _axes(axes, rows, variants[0][1])
        for curve, colour in curves:
            _arrows(axes, curve, colour)
        if len(variants) == 1:
            for turn in crossovers(rows):
                axes.axvspan(*turn, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
        else:
            ends = {
                (text.clean(curve[-1].variant), colour): (curve[-1].value, curve[-1].ratio.value)
                for curve, colour in curves
            }
            drawing.name_ends(axes, ends, 0.08, weight="bold")
    return figure


def _curve(axes: Axes, rows: Sequence[Row], colour: Colour) -> None:
    """Draw one variant with its intervals; filled points are decided."""
    at, lows, highs = _intervals(rows)
    if len(rows) >= _LINE:
        axes.fill_between(at, lows, highs, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.plot([row.value for row in rows], [row.ratio.value for row in rows], color=colour)
    axes.vlines(at, lows, highs, color=colour, linewidth=1.1, zorder=4)
    for row in rows:
        look: dict[str, Any] = {"color": colour, "zorder": 5}
        look["markerfacecolor"] = colour if decided(row.answer) else "white"
        (dot,) = axes.plot([row.value], [row.ratio.value], "o", **look)
        mark(dot, _said(row), row.case)


def _intervals(rows: Sequence[Row]) -> tuple[list[float], list[float], list[float]]:
    """Return values with their bounds; one that is too wide to state is without end."""
    bounded = [row for row in rows if row.ratio.low is not None]
    bounds = [row.ratio.stated or (0.0, _ENDLESS) for row in bounded]
    return [row.value for row in bounded], [low for low, _ in bounds], [high for _, high in bounds]


def _arrows(axes: Axes, rows: Sequence[Row], colour: Colour) -> None:
    """Mark the intervals that go on beyond the edges of the picture."""
    low, high = axes.get_ylim()
    at, lows, highs = _intervals(rows)
    below = [value for value, bound in zip(at, lows, strict=True) if bound < low]
    above = [value for value, bound in zip(at, highs, strict=True) if bound > high]
    for edge, values, arrow in ((low, below, "v"), (high, above, "^")):
        if values:  # the layout takes no point for one in the corner of the figure
            axes.plot(values, [edge] * len(values), arrow, color=colour, markersize=sized(5), clip_on=False)


def _said(row: Row) -> str:
    interval = f" (95% interval {text.ratio_interval(row.ratio)})" if row.ratio.stated else ""
    return f"{_field(row)} {text.number(row.value)}: {row.ratio.value:.3g}{interval}, {_faster(row)}"


def _axes(axes: Axes, rows: Sequence[Row], curve: Sequence[Row]) -> None:
    """Name the axes of all variants; texts lie where the first curve leaves room."""
    first, alone = rows[0], len(curve) == len(rows)
    values = sorted({row.value for row in rows})
    ratios = [row.ratio.value for row in rows]
    bounds = [bound for row in rows for bound in row.ratio.stated or () if bound]
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    low, high = max(low / _ROOM, min([low, *bounds])), min(high * _ROOM, max([high, *bounds]))
    room = 0.12 * (high - low) or 0.1  # all may be equal
    if values[0] > 0 and values[-1] >= _DOUBLINGS * values[0]:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [text.number(value) for value in values])
    axes.minorticks_off()
    axes.set_ylim(low - room, high + room)
    axes.axhline(1.0, color=INK, linestyle="--", linewidth=1.2, zorder=3)
    variant = wrapped(first.variant, 40, most=1) if alone else "variant"
    reference = wrapped(first.reference, 40, most=1)
    rising = ratios[len(curve) - 1] > ratios[0]  # corners that the curve leaves free
    for height, name, left in ((0.97, reference, rising), (0.03, variant, not rising)):
        side: dict[str, Any] = {"ha": "left" if left else "right", "va": "top" if height > 0.5 else "bottom"}
        place: dict[str, Any] = {"transform": axes.transAxes, "fontsize": sized(8.5), "color": QUIET}
        axes.text(0.01 if left else 0.99, height, f"{name} is faster", **side, **place)
    axes.set_xlabel(_field(first))
    axes.set_ylabel("ratio of step times")  # the title names both: it has more room
    common = f"{wrapped(first.common, 40, most=1)}: " if first.common else ""
    turn = "; grey: crossover" if alone and crossovers(rows) else ""
    describe(axes, f"{common}{variant} / {reference}, with 95% intervals; filled: decided{turn}")


TOPIC = Topic(
    name="crossing",
    title="Which variant is faster, and the crossover",
    lead="Ratio of step times over the swept number, from launches paired by round, so that changes of the "
    "machine affect both.",
    tables=tables,
    files=("crossings",),
    figure=TopicFigure(
        name="crossing",
        title="Ratio of step times over the swept number",
        description="Step time of a variant over that of the reference, with its 95% interval, beside a "
        "line at 1, where both are equally fast.",
        draw=figure,
    ),
)
