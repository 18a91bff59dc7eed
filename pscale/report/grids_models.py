"""The table of laws: what was fitted, how well, and what it says of larger sizes."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.models import REACH, Fit, Model, Prediction
from pscale.analysis.named_laws import NamedLaw
from pscale.analysis.stats import Estimate
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row
from pscale.report.grids import titled

_NAMES = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}


def models(summary: Summary) -> Iterator[Grid]:
    """Yield, per series, the law of a step and of its parts, with predictions."""
    for model in summary.models:
        if model.step is not None:
            yield _grid(model, model.step, summary)
    if refused := [model for model in summary.models if model.refusal and model.asked]:
        yield _refused(refused)


def formula(fit: Fit) -> str:
    """Return the law as one line, such as 1.02 s + 63.9 s/p."""
    return " + ".join(term.form.format(text.duration(term.seconds, 3)) for term in fit.terms)


def _grid(model: Model, step: Fit, summary: Summary) -> Grid:
    sizes = [f"{found.size:,}{'*' if found.beyond else ''}" for found in step.predictions]
    columns = (
        Column("part", right=False),
        Column("T(p)", right=False, fold=True),
        *(Column("R²", wide=True), Column("error", wide=True)),
        *(Column(size) for size in sizes),
    )
    return Grid(
        title=titled(f"Model (p: {model.unit}; at {' and '.join(sizes)})", model.series, summary),
        columns=columns,
        rows=tuple(_row(fit) for fit in (step, *model.parts)),
        caption=_caption(model, step),
    )


def _refused(models: list[Model]) -> Grid:
    rows: tuple[Row, ...] = tuple(
        ("bad", (text.clean(model.series), ", ".join(f"{size:,}" for size in model.asked), model.refusal))
        for model in models
    )
    columns = tuple(Column(name, right=False, fold=True) for name in ("series", "asked for", "why not"))
    return Grid(title="Sizes not predicted", columns=columns, rows=rows)


def _row(fit: Fit) -> Row:
    whole = fit.part == "step"
    return ("base" if whole else ""), (
        fit.part,
        formula(fit),
        text.number(fit.r_squared),
        text.percent(fit.error, 1),
        *(_time(found) for found in fit.predictions),
    )


def _time(found: Prediction) -> str:
    if found.time_s.low is None:
        return text.duration(found.time_s.value, 3)
    return f"{text.duration(found.time_s.value, 3)} [{text.duration_interval(found.time_s, 3)}]"


def _caption(model: Model, step: Fit) -> str:
    """Say what the numbers mean: efficiency, the phase to look at, the laws by name, and how far to trust."""
    said = [_efficiencies(step), _first(model, step), *(_named(law, model) for law in model.named)]
    said.append("Intervals hold a measurement there in 95% of cases; error: of sizes left out of the fit.")
    if any(found.beyond for found in step.predictions):
        said.append(
            f"* more than {REACH} times the largest size measured ({max(model.sizes):,}): "
            "a direction, not a number to plan by, hence no interval."
        )
    return " ".join(filter(None, said))


def _efficiencies(step: Fit) -> str:
    known = [
        f"{_share(found.efficiency)} at {found.size:,}" for found in step.predictions if found.efficiency
    ]
    return f"Efficiency: {', '.join(known)}." if known else ""


def _first(model: Model, step: Fit) -> str:
    if not model.first:
        return "No phase is foreseen to cost more than ideal scaling allows."
    return (
        f"First to hurt: {model.first}, {text.percent(model.first_share)} of the step at "
        f"{step.predictions[-1].size:,} {model.unit} "
        f"({text.percent(model.first_measured_share)} at {max(model.sizes):,})."
    )


def _named(law: NamedLaw, model: Model) -> str:
    parts = [
        f"{name} {_share(known)}"
        for name, known in (
            ("serial fraction", law.serial_fraction),
            ("contention", law.contention),
            ("coherency", law.coherency),
        )
        if known
    ]
    if law.peak and law.peak >= 1:
        parts.append(f"most throughput at {law.peak:,.3g} {model.unit}")
    return f"{_NAMES[law.law]}: {', '.join(parts)} (error {text.percent(law.error, 1)})."


def _share(known: Estimate) -> str:
    interval = (
        "" if known.low is None or known.high is None else f" [{known.low * 100:.3g}–{known.high * 100:.3g}%]"
    )
    return f"{known.value * 100:.3g}%{interval}"
