"""Cases that are equal but for some fields, each beside a reference: ratio of step times, interval, answer.

Plans, splits of cores into ranks and threads, compression, precision, offload, optimizers and injected delays
are groups of one run, compared by the intervals of the report. Cases of two runs, variants of one, and
variants over a swept number are pairs that are tested at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from pscale.analysis import scaling
from pscale.analysis.columns import Row, row
from pscale.analysis.difference import (
    RELEVANT,
    Difference,
    at_same_pace,
    decided,
    difference,
    holm,
    of_variants,
    paced,
    paired,
    standing,
)
from pscale.analysis.frames import Run, by_case, grouped, is_program, records, shared_work, workloads
from pscale.analysis.resources import by_kind
from pscale.analysis.settings import (
    DEGREES,
    SIZES,
    Case,
    Change,
    apart_from,
    changes,
    following,
    is_number,
    of_cases,
    swept_numbers,
)
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.steps import waits_for_stages
from pscale.analysis.text import in_common, plural, split_name
from pscale.config import JOINT
from pscale.config.case import UNCOUNTED, stored_words
from pscale.errors import UsageError

_SMALL = 0.01  # of the step: a smaller loss is not worth a name
Planned = Mapping[str, Any]  # the configuration of a case
Times = Mapping[str, Sample]  # by case


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A choice that cases of a run differ in, and what else may differ with it.

    These are `fields`, or `members` of groups of settings. `settings` returns the choice, first, and what
    belongs to it. The reference of a group is its case with the first of the `plain` choices that there is;
    without `plain`, its fastest case.
    """

    fields: Collection[str] = ()
    members: Mapping[str, Collection[str]] = field(default_factory=dict)
    settings: Callable[[Planned], Mapping[str, Any]]
    plain: Sequence[str] = ()

    def groups(
        self, planned: Mapping[str, Planned], points: Iterable[Row], times: Times
    ) -> Iterator[tuple[list[Row], Row | None]]:
        """Yield the measured cases that do the same work on as many cores, and their reference."""
        choice_of = {
            point.case: self._choice(planned[point.case])
            for point in points
            if point.case in times and self.members.keys() <= planned.get(point.case, {}).keys()
        }
        kept = [point for point in points if point.case in choice_of]
        sizes = grouped(kept, lambda point: point.cores)
        compared = {
            size
            for size, members in sizes.items()
            if self._differ([choice_of[each.case] for each in members])
        }
        groups = grouped(  # of cases there may be thousands, and of choices mostly one
            (point for point in kept if point.cores in compared),
            lambda point: (point.cores, shared_work(planned[point.case], *self.fields, **self.members)),
        )
        for members in groups.values():
            choices = [choice_of[point.case] for point in members]
            if self._differ(choices):
                plain = next((members[choices.index(each)] for each in self.plain if each in choices), None)
                fastest = min(members, key=lambda point: times[point.case].value)
                yield members, plain if self.plain else fastest

    def _choice(self, planned: Planned) -> str:
        choice = next(iter(self.settings(planned).values()))
        return str(choice if choice is not None or not self.plain else self.plain[0])

    def _differ(self, choices: Collection[str]) -> bool:
        """Tell whether there is something to compare: a choice that is not plain, or several."""
        if self.plain:
            return any(choice not in self.plain for choice in choices)
        return len({*choices} - {"None"}) > 1


def _of_plan(planned: Planned) -> Mapping[str, Any]:
    return {"plan": None if _is_bare(planned) else json.dumps(planned.get("plan"), sort_keys=True)}


def _is_bare(planned: Planned) -> bool:
    """Tell whether a case is of bare collectives, which train nothing."""
    return bool(planned.get("model", {}).get("kind") == "collectives")


