"""What analysis and reports say, in sentences: functions of a row of a frame, grouped by topic.

Terminal, page and files choose among them; none cuts a text or takes it apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.analysis.columns import Row
from pscale.analysis.efficiency import half
from pscale.analysis.predictions import REACH
from pscale.analysis.stats import Estimate
from pscale.analysis.wording import duration, percent, plural

# Interference and stragglers

_ALWAYS = 0.9  # of the steps
_TAKEN = {  # from the cores of a case, by cause
    "others": "other processes used {} of these cores",
    "steal": "the hypervisor took {} of the time of these cores",
    "limit": "a limit on CPU time stopped the ranks for {} of the time",
    "off_core": "the ranks had no core for {} of the time",
}


def interference(row: Row) -> str:
    """Say how much was taken from the cores of a case, and by what."""
    return _TAKEN[row.cause].format(percent(row.share))


def straggler(row: Row) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    where = f" on {row.host}" if row.host else ""
    return (
        f"The others wait for rank {row.rank}{where}: {percent(row.step_share)} of the step, "
        f"{percent(row.wait_share)} of all waiting. It is late in {row.late_steps} of "
        f"{row.steps} steps, by {duration(row.late_s)} on average, mostly in {row.phase}."
    )


def straggler_hint(row: Row) -> str:
    """Say what usually makes a rank late as this one is."""
    if row.late_steps < _ALWAYS * row.steps:
        return "It stalls intermittently: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."


# Steps


def loss_scale(row: Row) -> str:
    """Say how the scale of the loss went: 3 of 30 steps skipped, scale 32768."""
    return f"{row.skipped} of {row.steps} steps skipped, scale {row.last_scale:.10g}"


def loss(row: Row, name: str) -> str:
    """Say which share of the step is lost, with half of its interval: 18.6% ± 2.1%."""
    share = getattr(row, name)
    spread = half(share)
    return percent(share.value) + (f" ± {percent(min(1.0, spread))}" if spread is not None else "")


# Laws and predictions

_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}


def laws(model: Row, laws: Sequence[Row], steps: Sequence[Row], named: Sequence[Row]) -> Iterator[str]:
    """Yield how far to trust the laws of a model, efficiencies at `steps`, its bottleneck and named laws."""
    yield from _misfit([law for law in laws if not law.fits])
    shares = [f"{_percent_3(row.efficiency)} at {law_size(row.size)}" for row in steps if row.efficiency]
    if shares:
        yield f"Efficiency: {', '.join(shares)}."
    if model.first == "none":
        yield "No phase is predicted to cost more than under ideal scaling."
    elif model.first:
        yield (
            f"First bottleneck: {model.first}, {percent(model.first_share, 0)} of the step at "
            f"{law_size(steps[-1].size)} {model.unit} ({percent(model.first_measured_share, 0)} at "
            f"{law_size(max(model.sizes))})."
        )
    yield from map(_named_law, named)
    yield "Intervals: 95% for a measurement at that size; error: at sizes left out of the fit."
    if any(row.beyond for row in steps):
        yield (
            f"* more than {REACH} times the largest measured size ({law_size(max(model.sizes))}): "
            "a trend without an interval, not a number to plan with."
        )


def law_size(size: float) -> str:
    """Say a size, or the value of a swept number: 1,024."""
    return f"{size:,.12g}"


def _misfit(laws: Sequence[Row]) -> Iterator[str]:
    """Yield by how much laws miss and by how much launches scatter."""
    if laws:
        first, *others = ((law.part, percent(law.misfit), percent(law.scatter)) for law in laws)
        missed = "{}, whose law misses by {} of the step while launches vary by {}".format(*first)
        yield f"Does not fit: {'; '.join([missed, *('{} ({}, {})'.format(*each) for each in others)])}."
        yield "Do not plan with the predictions of such a law: measure more sizes where times bend."


def _named_law(row: Row) -> str:
    numbers = {
        "serial fraction": row.serial_fraction,
        "contention": row.contention,
        "coherency": row.coherency,
    }
    parts = [f"{name} {_percent_3(value)}" for name, value in numbers.items() if value]
    if row.peak and row.peak >= 1:
        parts.append(f"highest throughput at {row.peak:,.3g} {row.unit}")
    return f"{_LAWS[row.law]}: {', '.join(parts)} (error {percent(row.error)})."


def _percent_3(value: Estimate) -> str:
    """Say a share that may be small with three digits: 1.54% [1.2–2%]."""
    if value.low is None or value.high is None:
        return f"{value.value * 100:.3g}%"
    return f"{value.value * 100:.3g}% [{value.low * 100:.3g}–{value.high * 100:.3g}%]"


def projections(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how to read predictions by parts, and where the law disagrees."""
    apart = [f"{row.ranks:,}" for row in rows if row.answer == "disagree"]
    if apart:
        yield (
            f"On {' and '.join(apart)} ranks the two disagree, so rely on neither: measure a size in between."
            " The parts follow the plan and its calls (unmeasured ones from the nearest measured); the law "
            "only follows times."
        )
    yield "By parts: as `pscale predict`, with the interval of 90% of launches."
    yield from dict.fromkeys(f"{note[:1].upper()}{note[1:]}." for row in rows for note in row.notes)
    yield from dict.fromkeys(f"* {unchecked(row.checked_ranks)}." for row in rows if row.step_s.low is None)


def unchecked(ranks: int) -> str:
    """Say why a prediction of more than so many ranks has no interval."""
    return f"no interval: no prediction for more than {plural(ranks, 'rank')} was checked"
