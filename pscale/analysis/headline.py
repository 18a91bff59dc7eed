"""The sentences that a report begins with: of each series how it scales, or of variants which is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pscale.analysis.bandwidth import Bandwidth
from pscale.analysis.evidence import Remark
from pscale.analysis.ranking import LOSSES, Place
from pscale.analysis.scaling import Point
from pscale.analysis.verdict import Verdict, size
from pscale.analysis.wording import duration

_NAMED = 3  # plans in a tie
_SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What to read first about one series or one group of plans; `topic` is empty where there is but one."""

    topic: str
    text: str


def of_series(verdicts: Sequence[Verdict]) -> tuple[Headline, ...]:
    """Return the verdict on every series."""
    several = len(verdicts) > 1
    return tuple(
        Headline(
            topic=verdict.series if several else "",
            text=" ".join(filter(None, (verdict.efficiency, verdict.loss, verdict.remedy))),
        )
        for verdict in verdicts
    )


def of_plans(ranking: Sequence[Place], points: Sequence[Point]) -> tuple[Headline, ...]:
    """Return who is fastest in every group of plans, and what costs the slowest most."""
    groups: dict[str, list[Place]] = {}
    for place in ranking:
        groups.setdefault(place.group, []).append(place)
    by_case = {point.case: point for point in points}
    several = len(groups) > 1
    return tuple(
        Headline(topic=group if several else "", text=_sentence(places, by_case[places[0].case]))
        for group, places in groups.items()
    )


def of_network(bandwidths: Sequence[Bandwidth]) -> tuple[Headline, ...]:
    """Return, for each axis and size of it, the time of the smallest all-reduce and what the largest got."""
    groups: dict[str, list[Bandwidth]] = {}
    for each in bandwidths:
        if each.verb == "all_reduce":
            groups.setdefault(f"{each.axis}, {each.ranks} ranks", []).append(each)
    return tuple(Headline(topic=group, text=_extremes(found)) for group, found in groups.items())


def _extremes(found: Sequence[Bandwidth]) -> str:
    least, most = found[0], found[-1]
    return (
        f"An all-reduce of {_bytes(least.message_bytes)} takes {duration(least.call_s)}, one of "
        f"{_bytes(most.message_bytes)} gets {most.bus_bytes_per_s * 1e-9:.3g} GB/s on the bus."
    )


def _bytes(count: int) -> str:
    factor, unit = next(scale for scale in _SIZES if count >= scale[0])
    return f"{count / factor:.4g} {unit}"


def sharing(remarks: Sequence[Remark]) -> set[str]:
    """Return the cases in which ranks share cores."""
    return {remark.case for remark in remarks if remark.kind == "oversubscribed"}


def oversubscribed(remarks: Sequence[Remark], points: Sequence[Point]) -> str:
    """Say that ranks share cores, if they do."""
    cases = sharing(remarks)
    if not cases:
        return ""
    which = "all cases" if len(cases) == len(points) else f"{len(cases)} of {len(points)} cases"
    return (
        f"Oversubscribed: in {which} ranks share cores. Calls, bytes and memory are those of any machine; "
        "times and efficiencies are not."
    )


def _sentence(places: Sequence[Place], fastest: Point) -> str:
    first, last = places[0], places[-1]
    assert fastest.step_s is not None, "only measured plans are ranked"
    tied = [place.plan for place in places if place.tied]
    if 2 * sum(place.vague for place in places) > len(places):
        return (
            f"{len(places)} plans on {size(fastest)} cannot be ranked: their launches differ too much. "
            "Repeat them more often, or on a machine without other work. "
            f"The fastest median is that of {first.plan}."
        )
    text = f"Of {len(places)} plans on {size(fastest)}, {first.plan} is fastest here"
    if tied:
        named = ", ".join(tied[:_NAMED]) + (f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else "")
        text += f"; it cannot be told apart from {named}"
    elif first.ratio.low is None or any(place.ratio.low is None for place in places):
        text += " (each was launched once: how certain the order is, nobody knows)"
    if last.tied:
        return f"{text}."
    text += f". {last.plan} takes {last.ratio.value:.3g} times as long"
    return f"{text}: {_why(last)}." if last.loss else f"{text}."


def _why(place: Place) -> str:
    return f"{getattr(place, place.loss):.0%} of its step is {LOSSES[place.loss]}"
