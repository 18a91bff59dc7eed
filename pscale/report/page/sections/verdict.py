"""What to read first: the verdict in words, its figures, and where the step of the largest case goes."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.losses import Losses
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate
from pscale.analysis.summary import Summary
from pscale.analysis.verdict import size
from pscale.report import text
from pscale.report.marks import marks
from pscale.report.page.blocks import Block, Headlines, Part, Section, Stack, Tile, Tiles
from pscale.report.page.cells import band
from pscale.report.page.context import Context
from pscale.report.page.sections.series import PARTS, overview, table

_SPOKEN = 4  # series or groups told of in sentences; of more series an overview, and these are folded
_FOLDED = 50
COLOURS = {  # as in the figures, where they have the same meaning
    "useful": "#0072b2",
    "threads": "#999933",
    "scaling": "#56b4e9",
    "imbalance": "#6a3d9a",
    "serialisation": "#b4478a",
    "transfer": "#e69f00",
    "together": "#cd7345",
    "copy": "#009e73",
    "offload": "#8dd3c7",
    "unaccounted": "#999999",
}
_VISIBLE = 0.0005  # of a step


def verdict(context: Context) -> Section:
    """Return the head of the page."""
    summary = context.summary
    said = [(text.clean(line.topic), text.clean(line.text)) for line in summary.headlines]
    spoken, folded = said[:_SPOKEN], said[_SPOKEN:]
    if folded and (in_all := overview(summary)):
        spoken, folded = [("", in_all)], said
    blocks: list[Block] = [
        Headlines(
            warning=summary.oversubscribed,
            lines=tuple(spoken),
            more=tuple(folded[:_FOLDED]),
            untold=len(folded[_FOLDED:]),
            marks=tuple(marks(summary)),
        )
    ]
    if not summary.side_by_side:
        largest = [summary.point(each.case) for each in summary.verdicts if each.case]
        if len(largest) == 1:
            blocks.append(Tiles(items=tuple(_tiles(summary, largest[0]))))
        if len(largest) <= _SPOKEN:
            blocks += _stacks(summary, largest)
        if len(largest) > 1:
            blocks.append(table(context))
    return Section(name="verdict", title="In short", lead="", blocks=blocks)


def _tiles(summary: Summary, point: Point) -> Iterator[Tile]:
    at = f"at {size(point)}"
    if (known := point.efficiency) and not point.base:
        yield Tile(
            name=f"Efficiency {at}",
            value=text.percent(known.value, 1),
            note=_interval(known, text.percent_interval(known)),
            band=band(known.value),
        )
    if (known := point.speedup) and not point.base:
        yield Tile(
            name="Speed-up",
            value=f"{text.number(known.value, 3)}×",
            note=f"{at}; base: {_base(summary, point)}",
        )
    if point.step_s:
        value, _, unit = text.duration(point.step_s.value).partition(" ")
        note = _interval(point.step_s, text.duration_interval(point.step_s))
        yield Tile(name=f"Step {at}", value=value, unit=unit, note=note)
    if rate := point.samples_per_s:
        tokens = f"{text.rate(point.tokens_per_s.value)} tokens/s" if point.tokens_per_s else ""
        yield Tile(name="Throughput", value=text.rate(rate.value), unit="samples/s", note=tokens)
    if point.peak_fraction:
        yield Tile(
            name="Of peak",
            value=text.percent(point.peak_fraction),
            note="of matrix products, in the same job",
        )


def _base(summary: Summary, point: Point) -> str:
    return next((size(each) for each in summary.series[point.series] if each.base), "none")


def _interval(known: Estimate, bounds: str) -> str:
    if known.low is None or known.high is None:
        return "one launch: no interval"
    if known.stated is None:
        return "too few launches to tell how certain"
    return f"95% interval {bounds}"


def _stacks(summary: Summary, points: list[Point]) -> Iterator[Stack]:
    """Yield where the step of each of these cases goes."""
    found = {losses.case: losses for losses in summary.losses}
    for point in points:
        if point.case in found:
            parts = tuple(_parts(found[point.case]))
            said = ", ".join(f"{part.name} {part.text}" for part in parts)
            named = text.label(point) if len(points) > 1 else size(point)
            yield Stack(title=f"Where a step at {named} goes", says=said, parts=parts)


def _parts(losses: Losses) -> Iterator[Part]:
    for name, said in PARTS.items():
        part = getattr(losses, name)
        if part >= _VISIBLE:
            yield Part(kind=name, name=said, share=part, text=text.percent(part, 1))
