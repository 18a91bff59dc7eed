"""Cases side by side: plans, variants over a swept number, cost, figures of merit, what a choice saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.contrasts import crossovers
from pscale.analysis.difference import EQUAL, RELEVANT, decided
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report.blocks import Topic, TopicFigure, show
from pscale.report.figure_style import CAUSES, INK, KINDS, QUIET, Colour, describe, mark, sized, wrapped
from pscale.report.table import CASE, Column, Columns, Table, Tone, Written, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pscale.report import drawing

_MOST_BARS = 40
_PARTS = {  # of a step: colour and name
    "compute": (KINDS["compute"], "compute"),
    "exchange": (KINDS["transfer"], "exchange"),
    "bubble": (CAUSES["bubble"], "bubble"),
    "wait": (KINDS["wait"], "other wait"),
    "copies": (KINDS["copy"], "copies"),
    "offload": (KINDS["offload"], "stalls for offloaded data"),
}
_VISIBLE = 0.002  # of a step
_MARKS = {"equal": "=", "undecided": "?"}

_MOST_PANELS = 4
_LINE = 3  # values from which on a curve is drawn
_FIRST = 2  # colour of a curve: a light band of it is not grey
_ROOM = 1.6  # times the largest ratio, or the smallest: an interval that reaches further ends at the edge
_ENDLESS = 1e3  # a ratio beyond every edge
_DOUBLINGS = 4.0  # largest over smallest value from which on the axis is logarithmic


def ranking(findings: Findings, choice: str = "plan") -> Iterator[Table]:
    """Yield, per group of plans or splits, which is fastest and what costs the others."""
    columns: Columns = (
        Column("#", str, get=lambda plan: Written(plan.place, _MARKS.get(plan.answer, f"{plan.place}"))),
        Column(choice, fold=True, get="name"),
        Column("step", text.duration, get="step_s"),
        Column("× fastest", get="ratio"),
        Column(
            "95% interval", text.ratio_interval, interval=True, get=lambda plan: plan.answer and plan.ratio
        ),
        Column("exchange", text.percent_0, wide=True, get="exchange"),
        Column("bubble", text.percent_0, wide=True, get=lambda plan: plan.bubble or None),
        *(Column(name, text.percent_0, wide=True, get=name) for name in ("wait", "compute")),
        Column("copies", text.percent_0, wide=True, get=lambda plan: plan.copies or None),
        *(Column("largest loss", get=_loss), Column("to decide", fold=True, get=_need)),
    )
    groups = grouped(findings.ranked(choice), lambda plan: plan.group)
    for group, plans in groups.items():
        title = f"Which {choice} is fastest" + (f": {text.clean(group)}" if group and len(groups) > 1 else "")
        yield from listed(title, plans, columns, caption=_caption(plans), tone=_plan_tone, filled=True)


def _plan_tone(plan: Row) -> Tone:
    return "pending" if plan.answer == "undecided" else "good" if plan.place == 1 else ""


def _need(plan: Row) -> str | None:
    return messages.need(plan) or None


def _caption(plans: Sequence[Row]) -> str:
    """Explain the words and signs that are there."""
    answers = {plan.answer for plan in plans}
    parts = {
        f"shares are of each {plans[0].choice}'s step": True,
        f"= within {EQUAL:.0%} of the fastest": "equal" in answers,
        "? undecided: the interval includes the opposite result": "undecided" in answers,
        "extra compute: more than the one that computes least": "extra" in {plan.loss for plan in plans},
    }
    return "; ".join(text for text, holds in parts.items() if holds)


def _loss(plan: Row) -> str:
    return f"{messages.PLAN_LOSSES[plan.loss]} {getattr(plan, plan.loss):.0%}" if plan.loss else "none"


def ranking_figure(findings: Findings) -> Figure | None:
    """Draw the ranking where cases are plans side by side, a bar a plan; None elsewhere."""
    from pscale.report import drawing

    plans = findings.ranked("plan") if findings.side_by_side else []
    groups = grouped(plans, lambda plan: text.clean(plan.group)).items()
    if not groups:
        return None
    bars = [(group, [_bar(findings, plan) for plan in members]) for group, members in groups]
    figure, (axes,) = drawing.bar_chart(findings.heading, bars, most=_MOST_BARS, noun="plans")
    axes.set_xlabel("step time")
    axes.xaxis.set_major_formatter(lambda value, _: text.duration_3(value))
    seen = [name for name in _PARTS if any(getattr(plan, name) > _VISIBLE for plan in plans)]
    drawing.below(figure, {_PARTS[name][1]: _PARTS[name][0] for name in seen})
    return figure


def _bar(findings: Findings, plan: Row) -> drawing.Bar:
    """Return the bar of a plan with its interval, and its place beside the fastest."""
    from pscale.report import drawing

    point = findings.case(plan.case)
    step_s, parts = plan.step_s, []
    for name, (colour, words) in _PARTS.items():
        share = getattr(plan, name)
        time_s = share * step_s.value
        hint = f"{point.label}: {words} {text.duration_3(time_s)}, {text.percent(share)} of the step"
        parts.append(drawing.Part(time_s, colour, hint))
    ends = step_s.value if step_s.low is None else step_s.low, step_s.high or step_s.value
    sign = _MARKS.get(plan.answer, "")
    said = f"{text.duration_3(step_s.value)}  {plan.ratio.value:.3g}× {sign}".rstrip()
    return drawing.Bar(plan.name, plan.case, parts, said, ends, open=plan.answer == "undecided")


PLANS = Topic(
    name="plans",
    title="Which plan is fastest",
    lead="Plans of the same work on the same ranks. Plans as fast as the fastest share its place; "
    "for plans marked ? this is undecided.",
    tables=ranking,
    figure=TopicFigure(
        name="plans",
        title="Step time of every plan",
        description="One bar per plan, fastest first, split into compute, exchange, "
        "bubble, other wait, copies and stalls.",
        draw=ranking_figure,
    ),
)


def crossings(findings: Findings) -> Iterator[Table]:
    """Yield, for every reference, the variants beside it at every value of the swept number."""
    for (common, reference), rows in _references(findings).items():
        named, field = text.clean(reference), _field(rows[0])
        several = len({row.variant for row in rows}) > 1
        beside = f"Variants beside {': '.join(filter(None, (common, reference)))}"
        title = text.clean(beside if several else messages.variants(rows[0]))
        columns: Columns = (
            Column(get="variant", fold=True),
            Column(field, get="value"),
            Column(f"{named}, step", text.duration, get="a_s"),
            Column("step", text.duration, get="b_s"),
            *("ratio", Column(get="ratio", interval=True)),
            Column("rounds", get="a_launches", wide=True),
            Column("rounds needed", get="launches_needed", wide=True),
            Column("p", text.number_2, wide=True, get="p_corrected"),
            Column("faster", fold=True, get=_faster),
        )
        yield from listed(
            f"{title}, over {field}",
            rows,
            columns,
            caption=f"ratio: step time relative to {named}, for launches paired by round; "
            "faster: decided if p < 0.05, corrected for the number of values (Holm)",
            grouped=True,
            tone=lambda row: "pending" if row.answer == "undecided" else "",
        )


def _references(findings: Findings) -> Mapping[tuple[str, str], list[Row]]:
    """Return the variants by what they are compared with."""
    return grouped(findings.rows("crossings"), lambda row: (row.common, row.reference))


def _field(row: Row) -> str:
    return str(row.field).rpartition(".")[2]


def _faster(row: Row) -> str:
    names = {"faster": row.variant, "slower": row.reference, "undecided": "undecided"}
    return str(names.get(row.answer, f"within {RELEVANT:.0%}"))


def crossings_figure(findings: Findings) -> Figure | None:
    """Draw the ratio of step times over the swept number, a panel a reference; None without variants."""
    from pscale.report import drawing

    every = [*_references(findings).values()]
    if not every:
        return None
    groups = every[:_MOST_PANELS]
    figure = drawing.canvas(9.2, 3.6 * len(groups), findings.heading)
    drawing.count_drawn(figure, len(groups), len(every), "groups")
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, rows in zip(panels, groups, strict=True):
        curves = [*grouped(rows, lambda row: row.variant).values()]
        colours = drawing.distinct(_FIRST + len(curves))[_FIRST:]
        _axes(axes, rows, curves[0])
        for curve, colour in zip(curves, colours, strict=True):
            _curve(axes, curve, colour)
        if len(curves) == 1:
            for turn in crossovers(rows):
                axes.axvspan(*turn, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
        else:
            ends = {
                (text.clean(curve[-1].variant), colour): (curve[-1].value, curve[-1].ratio.value)
                for curve, colour in zip(curves, colours, strict=True)
            }
            drawing.name_ends(axes, ends, 0.08, weight="bold")
    return figure


def _axes(axes: Axes, rows: Sequence[Row], curve: Sequence[Row]) -> None:
    """Set the axes of all variants; texts lie where the first curve leaves room."""
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


def _curve(axes: Axes, rows: Sequence[Row], colour: Colour) -> None:
    """Draw one variant; filled points are decided, and arrows mark intervals that go on beyond the edges."""
    bounded = [row for row in rows if row.ratio.low is not None]
    at = [row.value for row in bounded]
    lows, highs = ([(row.ratio.stated or (0.0, _ENDLESS))[end] for row in bounded] for end in (0, 1))
    if len(rows) >= _LINE:
        axes.fill_between(at, lows, highs, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.plot([row.value for row in rows], [row.ratio.value for row in rows], color=colour)
    axes.vlines(at, lows, highs, color=colour, linewidth=1.1, zorder=4)
    for row in rows:
        fill = colour if decided(row.answer) else "white"
        (dot,) = axes.plot([row.value], [row.ratio.value], "o", color=colour, zorder=5, markerfacecolor=fill)
        interval = f" (95% interval {text.ratio_interval(row.ratio)})" if row.ratio.stated else ""
        value = f"{_field(row)} {text.number(row.value)}: {row.ratio.value:.3g}"
        mark(dot, f"{value}{interval}, {_faster(row)}", row.case)
    low, high = axes.get_ylim()
    below = [value for value, bound in zip(at, lows, strict=True) if bound < low]
    above = [value for value, bound in zip(at, highs, strict=True) if bound > high]
    for edge, values, arrow in ((low, below, "v"), (high, above, "^")):
        if values:  # the layout takes no point for one in the corner of the figure
            axes.plot(values, [edge] * len(values), arrow, color=colour, markersize=sized(5), clip_on=False)


CROSSING = Topic(
    name="crossing",
    title="Which variant is faster, and the crossover",
    lead="Ratio of step times over the swept number, from launches paired by round, so that changes of the "
    "machine affect both.",
    tables=crossings,
    figure=TopicFigure(
        name="crossing",
        title="Ratio of step times over the swept number",
        description="Step time of a variant over that of the reference, with its 95% interval, beside a "
        "line at 1, where both are equally fast.",
        draw=crossings_figure,
    ),
)


# Cases side by side: cost, figures of merit, and what one choice saves beside the case without it

ON_TIME = (
    "NumPy has no products of 16 bits: operands are upcast to float32 and results rounded, which takes "
    "time. Time is not what 16 bits would save on hardware that has them; bytes and memory are."
)


def _costs(findings: Findings) -> Iterator[Table]:
    """Yield the cost of every measured case."""
    rows = findings.rows("costs")
    work = "samples" if {cost.unit for cost in rows} - {""} == {"sample"} else "units of work"
    columns: Columns = (
        *(CASE, "cores"),
        Column("core time of a step", text.duration, get="core_s"),
        Column(f"core-hours for 1M {work}", get="core_hours", write=text.number_3),
        *(Column("cost over base", get="relative"), Column(get="relative", interval=True, wide=True)),
    )
    caption = "cost over base: core time for the same work, over that of the base case (1 / efficiency)"
    caption *= any(cost.relative for cost in rows)
    return listed("Cost", rows, columns, caption=caption, filled=True)


COSTS = Topic(
    name="costs",
    title="Cost",
    lead="Core time is cores × step time: what an allocation is charged for.",
    tables=_costs,
)


MERITS = Topic(
    name="merits",
    title="Figures of merit",
    lead="Figures of merit printed by the program: means over launches.",
    tables=show(
        "Figures of merit",
        "merits",
        (
            *(CASE, "figure", "value"),
            Column(get="value", interval=True),
            *("unit", "better", Column(get="launches", wide=True)),
        ),
        grouped=True,
        filled=True,
    ),
)


def _over(name: str, heading: str = "×") -> Column:
    """Return the column of a ratio to the reference."""
    return Column(heading, get=f"{name}_ratio")


_STEP = Column(write=text.duration, get="step_s")
_LOSS = (Column("loss", get="loss_last"), Column("more", get="loss_more"))


def _topic(choice: str, title: str, lead: str, *columns: Column | str, **how: Any) -> Topic:
    """Return the topic of a choice, with these columns of the frame."""
    tables = show(
        f"{title} (per rank and step)",
        "choices",
        (CASE, *columns, "answer"),
        only=lambda row: row.choice == choice,
        filled=True,
        **how,
    )
    return Topic(name=choice, title=title, lead=lead, tables=tables)


COMPRESSION = _topic(
    "compression",
    "Compressed gradients",
    "What compression saves and costs, relative to the same cases without it.",
    *("sent_bytes", _over("sent", "× none"), _STEP, _over("step", "× none's"), "sync_compute_s", *_LOSS),
    explain=("sent_bytes", "sync_compute_s", "loss_last", "loss_more"),
    caption="× none: relative to the same case without compression",
)
PRECISION = _topic(
    "precision",
    "Precision",
    ON_TIME,
    *("sent_bytes", _over("sent"), "held_bytes", _over("held"), _STEP, _over("step"), *_LOSS),
    explain=("sent_bytes", "held_bytes", "loss_last", "loss_more"),
    caption=f"{ON_TIME} ×: relative to the same case in float32",
)
OFFLOAD = _topic(
    "offload",
    "Offload",
    "What moves from memory to a file, what that saves, and what it costs.",
    *("memory_bytes", _over("memory", "× none"), Column("in a file", get="file_bytes")),
    *("read_bytes", "written_bytes", Column("B/s", wide=True, get="bytes_per_s")),
    *(Column("moving", wide=True, get="io_s"), Column("stalled", get="stall_s")),
    *(_STEP, _over("step", "× none's")),
    explain=("memory_bytes", "bytes_per_s", "stall_s"),
    caption="× none: relative to the same case without offload",
)
PREFETCH = _topic(
    "prefetch",
    "Samples read ahead",
    "What reading the next micro-batch ahead hides, and what it costs.",
    *("read_bytes", Column("reading", get="io_s"), Column("hidden", get="hidden_s")),
    *(Column("exposed", get="stall_s"), Column("phase data", get="data_s")),
    *(_STEP, _over("step", "× without")),
    caption="reading: on a thread; hidden: of that, while the step goes on; exposed: the step waits for it; "
    "× without: relative to the same case without prefetch",
)
HINTS = Topic(
    name="hints",
    title="Hints for MPI-IO",
    lead="What the library says of `data.hints` when the file is open.",
    tables=show("Hints for MPI-IO", "hints", (CASE, "hint", "asked", "used", "answer"), grouped=True),
)
SAVED = Topic(
    name="saved",
    title="Saved state",
    lead="What saving the state of the training takes, outside the step time, and what loading it.",
    tables=show(
        "Saving and loading",
        "saved",
        (
            *(CASE, "load_by", Column("saving", get="save_s"), Column("saved", wide=True, get="saved_bytes")),
            *(Column("loading", get="load_s"), Column("read", wide=True, get="load_read_bytes")),
            Column(get="load_s", interval=True, wide=True),
            Column("reading", wide=True, get="load_read_s"),
            Column("sending", wide=True, get="load_broadcast_s"),
            Column("sent", wide=True, get="load_broadcast_bytes"),
            *(_over("load", "× read's"), "answer"),
        ),
        explain=("load_by",),
        caption="times: of the slowest rank; × read's: relative to the same case by read",
        filled=True,
    ),
)
OPTIMIZERS = _topic(
    "optimizer",
    "Optimizers",
    "Loss after the same number of steps, and the cost of state and update.",
    *(*_LOSS, "state_bytes", "update_s", Column("computing", wide=True, get="update_compute_s"), _STEP),
    Column("× fastest", wide=True, get="step_ratio", note="of the same cases"),
    explain=("loss_last", "loss_more", "state_bytes", "update_s"),
    caption="the same cases: those that differ in optimizer and learning rate alone",
)
