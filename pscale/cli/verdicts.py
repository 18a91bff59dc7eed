"""What `pscale verify` found, as tables: a line for each case, and for whoever asks one for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from pscale.report.text import size_of

Verdict = Mapping[str, Any]
_KINDS = ("gradient", "weight")
_COUNTED = ("calls", "bytes", "messages", "file")
_CHOICE = "choice"  # of experts, where one is compared


def totals(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return what all ranks do in a step, each as it was predicted and counted.

    Calls, bytes and messages; and where anything is offloaded, bytes between memory and files.
    """
    found: dict[str, dict[str, int]] = {name: {} for name in _COUNTED}
    for side in ("predicted", "counted"):
        rows = verdict.get(side, ())
        found["calls"][side] = sum(calls for *_, calls, _ in rows)
        found["bytes"][side] = sum(size for *_, size in rows)
        found["messages"][side] = sum(calls for _, _, verb, calls, _ in rows if verb == "send")
        found["file"][side] = sum(size for *_, size in verdict.get("files", {}).get(side, ()))
    return found


def summary(verdicts: Sequence[Verdict]) -> Table:
    """Return a table of all cases with the largest error of each kind; counts as predicted, or both."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", overflow="fold")
    counted = [name for name in _COUNTED if name != "file" or any(map(_moves, verdicts))]
    routed = any(verdict["errors"].get(_CHOICE) for verdict in verdicts)
    kinds = ("loss", *_KINDS, *([_CHOICE] if routed else []))
    for name in ("ranks", *kinds, *counted):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in verdicts:
        found = [verdict["errors"].get(kind) for kind in kinds]
        worst = [f"{rows[0][1]:.0e}" if rows else "" for rows in found]
        sums = totals(verdict)
        counts = [_brief(name, **sums[name]) if verdict["errors"] else "" for name in counted]
        label, ranks = escape(verdict["label"]), str(verdict["ranks"])
        table.add_row(label, ranks, *worst, *counts, _word(passed=verdict["passed"]))
    return table


def details(verdict: Verdict) -> Iterator[Table | str]:
    """Yield a heading, a table of all tensors of a case, and one of all its calls."""
    if not verdict["errors"]:
        return
    limit, errors = verdict["limit"], {kind: dict(verdict["errors"][kind]) for kind in _KINDS}
    ((_, loss),) = verdict["errors"]["loss"]
    choices = "".join(f", {_CHOICE} {name} {error:.1e}" for name, error in verdict["errors"].get(_CHOICE, ()))
    yield f"{escape(verdict['label'])}: loss {loss:.1e}{choices}, limit {limit:.0e} of the largest value"
    tensors = Table("tensor", *_KINDS, "", box=None, header_style="bold", pad_edge=False)
    for name in sorted(errors["weight"], key=lambda name: (int(name.partition("/")[0]), name)):
        each = [errors[kind][name] for kind in _KINDS]
        passed = max(each) <= limit
        tensors.add_row(escape(name), *(f"{error:.1e}" for error in each), _word(passed=passed))
    yield tensors
    calls = Table("axis", "call", "calls", "bytes", box=None, header_style="bold", pad_edge=False)
    sides = {side: _by_verb(verdict[side]) for side in ("predicted", "counted")}
    for axis, verb in sorted(sides["predicted"].keys() | sides["counted"].keys()):
        predicted, counted = (found.get((axis, verb), (0, 0)) for found in sides.values())
        pairs = zip(predicted, counted, strict=True)
        calls.add_row(axis, verb, *(_compared(predicted=one, counted=other) for one, other in pairs))
    yield calls
    if _moves(verdict):
        files = Table("file", "bytes", box=None, header_style="bold", pad_edge=False)
        moved = {side: _of_verbs(verdict["files"][side]) for side in ("predicted", "counted")}
        for verb in sorted(moved["predicted"].keys() | moved["counted"].keys()):
            files.add_row(verb, _compared(**{side: sizes[verb] for side, sizes in moved.items()}))
        yield files


def reason(result: Verdict) -> str:
    """Say what differs most, or which calls or bytes of files were not predicted."""
    if differing := _differing(result):
        side, (rank, axis, verb, calls, size) = differing
        side = "made" if side == "counted" else side
        return f"calls differ: {side} on rank {rank}: {calls} × {verb} over {axis}, {size} bytes"
    if differing := _differing(result["files"]):
        side, (rank, verb, size) = differing
        return f"bytes of files differ: {side} on rank {rank}: {verb} {size} bytes"
    kind, (name, error) = max(
        ((kind, rows[0]) for kind, rows in result["errors"].items() if rows), key=lambda worst: worst[1][1]
    )
    limit = f"over the limit of {result['limit']:.0e}"
    return f"{kind} {name} differs by {error:.1e} of its largest value, {limit}"


def _differing(sides: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Return the first row that one side alone has, and which; None if both have the same."""
    counted, predicted = ({tuple(row) for row in sides[name]} for name in ("counted", "predicted"))
    alone = sorted(counted ^ predicted)
    return ("counted" if alone[0] in counted else "predicted", alone[0]) if alone else None


def _by_verb(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return calls and bytes of all ranks by axis and verb."""
    calls: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for _, axis, verb, number, size in rows:
        calls[axis, verb] += number
        sizes[axis, verb] += size
    return {key: (calls[key], sizes[key]) for key in calls}


def _moves(verdict: Verdict) -> bool:
    """Tell whether anything goes to files or comes from them, or should."""
    return any(totals(verdict)["file"].values())


def _of_verbs(rows: Sequence[Sequence[Any]]) -> Counter[str]:
    """Return bytes of all ranks between memory and files by verb."""
    sizes: Counter[str] = Counter()
    for _, verb, size in rows:
        sizes[verb] += size
    return sizes


def _compared(*, predicted: int, counted: int) -> str:
    """Write what was counted, and what was predicted if that differs."""
    return f"= {counted:,}" if counted == predicted else f"{counted:,} ≠ {predicted:,}"


def _brief(name: str, *, predicted: int, counted: int) -> str:
    """Write a count as shortly as it may be: in full if it was not predicted so."""
    if counted != predicted:
        return f"{counted:,} ≠ {predicted:,}"
    return size_of(counted) if name in {"bytes", "file"} else str(counted)


def _word(*, passed: bool) -> str:
    return "[green]equal[/green]" if passed else "[red]differs[/red]"