_PLANS = Contrast(fields=("scaling", "plan"), members={"train": ("micro_batches",)}, settings=_of_plan)
_SPLITS = Contrast(
    fields=("ranks", "threads", "plan"), settings=lambda planned: {"ranks": planned.get("ranks")}
)
_DELAYS = Contrast(
    fields=("inject", "jitter"), settings=lambda planned: {"injected": stored_words(planned)}, plain=("",)
)
CHOICES = {
    "compression": Contrast(
        members={"plan": ("compression", "compression_share", "compression_rank")},
        settings=lambda planned: {"setting": planned.get("plan", {}).get("compression")},
        plain=("none",),
    ),
    "precision": Contrast(
        members={
            "model": ("dtype",),
            "precision": ("reduce", "loss_scale", "initial_scale", "growth_interval"),
        },
        settings=lambda planned: {
            "setting": None if _is_bare(planned) else planned.get("model", {}).get("dtype"),
            "reduce": planned.get("precision", {}).get("reduce", "wire"),
        },
        plain=("float32", "float64"),
    ),
    "offload": Contrast(
        members={"plan": ("offload", "offload_folder", "offload_chunk_bytes")},
        settings=lambda planned: {"setting": planned.get("plan", {}).get("offload")},
        plain=("none",),
    ),
    "prefetch": Contrast(
        members={"data": ("prefetch",)},
        settings=lambda planned: {"setting": "on" if planned.get("data", {}).get("prefetch") else "off"},
        plain=("off",),
    ),
    "optimizer": Contrast(
        members={  # each optimizer needs other numbers
            "train": (
                *("optimizer", "lr", "lr_scaling", "lr_batch", "lr_schedule", "lr_warmup", "lr_final"),
                *("momentum", "beta1", "beta2", "epsilon", "weight_decay", "clip"),
            )
        },
        settings=lambda planned: {
            "setting": planned.get("train", {}).get("optimizer"),
            "lr": planned.get("train", {}).get("lr"),
        },
    ),
}
_LOADING = Contrast(
    members={"train": ("load_by",)},
    settings=lambda planned: {"load_by": planned.get("train", {}).get("load_by", "read")},
    plain=("read",),
)


def _relation(case: str, reference: str | None, times: Times, round_s: float = 0.0) -> dict[str, Any]:
    """Return what is known of a step time beside that of the reference, whose own answer is empty."""
    if reference is None:
        return {"case": case, "answer": ""}
    relation = standing(times[case], times[reference])
    return {
        **relation._asdict(),
        "case": case,
        "answer": "" if case == reference else relation.answer,
        "decide_s": relation.rounds_to_decide and relation.rounds_to_decide * round_s,
    }


