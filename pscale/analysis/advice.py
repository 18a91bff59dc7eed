"""What to do about a loss, given what the case does already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pscale.analysis.frames import is_program

Planned = Mapping[str, Any]  # a case as its run has it: settings, or few of them where the document is lost

_BIND = "bind ranks to cores"
_OF_TRAINING = {"use larger batches", "use larger matrices"}
_ADVICE = {  # against a loss, the easiest first
    "threads": ("use fewer threads and more ranks", "use larger matrices"),
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


def advice(cause: str, axis: str, planned: Planned) -> str:
    """Say what to do about a loss, most of which is on `axis`; nothing where nothing is known to help."""
    done = {_BIND} if bound(planned) else set()
    if no_training(planned):
        done |= _OF_TRAINING
    known = [words for words in _ADVICE.get(_narrowed(cause, axis, planned), ()) if words not in done]
    return f"Advice: {', or '.join(filter(None, (', '.join(known[:-1]), known[-1])))}." if known else ""


def no_training(planned: Planned) -> bool:
    """Tell whether the case is no training, but the program of somebody else."""
    return bool(planned.get("model", {}).get("kind") == "program" or is_program(planned))


def bound(planned: Planned) -> bool:
    """Tell whether the case asks for ranks that keep to their cores."""
    return str(planned.get("launch", {}).get("bind", "none")) != "none"


def _narrowed(cause: str, axis: str, planned: Planned) -> str:
    """Return the loss by what is to be done about it in this case."""
    reduction = planned.get("plan", {}).get("reduction", "bucketed")
    match cause:
        case "serialisation" if axis == "pp":
            return "bubble"
        case "transfer" if axis == "dp" and reduction != "bucketed":
            return "at once"
        case "unaccounted" if planned.get("timing", {}).get("trace", False) is not False or no_training(
            planned
        ):
            return "traced"
    return cause
