"""What a dry run says of a rank beside what a recorder saw it do, in the same words."""

import math

from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import axis_name, coordinates, rank_at, spanned
from pscale.parallel.ranks import GROUPS
from pscale.runs.schema import ACTIONS, PHASES, VERBS, Kind
from pscale.training.dry_run import FileTransfer, rank_program

_EVENTS = {
    Kind.CALL: "call",
    Kind.ROOT: "call",
    Kind.POSTED: "start",
    Kind.COMPLETED: "wait",
    Kind.COPIED: "copy",
    Kind.IO_SUBMITTED: "file",
}


def recorded_program(recorder, plan, rank, step=1):
    """Return what `rank` did in a step, by phase; when messages have left depends on other ranks."""
    rows = recorder.rows()
    of_step = rows["step"] == step
    columns = ("kind", "phase", "axis", "verb", "bytes", "request", "partner")
    numbers, found, events = {}, [], []
    for kind, phase, axis, verb, size, request, partner in zip(
        *(rows[name][of_step].tolist() for name in columns), strict=True
    ):
        if kind == Kind.PHASE:
            action = (ACTIONS[verb], request, partner) if verb >= 0 else None
            found.append((PHASES[phase], action, events))
            events = []
        elif kind == Kind.IO_SUBMITTED:
            events.append(("file", VERBS[verb], size))
        elif kind in _EVENTS and (kind, VERBS[verb]) != (Kind.COMPLETED, "send"):
            name = recorder.axes[axis]
            number = numbers.setdefault(request, len(numbers) + 1) if request >= 0 else None
            offset = None if partner < 0 else _offset(plan, rank, name, partner)
            events.append((_EVENTS[kind], name, VERBS[verb], size, offset, number, kind == Kind.ROOT))
    assert not events, "nothing comes after the last phase"
    return found


def predicted_program(case, rank):
    """Return what `recorded_program` should."""
    return [
        (work.phase, tuple(work.action) if work.action else None, list(_events(work.operations)))
        for work in rank_program(case, rank)
    ]


def _events(operations):
    """Yield what a recorder records: neither computation nor sizes of copies, no partner of a wait."""
    for each in operations:
        if isinstance(each, FileTransfer) and each.event == "start":
            yield "file", each.verb, each.bytes
        elif isinstance(each, AxisCall) and (each.event, each.verb) != ("wait", "send"):
            size = 0 if each.event == "copy" else each.bytes
            partner = None if each.event == "wait" else each.partner
            yield each.event, each.axis, each.verb, size, partner, each.request, each.root


def _offset(plan, rank, name, partner):
    """Return a rank of an axis as it is counted from this one."""
    places = coordinates(plan.sizes, rank)
    spans = (spanned(plan.sizes, group) for group in GROUPS)
    span = next(span for span in spans if axis_name(span) == name)
    sizes = {axis: plan.sizes[axis] for axis in span}
    return (partner - rank_at(sizes, places)) % math.prod(sizes.values())
