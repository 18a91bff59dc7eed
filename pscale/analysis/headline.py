"""The sentences that a report begins with: of each series how it scales, or of variants which is fastest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.crossing import Crossing
from pscale.analysis.deciding import sentence
from pscale.analysis.efficiency import LOSSES as OF_STEPS
from pscale.analysis.frames import grouped
from pscale.analysis.interference import GRAVE
from pscale.analysis.ranking import EQUAL, LOSSES, main_loss
from pscale.analysis.verdict import Verdict, instead, size
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
    meanings = Counter((each.cause, each.meaning) for each in verdicts if each.meaning)
    shared = {each: count > 1 for each, count in meanings.items()}
    own = [
        replace(
            each,
            loss="" if loss else each.loss,
            meaning="" if shared.get((each.cause, each.meaning)) else each.meaning,
            advice="" if advice else each.advice,
        )
        for each in verdicts
    ]
    found = [Headline(topic=each.series, text=each.sentences) for each in own]
    told = [
        meaning if loss else f"Where the main loss is {OF_STEPS[cause]}: {meaning}"
        for (cause, meaning), several in shared.items()
        if several
    ]
    of_all = " ".join(filter(None, (loss, *told, advice)))
    return (*found, *([Headline(topic=EVERY, text=of_all)] if of_all else []))


def _alike(texts: Sequence[str]) -> str:
    """Return what several texts are if they are equal, else nothing."""
    return texts[0] if len(texts) > 1 and len(set(texts)) == 1 else ""


def of_crossings(crossings: Sequence[Crossing]) -> tuple[Headline, ...]:
    """Return, for every pair of variants, where over the swept number each is faster."""
    return tuple(Headline(topic=each.question, text=each.text) for each in crossings)


def of_plans(
    ranking: Sequence[Row], points: Sequence[Row], interference: Iterable[Row]
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
        before = f"{instead(messages.interference(most))} " if most and most.share >= GRAVE else ""
        text = f"{before}{_sentence(places, by_case)}"
        found.append(Headline(topic=group if several else "", text=text))
    return tuple(found)


def of_network(bandwidths: Sequence[Row]) -> tuple[Headline, ...]:
    """Return, for each axis and size of it, the time of the smallest all-reduce and what the largest got."""
    reductions = [each for each in bandwidths if each.verb == "all_reduce"]
    groups = grouped(reductions, lambda each: f"{each.axis}, {each.ranks} ranks")
    return tuple(Headline(topic=group, text=_extremes(found)) for group, found in groups.items())


def _extremes(found: Sequence[Row]) -> str:
    least, most = found[0], found[-1]
    return (
        f"An all-reduce of {_bytes(least.message_bytes)} takes {duration(least.call_s)}; one of "
        f"{_bytes(most.message_bytes)} achieves {most.bus_bytes_per_s * 1e-9:.3g} GB/s bus bandwidth."
    )


def _bytes(count: int) -> str:
    factor, unit = next(scale for scale in _SIZES if count >= scale[0])
    return f"{count / factor:.4g} {unit}"


def sharing(warnings: Sequence[Row]) -> set[str]:
    """Return the cases in which ranks share cores."""
    return {warning.case for warning in warnings if warning.kind == "oversubscribed"}


def oversubscribed(warnings: Sequence[Row], points: Sequence[Row]) -> str:
    """Say that ranks share cores, if they do."""
    cases = sharing(warnings)
    if not cases:
        return ""
    which = "all cases" if len(cases) == len(points) else f"{len(cases)} of {len(points)} cases"
    return (
        f"Oversubscribed: in {which}, ranks share cores. "
        "Call counts, bytes and memory are valid; times and efficiencies are not."
    )


def _sentence(places: Sequence[Row], by_case: Mapping[str, Row]) -> str:
    first, last = places[0], places[-1]
    point = by_case[first.case]
    of_all = f"{len(places)} plans on {size(point)}"
    open_ = [place for place in places if place.answer == "undecided"]
    if open_:
        need = max(open_, key=lambda place: place.rounds_to_decide or math.inf).to_decide
        return (
            f"Undecided: of {of_all}, {first.plan} was fastest ({_step(point)}), but "
            f"{_named(open_, by_case)} may be as fast. {sentence(need)}"
        )
    text = f"Of {of_all}, {first.plan} is fastest here ({_step(point)})"
    if equal := [place for place in places if place.answer == "equal"]:
        text += f"; within {EQUAL:.0%} of it: {_named(equal, by_case)}"
    if last.answer == "equal":
        return f"{text}."
    text += f". {last.plan} takes {number(last.ratio.value)} times as long"
    return f"{text}: {_why(last)}." if main_loss(last) else f"{text}."


def _step(point: Row) -> str:
    assert point.step_s is not None, "only measured plans are ranked"
    return duration(point.step_s.value, 4)


def _named(places: Sequence[Row], by_case: Mapping[str, Row]) -> str:
    named = ", ".join(f"{place.plan} ({_step(by_case[place.case])})" for place in places[:_NAMED])
    return named + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def _why(place: Row) -> str:
    loss = main_loss(place)
    return f"{percent(getattr(place, loss), 0)} of its step is {LOSSES[loss]}"
