"""What analysis and reports say, in sentences: functions of a row of a frame, grouped by topic.

Terminal, page and files choose among them; none cuts a text or takes it apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from pscale.analysis.columns import Row
from pscale.analysis.contrasts import crossovers
from pscale.analysis.difference import ALPHA, EQUAL, MOST_ROUNDS, RELEVANT, decided
from pscale.analysis.efficiency import LOSSES, half
from pscale.analysis.frames import bound, grouped, no_training
from pscale.analysis.history import FEWEST
from pscale.analysis.predictions import REACH
from pscale.analysis.settings import SIZES
from pscale.analysis.stats import Estimate
from pscale.analysis.text import duration, duration_3, number, number_3, percent, plural, rate, rough, unit_of

if TYPE_CHECKING:
    from pscale.analysis.contrasts import Comparison
    from pscale.analysis.history import SuiteHistory

# Sizes and figures

VAGUE = 0.30  # an interval of an efficiency wider than this allows no verdict
SMALL = 0.01  # a loss below this share of the step is not worth a cause
_TOLD = 0.005  # of a step: a smaller loss is not worth a word
TARGET = {"holds": "meets target", "falls short": "misses target"}


def size(row: Row) -> str:
    """Say how large a case is: 2 ranks, or 2 ranks × 4 threads."""
    return _ranks(row.ranks, row.threads)


def _ranks(ranks: int, threads: int) -> str:
    return plural(ranks, "rank") + (f" × {plural(threads, 'thread')}" if threads > 1 else "")


def short_size(row: Row) -> str:
    """Say the size of a case in a table: 2, or 2×4; with injected delays it never looks healthy."""
    ranks = f"{row.ranks}" if row.threads == 1 else f"{row.ranks}×{row.threads}"
    return f"{ranks} injected" if row.injected else ranks


def interval(value: Estimate) -> str:
    """Say the interval of a share, in brackets; empty without one."""
    if value.low is None or value.high is None:
        return ""
    if value.stated is None:
        return " (95% interval too wide to state)"
    return f" (95% interval {percent(value.low)} to {percent(value.high)})"


def efficiency(value: Estimate) -> str:
    """Say an efficiency with half of its interval: 94.7% ± 3.7%."""
    share, spread = percent(value.value), half(value)
    if spread is None:
        return share
    return f"{share} (interval too wide)" if value.stated is None else f"{share} ± {percent(spread)}"


def loss(row: Row, name: str) -> str:
    """Say which share of the step is lost, with half of its interval: 18.6% ± 2.1%."""
    share = getattr(row, name)
    spread = half(share)
    return percent(share.value) + (f" ± {percent(min(1.0, spread))}" if spread is not None else "")


def decide(need: str) -> str:
    """Say what it takes to decide."""
    return f"It would take {need} to decide."


# Evidence for a proposal

_WORK = {"sample": "samples", "unit": "units of work"}


def spread(time: Estimate) -> str:
    """Say a time with half of its interval: 214.4 ± 7.2 ms."""
    if time.stated is None:
        return duration(time.value) + " (interval too wide)" * (time.low is not None)
    factor, unit = unit_of(time.value)
    return f"{number(time.value * factor)} ± {number((half(time) or 0.0) * factor, 2)} {unit}"


def work(row: Row, units: float) -> str:
    """Say so many units of work: 5,000 samples; of one, what the smallest size does in a step."""
    if units == 1:
        return f"a {row.timed} of the smallest size"
    noun = _WORK.get(row.unit) or f"{row.timed}{'e' * (row.timed == 'launch')}s of the smallest size"
    return f"a million {noun}" if units == 1e6 else f"{units:,.12g} {noun}"


def evidence(rows: Sequence[Row], limit: str, about: Mapping[str, str]) -> str:
    """Say what a series of sizes shows, in a paragraph for a proposal; `about` is what else it names."""
    base, largest, (fastest,) = rows[0], rows[-1], (row for row in rows if not row.time_answer)
    first = size(base) if base.threads > 1 or largest.threads > 1 else base.ranks
    nodes = _from_to([row.nodes for row in rows if row.nodes], "node")
    hosts = f" ({about['hosts']})" if "hosts" in about else ""
    software = ", ".join(about[name] for name in ("MPI", "BLAS", "system", "pscale") if name in about)
    return _joined(
        f"We measured {base.scaling} scaling of {about['program']} from {first} to {size(largest)}"
        f"{nodes and f' on {nodes}'}, with {about['launches']}.",
        f"The machine is {about['CPU']}{hosts}." if "CPU" in about else "The machine is not recorded.",
        f"The software is {software}." if software else "",
        f"Efficiency is relative to {size(base)}, the smallest size measured; ± is {about['±']}.",
        *_on_target(rows),
        _cheapest(rows),
        f"The same work takes the shortest time at {size(fastest)}{_rivals(rows, 'time_answer')}: "
        f"{spread(fastest.step_s)} a {fastest.timed}, a speed-up of {number_3(fastest.speedup.value)}.",
        f"Beyond {size(largest)}, the limit is {limit}.",
    )


def launched(rows: Sequence[Row]) -> str:
    """Say how often every size was launched: 3 to 5 launches of each size."""
    return f"{_from_to(sorted(row.launches for row in rows), 'launch')} of each size"


def _from_to(counts: Sequence[int], noun: str) -> str:
    """Say the first and the last of several counts: 1 to 4 nodes."""
    if not counts or counts[0] == counts[-1]:
        return plural(counts[0], noun) if counts else ""
    return f"{counts[0]} to {plural(counts[-1], noun)}"


def _on_target(rows: Sequence[Row]) -> Iterator[str]:
    """Yield which size is the largest above the target, and which larger ones may be or are not."""
    target, larger = percent(rows[0].target), rows[1:]
    if holding := [row for row in rows if row.answer == "holds"]:
        best, larger = holding[-1], rows[1 + rows.index(holding[-1]) :]
        yield (
            f"The largest size whose efficiency is above {target} with its whole interval is {size(best)}, "
            f"at {efficiency(best.efficiency)}."
        )
    else:
        yield f"No larger size has an efficiency above {target} with its whole interval."
    for row in larger:
        where = f"below {target}" if row.answer == "falls short" else "undecided"
        yield f"It is {where} at {size(row)}: {efficiency(row.efficiency)}."
        yield decide(row.to_decide) if row.to_decide else ""


def _cheapest(rows: Sequence[Row]) -> str:
    (best,) = (row for row in rows if not row.cost_answer)
    hours = f"{number_3(best.core_hours.value)} for {work(best, best.per)}"
    needs = f"The fewest core-hours, {hours}, are those of {size(best)}{_rivals(rows, 'cost_answer')}."
    if not best.units:
        return needs
    return f"{needs} For {work(best, best.units)} they are {number_3(best.units_core_hours.value)}."


def _rivals(rows: Sequence[Row], answer: str) -> str:
    """Name the sizes that are as good as the best, and those that may be."""
    equal = [size(row) for row in rows if getattr(row, answer) == "equal"]
    undecided = [size(row) for row in rows if getattr(row, answer) in ("undecided", "less", "faster")]
    parts = ((f"less than {EQUAL:.0%} apart from", equal), ("undecided against", undecided))
    named = "; ".join(f"{words} {', '.join(sizes)}" for words, sizes in parts if sizes)
    return f" ({named})" * bool(named)


def limit(row: Row) -> str:
    """Name what limits a series beyond its largest measured size."""
    if row.interference:
        return f"unknown, because {interference(row.interference, row.interference_share)}"
    if row.share is None:
        return "unknown, because steps have no breakdown"
    if not row.cause:
        return "unknown, because no loss is significant"
    share = f"{_place(row)}, {loss(row, 'share')} of the step"
    return share if row.firm else f"undecided, probably {share}"


# Interference, stragglers and delays

_ALWAYS = 0.9  # of the steps
_TAKEN = {  # from the cores of a case, by cause
    "others": "other processes used {} of these cores",
    "steal": "the hypervisor took {} of the time of these cores",
    "limit": "a limit on CPU time stopped the ranks for {} of the time",
    "off_core": "the ranks had no core for {} of the time",
}


def interference(cause: str, share: float) -> str:
    """Say how much was taken from the cores of a case, and by what."""
    return _TAKEN[cause].format(percent(share))


def disturbed(cause: str, share: float) -> str:
    """Say what others took, and what to do; said instead of a cause."""
    return (
        f"Disturbed: {interference(cause, share)}, so these times are not the program's alone. "
        "Free the machine and measure again."
    )


def straggler(row: Row) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    return (
        f"The others wait for rank {row.rank}{_on(row)}: {percent(row.step_share)} of the step, "
        f"{percent(row.wait_share)} of all waiting. It is late in {row.late_steps} of "
        f"{row.steps} steps, by {duration_3(row.late_s)} on average, mostly in {row.phase}."
    )


def _on(row: Row) -> str:
    return f" on {row.host}" if row.host else ""


def straggler_hint(row: Row) -> str:
    """Say what usually makes a rank late as this one is."""
    if row.late_steps < _ALWAYS * row.steps:
        return "It stalls intermittently: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."


def injected(row: Row) -> str:
    """Say that a case is not a healthy one."""
    return (
        f"These figures include an injected delay: {row.injected}. They are not those of a healthy machine."
    )


# The verdict on a series


def _verdict(row: Row) -> Headline:
    """Say all of a series; without sizes to compare, what costs most comes first."""
    lost = row.loss_text, row.meaning
    disturbance = disturbed(row.interference, row.interference_share) if row.interference else ""
    parts = (*lost, row.scaling_text) if row.scaling == "throughput" else (row.scaling_text, *lost)
    return _headline(row.series, disturbance, *parts, row.advice)


def _headline(topic: str, *parts: str) -> Headline:
    return Headline(topic, tuple(filter(None, parts)))


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def scaling(row: Row) -> str:
    """Say how well the largest case of a series scales, and whether that meets its target."""
    if not row.case:
        if row.status == "pending":
            return "Nothing has been measured yet."
        return "Nothing was measured: every launch failed. The failed launches are listed with their reasons."
    if not row.injected or (row.scaling == "throughput" and row.injected in row.series):
        return _scaling(row)
    return f"{injected(row)} {_scaling(row)}"


def _scaling(row: Row) -> str:
    at, larger = size(row), ""
    if row.larger:
        larger = f"; {row.larger} larger {'case has' if row.larger == 1 else 'cases have'} no result"
    if row.scaling == "throughput":
        return f"At {at} {_speed(row)}."
    if row.base_step_s is None:
        base = f"{row.base_label}: {row.base_status}" if row.base_status else "none"
        return (
            f"No speed-up or efficiency, because the base case ({base}) was not measured; "
            f"at {at} {_speed(row)}{larger}."
        )
    if row.one_size:
        return f"Scaling is unknown, because only one size was measured ({at}, {_rate(row)}){larger}."
    if row.efficiency is None:
        return f"The efficiency at {at} is unknown."
    judged = f"{_judged(row, at)}{larger}."
    return f"{judged} {decide(row.to_decide)}" if row.to_decide else judged


def _judged(row: Row, at: str) -> str:
    spread = interval(row.efficiency) or " (no interval: one launch per case)"
    base = _ranks(row.base_ranks, row.base_threads)
    value = f"{row.scaling} scaling is {percent(row.efficiency.value)} efficient relative to {base}{spread}"
    match row.answer:
        case "undecided" if row.demand:
            return f"Undecided: at {at}, {value}; the target is {row.demand}"
        case "undecided":
            wide = f"an interval wider than {100 * VAGUE:.0f} percentage points allows no verdict"
            return f"Undecided: at {at}, {value}; {wide}"
        case "holds":
            return f"At {at}, {value}, which meets the target ({row.demand})"
        case "falls short":
            return f"At {at}, {value}, which misses the target ({row.demand})"
    return f"At {at}, {value}"


def _speed(row: Row) -> str:
    """Say how fast a case is: of a program that is no training, how long its steps are."""
    return f"it trains {_rate(row)}" if row.samples_per_s else f"a step takes {duration_3(row.step_s.value)}"


def _rate(row: Row) -> str:
    if row.samples_per_s:
        return f"{rate(row.samples_per_s.value)} samples/s"
    return f"{duration_3(row.step_s.value)} a step"


def main_loss(row: Row) -> str:
    """Say what costs most of a step, and whether that is certain."""
    if row.interference:
        return _inside(row.parallel)
    if row.share is None:
        return "The main loss is unknown, because steps have no breakdown."
    if not row.cause:
        return f"No single loss reaches {SMALL:.0%} of the step."
    share = f"{loss(row, 'share')} of the step{', slow steps included' * row.slow_steps}"
    if row.firm:
        return f"The main loss is {_place(row)}, {share}."
    if row.share.low is None:
        return f"The main loss is undecided from one launch: probably {_place(row)} ({share})."
    ahead = f", ahead of {LOSSES[row.second]} ({loss(row, 'second_share')})" if row.second else ""
    need = row.cause_to_decide
    ending = decide(need) if need else "No reasonable number of rounds would decide."
    return f"The main loss is undecided: probably {_place(row)} ({share}){ahead}. {ending}"


_INSIDE = 0.03  # half-width of an efficiency inside a step that is worth stating despite interference


def _inside(parallel: Estimate | None) -> str:
    """Say how efficient steps were inside, where that is certain although others used the machine."""
    spread = half(parallel) if parallel else None
    if parallel is None or spread is None or spread > _INSIDE:
        return ""
    return f"Within a step, parallel efficiency is {percent(parallel.value)}{interval(parallel)}."


def _place(row: Row) -> str:
    """Name a loss with the phase and the axis where most of it is."""
    axis = f" on {row.axis}" if row.axes and row.axes > 1 else ""
    match row.cause:
        case "serialisation" | "transfer":
            return f"{row.cause} in {row.phase}{axis}"
        case "wait_or_transfer":
            return f"communication in {row.phase}"
    return _WHOLE.get(row.cause, LOSSES[row.cause])


_WHOLE = {
    "copy": "copying into and out of communication buffers",
    "unaccounted": "time outside all phases",
}
_MEANING = {
    "outside": "It is what the launch takes before and after the steps of the program.",
    "transfer": "This is the communication itself, after every rank has arrived.",
    "wait_or_transfer": "The clocks cannot tell waiting from transfer here.",
    "scaling": "The same work takes more core time than in the base case, "
    "as when cores share memory bandwidth, caches or clock.",
    "offload": "The file is not ready when the step needs it.",
}


def meaning(row: Row, late: Row | None, slowest: Row | None, idle: str) -> str:
    """Say where the main loss comes from: a straggler, a slow rank, idle threads, or what is known of it."""
    match row.cause:
        case "imbalance":
            if slowest is None:
                return ""
            return (
                f"Rank {slowest.rank}{_on(slowest)} computes {percent(slowest.excess)} longer than a typical "
                f"rank, mostly in {slowest.phase}, and the others wait for it."
            )
        case "threads":
            text = f"The cores of a rank lose {idle}."
        case "serialisation" if late:
            return straggler(late)
        case "serialisation" if row.axis == "pp":
            return "The stages of a pipeline wait for each other's results in turn: the pipeline bubble."
        case "serialisation":
            return "Different ranks are late in different steps: noise, not imbalance."
        case _:
            text = _MEANING.get(row.cause, "")
    return _joined(text, straggler(late) if late else "")


WATCH = "To see it, record MPI calls: `--set workload.watch=once`."  # advice where steps have no breakdown
_BIND = "bind ranks to cores"
_LARGER = ("use larger batches", "use larger matrices")  # advice to training alone
_ADVICE = {  # against a loss, the easiest first
    "threads": ("use fewer threads and more ranks", "use larger matrices"),
    "outside": ("give it more work", "compare a time that it prints (step_time)"),
    "scaling": ("use fewer ranks per memory bus", _BIND, "use larger matrices"),
    "imbalance": ("check what else runs on the cores of that rank", "divide the work more evenly"),
    "serialisation": ("keep other work off the cores", _BIND),
    "bubble": ("use more micro-batches", "use another schedule"),
    "transfer": ("use larger batches", "send fewer or larger messages", "use a faster network"),
    "at once": (
        "reduce gradients in buckets during backward (reduction: bucketed)",
        "use larger batches",
        "use a faster network",
    ),
    "wait_or_transfer": ("use larger batches", "send fewer messages"),
    "offload": ("use a faster disk", "try another chunk size"),
    "unaccounted": ("record a timeline (pscale run --set trace=true), then pscale trace",),
    "traced": ("look at the timeline (pscale trace)",),
}


def advice(cause: str, axis: str, planned: Mapping[str, Any]) -> str:
    """Say what to do about a loss, most of which is on `axis`, unless the case does it already."""
    needless = {_BIND} if bound(planned) else set()
    if no_training(planned):
        needless |= {*_LARGER}
    words = [each for each in _ADVICE.get(_remedy(cause, axis, planned), ()) if each not in needless]
    return f"Advice: {', or '.join(filter(None, (', '.join(words[:-1]), words[-1])))}." if words else ""


def _remedy(cause: str, axis: str, planned: Mapping[str, Any]) -> str:
    """Return the loss by what is to be done about it in this case."""
    match cause:
        case "serialisation" if axis == "pp":
            return "bubble"
        case "transfer" if (
            axis == "dp" and planned.get("plan", {}).get("reduction", "bucketed") != "bucketed"
        ):
            return "at once"
        case "unaccounted" if planned.get("timing", {}).get("trace", False) or no_training(planned):
            return "traced"
    return cause


# A series in one line


def scaled(row: Row) -> Estimate | None:
    """Return the efficiency of the largest case of a series; None of the base case itself."""
    return None if row.base else row.efficiency


def largest(row: Row) -> str:
    """Say how large the largest measured case is, and the largest that has no result."""
    if not row.case:
        return ""
    missing = (
        row.missing_status and f" ({_ranks(row.missing_ranks, row.missing_threads)} {row.missing_status})"
    )
    return f"{size(row)}{missing}"


def figure(row: Row) -> str:
    """Say the efficiency of a series with half of its interval; without one its throughput or step time."""
    if value := scaled(row):
        return efficiency(value) + f" of {_reference(row)}" * bool(_reference(row))
    if row.samples_per_s is not None:
        return f"{rate(row.samples_per_s.value)} samples/s"
    return f"{duration(row.step_s.value)} per step" if row.step_s else "no valid result"


def _reference(row: Row) -> str:
    """Say what the efficiency refers to, where that is not one core, or which base case is missing."""
    if not row.case or not row.base_status:
        return ""
    base = _ranks(row.base_ranks, row.base_threads)
    if row.base_step_s is None:
        return f"{base} {row.base_status}"
    return base if row.base_ranks * row.base_threads > 1 and not row.base else ""


def judged(row: Row) -> str:
    """Say whether a series meets its target: meets target (≥ 85.0%); empty without one."""
    if scaled(row) is None and _reference(row):
        return f"no efficiency: {_reference(row)}"
    if not row.demand:
        return str(row.answer)
    met = TARGET.get(row.answer)
    return f"{met} ({row.demand})" if met else f"{row.answer} (target {row.demand})"


def causes(row: Row, lost: Row | None) -> str:
    """Say what disturbed a series, else what it loses: lost to: transfer 2.0% ± 0.3%."""
    if not row.case:
        return f"first failure: {row.reason}" if row.reason else ""
    if row.interference:
        return f"disturbed: {interference(row.interference, row.interference_share)}"
    parts = {"lost to": _lost(lost, firm=True), "not significant": _lost(lost, firm=False)}
    return "; ".join(f"{name}: {', '.join(losses)}" for name, losses in parts.items() if losses)


def _lost(lost: Row | None, *, firm: bool) -> list[str]:
    shares = {name: share for name in LOSSES if (share := getattr(lost, name, None)) and share.value >= _TOLD}
    named = [name for name, share in shares.items() if firm == (share.value > (half(share) or 0.0))]
    return [
        f"{LOSSES[name]} {loss(lost, name)}" for name in sorted(named, key=lambda name: -shares[name].value)
    ]


# What a report begins with

EVERY = "every series"  # the topic of what is said of all at once


class Headline(NamedTuple):
    """What to read first about one series or one group of plans; `topic` is empty where there is but one.

    Of its `parts`, a sentence each or some that belong together, the last are left out where room is short.
    """

    topic: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """All parts."""
        return " ".join(self.parts)

    @property
    def titled(self) -> tuple[str, ...]:
        """Its parts, the first behind the topic."""
        return (f"{self.topic}: {self.parts[0]}", *self.parts[1:]) if self.topic else self.parts


def of_series(verdicts: Sequence[Row]) -> tuple[Headline, ...]:
    """Say the verdict on every series; what several have in common comes once, at the end.

    That is a cause or advice of all, and what a loss means that some share.
    """
    if len(verdicts) == 1:
        return (_verdict(verdicts[0]._replace(series="")),)
    measured = [row for row in verdicts if row.case]
    texts = {name: [getattr(row, name) for row in measured] for name in ("loss_text", "advice")}
    common = {name: said[0] if len(said) > 1 == len({*said}) else "" for name, said in texts.items()}
    meanings = Counter((row.cause, row.meaning) for row in verdicts if row.meaning)
    shared = {each for each, count in meanings.items() if count > 1}
    headlines = []
    for row in verdicts:
        blank = {name: "" for name, text in common.items() if text}
        if (row.cause, row.meaning) in shared:
            blank["meaning"] = ""
        headlines.append(_verdict(row._replace(**blank)))
    meanings_of_all = [
        meaning if common["loss_text"] else f"Where the main loss is {LOSSES[cause]}: {meaning}"
        for cause, meaning in meanings
        if (cause, meaning) in shared
    ]
    of_all = _headline(EVERY, common["loss_text"], *meanings_of_all, common["advice"])
    return (*headlines, *([of_all] if of_all.parts else []))


def of_many(verdicts: Sequence[Row]) -> str:
    """Say how many series scale, from the worst to the best, and what costs most of them."""
    scaling = sorted((value.value, row.series) for row in verdicts if (value := scaled(row)))
    if not scaling:
        return ""
    (low, worst), (high, best) = scaling[0], scaling[-1]
    middle = median_low(value for value, _ in scaling)
    causes, often = Counter(row.cause if row.firm else _UNDECIDED for row in verdicts if row.share), ""
    for most, count in causes.most_common(1):
        named = (
            f"the main loss is {LOSSES.get(most, most)}"
            if most
            else f"no loss reaches {SMALL:.0%} of the step"
        )
        often = f"Most often {named}: in {count} of {causes.total()}."
    return _joined(
        f"Efficiencies of {len(scaling)} series at their largest size range from {percent(low)} ({worst}) "
        f"to {percent(high)} ({best}), with a median of {percent(middle)}.",
        often,
    )


def cause(row: Row) -> str:
    """Name the main loss of a series in a table."""
    if not row.cause:
        return f"none above {SMALL:.0%}"
    return LOSSES[row.cause] + f" ({_UNDECIDED})" * (not row.firm)


_UNDECIDED = "undecided"


def oversubscribed(sharing: int, cases: int) -> str:
    """Say in how many cases ranks share cores; empty where none do."""
    if not sharing:
        return ""
    which = "all cases" if sharing == cases else f"{sharing} of {cases} cases"
    return (
        f"Oversubscribed: in {which}, ranks share cores. "
        "Call counts, bytes and memory are valid; times and efficiencies are not."
    )


# Steps


def loss_scale(row: Row) -> str:
    """Say how the scale of the loss went: 3 of 30 steps skipped, scale 32768."""
    return f"{row.skipped} of {row.steps} steps skipped, scale {row.last_scale:.10g}"


# Networks

_SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def of_network(bandwidths: Sequence[Row]) -> tuple[Headline, ...]:
    """Say, for each axis and type, the time of the smallest all-reduce and what the largest got."""
    reductions = [row for row in bandwidths if row.verb == "all_reduce"]
    reductions = [row for row in reductions if row.op == "sum"] or reductions
    named = len({(row.op, row.dtype) for row in reductions}) > 1
    groups = grouped(
        reductions, lambda row: f"{row.axis}, {row.ranks} ranks" + f", {row.op} of {row.dtype}" * named
    )
    return tuple(
        _headline(
            group,
            f"An all-reduce of {_bytes(least.message_bytes)} takes {duration_3(least.call_s)}; one of "
            f"{_bytes(most.message_bytes)} achieves {most.bus_bytes_per_s * 1e-9:.3g} GB/s bus bandwidth.",
        )
        for group, (least, *_, most) in ((group, [*rows, rows[-1]]) for group, rows in groups.items())
    )


def _bytes(count: int) -> str:
    factor, unit = next(scale for scale in _SIZES if count >= scale[0])
    return f"{count / factor:.4g} {unit}"


# Plans, splits and other variants

_NAMED = 3  # of those in a tie


def of_ranking(ranking: Sequence[Row], grave: Mapping[str, Row]) -> tuple[Headline, ...]:
    """Say who is fastest in every group of plans or splits, and what costs the slowest most.

    What others took from the cores of a group is said first: `grave` is interference, by case.
    """
    groups = grouped(ranking, lambda row: row.group)
    headlines = []
    for group, rows in groups.items():
        taken = [grave[row.case] for row in rows if row.case in grave]
        worst = max(taken, key=lambda row: row.share, default=None)
        spoilt = disturbed(worst.cause, worst.share) if worst else ""
        headlines.append(_headline(group if len(groups) > 1 else "", spoilt, *_of_group(rows)))
    return tuple(headlines)


def _of_group(rows: Sequence[Row]) -> Iterator[str]:
    first, last = rows[0], rows[-1]
    of = f"splits of {first.group}" if first.choice == "split" else f"plans on {size(first)}"
    if open_ := [row for row in rows if row.answer == "undecided"]:
        yield (
            f"Undecided: of {len(rows)} {of}, {first.name} was fastest ({duration(first.step_s.value)}), but "
            f"{_named(open_)} may be as fast."
        )
        yield decide(need(max(open_, key=lambda row: row.rounds_to_decide or math.inf)))
        return
    equal = _named([row for row in rows if row.answer == "equal"])
    yield (
        f"Of {len(rows)} {of}, {first.name} is fastest here ({duration(first.step_s.value)})"
        f"{equal and f'; within {EQUAL:.0%} of it: {equal}'}."
    )
    if last.answer == "slower":
        share = percent(getattr(last, last.loss), 0) if last.loss else ""
        why = f": {share} of its step is {PLAN_LOSSES[last.loss]}" if last.loss else ""
        yield f"{last.name} takes {number_3(last.ratio.value)} times as long{why}."


def _named(rows: Sequence[Row]) -> str:
    """Name the first of several, each with its step time, and count the others."""
    named = ", ".join(f"{row.name} ({duration(row.step_s.value)})" for row in rows[:_NAMED])
    return named + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")


PLAN_LOSSES = {  # of a plan or split
    "exchange": "exchange",
    "bubble": "the bubble",
    "wait": "wait",
    "copies": "copies",
    "offload": "stalls for offloaded data",
    "extra": "extra compute",
}


def rounds_needed(rounds: int | None, round_s: float) -> str:
    """Say what would decide, where a round takes `round_s`; that is left out where it is NaN."""
    if rounds is None:
        return "an otherwise idle machine"
    about = "" if math.isnan(round_s) else f" (about {rough(rounds * round_s)})"
    return f"{plural(rounds, 'more round')}{about}"


def need(row: Row) -> str:
    """Say what would decide the place of a plan or split; empty where it is decided."""
    if row.answer != "undecided":
        return ""
    if row.ratio.low is None:
        return "several launches"
    rounds = row.rounds_to_decide
    return rounds_needed(rounds, row.decide_s / rounds if rounds and row.decide_s else math.nan)


def delay_cost(row: Row) -> Headline:
    """Say what injected delays cost."""
    change = f"{row.change.value:+.1%}"
    if row.change.low is not None:
        change += f", 95% interval {row.change.low:+.1%} to {row.change.high:+.1%}"
    passed_on = row.passed_on
    shown = f": {percent(passed_on)} of the slowest rank's delay" if passed_on is not None else ""
    return _headline(
        "",
        f"With an injected delay ({row.injected}), a mean step takes {duration(row.step_s)} "
        f"instead of {duration(row.healthy_s)} ({change}){shown}.",
    )


def loading(row: Row) -> Headline:
    """Say how long a case takes to load its state, beside the case whose ranks all read theirs."""
    low, high = row.load_ratio.low, row.load_ratio.high
    within = "" if low is None else f" (95% interval {number_3(low)} to {number_3(high)})"
    return _headline(
        row.label,
        f"Loading a saved state takes {duration_3(row.load_s.value)}, "
        f"{number_3(row.load_ratio.value)} times as long as where every rank reads{within}: {row.answer}.",
    )


# Crossovers


def variants(row: Row) -> str:
    """Return the two variants of a crossover, as a heading."""
    both = f"{row.reference} or {row.variant}"
    return f"{row.common}: {both}" if row.common else both


def crossing(pair: str, rows: Sequence[Row]) -> Headline:
    """Say where the faster of two variants changes, which is faster where, and by how much at the ends."""
    first, every = rows[0], [row.value for row in rows]
    names = {"faster": first.variant, "slower": first.reference}
    known = [row for row in rows if decided(row.answer)]
    if not known:
        return _headline(pair, _undecided(rows))
    answers = {row.answer for row in rows}
    if len(answers) == 1:
        text = f"{names[known[0].answer]} is faster at every {_noun(first.field)} measured, {_range(every)}"
    else:
        stretches = groupby(rows, key=lambda row: row.answer)
        text = ", ".join(
            f"{_faster(answer, first)} at {_at(first.field, [row.value for row in stretch])}"
            for answer, stretch in stretches
        )
    where = ", ".join(_at(first.field, between) for between in crossovers(rows))
    opening = f"Crossover between {where}: " if where else "No crossover: " if len(answers) > 1 else ""
    ends = [known[0], known[-1]] if len(known) > 1 else known
    ratio, *last = [f"{each.ratio.value:.3g} times" for each in ends]
    at = [_at(first.field, [each.value]) for each in ends]
    long = f"{ratio} as long as {first.reference} at {at[0]}"
    long += f" and {last[0]} as long at {at[1]}" if last else ""
    return _headline(pair, f"{opening}{text}.", f"{first.variant} takes {long}.")


def _faster(answer: str, row: Row) -> str:
    if decided(answer):
        return f"{row.variant if answer == 'faster' else row.reference} is faster"
    return "undecided" if answer == "undecided" else f"less than {RELEVANT:.0%} apart"


def _undecided(rows: Sequence[Row]) -> str:
    first, every = rows[0], _range([row.value for row in rows])
    if all(row.answer == "equal" for row in rows):
        both = f"{first.reference} and {first.variant}"
        return f"{both} differ by less than {RELEVANT:.0%} at every {_noun(first.field)} measured, {every}."
    needed = max(row.launches_needed or MOST_ROUNDS + 1 for row in rows)
    advice = f"about {needed} rounds would detect a difference of {RELEVANT:.0%}"
    if all(row.p_corrected is None for row in rows):
        advice = "one round shows no variation between launches, so measure more rounds"
    elif needed > MOST_ROUNDS:
        advice = "launches vary too much to tell, so stop other processes"
    return f"Undecided at every {_noun(first.field)} measured, {every}: either may be faster; {advice}."


def _noun(field: str) -> str:
    return "number of " + field if field in SIZES else field.rpartition(".")[2]


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((number(values[0]), number(values[-1]))))


def _at(field: str, values: Sequence[float]) -> str:
    """Return values in words; three or more as a range."""
    listed = _range(values) if len(values) > 2 else " and ".join(map(number, values))
    if field in SIZES:
        return f"{listed} {field}"
    return f"{field.rpartition('.')[2]} {listed}"


# Two runs, and a history of runs


def compared(row: Row, relevant: float) -> str:
    """Say whether B is slower, or what would tell."""
    if row.detectable is None:
        text = "undecided: one launch shows no variation between launches; repeat it"
    else:
        seen = f"{row.detectable:.2g}x" if row.detectable > 1 else f"{100 * row.detectable:.2g}%"
        text = f"{row.answer} by {abs(row.ratio.value - 1):.1%}"
        if row.answer == "equal":
            text = f"no difference; one of {seen} would have been detected"
        elif row.answer == "undecided":
            text = f"undecided: only a difference of {seen} would be detected; {_repeats(row, relevant)}"
    if row.scatter is None:
        return text
    both = f"by {row.scatter_at_pace:.1%}, uncorrected by {row.scatter:.1%}"
    return f"{text} (corrected for the machine's pace: launches vary {both})"


def _repeats(row: Row, relevant: float) -> str:
    needed = row.launches_needed
    pace = ", or measure the machine's pace between steps (`timing.pace: true`)" if row.lacks_pace else ""
    if needed is None or needed > MOST_ROUNDS:
        return f"stop other processes{pace}"
    fewer = pace and ", fewer with `timing.pace`"
    return f"detecting {100 * relevant:.2g}% takes about {needed} launches{fewer}"


def comparison_notes(comparison: Comparison) -> Iterator[str]:
    """Yield what to know of the tests, and of what was compared."""
    cases = comparison.compared
    if len(cases) > 1:
        yield (
            f"p is corrected for {len(cases)} simultaneous tests (Holm): the chance of any false alarm is "
            f"{ALPHA:.0%}."
        )
    if unused := [f"{one.label} ({', '.join(one.unlike)})" for one in cases if one.unlike]:
        yield (
            "The measured pace of the machine was not used, because a difference between A and B may "
            f"affect it: {'; '.join(unused)}."
        )
    if comparison.apart_s is None:
        yield (
            "Launches of the same round are compared in pairs, which cancels changes between rounds. "
            "Rounds with a failed launch are left out."
        )
    elif math.isfinite(comparison.apart_s):
        yield (
            f"The runs started {rough(comparison.apart_s)} apart; anything that changed on the machine in "
            "between is part of the ratio. To avoid that, sweep both variants in one suite: "
            "`pscale compare RUN`."
        )


def case_history(row: Row) -> str:
    """Say how the newest level of a case stands, and by what that is known."""
    text = _level(row)
    if row.counter:
        more = f" and {row.counters_more} more" if row.counters_more else ""
        both = f"{row.counter_before:,.10g} → {row.counter_after:,.10g}"
        text = f"more work (exact counter): {row.counter} {both}{more}"
    return text + (f"; {row.other_work} runs did different work" if row.other_work else "")


def _level(row: Row) -> str:
    if row.detectable is None:
        return f"undecided: {plural(len(row.runs), 'run')} so far, {FEWEST} needed"
    if row.answer == "slower":
        return f"slower by {percent(row.ratio.value - 1)}"
    if row.lone:
        return f"undecided: only the newest run is slower, by {percent(row.lone)}; run again"
    if row.answer == "undecided":
        return f"undecided: two runs would only show a change of {percent(row.detectable)}"
    if row.answer == "faster":
        return f"faster by {percent(row.gain)}"
    return f"no change; two runs would show one of {percent(row.detectable)}"


def damaged_lines(numbers: Sequence[int]) -> str:
    """Say which lines of a history say nothing; empty without any."""
    lines = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"Damaged lines, not or only partly read: {lines}." if lines else ""


def history_notes(history: SuiteHistory) -> Iterator[str]:
    """Yield what else there is to know of a history."""
    if history.damaged:
        yield damaged_lines(history.damaged)
    for each in history.acceptances:
        yield f"{each.label}: the level of {each.accepted} was accepted: {each.reason}"


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
    if notes := dict.fromkeys(note for row in rows for note in row.notes):
        yield f"Assumptions: {'; '.join(notes)}."
    yield from dict.fromkeys(f"* {unchecked(row.checked_ranks)}." for row in rows if row.step_s.low is None)


def unchecked(ranks: int) -> str:
    """Say why a prediction of more than so many ranks has no interval."""
    checked = f"no prediction for more than {plural(ranks, 'rank')} was checked"
    return f"no interval: {checked if ranks else 'by data sheet, nothing was measured'}"


# Warnings and notes


def stops_paying(trainings: Sequence[Row]) -> str:
    """Say from which batch on more ranks reach a validation loss no sooner."""
    compared = sorted((row for row in trainings if row.answer), key=lambda row: row.batch)
    if not compared:
        return ""
    pay = [row.batch for row in compared if row.answer == "faster"]
    open_ = [row.batch for row in compared if row.answer == "undecided"]
    no_more = [row.batch for row in compared if row.batch > max([*pay, *open_], default=0)]
    loss = f"a validation loss of {number(compared[0].target)}"
    if no_more:
        return f"From a batch of {no_more[0]} on, more ranks reach {loss} no sooner."
    if open_:
        return f"Undecided: from which batch on more ranks reach {loss} no sooner; more seeds would tell."
    return f"Up to a batch of {pay[-1]}, more ranks reach {loss} sooner."
