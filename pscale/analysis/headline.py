"""The sentences that a report begins with: of each series how it scales, or of variants which is fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pscale.analysis.bandwidth import Bandwidth
from pscale.analysis.crossing import Crossing
from pscale.analysis.frames import grouped
from pscale.analysis.interference import Interference
from pscale.analysis.lost_time import LOSSES as OF_STEPS
from pscale.analysis.ranking import EQUAL, LOSSES, Place
from pscale.analysis.scaling import Point
from pscale.analysis.verdict import Verdict, instead, size
from pscale.analysis.warnings import CaseWarning
from pscale.analysis.wording import duration, number, percent

EVERY = "every series"  # the topic of what is said of all at once
_NAMED = 3  # plans in a tie
_SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What to read first about one series or one group of plans; `topic` is empty where there is but one."""

    topic: str
    text: str


def of_series(verdicts: Sequence[Verdict]) -> tuple[Headline, ...]:
    """Return the verdict on every series; what several have in common comes once, at the end.

    That is a cause or advice of all, and what a loss means that some share.
    """
    if len(verdicts) == 1:
        return (Headline(topic="", text=verdicts[0].sentences),)
    loss, advice = (
        _alike([getattr(each, name) for each in verdicts if each.case]) for name in ("loss", "advice")
    )
    meanings = Counter(_meaning(each) for each in verdicts if not loss)
    told = [text for text, count in meanings.items() if text and count > 1]
    own = [
        replace(
            each,
            loss="" if loss else f"{_parts(each)[0]}." if _meaning(each) in told else each.loss,
            advice="" if advice else each.advice,
        )
        for each in verdicts
    ]
    found = [Headline(topic=each.series, text=each.sentences) for each in own]
    of_all = " ".join(filter(None, (loss, *told, advice)))
    return (*found, *([Headline(topic=EVERY, text=of_all)] if of_all else []))


def _parts(verdict: Verdict) -> tuple[str, str]:
    """Return a sentence on a loss, and what that means."""
    head, _, tail = verdict.loss.rpartition(": ")
    return head, tail if verdict.firm and head.endswith(" of the step") else ""


def _meaning(verdict: Verdict) -> str:
    _, tail = _parts(verdict)
    return f"{OF_STEPS[verdict.cause].capitalize()}: {tail}" if tail else ""


def _alike(texts: Sequence[str]) -> str:
    """Return what several texts are if they are equal, else nothing."""
    return texts[0] if len(texts) > 1 and len(set(texts)) == 1 else ""


def of_crossings(crossings: Sequence[Crossing]) -> tuple[Headline, ...]:
    """Return, for every pair of variants, where over the swept number each is faster."""
    return tuple(Headline(topic=each.question, text=each.text) for each in crossings)


def of_plans(
    ranking: Sequence[Place], points: Sequence[Point], interference: Iterable[Interference]
) -> tuple[Headline, ...]:
    """Return who is fastest in every group of plans, and what costs the slowest most.

    What others took from the cores of a group is said first.
    """
    groups = grouped(ranking, lambda place: place.group)
    by_case = {point.case: point for point in points}
    several, taken = len(groups) > 1, {each.case: each for each in interference}
    found = []
    for group, places in groups.items():
        most = max(
            (taken[place.case] for place in places if place.case in taken),
            key=lambda each: each.share,
            default=None,
        )
        before = f"{instead(most)} " if most and most.grave else ""
        text = f"{before}{_sentence(places, by_case)}"
        found.append(Headline(topic=group if several else "", text=text))
    return tuple(found)


def of_network(bandwidths: Sequence[Bandwidth]) -> tuple[Headline, ...]:
    """Return, for each axis and size of it, the time of the smallest all-reduce and what the largest got."""
    reductions = [each for each in bandwidths if each.verb == "all_reduce"]
    groups = grouped(reductions, lambda each: f"{each.axis}, {each.ranks} ranks")
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


def sharing(warnings: Sequence[CaseWarning]) -> set[str]:
    """Return the cases in which ranks share cores."""
    return {warning.case for warning in warnings if warning.kind == "oversubscribed"}


def oversubscribed(warnings: Sequence[CaseWarning], points: Sequence[Point]) -> str:
    """Say that ranks share cores, if they do."""
    cases = sharing(warnings)
    if not cases:
        return ""
    which = "all cases" if len(cases) == len(points) else f"{len(cases)} of {len(points)} cases"
    return (
        f"Oversubscribed: in {which} ranks share cores. Calls, bytes and memory are those of any machine; "
        "times and efficiencies are not."
    )


def _sentence(places: Sequence[Place], by_case: Mapping[str, Point]) -> str:
    first, last = places[0], places[-1]
    point = by_case[first.case]
    of_all = f"{len(places)} plans on {size(point)}"
    open_ = [place for place in places if place.answer == "undecided"]
    if open_:
        verb = "is" if len(open_) == 1 else "are"
        looks = f"{first.plan} looks fastest of {of_all} ({_step(point)})"
        return (
            f"Undecided: {looks}, but {_named(open_, by_case)} "
            f"{verb} not known to be slower. {_deciding(open_)}"
        )
    text = f"Of {of_all}, {first.plan} is fastest here ({_step(point)})"
    if equal := [place for place in places if place.answer == "equal"]:
        text += f"; within {EQUAL:.0%} of it: {_named(equal, by_case)}"
    if last.answer == "equal":
        return f"{text}."
    text += f". {last.plan} takes {number(last.ratio.value)} times as long"
    return f"{text}: {_why(last)}." if last.loss else f"{text}."


def _step(point: Point) -> str:
    assert point.step_s is not None, "only measured plans are ranked"
    return duration(point.step_s.value, 4)


def _named(places: Sequence[Place], by_case: Mapping[str, Point]) -> str:
    named = ", ".join(f"{place.plan} ({_step(by_case[place.case])})" for place in places[:_NAMED])
    return named + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def _deciding(places: Sequence[Place]) -> str:
    """Say what would decide: of several needs the largest."""
    needs = sorted(
        {place.to_decide for place in places}, key=lambda need: (not need[0].isdigit(), len(need), need)
    )
    return f"To decide: {needs[-1]}."


def _why(place: Place) -> str:
    return f"{percent(getattr(place, place.loss), 0)} of its step is {LOSSES[place.loss]}"
