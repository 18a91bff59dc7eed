"""Cases that are equal but for some fields, each beside a reference: ratio of step times, interval, answer.

Plans, splits of cores into ranks and threads, compression, precision, offload, optimizers and injected delays
are groups of one run, compared by the intervals of the report. Pairs of cases that are tested at once are in
`compare`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.difference import standing
from pscale.analysis.frames import Run, by_case, grouped, records, shared_work
from pscale.analysis.memory import by_kind
from pscale.analysis.merits import workloads
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.steps import waits_for_stages
from pscale.analysis.threads import lost
from pscale.analysis.wording import in_common
from pscale.config import JOINT
from pscale.config.case import stored_words

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
    bare = planned.get("model", {}).get("kind") == "collectives"  # which train nothing
    return {"plan": None if bare else json.dumps(planned.get("plan"), sort_keys=True)}


PLANS = Contrast(fields=("scaling", "plan"), members={"train": ("micro_batches",)}, settings=_of_plan)
SPLITS = Contrast(
    fields=("ranks", "threads", "plan"), settings=lambda planned: {"ranks": planned.get("ranks")}
)
DELAYS = Contrast(
    fields=("inject", "jitter"), settings=lambda planned: {"injected": stored_words(planned)}, plain=("",)
)
CHOICES = {  # by the frame of each
    "compressed": Contrast(
        members={"plan": ("compression", "compression_share", "compression_rank")},
        settings=lambda planned: {"compression": planned.get("plan", {}).get("compression")},
        plain=("none",),
    ),
    "precision": Contrast(
        members={
            "model": ("dtype",),
            "precision": ("reduce", "loss_scale", "initial_scale", "growth_interval"),
        },
        settings=lambda planned: {
            "precision": planned.get("model", {}).get("dtype"),
            "reduce": planned.get("precision", {}).get("reduce", "wire"),
        },
        plain=("float32", "float64"),
    ),
    "offloaded": Contrast(
        members={"plan": ("offload", "offload_folder", "offload_chunk_bytes")},
        settings=lambda planned: {"offload": planned.get("plan", {}).get("offload")},
        plain=("none",),
    ),
    "optimizers": Contrast(
        members={  # each optimizer needs other numbers
            "train": (
                *("optimizer", "lr", "lr_scaling", "lr_batch", "lr_schedule", "lr_warmup", "lr_final"),
                *("momentum", "beta1", "beta2", "epsilon", "weight_decay", "clip"),
            )
        },
        settings=lambda planned: {name: planned.get("train", {}).get(name) for name in ("optimizer", "lr")},
    ),
}


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


def _fastest_first(members: Sequence[Row], times: Times) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield cases with what is known of them beside the fastest."""
    order = sorted(members, key=lambda point: times[point.case].value)
    round_s = sum(math.nan if point.wall_s is None else point.wall_s for point in members)
    yield from ((point, _relation(point.case, order[0].case, times, round_s)) for point in order)


