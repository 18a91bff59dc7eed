"""What training learns and how soon: loss, its scale, and how evenly experts are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.config import JOINT
from pscale.report.blocks import Topic, TopicFigure, show
from pscale.report.figure_style import QUIET, Colour, describe, mark, narrow, room, sized, wrapped
from pscale.report.table import CASE, Column, Table, Value, Written, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # panels
_MOST = 24  # panels; further series are in the tables alone
_WIDTHS = {1: 7.0, 2: 9.6, 3: 11.4}  # inches, by panels across
_BELOW = 0.08  # of the height of the curves
_TOGETHER = 8  # curves of single cases that share a panel, in colours that can be distinguished
_MOST_VALUES = 400  # of a curve, under the pointer
_NAME = 0.4  # of the width of a panel: that of the name of a line, in the narrowest
_SAME = 1e-3  # relative; curves closer than this all along are drawn as one

Curve = tuple[list[Row], tuple[float, ...]]


_ENDS = show(
    "First and last loss",
    "cases",
    (
        CASE,
        Column("steps", str, get=lambda point: len(point.losses)),
        Column("first", text.number, get=lambda point: point.losses[0]),
        Column("last", text.number, get=lambda point: point.losses[-1]),
        Column("lowest", text.number, get=lambda point: min(filter(isfinite, point.losses), default=None)),
        Column("held out", text.number, get=lambda point: next(reversed(point.validation_losses), None)),
        Column("unigram baseline", get="loss_unigram"),
    ),
    only=lambda point: point.losses,
)


def loss_figure(findings: Findings) -> Figure | None:
    """Draw one panel a series, or one for variants of one size; None where no case has losses."""
    from pscale.report import drawing

    variants = _variants(findings)
    series = (
        [("", variants)] if variants else [(name, _curves(rows)) for name, rows in findings.series.items()]
    )
    found = [(name, curves) for name, curves in series if curves]
    series = found[:_MOST]
    if not series:
        return None
    columns = min(room(_ACROSS), len(series))
    rows = -(-len(series) // columns)
    figure = drawing.canvas(_WIDTHS[columns], (2.6 if narrow() else 3.3) * rows, findings.title)
    drawing.count_drawn(figure, len(series), len(found), "series")
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for place, (axes, (name, curves)) in enumerate(zip(panels, series, strict=False)):
        guesses = (point.loss_unigram for points, _ in curves for point in points)
        guess = next(filter(None, guesses), None)
        colours = drawing.distinct(len(curves)) if variants else drawing.ordered(len(curves))
        _loss_panel(axes, curves, guess, colours)
        _name(axes, curves, colours, _together if variants else _sizes)
        if len(series) > 1:
            axes.set_title(wrapped(name, 34 if columns > 1 else 100))
        else:
            describe(axes, "Training loss")
        if place % columns == 0:
            axes.set_ylabel("loss (nats)" if guess else "loss")
    for axes in panels[len(series) :]:
        axes.remove()
    return figure


def _variants(findings: Findings) -> list[Curve]:
    """Return the curves of cases that are each the only one of their series, which are to be compared."""
    if len(findings.series) < 2 or any(len(points) > 1 for points in findings.series.values()):
        return []
    curves = _curves(findings.rows("cases"))
    guesses = {point.loss_unigram for points, _ in curves for point in points}
    return curves if len(curves) <= _TOGETHER and len(guesses) == 1 else []


def _curves(points: Sequence[Row]) -> list[Curve]:
    """Return the different curves of a series, each with the cases that share it."""
    curves: list[Curve] = []
    for point in (point for point in points if any(map(isfinite, point.losses))):
        same = [
            found
            for found, losses in curves
            if len(losses) == len(point.losses)
            and all(abs(a - b) <= _SAME * abs(a) for a, b in zip(losses, point.losses, strict=True))
        ]
        if same:
            same[0].append(point)
        else:
            curves.append(([point], point.losses))
    return curves


def _free(curves: Sequence[Curve], guess: float) -> float:
    """Return where along the axis curves leave most room for a name below a line, the first such place."""

    def lowest(start: float) -> float:
        cut = [
            losses[int(start * len(losses)) : int((start + _NAME) * len(losses)) + 2] for _, losses in curves
        ]
        return min((value for losses in cut for value in losses if isfinite(value)), default=guess)

    return 0.012 + max((0.0, 0.25, 0.5), key=lambda start: min(lowest(start), guess))


def _loss_panel(axes: Axes, curves: Sequence[Curve], guess: float | None, colours: Sequence[Colour]) -> None:
    for (points, losses), colour in zip(curves, colours, strict=True):
        (line,) = axes.plot(range(len(losses)), losses, color=colour, linewidth=1.6)
        values = [f"step {step}: {text.number(loss)}" for step, loss in enumerate(losses)]
        mark(line, _together(points), points[0].case, values if len(values) <= _MOST_VALUES else ())
        if held_out := points[0].validation_losses:  # a step is drawn where it begins
            steps = [step - 1 for step in points[0].validation_steps]
            axes.plot(steps, held_out, color=colour, linewidth=0.8, linestyle=":", marker="o", markersize=3)
    if guess is not None:
        top = max((value for _, losses in curves for value in losses if isfinite(value)), default=guess)
        axes.update_datalim([(0, guess - _BELOW * max(0.0, top - guess))])  # room for the name of the line
        axes.axhline(guess, color=QUIET, linestyle="--", linewidth=1.1, zorder=1)
        axes.annotate(
            "unigram baseline",
            (_free(curves, guess), guess),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, -3),
            textcoords="offset points",
            va="top",
            color=QUIET,
            fontsize=sized(8),
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=1.5,
        )
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.set_xlabel("step, warm-up included")
    axes.margins(x=0.02)


def _name(
    axes: Axes,
    curves: Sequence[Curve],
    colours: Sequence[Colour],
    called: Callable[[Sequence[Row]], str],
) -> None:
    """Write names beside the right edge, at the heights of where the curves end."""
    from pscale.report import drawing

    names = [called(points) for points, _ in curves]
    ends = {
        (name, colour): (len(losses) - 1, next(filter(isfinite, reversed(losses))))
        for name, colour, (_, losses) in zip(names, colours, curves, strict=True)
    }
    drawing.name_ends(axes, ends, 0.065 * max(name.count("\n") + 1 for name in names), x=1.02)


def _together(points: Sequence[Row]) -> str:
    """Return the labels of cases with one curve as one, what differs side by side."""
    labels = [point.label.split(JOINT) for point in points]
    if len({len(label) for label in labels}) > 1:
        return wrapped(", ".join(point.label for point in points), 30)
    return wrapped(JOINT.join(", ".join(dict.fromkeys(words)) for words in zip(*labels, strict=True)), 30)


def _sizes(points: Sequence[Row]) -> str:
    sizes = [messages.short_size(point) for point in points]
    named = ", ".join(sizes) if len(sizes) <= 4 else f"{sizes[0]} … {sizes[-1]}"
    return f"{named} rank{'' if sizes == ['1'] else 's'}"


LOSS = Topic(
    name="loss",
    title="Loss",
    lead="Equal curves mean equal work. Cases that learn differently (by optimizer, precision or "
    "compression) have different curves.",
    details=_ENDS,
    figure=TopicFigure(
        name="loss",
        title="Loss by step",
        description="One curve for each case, or one for several that are equal; the dashed line is the "
        "unigram baseline: guessing by byte frequency alone; dots: the loss of text that is held out.",
        draw=loss_figure,
    ),
)


# Scaled losses


def _loss_scaling(findings: Findings) -> Iterator[Table]:
    """Yield scales and skipped steps of the cases whose loss is scaled."""

    def loss(each: Row) -> Value:
        return findings.case(each.case).loss_last  # type: ignore[no-any-return]

    columns = (
        *(CASE, Column("scale", str, get="asked")),
        Column("at first", "{:.10g}".format, get="first_scale"),
        Column("at last", "{:.10g}".format, get="last_scale"),
        Column("skipped", str, get=lambda each: Written(each.skipped, f"{each.skipped} of {each.steps}")),
        *(Column("of these measured", str, get="skipped_measured"), Column("loss", text.number, get=loss)),
    )
    caption = (
        "skipped: steps whose gradients overflowed, warm-up included; no rank updates its "
        "weights in them; loss: of the last measured step"
    )
    return listed("Loss scaling", findings.rows("loss_scaling"), columns, caption=caption)


LOSS_SCALE = Topic(
    name="loss-scale",
    title="Loss scaling",
    lead="The scale of the loss, and the steps whose gradients overflowed.",
    tables=_loss_scaling,
)


# Experts


EXPERTS = Topic(
    name="experts",
    title="Experts",
    lead="The balance of experts, and the choices beyond their capacity.",
    tables=show(
        "Experts (mean over steps and blocks)",
        "cases",
        (
            CASE,
            Column("dropped choices", get="dropped_share"),
            Column("busiest expert", "{:.2f} × mean".format, get="expert_imbalance"),
            Column("loss", get="loss_last"),
        ),
        only=lambda point: point.dropped_share is not None,
    ),
)


TIME_TO_LOSS = Topic(
    name="time-to-loss",
    title="Time to loss",
    lead="A larger batch keeps more ranks busy, and takes more text to reach the same loss.",
    tables=show(
        "Time to a validation loss",
        "time_to_loss",
        (
            *("target", "ranks", "batch", "seeds", Column("steps", text.number_3, get="to_loss_steps")),
            *(Column("time", get="to_loss_s"), Column(get="to_loss_s", interval=True)),
            Column("core-hours", text.number_3, get="to_loss_core_hours"),
            *(Column("× fewer ranks", get="over"), "answer"),
        ),
        explain=("target", "to_loss_s", "over"),
        grouped=True,
        filled=True,
    ),
)
