"""What optimizers reach and cost beside each other: loss, memory of their state, time of the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pscale.analysis.alike import Planned, alike, loss_more, step_ratio
from pscale.analysis.memory import Memory
from pscale.analysis.phases import PhaseTime
from pscale.analysis.scaling import Point

# What is chosen with an optimizer, as each of them wants other numbers:
_OF_OPTIMIZERS = (
    *("optimizer", "lr", "lr_scaling", "lr_batch", "lr_schedule", "lr_warmup", "lr_final"),
    *("momentum", "beta1", "beta2", "epsilon", "weight_decay", "clip"),
)


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """One case among those that differ in optimizer alone, each with its own rate."""

    case: str
    optimizer: str
    lr: float | None
    loss_last: float | None
    loss_more: float | None  # beyond the least of them, over it
    state_bytes: int | None  # of the optimizer, in memory of the fullest rank
    update_s: float | None  # the phase, calls in it included: mean over ranks
    update_compute_s: float | None
    step_ratio: float | None  # to the fastest of them


def optimized(
    planned: Planned, points: Sequence[Point], phases: Sequence[PhaseTime], memory: Sequence[Memory]
) -> tuple[Optimized, ...]:
    """Return all measured cases that have beside them one of another optimizer."""
    if len({case.get("train", {}).get("optimizer") for case in planned.values()}) < 2:
        return ()  # as in most runs, and cases to group may be thousands
    updates = {time.case: time for time in phases if time.phase == "update"}
    states = {each.case: each.expected["optimizer"] for each in memory if each.expected}
    found: list[Optimized] = []
    for members in alike(planned, points, {"train": _OF_OPTIMIZERS}):
        kinds = {planned[point.case]["train"].get("optimizer") for point in members}
        if len(kinds) > 1 and None not in kinds:  # cases without a document tell of none
            found += _beside(members, planned, updates, states)
    return tuple(found)


def _beside(
    members: Sequence[Point],
    planned: Planned,
    updates: Mapping[str, PhaseTime],
    states: Mapping[str, int],
) -> list[Optimized]:
    fastest = min(members, key=lambda point: point.step_s.value if point.step_s else 0.0)
    learned = [point for point in members if point.loss_last is not None]
    least = min(learned, key=lambda point: point.loss_last or 0.0, default=None)
    found = []
    for point in members:
        train, update = planned[point.case]["train"], updates.get(point.case)
        found.append(
            Optimized(
                case=point.case,
                optimizer=str(train["optimizer"]),
                lr=train.get("lr"),
                loss_last=point.loss_last,
                loss_more=loss_more(point, least),
                state_bytes=states.get(point.case),
                update_s=update.inside_s if update else None,
                update_compute_s=update.compute_s if update else None,
                step_ratio=step_ratio(point, fastest),
            )
        )
    return found
