"""What a demand on a figure has to say: bounds that can be met, around a known value or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pscale.metrics import units

_PLAIN, _AROUND = ("at_least", "at_most"), ("lower", "upper")


def check_demand(said: Mapping[str, Any]) -> None:
    """Raise ValueError for what makes no sense in an entry of `expect`."""
    if said["where"] and said["case"]:
        raise ValueError("expected where or case, not both")
    plain, around = (any(said[name] is not None for name in names) for names in (_PLAIN, _AROUND))
    if not plain and not around:
        raise ValueError("expected at_least or at_most, or value with lower or upper")
    if plain and (around or said["value"] is not None):
        raise ValueError("expected at_least and at_most, or value with lower and upper, not both")
    if around and said["value"] is None:
        raise ValueError("lower and upper lie around a value: expected value too, or at_least and at_most")
    known = [said[name] for name in ("at_least", "lower", "value", "upper", "at_most")]
    ordered = [bound for bound in known if bound is not None]
    if ordered != sorted(ordered):
        raise ValueError(f"nothing lies between {' and '.join(f'{bound:g}' for bound in ordered)}")
    possible = units(said["metric"])
    if said["unit"] is not None and said["unit"] not in possible:
        raise ValueError(
            f"{said['metric']} is not measured in '{said['unit']}'; expected one of {', '.join(possible)}"
        )
