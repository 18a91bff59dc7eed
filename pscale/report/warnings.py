"""Warnings in few lines: what several cases suffer from is said once."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.analysis.evidence import Remark

_OF_ONE_CASE = {"late", "injected"}  # they name a rank, a phase, a purpose


def told(remarks: Sequence[Remark]) -> list[tuple[str, str]]:
    """Return which cases each warning is about, empty for the whole run, and its text.

    Of a kind that several cases have with different figures, the first stands for all.
    """
    groups: dict[str, list[Remark]] = {}
    for remark in remarks:
        own = remark.kind in _OF_ONE_CASE
        groups.setdefault(f"{remark.kind} {remark.text}" if own else remark.kind, []).append(remark)
    return [(_whose(group), group[0].text) for group in groups.values()]


def _whose(group: Sequence[Remark]) -> str:
    first = group[0]
    if not first.case or len(group) == 1:
        return first.label
    alike = all(remark.text == first.text for remark in group)
    return f"{len(group)} cases" + ("" if alike else f", such as {first.label}")
