"""What to read first: the verdict in words, its figures, and where the step of the largest case goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.efficiency import LOSSES
from pscale.analysis.findings import Findings
from pscale.analysis.messages import EVERY, scaled, size
from pscale.analysis.stats import Estimate
from pscale.report.blocks import (
    Block,
    Headlines,
    Part,
    Stack,
    Tile,
    Tiles,
    Topic,
    band,
    show,
)
from pscale.report.figure_style import CAUSES, KINDS
from pscale.report.table import CASE, Column, Table, Value, Written, listed
from pscale.report.topics.cases import size_column, size_tone
from pscale.report.topics.problems import concerns
from pscale.report.topics.variants import ranking

_SENTENCES = 4  # series or groups described in sentences; of more series an overview, and these are folded
_FOLDED = 50
_VISIBLE = 0.0005  # of a step
COLOURS = {  # of the parts of a step: those of the figures, where they have the same meaning
    "useful": KINDS["compute"],
    "threads": CAUSES["threads"],
    "outside": CAUSES["outside"],
    "scaling": CAUSES["scaling"],
    "imbalance": CAUSES["imbalance"],
    "serialisation": CAUSES["serialisation"],
    "transfer": KINDS["transfer"],
    "wait_or_transfer": KINDS["wait_or_transfer"],
    "copy": KINDS["copy"],
    "offload": KINDS["offload"],
    "unaccounted": CAUSES["unaccounted"],
}
_NAMES = {"useful": "useful", **LOSSES}


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the figures of the sentences that no other topic has."""
    yield from (*ranking(findings, "split"), *_delay_costs(findings))
    if not findings.side_by_side and len(findings.verdicts) > 1:
        yield from _series(findings)


_delay_costs = show(
    "Cost of injected delays",
    "delay_costs",
    (
        Column(get="injected", fold=True),
        *(Column("mean step", text.duration, get="step_s"), Column(write=text.duration, get="healthy_s")),
        *("change", Column(get="change", interval=True)),
        Column("delay", text.duration, get="injected_s"),
        Column("of the delay", get="passed_on"),
    ),
    explain=("injected_s", "passed_on"),
    filled=True,
)


def lost_time(findings: Findings) -> Iterator[Table]:
    """Yield where the step of every case goes, but of plans, whose ranking says it."""
    if findings.side_by_side and findings.ranked("plan"):
        return
    found = findings.of_case("lost_time")
    needs = {each.case: each.cause_to_decide or None for each in findings.rows("verdicts")}
    points = [point for point in findings.rows("cases") if point.case in found]
    kept = [name for name in COLOURS if any(_is_seen(getattr(each, name)) for each in found.values())]

    def share(name: str) -> Callable[[Row], Value]:
        def written(point: Row) -> Value:
            value = getattr(found[point.case], name)
            return value and Written(value.value, messages.loss(found[point.case], name))

        return written

    columns = (
        CASE if len(findings.series) > 1 else size_column(findings),
        *(Column(_NAMES[name], text.percent, wide=name == "unaccounted", get=share(name)) for name in kept),
        Column("to decide", fold=True, wide=True, get=lambda point: needs.get(point.case)),
    )
    compared = any(tree.computation for tree in findings.rows("efficiency"))
    caption = (
        f"shares of the step, which add up to 100%{' with the unaccounted' * ('unaccounted' in kept)}, "
        "± half of their 95% intervals: a loss below its ± is not significant; "
        f"useful: compute{' that the base case needs as well' * compared}"
        f"{'; to decide: which loss is the main one' * any(needs.values())}"
    )
    yield from listed(
        "Lost time",
        points,
        columns,
        caption=caption,
        tone=size_tone,
        filled=True,
    )


def _is_seen(share: Estimate | None) -> bool:
    return share is not None and share.value >= _VISIBLE


