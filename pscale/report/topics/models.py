"""Sizes that were not measured: by the parts of those that were, and by laws, with how well these fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pscale.analysis.findings import Findings
from pscale.analysis.forecast import NamedLaw
from pscale.analysis.frames import grouped
from pscale.analysis.models import REACH, Fit, Model, Prediction, Projection
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.figure_style import Colour
from pscale.report.table import Column, Table, Value, Written, listed
from pscale.report.topics.topic import Topic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_NUMBERS = {
    "serial_fraction": "serial fraction",
    "contention": "contention",
    "coherency": "coherency",
}
_APART = "disagree"
_DISAGREE = (
    "On {} ranks the two disagree, so rely on neither: measure a size in between. The parts follow the plan "
    "and its calls (unmeasured ones from the nearest measured); the law only follows times."
)
_MOST_DRAWN = 4  # more bands hide each other
_BAND = 0.15  # opacity


def tables(findings: Findings) -> Iterator[Table]:
    """Yield, per series, the law of a step and of its parts, with predictions."""
    for model in findings.models:
        yield from _projected(model, findings)
        if model.step is not None:
            yield from _fitted(model, model.step, findings)
    columns = (
        Column("series", fold=True, get=lambda each: each[0]),
        Column("requested", fold=True, get=lambda each: ", ".join(f"{size:,}" for size in each[1])),
        Column("by", get=lambda each: each[2]),
        Column("why not", fold=True, get=lambda each: each[3]),
    )
    yield from listed(
        "Sizes not predicted", _refused(findings), columns, tone=lambda _: "bad", files=("models",)
    )


def _refused(findings: Findings) -> Iterator[tuple[str, Sequence[int], str, str]]:
    """Yield the sizes that cannot be predicted: series, sizes, by what, and why."""
    for model in findings.models:
        if model.refusal and model.asked:
            yield model.series, model.asked, "law", model.refusal
        for why, missing in grouped(model.projected, lambda each: each.refusal).items():
            if why:
                yield model.series, [each.size for each in missing], "parts", why


def formula(fit: Fit) -> str:
    """Return the law as one line, such as 1.02 s + 63.9 s/p."""
    return " + ".join(term.form.format(text.duration_3(term.seconds)) for term in fit.terms)


def _fitted(model: Model, step: Fit, findings: Findings) -> Iterator[Table]:
    sizes = [f"{_size(found.size)}{'*' if found.beyond else ''}" for found in step.predictions]
    columns = (
        Column("part", get="part"),
        Column("T(p)", fold=True, get=formula),
        Column("R²", text.number, wide=True, get="r_squared"),
        Column("error", text.percent_1, wide=True, get="error"),
        *(Column(size, _time, interval=True, get=_predicted(place)) for place, size in enumerate(sizes)),
    )
    title = f"Model (p: {model.unit}; at {' and '.join(sizes)})"
    if model.scaling:
        title = text.titled(title, model.series, findings)
    elif model.series:
        title = f"{title}: {text.clean(model.series)}"
    caption, fits = _caption(model, step), _fits(model)
    return listed(title, fits, columns, caption=caption, tone=lambda fit: "base" if fit is step else "")


def _projected(model: Model, findings: Findings) -> Iterator[Table]:
    """Yield the steps at the sizes that were asked for: by parts, and as second opinion by the law."""
    laws = {each.size: each for each in model.step.predictions} if model.step else {}
    found = [each for each in model.projected if each.step_s]
    columns = (
        Column("ranks", str, get=lambda each: Written(each.size, f"{each.size:,}{'*' * each.unchecked}")),
        Column("by parts", _time, interval=True, get="step_s"),
        Column("largest loss", get="first_loss"),
        Column("by the law", _time, interval=True, get=lambda each: laws[each.size].time_s if laws else None),
        Column("the two", get=lambda each: _agreement(each, laws.get(each.size))),
    )
    apart = [f"{each.size:,}" for each in found if _agreement(each, laws.get(each.size)) == _APART]
    said = [_DISAGREE.format(" and ".join(apart))] if apart else []
    said.append("By parts: as `pscale predict`, with the interval of 90% of launches.")
    said += dict.fromkeys(f"{note[:1].upper()}{note[1:]}." for each in found for note in each.notes)
    if any(each.unchecked for each in found):
        said.append("* unchecked: no prediction for so many ranks was ever measured on this machine.")
    title, files = text.titled("Predicted step", model.series, findings), ("projected", "predictions")
    yield from listed(title, found, columns, caption=" ".join(said), files=files)


def _agreement(found: Projection, law: Prediction | None) -> str:
    if law is None or found.step_s is None:
        return ""
    return "agree" if found.agrees(law) else _APART


def _predicted(place: int) -> Callable[[Fit], Value]:
    return lambda fit: fit.predictions[place].time_s


def _fits(model: Model) -> tuple[Fit, ...]:
    return (() if model.step is None else (model.step,)) + model.parts


def _size(size: float) -> str:
    return f"{size:,.12g}"


def _time(known: Estimate) -> str:
    bounds = "" if known.low is None else f" [{text.duration_interval(known, 3)}]"
    return f"{text.duration_3(known.value)}{bounds}"


def _caption(model: Model, step: Fit) -> str:
    """Describe the numbers: efficiency, the phase to look at, the laws by name, and how far to trust them."""
    known = [
        f"{_share(each.efficiency)} at {_size(each.size)}" for each in step.predictions if each.efficiency
    ]
    said = [_misfit(model), f"Efficiency: {', '.join(known)}." if known else "", _first(model, step)]
    said += [_named(law, model) for law in model.named]
    said.append("Intervals: 95% for a measurement at that size; error: at sizes left out of the fit.")
    if any(found.beyond for found in step.predictions):
        said.append(
            f"* more than {REACH} times the largest measured size ({_size(max(model.sizes))}): "
            "a trend without an interval, not a number to plan with."
        )
    return " ".join(filter(None, said))


def _misfit(model: Model) -> str:
    """Say which laws do not fit, by how much they miss and by how much launches scatter; empty if all do."""
    missing = [fit for fit in _fits(model) if not fit.fits]
    if not missing:
        return ""
    shares = [[text.percent_1(share) for share in (fit.misfit, fit.scatter)] for fit in missing]
    others = [f"{fit.part} ({', '.join(own)})" for fit, own in zip(missing[1:], shares[1:], strict=True)]
    missed, scatter = shares[0]
    first = f"{missing[0].part}, whose law misses by {missed} of the step while launches vary by {scatter}"
    return (
        f"Does not fit: {'; '.join([first, *others])}. "
        "Do not plan with the predictions of such a law: measure more sizes where times bend."
    )


def _first(model: Model, step: Fit) -> str:
    if model.first is None:
        return ""
    if not model.first:
        return "No phase is predicted to cost more than under ideal scaling."
    return (
        f"First bottleneck: {model.first}, {text.percent(model.first_share)} of the step at "
        f"{_size(step.predictions[-1].size)} {model.unit} "
        f"({text.percent(model.first_measured_share)} at {_size(max(model.sizes))})."
    )


def _named(law: NamedLaw, model: Model) -> str:
    numbers = {name: getattr(law, key) for key, name in _NUMBERS.items()}
    parts = [f"{name} {_share(known)}" for name, known in numbers.items() if known]
    if law.peak and law.peak >= 1:
        parts.append(f"highest throughput at {law.peak:,.3g} {model.unit}")
    return f"{_NAMES[law.law]}: {', '.join(parts)} (error {text.percent_1(law.error)})."


def _share(known: Estimate) -> str:
    if known.low is None or known.high is None:
        return f"{known.value * 100:.3g}%"
    return f"{known.value * 100:.3g}% [{known.low * 100:.3g}–{known.high * 100:.3g}%]"


def data(findings: Findings) -> Mapping[str, Table]:
    """Return the laws, what they predict, and the laws by name."""
    laws: list[tuple[Value, ...]] = []
    predictions: list[tuple[Value, ...]] = []
    named: list[tuple[Value, ...]] = []
    projected: list[tuple[Value, ...]] = []
    for model in findings.models:
        for said in model.projected:
            projected.append((model.series, said.size, said.step_s, said.first_loss, said.refusal or None))
        if model.refusal:
            laws.append((model.series, "step", *[None] * 7, model.refusal))
        for fit in _fits(model):
            fitted = (fit.r_squared, fit.error, fit.misfit, fit.scatter, fit.fits)
            laws.append((model.series, fit.part, fit.kind, formula(fit), *fitted, None))
            for each in fit.predictions:
                key = (model.series, fit.part, each.size, model.unit)
                predictions.append((*key, each.time_s, each.efficiency, each.beyond))
        for law in model.named:
            numbers = (getattr(law, key) for key in _NUMBERS)
            named.append((model.series, law.law, law.error, *numbers, law.peak))
    names = ("series", "part", "law", "formula", "r_squared", "error", "misfit", "scatter", "fits", "refusal")
    times = {"time_s": True, "efficiency": True}
    return {
        "models": Table.of(laws, *names),
        "predictions": Table.of(
            predictions, "series", "part", "size", "unit", *times, "beyond", bounded=times
        ),
        "projected": Table.of(
            projected, "series", "ranks", "step_s", "first_loss", "refusal", bounded=("step_s",)
        ),
        "laws": Table.of(named, "series", "law", "error", *_NUMBERS, "peak", bounded=_NUMBERS),
    }


def drawn(findings: Findings) -> list[Model]:
    """Return the models that the figure of efficiency has room for: all, or none of many."""
    found = [model for model in findings.models if any(each.efficiency for each in model.curve)]
    return found if len(found) <= _MOST_DRAWN else []


def reached(models: Sequence[Model], sizes: Sequence[int]) -> list[int]:
    """Return the sizes in cores, with those between the largest measured and the end of the models."""
    found = set(sizes)
    for model in models:
        largest, step = round(max(model.sizes)) * model.threads, 2
        while step <= REACH:
            found.add(largest * step)
            step *= 2
    return sorted(found)


def draw(axes: Axes, model: Model, colour: Colour) -> None:
    """Draw one model's efficiency: a dashed line with its band, to four times the largest size."""
    known = [(found.size * model.threads, found.efficiency) for found in model.curve if found.efficiency]
    sizes, values = [size for size, _ in known], [value.value for _, value in known]
    axes.plot(sizes, values, linestyle=(0, (4, 2)), color=colour, linewidth=1.2)
    bounds = [(size, value.low, value.high) for size, value in known if value.low is not None]
    if bounds:
        within, low, high = zip(*bounds, strict=True)
        axes.fill_between(within, low, high, color=colour, alpha=_BAND, linewidth=0)


TOPIC = Topic(
    name="models",
    title="Model",
    lead="Predicted step times of larger sizes: from the parts of measured steps, and by fitted laws.",
    tables=tables,
    data=data,
    files=("models", "projected", "predictions", "laws"),
)
