"""Which of two variants is faster over a swept number, and where that turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pscale.analysis.compare import RELEVANT
from pscale.analysis.crossing import Beside, Crossing
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.stats import Estimate
from pscale.report import marks, text
from pscale.report.figure_style import INK, QUIET, Colour, describe, sized, wrapped
from pscale.report.table import Column, Table, Tone, Value, listed
from pscale.report.topics.topic import Topic, TopicFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 4  # panels
_LINE = 3  # values from which on a curve is drawn
_FIRST = 2  # colour of a curve: a light band of it is not grey
_ROOM = 1.6  # times the largest ratio, or the smallest: an interval that reaches further ends at the edge
_ENDLESS = 1e3  # a ratio beyond every edge
_DOUBLINGS = 4.0  # largest over smallest value from which on the axis is logarithmic

_One = tuple[Crossing, Beside]


def tables(findings: Findings) -> Iterator[Table]:
    """Yield, for every reference, the variants beside it at every value of the swept number."""
    for members in _groups(findings):
        first = members[0]
        title = first.question if len(members) == 1 else f"Variants beside {_of(first)}"
        caption = (
            f"ratio: step time relative to {text.clean(first.reference)}, for launches paired by round; "
            "faster: decided if p < 0.05, corrected for the number of values (Holm)"
        )
        yield from listed(
            f"{text.clean(title)}, over {_field(first)}",
            [(crossing, beside) for crossing in members for beside in crossing.values],
            _columns(first),
            caption=caption,
            grouped=True,
            tone=_tone,
        )


def _groups(findings: Findings) -> list[list[Crossing]]:
    """Return the pairs of variants by what they are compared with."""
    return list(grouped(findings.crossings, lambda each: (each.common, each.reference)).values())


def _of(crossing: Crossing) -> str:
    return ": ".join(filter(None, (crossing.common, crossing.reference)))


def _field(crossing: Crossing) -> str:
    return crossing.field.rpartition(".")[2]


def _columns(first: Crossing) -> Sequence[Column]:
    return (
        Column("variant", fold=True, get=lambda one: one[0].variant),
        Column(_field(first), text.number, get=lambda one: one[1].value),
        Column(f"{text.clean(first.reference)}, step", text.duration, get=_reference_step_s),
        Column("step", text.duration, get=lambda one: one[1].step_s),
        Column("ratio", text.number_3, get=lambda one: one[1].ratio),
        Column("95% interval", _bounds, interval=True, get=_interval),
        Column("rounds", str, wide=True, get=lambda one: one[1].rounds),
        Column("rounds needed", str, wide=True, get=lambda one: one[1].launches_needed),
        Column("p", text.number_2, wide=True, get=lambda one: one[1].p),
        Column("faster", fold=True, get=_faster),
    )


def _reference_step_s(one: _One) -> Value:
    return one[1].reference_step_s


def _interval(one: _One) -> Value:
    ratio = one[1].ratio
    return None if ratio.low is None else ratio if ratio.stated else text.VAGUE


def _bounds(ratio: Estimate) -> str:
    return f"{ratio.low:.3g}–{ratio.high:.3g}"


def _faster(one: _One) -> str:
    crossing, beside = one
    names = {"faster": crossing.variant, "slower": crossing.reference, "undecided": "undecided"}
    return names.get(beside.answer, f"within {RELEVANT:.0%}")


def _tone(one: _One) -> Tone:
    return "pending" if one[1].answer == "undecided" else ""


_NAMES = ("field", "common", "reference", "variant", "reference_case", "case", "value", "reference_step_s")
_MEASURED = ("step_s", "ratio", "rounds", "p", "answer")


def _data(findings: Findings) -> Table:
    rows = [
        [getattr(crossing, name, None) or getattr(beside, name, None) for name in (*_NAMES, *_MEASURED)]
        for crossing in findings.crossings
        for beside in crossing.values
    ]
    return Table.of(rows, *_NAMES, *_MEASURED, bounded=("reference_step_s", "step_s", "ratio"))


def figure(findings: Findings) -> Figure | None:
    """Draw the ratio of step times over the swept number, a panel a reference; None without variants."""
    from pscale.report import drawing

    found = _groups(findings)
    groups = found[:_MOST]
    if not groups:
        return None
    figure = drawing.canvas(9.2, 3.6 * len(groups), text.heading(findings))
    drawing.count_drawn(figure, len(groups), len(found), "groups")
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, members in zip(panels, groups, strict=True):
        colours = drawing.distinct(_FIRST + len(members))[_FIRST:]
        for crossing, colour in zip(members, colours, strict=True):
            _curve(axes, crossing, colour)
        _axes(axes, members)
        for crossing, colour in zip(members, colours, strict=True):
            _arrows(axes, crossing, colour)
        for turn in members[0].turns if len(members) == 1 else ():
            axes.axvspan(*turn, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
        if len(members) > 1:
            ends = {
                (text.clean(crossing.variant), colour): (
                    crossing.values[-1].value,
                    crossing.values[-1].ratio.value,
                )
                for crossing, colour in zip(members, colours, strict=True)
            }
            drawing.name_ends(axes, ends, 0.08, weight="bold")
    return figure


def _curve(axes: Axes, crossing: Crossing, colour: Colour) -> None:
    """Draw one variant with its intervals; filled points are decided."""
    at, lows, highs = _intervals(crossing)
    if len(crossing.values) >= _LINE:
        axes.fill_between(at, lows, highs, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.plot([b.value for b in crossing.values], [b.ratio.value for b in crossing.values], color=colour)
    axes.vlines(at, lows, highs, color=colour, linewidth=1.1, zorder=4)
    for beside in crossing.values:
        filled = colour if beside.answer in ("faster", "slower") else "white"
        look: dict[str, Any] = {"color": colour, "markerfacecolor": filled, "zorder": 5}
        (dot,) = axes.plot([beside.value], [beside.ratio.value], "o", **look)
        marks.mark(dot, _said(crossing, beside), beside.case)


def _intervals(crossing: Crossing) -> tuple[list[float], list[float], list[float]]:
    """Return values with their bounds; one that is too wide to state is without end."""
    known = [beside for beside in crossing.values if beside.ratio.low is not None]
    bounds = [beside.ratio.stated or (0.0, _ENDLESS) for beside in known]
    return [each.value for each in known], [low for low, _ in bounds], [high for _, high in bounds]


def _arrows(axes: Axes, crossing: Crossing, colour: Colour) -> None:
    """Mark the intervals that go on beyond the edges of the picture."""
    low, high = axes.get_ylim()
    at, lows, highs = _intervals(crossing)
    below = [value for value, bound in zip(at, lows, strict=True) if bound < low]
    above = [value for value, bound in zip(at, highs, strict=True) if bound > high]
    for edge, values, arrow in ((low, below, "v"), (high, above, "^")):
        if values:  # the layout takes no point for one in the corner of the figure
            axes.plot(values, [edge] * len(values), arrow, color=colour, markersize=sized(5), clip_on=False)


def _said(crossing: Crossing, beside: Beside) -> str:
    at = f"{_field(crossing)} {text.number(beside.value)}"
    interval = f" (95% interval {_bounds(beside.ratio)})" if beside.ratio.stated else ""
    return f"{at}: {beside.ratio.value:.3g}{interval}, {_faster((crossing, beside))}"


def _axes(axes: Axes, members: Sequence[Crossing]) -> None:
    first = members[0]
    values = sorted({beside.value for crossing in members for beside in crossing.values})
    ratios = [beside.ratio.value for crossing in members for beside in crossing.values]
    bounds = [
        bound for each in members for beside in each.values for bound in beside.ratio.stated or () if bound
    ]
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    low, high = max(low / _ROOM, min([low, *bounds])), min(high * _ROOM, max([high, *bounds]))
    room = 0.12 * (high - low) or 0.1  # all may be equal
    if values[0] > 0 and values[-1] >= _DOUBLINGS * values[0]:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [text.number(value) for value in values])
    axes.minorticks_off()
    axes.set_ylim(low - room, high + room)
    axes.axhline(1.0, color=INK, linestyle="--", linewidth=1.2, zorder=3)
    variant = wrapped(first.variant, 40, most=1) if len(members) == 1 else "variant"
    reference = wrapped(first.reference, 40, most=1)
    rising = first.values[-1].ratio.value > first.values[0].ratio.value  # corners that the curve leaves free
    for height, name, left in ((0.97, reference, rising), (0.03, variant, not rising)):
        side: dict[str, Any] = {"ha": "left" if left else "right", "va": "top" if height > 0.5 else "bottom"}
        place: dict[str, Any] = {"transform": axes.transAxes, "fontsize": sized(8.5), "color": QUIET}
        axes.text(0.01 if left else 0.99, height, f"{name} is faster", **side, **place)
    axes.set_xlabel(_field(first))
    axes.set_ylabel("ratio of step times")  # the title names both: it has more room
    common = f"{wrapped(first.common, 40, most=1)}: " if first.common else ""
    turn = "; grey: crossover" if len(members) == 1 and first.turns else ""
    describe(axes, f"{common}{variant} / {reference}, with 95% intervals; filled: decided{turn}")


TOPIC = Topic(
    name="crossing",
    title="Which variant is faster, and the crossover",
    lead="Ratio of step times over the swept number, from launches paired by round, so that changes of the "
    "machine affect both.",
    tables=tables,
    data=lambda findings: {"crossings": _data(findings)},
    files=("crossings",),
    figure=TopicFigure(
        name="crossing",
        title="Ratio of step times over the swept number",
        description="Step time of a variant over that of the reference, with its 95% interval, beside a "
        "line at 1, where both are equally fast.",
        draw=figure,
    ),
)