def _head(findings: Findings) -> Iterator[Block]:
    """Yield the verdict in large letters, its figures, and where steps go."""
    said = [(text.clean(line.topic), text.clean(line.text)) for line in findings.headlines]
    own, of_all = ([line for line in said if (line[0] == EVERY) == every] for every in (False, True))
    sentences, folded = own[:_SENTENCES], own[_SENTENCES:]
    if folded and (in_all := _overview(findings)):
        sentences, folded = [("", in_all)], own
    yield Headlines(
        warning=findings.oversubscribed,
        lines=(*sentences, *of_all),
        more=tuple(folded[:_FOLDED]),
        left_out=len(folded[_FOLDED:]),
        concerns=tuple(concerns(findings)),
    )
    largest = [findings.case(each.case) for each in findings.rows("verdicts") if each.case]
    if findings.side_by_side or len(largest) > _SENTENCES:
        return
    if len(largest) == 1:
        yield Tiles(items=tuple(_tiles(findings, largest[0])))
    yield from _stacks(findings, largest)


def _overview(findings: Findings) -> str:
    """Say how series scale, and what costs most of them; nothing of plans."""
    verdicts = [row for row in findings.rows("verdicts") if row.case]
    return "" if findings.side_by_side else text.clean(messages.of_many(verdicts))


_series = show(
    "Every series",
    "verdicts",
    (
        Column("series", fold=True, get=lambda row: row.series or "unnamed"),
        Column(
            "largest case",
            str,
            get=lambda row: Written(row.ranks * row.threads, size(row)) if row.case else "none",
        ),
        Column("step", text.duration, get="step_s"),
        Column("efficiency", text.percent, band=True, bounded=True, get=scaled),
        Column("largest loss", get=lambda row: messages.cause(row) if row.share else None),
        Column(
            "of the step",
            text.percent,
            get=lambda row: Written(row.share.value, messages.loss(row, "share")) if row.cause else None,
        ),
    ),
    tone=lambda row: "" if row.case else "bad",
    case=lambda _: "",
)


def _tiles(findings: Findings, point: Row) -> Iterator[Tile]:
    at = f"at {size(point)}"
    if (known := point.efficiency) and not point.base:
        yield Tile(
            name=f"Efficiency {at}",
            value=text.percent(known.value),
            note=_interval(known, text.percent_interval(known)),
            band=band(known.value),
        )
    if (known := point.speedup) and not point.base:
        base = next((size(each) for each in findings.series[point.series] if each.base), "none")
        yield Tile(
            name="Speed-up",
            value=f"{text.number_3(known.value)}×",
            note=f"{at}; base: {base}",
        )
    if point.step_s:
        value, unit = text.amount(point.step_s.value)
        note = _interval(point.step_s, text.duration_interval(point.step_s))
        yield Tile(name=f"Step {at}", value=value, unit=unit, note=note)
    if rate := point.samples_per_s:
        tokens = f"{text.rate(point.tokens_per_s.value)} tokens/s" if point.tokens_per_s else ""
        yield Tile(name="Throughput", value=text.rate(rate.value), unit="samples/s", note=tokens)
    if point.peak_fraction:
        yield Tile(
            name="Of peak",
            value=text.percent_0(point.peak_fraction),
            note="of the matrix-product peak, in the same job",
        )


def _interval(known: Estimate, bounds: str) -> str:
    if known.low is None or known.high is None:
        return "one launch: no interval"
    if known.stated is None:
        return "95% interval too wide to state"
    return f"95% interval {bounds}"


def _stacks(findings: Findings, points: list[Row]) -> Iterator[Stack]:
    """Yield where the step of each of these cases goes, in parts that are large enough to be seen."""
    found = findings.of_case("lost_time")
    steps_s = {time.case: time.step_s for time in findings.rows("phases")}
    for point in (point for point in points if point.case in found):
        losses, step_s = found[point.case], steps_s.get(point.case)
        shares = {name: share.value for name in _NAMES if _is_seen(share := getattr(losses, name))}
        lost = sum(part for name, part in shares.items() if name != "useful")
        parts, before = [], 0.0
        for name, share in shares.items():
            begins, before = before, before + share * (name != "useful")
            time = text.duration_3(share * step_s) if step_s else ""
            place = (begins / lost, before / lost) if name != "useful" else None
            parts.append(Part(name, _NAMES[name], share, text.percent(share), time, place))
        said = ", ".join(f"{part.name} {part.text}" for part in parts)
        named = text.clean(point.label) if len(points) > 1 else size(point)
        yield Stack(title=f"Where a step at {named} goes", description=said, parts=tuple(parts))


TOPIC = Topic(
    name="verdict",
    title="In short",
    tables=tables,
    head=_head,
)
