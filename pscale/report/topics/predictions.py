"""Steps that were not measured: by parts and laws, on other networks, and as recorded before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.stats import Estimate
from pscale.report.blocks import Topic, show
from pscale.report.figure_style import Colour
from pscale.report.table import CASE, Column, Columns, Table, Value, Written, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_DRAWN = 4  # more bands hide each other
_BAND = 0.15  # opacity


def _time(known: Estimate) -> str:
    bounds = "" if known.low is None else f" [{text.duration_interval(known, 3)}]"
    return f"{text.duration_3(known.value)}{bounds}"


_PROJECTED = (
    Column(
        "ranks", str, get=lambda row: Written(row.ranks, f"{row.ranks:,}{'*' * (row.step_s.low is None)}")
    ),
    Column("by parts", _time, interval=True, get="step_s"),
    Column("largest loss", get="first_loss"),
    Column("by the law", _time, interval=True, get="law_s"),
    Column("the two", get="answer"),
)
_REFUSED = (
    Column("series", fold=True, get=lambda each: each[0]),
    Column("requested", fold=True, get=lambda each: ", ".join(f"{size:,}" for size in each[1])),
    Column("by", get=lambda each: each[2]),
    Column("why not", fold=True, get=lambda each: each[3]),
)


def tables(findings: Findings) -> Iterator[Table]:
    """Yield, per series, steps by parts and by the law, then the laws of a step and of its parts."""
    laws, predicted, projected = (
        grouped(findings.rows(name), lambda row: row.model)
        for name in ("laws", "law_predictions", "projections")
    )
    refused: list[tuple[str, Sequence[int], str, str]] = []
    for model in findings.rows("models"):
        rows = projected.get(model.model, [])
        made = [row for row in rows if row.step_s]
        title = findings.titled("Predicted step", model.series)
        caption = " ".join(messages.projections(made))
        yield from listed(title, made, _PROJECTED, caption=caption)
        if model.model in laws:
            yield from _fitted(model, laws[model.model], predicted[model.model], findings)
        elif model.asked:
            refused.append((model.series, model.asked, "law", model.refusal))
        for why, missing in grouped((row for row in rows if row.refusal), lambda row: row.refusal).items():
            refused.append((model.series, [row.ranks for row in missing], "parts", why))
    yield from listed("Sizes not predicted", refused, _REFUSED, tone=lambda _: "bad")


def _fitted(model: Row, laws: Sequence[Row], predicted: Sequence[Row], findings: Findings) -> Iterator[Table]:
    times = {(row.part, row.size): row.time_s for row in predicted if not row.curve}
    steps = [row for row in predicted if row.part == "step" and not row.curve]
    names = [f"{messages.law_size(row.size)}{'*' * row.beyond}" for row in steps]

    def at(size: float) -> Callable[[Row], Estimate]:
        return lambda law: times[law.part, size]

    columns = (
        *(Column("part", get="part"), Column("T(p)", fold=True, get="formula")),
        Column("R²", text.number, wide=True, get="r_squared"),
        Column("error", text.percent, wide=True, get="error"),
        *(
            Column(name, _time, interval=True, get=at(row.size))
            for name, row in zip(names, steps, strict=True)
        ),
    )
    title = f"Model (p: {model.unit}; at {' and '.join(names)})"
    if model.scaling:
        title = findings.titled(title, model.series)
    elif model.series:
        title = f"{title}: {text.clean(model.series)}"
    named = [row for row in findings.rows("named_laws") if row.model == model.model]
    caption = " ".join(messages.laws(model, laws, steps, named))
    return listed(title, laws, columns, caption=caption, tone=lambda law: "base" * (law.part == "step"))


def drawn(findings: Findings) -> list[list[Row]]:
    """Return the curves of efficiency that the figure has room for: all, or none of many."""
    known = [row for row in findings.rows("law_predictions") if row.curve and row.efficiency]
    curves = [*grouped(known, lambda row: row.model).values()]
    return curves if len(curves) <= _MOST_DRAWN else []


def reached(curves: Sequence[Sequence[Row]], sizes: Sequence[int]) -> list[int]:
    """Return the sizes in cores, with those between the largest measured and the end of the curves."""
    return sorted({*sizes, *(curve[-1].cores // part for curve in curves for part in (1, 2))})


def draw(axes: Axes, curve: Sequence[Row], colour: Colour) -> None:
    """Draw the efficiency of a law: a dashed line with its band, to four times the largest size."""
    values = [row.efficiency.value for row in curve]
    axes.plot([row.cores for row in curve], values, linestyle=(0, (4, 2)), color=colour, linewidth=1.2)
    bounds = [
        (row.cores, row.efficiency.low, row.efficiency.high)
        for row in curve
        if row.efficiency.low is not None
    ]
    if bounds:
        within, low, high = zip(*bounds, strict=True)
        axes.fill_between(within, low, high, color=colour, alpha=_BAND, linewidth=0)


_INSIDE = Column(
    "inside",
    str,
    get=lambda row: Written(row.inside, f"{row.inside} of {row.launches}"),
    note="launches in the interval that should hold nine in ten of them",
)


def _beside_measured(findings: Findings) -> Iterator[Table]:
    """Yield the step and every kind of time, predicted and measured."""
    times = {(row.case, row.kind): row for row in findings.rows("predicted_kinds")}
    kinds = dict.fromkeys(kind for _, kind in times)

    def both(kind: str) -> Callable[[Row], Value]:
        def written(case: Row) -> Value:
            if (row := times.get((case.case, kind))) is None:
                return None
            measured = "unknown" if row.measured_s is None else text.duration_3(row.measured_s)
            return Written(row.predicted_s, f"{text.duration_3(row.predicted_s)} → {measured}")

        return written

    def launches(row: Row) -> Value:
        between = " to ".join(map(text.duration_3, (row.low_s, row.high_s)))
        return Written(row.high_s / row.low_s, between)

    columns: Columns = (
        *(CASE, "predicted_s", Column("90% of launches", str, get=launches), "measured_s", "error", _INSIDE),
        *(Column(kind, str, wide=True, get=both(kind)) for kind in kinds),
    )
    caption = "by kind: predicted → measured, per step of the mean rank" * bool(kinds)
    rows = findings.rows("predicted")
    yield from listed("Predicted beside measured", rows, columns, caption=caption)
    columns = ("cases", "mean_error", "largest_error", _INSIDE)
    scores = findings.rows("prediction_score")
    yield from listed("Score of the predictions", scores, columns)


MODELS = Topic(
    name="models",
    title="Model",
    lead="Predicted step times of larger sizes: from the parts of measured steps, and by fitted laws.",
    tables=tables,
)
MEASURED = Topic(
    name="prediction",
    title="Predicted beside measured",
    lead="Predictions that `pscale predict` recorded before these launches, and what was measured.",
    tables=_beside_measured,
)
WHAT_IF = Topic(
    name="what-if",
    title="What if",
    lead="The recorded steps, replayed on other networks.",
    tables=show(
        "What if (mean step)",
        "what_if",
        (
            *(CASE, Column(fold=True, get="network")),
            *(Column(write=text.duration, get=name) for name in ("measured_s", "replayed_s", "expected_s")),
            "change",
        ),
        explain=("replayed_s", "expected_s", "change"),
    ),
)
