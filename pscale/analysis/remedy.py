"""What helps against a loss, and is not what the case does already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Planned = Mapping[str, Any]  # a case as its run has it: settings, or few of them where the document is lost

_BOUND = "ranks bound to cores"
_HELPS = {  # against a loss, most at hand first
    "threads": ("fewer threads and more ranks", "larger matrices"),
    "scaling": ("fewer ranks on a memory bus", _BOUND, "larger matrices"),
    "imbalance": ("a look at what else runs where that rank does", "a fairer cut of the work"),
    "serialisation": ("cores that nothing else uses", _BOUND),
    "bubble": ("more micro-batches", "another schedule"),
    "transfer": ("larger batches", "fewer or larger messages", "a faster network"),
    "at once": (
        "gradients reduced in buckets during backward (reduction: bucketed)",
        "larger batches",
        "a faster network",
    ),
    "together": ("larger batches", "fewer messages"),
    "offload": ("a faster disk", "chunks of another size"),
    "unaccounted": ("a timeline of what the ranks did, by pscale run --set trace=true and pscale trace",),
    "traced": ("the timeline of what the ranks did, by pscale trace",),
}


def remedy(cause: str, axis: str, planned: Planned) -> str:
    """Say what helps against a loss, most of which is on `axis`; nothing where nothing is known to."""
    done = {_BOUND} if bound(planned) else set()
    helps = [words for words in _HELPS.get(_narrowed(cause, axis, planned), ()) if words not in done]
    return f"What helps: {', or '.join(filter(None, (', '.join(helps[:-1]), helps[-1])))}." if helps else ""


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
        case "unaccounted" if planned.get("timing", {}).get("trace"):
            return "traced"
    return cause