def ranking(
    planned: Mapping[str, Planned],
    points: Sequence[Row],
    times: Times,
    phases: Sequence[Row],
    calls: Sequence[Row],
    *,
    sharing: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Yield the plans of the same work on the same ranks, fastest first, with what each loses.

    In the cases `sharing`, ranks share cores.
    """
    spent, stages = by_case(phases), waits_for_stages(calls)
    measured = [point for point in points if point.case in spent]
    groups = sorted(PLANS.groups(planned, measured, times), key=lambda group: group[0][0].ranks)
    for members, _ in groups:
        common = in_common([point.label.split(JOINT) for point in members])
        least_s = min(sum(time.compute_s for time in spent[point.case]) for point in members)
        for number, (point, relation) in enumerate(_fastest_first(members, times), 1):
            losses = _losses(
                spent[point.case], stages.get(point.case, 0.0), None if point.case in sharing else least_s
            )
            largest = max(losses, key=losses.__getitem__)
            yield {
                **relation,
                "group": JOINT.join(common),
                "plan": JOINT.join(part for part in point.label.split(JOINT) if part not in common),
                "place": 1 if relation["answer"] == "equal" else number,
                "compute": sum(time.compute_s for time in spent[point.case]) / spent[point.case][0].step_s,
                **losses,
                "loss": largest if losses[largest] >= _SMALL else "",
            }


def _losses(phases: Sequence[Row], stages_s: float, least_compute_s: float | None) -> dict[str, float]:
    """Return the shares of a step that do not compute, or more than the plan that computes least."""
    step_s, compute_s = phases[0].step_s, sum(time.compute_s for time in phases)
    waited_s = sum(time.wait_s for time in phases)
    bubble_s = min(waited_s, stages_s)
    return {
        "exchange": sum(time.transfer_s + time.wait_or_transfer_s for time in phases) / step_s,
        "bubble": bubble_s / step_s,
        "wait": (waited_s - bubble_s) / step_s,
        "copies": sum(time.copy_s for time in phases) / step_s,
        "offload": sum(time.offload_s for time in phases) / step_s,
        "extra": 0.0 if least_compute_s is None else (compute_s - least_compute_s) / step_s,
    }


def splits(
    planned: Mapping[str, Planned], points: Sequence[Row], times: Times, threads: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Yield the cases that do the same work on as many cores, split differently: fastest first."""
    of_case = {time.case: time for time in threads}
    for group, (members, _) in enumerate(SPLITS.groups(planned, points, times)):
        for point, relation in _fastest_first(members, times):
            yield {
                **relation,
                "group": group,
                "cores": point.cores,
                "name": messages.split_name(point),
                "step_s": times[point.case].value,
                "lost": lost(of_case[point.case]) if point.case in of_case else "",
            }


def delay_costs(run: Run, points: Sequence[Row], times: Times) -> Iterator[dict[str, Any]]:
    """Yield the cost of every case with injected delays that was measured without them too."""
    for members, healthy in DELAYS.groups(run.planned, points, times):
        for point in members:
            if healthy is not None and point.injected:
                relation = _relation(point.case, healthy.case, times)
                if int(run.planned[point.case].get("inject", {}).get("every", 1)) > 1:
                    # Medians show no rare delays.
                    relation |= {"ratio": Estimate(value=relation["ratio"].value), "answer": "undecided"}
                low, high = (bound and bound - 1 for bound in (relation["ratio"].low, relation["ratio"].high))
                step_s, healthy_s = times[point.case].mean, times[healthy.case].mean
                yield {
                    **relation,
                    "injected": point.injected,
                    "step_s": step_s,
                    "healthy_s": healthy_s,
                    "change": Estimate(value=(step_s - healthy_s) / healthy_s, low=low, high=high),
                    **_passed_on(run, point.case, step_s - healthy_s),
                }


def _passed_on(run: Run, case: str, extra_s: float) -> dict[str, float]:
    """Return the delay injected per step into the rank that got most, and what of it became step time."""
    injected_s = float(run.ends.loc[run.ends["case"] == case, "injected_s"].mean())
    return {"injected_s": injected_s, "passed_on": extra_s / injected_s} if injected_s > 0 else {}


_RATIOS = ("sent", "held", "memory")  # costs in bytes that are also set against the reference
_MOVED = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")


class Costs:
    """What cases cost and reach: of a rank and step, as a mean, or of the fullest rank."""

    def __init__(self, run: Run, memory: Mapping[str, Row], phases: Sequence[Row], calls: Sequence[Row]):
        self._memory = memory
        self._phases = {(time.case, time.phase): time for time in phases}
        sums = run.phases.groupby("case", observed=True)[list(_MOVED)].sum()
        steps = run.seats.groupby("case", observed=True)["steps"].sum()
        means = sums.div(steps, axis=0).dropna().reset_index().astype({"case": str})
        self._moved = {row["case"]: row for row in records(means)}
        self._sent_bytes: dict[str, float] = {}
        for call in calls:
            self._sent_bytes[call.case] = self._sent_bytes.get(call.case, 0.0) + call.bytes

    def of(self, point: Row) -> dict[str, Any]:
        """Return the costs of a case by the names of columns."""
        memory, moved = self._memory.get(point.case), self._moved.get(point.case, dict.fromkeys(_MOVED, 0.0))
        held = by_kind(memory) if memory else {}
        in_file = (memory.counted_offloaded_bytes, memory.predicted_offloaded_bytes) if memory else ()
        sync, update = (self._phases.get((point.case, phase)) for phase in ("sync", "update"))
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
            "sync_compute_s": sync.compute_s if sync else 0.0,
            "update_s": update.inside_s if update else None,
            "update_compute_s": update.compute_s if update else None,
            "step_s": point.step_s.value,
            "loss_last": point.loss_last,
        }


def choices(
    name: str, run: Run, points: Sequence[Row], times: Times, costs: Callable[[], Costs]
) -> Iterator[dict[str, Any]]:
    """Yield what a choice saves and costs beside the reference; a loss beside the lowest without `plain`."""
    contrast = CHOICES[name]
    for members, reference in contrast.groups(run.planned, points, times):
        of = costs().of
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
                **contrast.settings(run.planned[point.case]),
                **{f"{kind}_ratio": _over(costs_of_case, base, f"{kind}_bytes") for kind in _RATIOS},
                "step_ratio": relation.get("ratio"),
                "loss_more": None if loss is None else loss - 1,
            }


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
