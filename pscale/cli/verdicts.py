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


def totals(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return calls, bytes and messages of all ranks and a step, each as it was predicted and counted."""
    found: dict[str, dict[str, int]] = {name: {} for name in ("calls", "bytes", "messages")}
    for side in ("predicted", "counted"):
        rows = verdict.get(side, ())
        found["calls"][side] = sum(calls for *_, calls, _ in rows)
        found["bytes"][side] = sum(size for *_, size in rows)
        found["messages"][side] = sum(calls for _, _, verb, calls, _ in rows if verb == "send")
    return found


def summary(verdicts: Sequence[Verdict]) -> Table:
    """Return a table of all cases with the largest error of each kind; counts as predicted, or both."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", overflow="fold")
    for name in ("ranks", "loss", *_KINDS, "calls", "bytes", "messages"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in verdicts:
        worst = [f"{rows[0][1]:.0e}" if rows else "" for rows in verdict["errors"].values()] or [""] * 3
        counts = [_brief(name, **each) for name, each in totals(verdict).items()]
        counts = counts if verdict["errors"] else [""] * 3
        label, ranks = escape(verdict["label"]), str(verdict["ranks"])
        table.add_row(label, ranks, *worst, *counts, _word(passed=verdict["passed"]))
    return table


def details(verdict: Verdict) -> Iterator[Table | str]:
    """Yield a heading, a table of all tensors of a case, and one of all its calls."""
    if not verdict["errors"]:
        return
    limit, errors = verdict["limit"], {kind: dict(verdict["errors"][kind]) for kind in _KINDS}
    ((_, loss),) = verdict["errors"]["loss"]
    yield f"{escape(verdict['label'])}: loss {loss:.1e}, limit {limit:.0e} of the largest value"
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


def reason(result: Verdict) -> str:
    """Say what differs most, or which calls were not predicted."""
    if result["counted"] != result["predicted"]:
        counted, predicted = ({tuple(row) for row in result[name]} for name in ("counted", "predicted"))
        differing = sorted(counted ^ predicted)[0]
        side = "made" if differing in counted else "predicted"
        rank, axis, verb, calls, size = differing
        return f"calls differ: {side} on rank {rank}: {calls} × {verb} over {axis}, {size} bytes"
    kind, (name, error) = max(
        ((kind, rows[0]) for kind, rows in result["errors"].items() if rows), key=lambda worst: worst[1][1]
    )
    limit = f"over the limit of {result['limit']:.0e}"
    return f"{kind} {name} differs by {error:.1e} of its largest value, {limit}"


def _by_verb(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return calls and bytes of all ranks by axis and verb."""
    calls: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for _, axis, verb, number, size in rows:
        calls[axis, verb] += number
        sizes[axis, verb] += size
    return {key: (calls[key], sizes[key]) for key in calls}


def _compared(*, predicted: int, counted: int) -> str:
    """Write what was counted, and what was predicted if that differs."""
    return f"= {counted:,}" if counted == predicted else f"{counted:,} ≠ {predicted:,}"


def _brief(name: str, *, predicted: int, counted: int) -> str:
    """Write a count as shortly as it may be: in full if it was not predicted so."""
    if counted != predicted:
        return f"{counted:,} ≠ {predicted:,}"
    return size_of(counted) if name == "bytes" else str(counted)


def _word(*, passed: bool) -> str:
    return "[green]equal[/green]" if passed else "[red]differs[/red]"