def ranking(
    planned: Mapping[str, Planned],
    points: Sequence[Row],
    times: Times,
    phases: Sequence[Row],
    calls: Sequence[Row],
    *,
    sharing: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Yield plans of the same work on the same ranks, then splits of as many cores, with what each loses.

    Those of a group come fastest first. In the cases `sharing`, ranks share cores.
    """
    spent, stages = by_case(phases), waits_for_stages(calls)
    measured = [point for point in points if point.case in spent]
    plans = sorted(_PLANS.groups(planned, measured, times), key=lambda group: group[0][0].ranks)
    splits = _SPLITS.groups(planned, points, times)
    for choice, (members, fastest) in (
        *(("plan", each) for each in plans),
        *(("split", each) for each in splits),
    ):
        assert fastest is not None, "every group has one"
        common = in_common([point.label.split(JOINT) for point in members])
        compute_s = {
            point.case: sum(time.compute_s for time in spent.get(point.case, ())) for point in members
        }
        round_s = sum(math.nan if point.wall_s is None else point.wall_s for point in members)
        for number, point in enumerate(sorted(members, key=lambda point: times[point.case].value), 1):
            relation = _relation(point.case, fastest.case, times, round_s)
            least_s = None if point.case in sharing else min(compute_s.values())
            words = (part for part in point.label.split(JOINT) if part not in common)
            split = plural(point.cores, "core"), split_name(point.ranks, point.threads)
            group, name = split if choice == "split" else (JOINT.join(common), JOINT.join(words))
            yield {
                **relation,
                "choice": choice,
                "group": group,
                "name": name or point.label,
                "ranks": point.ranks,
                "threads": point.threads,
                "place": 1 if relation["answer"] == "equal" else number,
                "step_s": point.step_s,
                **_losses(
                    spent.get(point.case, ()), compute_s[point.case], stages.get(point.case, 0.0), least_s
                ),
            }


def _losses(
    phases: Sequence[Row], compute_s: float, stages_s: float, least_compute_s: float | None
) -> dict[str, Any]:
    """Return the shares of a step that do not compute, or more than the one that computes least."""
    if not phases:
        return {}
    step_s, waited_s = phases[0].step_s, sum(time.wait_s for time in phases)
    losses = {
        "exchange": sum(time.transfer_s + time.wait_or_transfer_s for time in phases) / step_s,
        "bubble": min(waited_s, stages_s) / step_s,
        "wait": (waited_s - min(waited_s, stages_s)) / step_s,
        "copies": sum(time.copy_s for time in phases) / step_s,
        "offload": sum(time.offload_s for time in phases) / step_s,
        "extra": 0.0 if least_compute_s is None else (compute_s - least_compute_s) / step_s,
    }
    largest = max(losses, key=losses.__getitem__)
    loss = largest if losses[largest] >= _SMALL else ""
    return {**losses, "compute": compute_s / step_s, "loss": loss}


def delay_costs(run: Run, points: Sequence[Row], times: Times) -> Iterator[dict[str, Any]]:
    """Yield the cost of every case with injected delays that was measured without them too."""
    for members, healthy in _DELAYS.groups(run.planned, points, times):
        for point in members:
            if healthy is not None and point.injected:
                relation = _relation(point.case, healthy.case, times)
                if int(run.planned[point.case].get("inject", {}).get("every", 1)) > 1:
                    # Medians show no rare delays.
                    relation |= {"ratio": Estimate(value=relation["ratio"].value), "answer": "undecided"}
                low, high = (bound and bound - 1 for bound in (relation["ratio"].low, relation["ratio"].high))
                step_s, healthy_s = times[point.case].mean, times[healthy.case].mean
                injected_s = float(run.ends.loc[run.ends["case"] == point.case, "injected_s"].mean())
                yield {
                    **relation,
                    "injected": point.injected,
                    "step_s": step_s,
                    "healthy_s": healthy_s,
                    "change": Estimate(value=(step_s - healthy_s) / healthy_s, low=low, high=high),
                    # Of the delay of a step in the rank that got most, what became step time.
                    "injected_s": injected_s if injected_s > 0 else None,
                    "passed_on": (step_s - healthy_s) / injected_s if injected_s > 0 else None,
                }


_RATIOS = ("sent", "held", "memory")  # costs in bytes that are also set against the reference
_MOVED = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")


class Costs:
    """What cases cost and reach: of a rank and step, as a mean, or of the fullest rank."""

    def __init__(self, run: Run, memory: Mapping[str, Row], phases: Sequence[Row], calls: Sequence[Row]):
        self._memory = memory
        self._phases = {(time.case, time.phase): time for time in phases}
        is_data = (run.phases["phase"] == "data").rename("samples")
        sums = run.phases.groupby(["case", is_data], observed=True)[list(_MOVED)].sum()
        steps = run.seats.groupby("case", observed=True)["steps"].sum()
        means = sums.div(steps, axis=0, level="case").dropna().reset_index().astype({"case": str})
        self._moved = {(row["case"], bool(row["samples"])): row for row in records(means)}
        self._sent_bytes: dict[str, float] = {}
        for call in calls:
            self._sent_bytes[call.case] = self._sent_bytes.get(call.case, 0.0) + call.bytes

    def of(self, point: Row, *, samples: bool = False) -> dict[str, Any]:
        """Return the costs of a case by the names of columns; what moved is of `samples` or of the rest."""
        memory = self._memory.get(point.case)
        moved = self._moved.get((point.case, samples), dict.fromkeys(_MOVED, 0.0))
        held = by_kind(memory) if memory else {}
        in_file = (memory.counted_offloaded_bytes, memory.predicted_offloaded_bytes) if memory else ()
        names = "data", "sync", "update"
        data, sync, update = (self._phases.get((point.case, phase)) for phase in names)
        io_s, read_bytes, written_bytes = (moved[name] for name in _MOVED[1:])
        return {
            "sent_bytes": self._sent_bytes.get(point.case, 0.0),
            "held_bytes": sum(held.values()) if held else None,
            "state_bytes": held.get("optimizer"),
            "memory_bytes": memory.measured_bytes if memory else None,
            "file_bytes": next((size for size in in_file if size is not None), None),
            "read_bytes": read_bytes,
            "written_bytes": written_bytes,
            "bytes_per_s": (read_bytes + written_bytes) / io_s if io_s else None,
            "io_s": io_s,
            "stall_s": moved["offload_s"],
            "hidden_s": max(0.0, io_s - moved["offload_s"]),
            "data_s": data.inside_s if data else None,
            "sync_compute_s": sync.compute_s if sync else 0.0,
            "update_s": update.inside_s if update else None,
            "update_compute_s": update.compute_s if update else None,
            "step_s": point.step_s.value,
            "loss_last": point.loss_last,
        }


def choices(
    run: Run, points: Sequence[Row], times: Times, costs: Callable[[], Costs]
) -> Iterator[dict[str, Any]]:
    """Yield what choices save and cost beside the reference; a loss beside the lowest without `plain`."""
    groups = ((name, each) for name in CHOICES for each in CHOICES[name].groups(run.planned, points, times))
    for name, (members, reference) in groups:
        of, contrast = partial(costs().of, samples=name == "prefetch"), CHOICES[name]
        base = of(reference) if reference is not None else {}
        losses = [point.loss_last for point in members if point.loss_last is not None]
        if not contrast.plain:
            base["loss_last"] = min(losses, default=None)
        for point in members:
            costs_of_case, relation = of(point), _relation(point.case, reference and reference.case, times)
            loss = _over(costs_of_case, base, "loss_last")
            yield {
                **costs_of_case,
                **relation,
                "choice": name,
                **contrast.settings(run.planned[point.case]),
                **{f"{kind}_ratio": _over(costs_of_case, base, f"{kind}_bytes") for kind in _RATIOS},
                "step_ratio": relation.get("ratio"),
                "loss_more": None if loss is None else loss - 1,
            }


_SAVED = (
    *("save_s", "saved_bytes"),
    *("load_read_s", "load_broadcast_s", "load_read_bytes", "load_broadcast_bytes"),
)


def saved(run: Run, points: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield how long saving and loading take, and loading by broadcast beside that of every rank."""
    of_case = {str(case): rows for case, rows in run.good.groupby("case", observed=True)}
    loads = {case: rows[rows["load_s"].notna()] for case, rows in of_case.items()}
    times = {
        case: Sample(medians=tuple(rows["load_s"]), repeats=tuple(rows["repeat"]))
        for case, rows in loads.items()
        if len(rows)
    }
    plain: dict[str, str] = {}
    points = [*points]
    for members, reference in _LOADING.groups(run.planned, points, times):
        plain |= {point.case: reference.case for point in members if reference is not None}
    for point in points:
        means = of_case[point.case][[*_SAVED]].mean() if point.case in of_case else pd.Series()
        if not means.isna().all():
            relation = _relation(point.case, plain.get(point.case), times)
            yield {
                **relation,
                **_LOADING.settings(run.planned[point.case]),
                **{name: None if math.isnan(means[name]) else float(means[name]) for name in _SAVED},
                "load_s": times[point.case].estimate if point.case in times else None,
                "load_ratio": relation.get("ratio"),
            }


def time_to_loss(
    planned: Mapping[str, Planned], points: Iterable[Row], times: Times
) -> Iterator[dict[str, Any]]:
    """Yield how soon trainings of one model reach the lowest validation loss that all of them do.

    The interval is that over seeds; each training is beside the fastest of those on fewer cores.
    """
    known = [point for point in points if point.case in times and point.validation_losses]
    learned = grouped(known, lambda point: json.dumps([planned[point.case][name] for name in _LEARNS]))
    for alike in learned.values():
        target = max(min(point.validation_losses) for point in alike)
        trainings = grouped(alike, lambda point: shared_work(planned[point.case], train=("seed",)))
        rows: list[tuple[Row, Sample, Sample]] = []
        for members in trainings.values():
            steps = [_steps_to(point, target) for point in members]
            spent_s = [count * times[point.case].mean for count, point in zip(steps, members, strict=True)]
            rows.append((members[0], Sample(medians=tuple(spent_s)), Sample(medians=tuple(steps))))
        for first, spent, steps_of in sorted(rows, key=lambda each: (each[0].cores, each[1].value)):
            fewer = [other for point, other, _ in rows if point.cores < first.cores]
            relation = standing(spent, min(fewer, key=lambda each: each.value)) if fewer else None
            yield {
                "case": first.case,
                "ranks": first.ranks,
                "batch": planned[first.case]["train"]["batch"],
                "seeds": spent.launches,
                "target": target,
                "to_loss_steps": steps_of.estimate,
                "to_loss_s": spent.estimate,
                "to_loss_core_hours": spent.estimate.times(first.cores / 3600),
                "over": relation and relation.ratio,
                "answer": relation.answer if relation else "",
            }


_LEARNS = ("model", "data", "precision")


def _steps_to(point: Row, target: float) -> float:
    """Return the steps until a validation loss, on a line between the evaluations before and after."""
    steps, losses = point.validation_steps, point.validation_losses
    after = next(number for number, loss in enumerate(losses) if loss <= target)
    if not after:
        return float(steps[0])
    share = (losses[after - 1] - target) / (losses[after - 1] - losses[after])
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def _over(costs: Mapping[str, Any], base: Mapping[str, Any], name: str) -> float | None:
    """Return a cost relative to that of the reference; None where one of the two is unknown, or that is 0."""
    return costs[name] / base[name] if costs[name] is not None and base.get(name) else None


class Proposal(NamedTuple):
    """What a proposal for compute time is about: the least efficiency, and how many units of work."""

    target: float = 0.7
    units: float | None = None


def evidence(
    run: Run,
    sizes: Sequence[Mapping[str, Any]],
    times: Times,
    costs: Mapping[str, Mapping[str, Any]],
    *,
    judged: Mapping[str, Row],
    asked: Proposal,
) -> Iterator[dict[str, Any]]:
    """Yield sizes beside the smallest, the fastest and the cheapest of their series, for the same work.

    `judged` are the expectations of their efficiency.
    """
    nodes = run.cases.groupby("case")["nodes"].max().dropna().to_dict()
    programs = workloads(run)
    for members in grouped(sizes, lambda size: size["series"]).values():
        fastest = max(members, key=lambda size: size["speedup"].value)
        cheapest = max(members, key=lambda size: size["efficiency"].value)
        stated = all(costs[size["case"]]["work"] for size in members)
        for size in members:
            cost, demand = costs[size["case"]], judged.get(size["case"])
            per, work = (1e6, cost["work"]) if stated else (1.0, size["relative_work"])
            hours = cost["core_s"].times(1 / 3600 / work)
            yield {
                **size,
                "nodes": nodes.get(size["case"], 1 if run.machine.get("nodes") == 1 else None),
                "target": asked.target,
                "answer": demand.answer if demand else "",
                "to_decide": demand.to_decide if demand else "",
                "time_answer": _beside(size, fastest, times, 1.0),
                "cost_answer": _DEARER[_beside(size, cheapest, times, size["cores"] / cheapest["cores"])],
                "timed": programs[size["case"]].timed if size["case"] in programs else "step",
                "unit": cost["unit"] if stated else "",
                "per": per,
                "core_hours": hours.times(per),
                "units": asked.units,
                "units_core_hours": asked.units and hours.times(asked.units),
            }


_DEARER = {"": "", "slower": "more", "faster": "less", "equal": "equal", "undecided": "undecided"}


def _beside(size: Mapping[str, Any], best: Mapping[str, Any], times: Times, factor: float) -> str:
    """Return the answer on `factor` times a step, for the same work as the best; empty for itself."""
    if size is best:
        return ""
    work = best["relative_work"] / size["relative_work"]
    return standing(times[size["case"]], times[best["case"]], work * factor).answer


# Pairs of cases that are tested at once
#
# Two runs are compared case by case. The variants of a run are its series: each case is compared with the
# first of its size and work. Over a swept number a variant is a set of cases that differ in that number
# alone, and in others that follow it: "tp 2 or dp 2, from which batch?" Two of them are compared if they have
# as many cores and equal numbers but for their plans: value by value, launches in pairs of the same round. A
# crossover lies between two values that are decided for different variants.
#
# Launches are brought to the same pace of the machine where both cases compute with the same means, so that a
# fixed piece of work costs both the same: else a difference in pace may be theirs (`unlike`).

_OF_A_PLAN = ("plan.", "train.micro_batches")  # numbers in which variants may differ
_SAME = ("scaling", "model.kind", "data.kind")  # texts in which they may not

Method = Callable[[Sample, Sample], Difference]
Side = tuple[Run, str, Sample]  # a case of a run


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Run B against run A, or variants of one run: rows of the frames of these names."""

    a: str
    b: str
    relevant: float
    compared: Sequence[Row]
    missing: Sequence[Row]
    changes: Sequence[Change]
    apart_s: float | None  # between the starts of two runs; None of one, whose launches are pairs


def tested(pairs: Sequence[tuple[Side, Side]], method: Method, relevant: float) -> list[dict[str, Any]]:
    """Return what is known of pairs that are tested at once, B against A, for rows of `compared`.

    `relevant` is the least relative difference that matters: where one as small could have been seen and none
    was, the two are equal; where it could not, that is undecided.
    """
    differences = [_difference(method, *pair) for pair in pairs]
    values = [one.p for one, _ in differences if one.p is not None]
    corrected = iter(holm(values))
    return [
        {
            **vars(one),
            "p_corrected": p,
            "detectable": one.detectable_with(len(values)),
            "launches_needed": one.launches_for(relevant, len(values)),
            "answer": one.judge(p, len(values), relevant),
            "unlike": means or (),
            "lacks_pace": means is None and not is_program(run.planned.get(case, {})),
        }
        for ((run, case, _), _), (one, means) in zip(pairs, differences, strict=True)
        for p in (None if one.p is None else next(corrected),)
    ]


def _difference(method: Method, a: Side, b: Side) -> tuple[Difference, tuple[str, ...] | None]:
    """Return the difference, and what keeps the pace of the machine from being used; None without a pace."""
    (run, case, ours), (other_run, other, theirs) = a, b
    if not paced(ours, theirs):
        return method(ours, theirs), None
    means = unlike(run, case, other_run, other)
    if run is other_run and not means and of_variants(ours, theirs):
        means = ("pace, in all rounds",)
    return method(ours, theirs) if means else at_same_pace(method, ours, theirs), means


def compare(a: Run, b: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare the step times of all cases that both runs have measured, matched by id, else by label.

    Cases whose steps do other work are not compared: their times say nothing of speed.
    """
    times, labels = [scaling.step_samples(run) for run in (a, b)], [labels_of(run) for run in (a, b)]
    by_label = {label: case for case, label in labels[1].items() if case not in labels[0]}
    named = {case: case if case in labels[1] else by_label.get(label) for case, label in labels[0].items()}
    pairs = {one: other for one, other in named.items() if other is not None}
    backward = {other: one for one, other in pairs.items()}
    both = {one: other for one, other in pairs.items() if one in times[0] and other in times[1]}
    other_work = {one: ", ".join(_other_work(a, one, b, other)) for one, other in both.items()}
    here = [one for one in labels[0] if one in times[0] and one not in both]
    there = [other for other in labels[1] if other in times[1] and other not in both.values()]
    differing = {both[one]: f"a step does different work: {what}" for one, what in other_work.items() if what}
    alike = [(one, other, labels[0][one]) for one, other in both.items() if not other_work[one]]
    begun = [run.cases["started_unix_s"].min() for run in (a, b)]
    return Comparison(
        a=_name_of(a),
        b=_name_of(b),
        relevant=relevant,
        compared=_compared((a, b), times, alike, relevant, difference),
        missing=[
            *(_lacking(one, labels[0], "B", reason(b, pairs.get(one))) for one in here),
            *(_lacking(other, labels[1], "A", reason(a, backward.get(other))) for other in there),
            *(_lacking(other, labels[1], "both", why) for other, why in differing.items()),
        ],
        changes=changes(a, b, both.items()),
        apart_s=abs(begun[1] - begun[0]),
    )


def _compared(
    runs: tuple[Run, Run],
    times: Sequence[Times],
    pairs: Sequence[tuple[str, str, str]],
    relevant: float,
    method: Method,
) -> list[Row]:
    """Return the rows of pairs that are tested at once: a case of A, one of B, and their label."""
    (a, b), (ours, theirs), alone = runs, times, method is paired
    sides = [((a, x, ours[x]), (b, y, theirs[y])) for x, y, _ in pairs]
    rows = zip(tested(sides, method, relevant), pairs, strict=True)
    how = "size" if alone else "id", "size" if alone else "label"
    return [
        row("compared", **each, case=x, label=label, matched_by=how[x != y]) for each, (x, y, label) in rows
    ]


def _lacking(case: str, labels: Mapping[str, str], run: str, why: str) -> Row:
    return row("missing", case=case, label=labels[case], run=run, reason=why)


def _other_work(a: Run, one: str, b: Run, other: str) -> list[str]:
    """Return in what the work of two measured cases differs, but for what a suite calls the same."""
    ours, theirs = work_of(a, one), work_of(b, other)
    programs = [run.planned.get(case, {}).get("workload") or {} for run, case in ((a, one), (b, other))]
    same = {name for program in programs for name in program.get("same_work", ())}
    values = {name: (ours.get(name), theirs.get(name)) for name in (*ours, *theirs) if name not in same}
    return [
        f"{name} " + " and ".join(f"'{each}'" if isinstance(each, str) else str(each) for each in both)
        for name, both in values.items()
        if both[0] != both[1]
    ]


def reason(run: Run, case: str | None) -> str:
    """Say why a run has no time for a case."""
    if case is None:
        return "not in its suite"
    ended = run.cases[(run.cases["case"] == case) & ~run.cases["status"].isin(UNCOUNTED)]
    if not len(ended):
        return "not measured yet"
    first = ended.iloc[0]
    return f"{first['status']}: {first['reason'] or 'no reason recorded'}"


def work_of(run: Run, case: str) -> dict[str, object]:
    """Return the work of a measured case: model, batch, tokens, parameters; command of a program."""
    names = ["model", "batch", "tokens", "parameters"]
    return records(run.good.loc[run.good["case"] == case, names].iloc[:1])[0] | command_of(run, case)


def command_of(run: Run, case: str) -> dict[str, object]:
    """Return command and parameters of a case that runs a program; nothing of a training."""
    program = run.planned.get(case, {}).get("workload") or {}
    return {"command": program["command"], **program.get("params", {})} if program.get("command") else {}


def labels_of(run: Run) -> dict[str, str]:
    """Return the label of every case, in the suite's order; of those that the suite no longer has, too."""
    stored = dict(zip(run.cases["case"].astype(str), run.cases["label"].astype(str), strict=True))
    return {case: str(plan.get("label") or case) for case, plan in run.planned.items()} | stored


def _name_of(run: Run) -> str:
    """Return suite and name of a run."""
    suite = run.suite.get("name")
    return f"{suite}/{run.name}" if suite else run.name


def variants(run: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare every case with the first of its ranks, threads and work, launches in pairs.

    Raises UsageError for a run of a single series.
    """
    if len({_series(run, case) for case in run.planned}) == 1:
        raise UsageError(
            f"{run.path} has no variants to compare; name a second run, `pscale compare {run.path} B`, "
            "or a run of a suite that sweeps more than sizes"
        )
    times, labels = scaling.step_samples(run), labels_of(run)
    pairs = _pairs_of_variants(run, times)
    a, b = _names(run, pairs)
    both = [
        (one, other, labels[other] if a else f"{labels[other]} against {labels[one]}")
        for other, one in pairs.items()
        if one in times and other in times
    ]
    alone = (case for case in run.planned if case not in pairs and case not in pairs.values())
    sides = ((side, case) for other, one in pairs.items() for side, case in (("A", one), ("B", other)))
    return Comparison(
        a=f"{_name_of(run)}: {a or 'the first case of each size and work'}",
        b=f"{_name_of(run)}: {b}",
        relevant=relevant,
        compared=_compared((run, run), (times, times), both, relevant, paired),
        missing=[
            *(_lacking(case, labels, "A", "no other case of its ranks, threads and work") for case in alone),
            *(_lacking(case, labels, side, reason(run, case)) for side, case in sides if case not in times),
        ],
        changes=changes(run, run, (pair[:2] for pair in both)),
        apart_s=None,
    )


def _pairs_of_variants(run: Run, times: Mapping[str, Sample]) -> dict[str, str]:
    """Return, by every other case, the first of its size whose steps do the same work.

    Of what was not measured the batch has to tell.
    """

    def alike(one: str, other: str) -> bool:
        if one in times and other in times:
            return not _other_work(run, one, run, other)
        batches = [(run.planned[case].get("train") or {}).get("batch") for case in (one, other)]
        return bool(batches[0] == batches[1])

    first: dict[tuple[int, int], list[str]] = {}  # by ranks and threads
    pairs = {}
    for case, planned in run.planned.items():
        references = first.setdefault((int(planned["ranks"]), int(planned.get("threads", 1))), [])
        if (one := next((reference for reference in references if alike(reference, case)), None)) is not None:
            pairs[case] = one
        else:
            references.append(case)
    return pairs


def _names(run: Run, pairs: Mapping[str, str]) -> tuple[str, str]:
    """Return what each side is called: its series, or what these share or do not share with the other side's.

    That of A is empty if its cases have nothing in common.
    """
    series = [(_series(run, one), _series(run, other)) for other, one in pairs.items()]
    references = list(dict.fromkeys(one for one, _ in series))
    if len(references) < 2:
        others = dict.fromkeys(other for _, other in series)
        return (references or ["-"])[0] or "the first series", ", ".join(others) or "-"
    parts = [(one.split(JOINT), other.split(JOINT)) for one, other in series]
    differing = (JOINT.join(part for part in other if part not in one) for one, other in parts)
    return JOINT.join(in_common([one for one, _ in parts])), ", ".join(dict.fromkeys(differing))


def _series(run: Run, case: str) -> str:
    return str(run.planned[case].get("series", ""))


_OF_RANKS = {
    "blas": "BLAS",
    "blas_version": "BLAS",
    "blas_architecture": "BLAS",
    "blas_threading": "BLAS",
    "threads": "threads",
    "kernels": "kernels",
    "kernel_threads": "threads",
    "cpus": "pinning",
}
_OF_LAUNCH = {"bind": "pinning", "omp": "pinning", "kernels": "kernels", "env": "environment"}


def unlike(a: Run, case: str, b: Run, other: str) -> tuple[str, ...]:
    """Return in what the means of a case of A differ from those of one of B, in words."""
    sides = [
        (run.ranks[run.ranks["case"] == name], run.planned.get(name, {}))
        for run, name in ((a, case), (b, other))
    ]
    (left, planned), (right, planned_there) = sides
    launch, there = planned.get("launch", {}), planned_there.get("launch", {})
    differing = [
        *(["processor"] if a.machine.get("cpu_model") != b.machine.get("cpu_model") else []),
        *(["ranks"] if {*left["rank"]} != {*right["rank"]} else []),
        *(
            word
            for name, word in _OF_RANKS.items()
            if len({frozenset(each[name].dropna().astype(str)) for each in (left, right)}) > 1
        ),
        *(word for name, word in _OF_LAUNCH.items() if launch.get(name) != there.get(name)),
    ]
    return tuple(dict.fromkeys(differing))


class _Variant(NamedTuple):
    name: str
    common: str
    points: Mapping[float, Row]


def crossings(run: Run, points: Sequence[Row], times: Mapping[str, Sample]) -> Iterator[dict[str, Any]]:
    """Yield the variants of a run beside the first of each group, over the number that it sweeps most."""
    cases = of_cases(run)
    by_case = {point.case: point for point in points}
    measured = [by_case[case] for case in cases if case in times]
    swept = [
        (name, groups) for name in swept_numbers(run, cases) if (groups := _variants(name, measured, cases))
    ]
    if swept:
        lengths = {
            name: max(len(each.points) for group in groups for each in group) for name, groups in swept
        }
        name, groups = max(swept, key=lambda each: (each[0] not in SIZES, lengths[each[0]]))
        for reference, *others in groups:
            for variant in others:
                if len(reference.points.keys() & variant.points.keys()) > 1:
                    yield from _crossing(run, name, reference, variant, times)


def _variants(name: str, points: Sequence[Row], cases: Mapping[str, Case]) -> list[list[_Variant]]:
    """Return the groups of two variants or more that have two values of the number in common."""
    decided = following(name, [cases[point.case] for point in points])
    curves = grouped(points, lambda point: apart_from(cases[point.case], name, decided))
    kept = [members for members in curves.values() if len(members) > 1]
    groups = grouped(kept, lambda members: _comparable(cases[members[0].case], name, decided)).values()
    named = [_named(name, group, cases) for group in groups]
    return [
        [first, *others]
        for first, *others in named
        if any(len(first.points.keys() & other.points.keys()) > 1 for other in others)
    ]


def _comparable(case: Case, name: str, decided: set[str]) -> str:
    """Return what variants must share to be compared."""
    numbers = {
        field: value
        for field, value in case.items()
        if is_number(value) and not field.startswith(_OF_A_PLAN) and field not in decided
    }
    if name not in SIZES:
        numbers |= {"ranks": case["ranks"] * case["threads"], "threads": 0}  # or other splits of the cores
    return json.dumps([{**numbers, name: None}, *(case.get(field) for field in _SAME)], sort_keys=True)


def _named(name: str, group: Sequence[Sequence[Row]], cases: Mapping[str, Case]) -> list[_Variant]:
    """Name every variant by the parts that its labels share and those of the others do not."""
    parts = [in_common([point.label.split(JOINT) for point in members]) for members in group]
    common, variants = in_common(parts), []
    for parts_of_one, members in zip(parts, group, strict=True):
        case = cases[members[-1].case]
        axes = [axis for degree, axis in DEGREES.items() if case.get(degree) == case["ranks"] > 1]
        words = JOINT.join(part for part in parts_of_one if part not in common)
        points = {cases[point.case][name]: point for point in members}
        variants.append(_Variant(words or " ".join(axes) or members[0].series, JOINT.join(common), points))
    return variants


def _crossing(
    run: Run, name: str, reference: _Variant, variant: _Variant, times: Mapping[str, Sample]
) -> Iterator[dict[str, Any]]:
    """Yield a row a value of the number that both have, in order."""
    shared = sorted(reference.points.keys() & variant.points.keys())
    pairs = [(reference.points[value].case, variant.points[value].case) for value in shared]
    sides = [((run, one, times[one]), (run, other, times[other])) for one, other in pairs]
    results = tested(sides, paired, RELEVANT)
    before: tuple[str, float] | None = None  # the last answer that is decided, and its value
    for value, (one, other), result in zip(shared, pairs, results, strict=True):
        turns = decided(result["answer"]) and before is not None and before[0] != result["answer"]
        about = {"field": name, "common": reference.common, "reference": reference.name}
        cases = {"case": other, "reference_case": one, "variant": variant.name, "value": value}
        yield {**result, **about, **cases, "turns_after": before[1] if turns and before else None}
        if decided(result["answer"]):
            before = result["answer"], value


def crossovers(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return the two values that each crossover of two variants lies between."""
    return [(row.turns_after, row.value) for row in rows if row.turns_after is not None]
