"""The rows of the table `events`: what each rank did when, as timelines and what-if questions read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.results.events import VERBS, Kind
from pscale.watch.rows import Numbers
from pscale.watch.settle import Settled

_NOTHING = -1
_LEVELS = {Kind.STEP: 2, Kind.PHASE: 1}  # of what ends together, the inner comes first
_NUMBERS = (
    "rank",
    "step",
    "phase",
    "kind",
    "enter",
    "leave",
    "wait",
    "bytes",
    "request",
    "partner",
    "axis",
    "verb",
    "group",
)
Block = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """What the rows of calls belong to, by number, and the names of the numbers."""

    step: Numbers  # -1: none
    phase: Numbers
    phases: Sequence[str]
    axis: Numbers
    axes: Sequence[str]
    verb: Numbers
    verbs: Sequence[str]
    payload: Numbers
    partner: Numbers


def event_table(settled: Settled, told: Labelled, frames: Sequence[Block], start_ns: int) -> Block:
    """Return the events of the steps, rank by rank in the order in which they ended.

    A blocking message is a started one that is completed at once, as the simulator knows it. `frames` are the
    steps and phases.
    """
    blocks = [*_calls(settled, told), *frames]
    whole = {name: np.concatenate([_column(block, name) for block in blocks]) for name in _NUMBERS}
    level = np.array([_LEVELS.get(kind, 0) for kind in Kind])[whole["kind"]]
    order = np.lexsort((level, whole["leave"], whole["rank"]))
    rows = {name: values[order] for name, values in whole.items()}
    phase, verb = np.array([*told.phases, ""])[rows["phase"]], np.array([*told.verbs, ""])[rows["verb"]]
    return {
        **{name: rows[name] for name in ("rank", "step", "bytes", "request", "partner", "group")},
        "phase": phase,
        "kind": np.array([kind.name.lower() for kind in Kind])[rows["kind"]],
        "label": np.where(rows["kind"] == Kind.PHASE, phase, verb),
        "axis": np.array([*told.axes, ""])[rows["axis"]],
        "verb": verb,
        "enter_s": (rows["enter"] - start_ns) * 1e-9,
        "leave_s": (rows["leave"] - start_ns) * 1e-9,
        "wait_s": rows["wait"] * 1e-9,
    }


def _column(block: Block, name: str) -> NDArray[Any]:
    """Return a column of a block; what it does not have is nothing, or no time and no bytes."""
    if name in block:
        return block[name]
    return np.full(len(block["rank"]), 0 if name in ("wait", "bytes") else _NOTHING)


def _calls(settled: Settled, told: Labelled) -> Iterator[Block]:
    """Yield the events of calls, a block for each way to make one."""
    rows, post = settled.rows, settled.post
    numbers = np.arange(len(post))
    own, begins = rows.main == numbers, rows.is_mode("STARTS")
    messages = rows.is_kind("SEND", "RECEIVE", "BOTH")
    seen = (told.step >= 0) & (rows.thread == 0) & ~rows.fruitless
    known = np.isin(np.array(told.verbs)[told.verb], VERBS) & ~(messages & (told.partner < 0))
    aside = rows.is_kind("COMPLETE", "PROBE", "MATCHED") | rows.is_mode("PERSISTENT")
    made = seen & known & ~aside
    collective, posted = made & ~messages & ~begins, made & (messages | begins)
    at_root = rows.is_kind("FROM_ROOT", "TO_ROOT") & (told.partner == rows.rank)
    relied = seen & (post >= 0) & posted[post]
    of_groups = np.array([*(group.members[0] for group in settled.groups), _NOTHING])

    def block(chosen: NDArray[np.bool_], kind: Kind, leave: Numbers, **more: Numbers) -> Block:
        about = more.get("request", numbers)
        columns: Block = {"rank": rows.rank, "step": told.step, "phase": told.phase}
        columns |= {"axis": told.axis[about], "verb": told.verb[about], "group": of_groups[rows.group[about]]}
        columns |= {"enter": np.minimum(first, leave), "leave": leave, **more}
        found = {name: values[chosen] for name, values in columns.items()}
        return {**found, "kind": np.full(int(chosen.sum()), int(kind))}

    over = rows.leave[rows.main]
    first = np.where(own, rows.enter, over)  # a part takes no time of its own
    times, paid = {"wait": settled.wait}, {"bytes": told.payload}
    yield block(collective & ~at_root, Kind.CALL, over, **times, **paid)
    yield block(collective & at_root, Kind.ROOT, over, **times, **paid)
    left = np.where(begins & own, rows.leave, rows.enter)
    yield block(posted, Kind.POSTED, left, request=numbers, partner=told.partner, **paid)
    yield block(posted & ~begins, Kind.COMPLETED, over, request=numbers, **times)
    yield block(
        relied, Kind.COMPLETED, np.where(own, rows.enter + rows.inside(), over), request=post, **times
    )
