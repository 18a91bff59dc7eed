"""What a written number is worth, so that a table of words can be put in order."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"^(?:≤ ?|#)?([-+−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(%|×|[a-zA-Zµ]+)?")
_WORTH = {
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "%": 1e-2,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
}


def order(cell: str) -> float | None:
    """Return the value of a cell such as `12.3 ms` or `94.1%`, in units without prefix; None for words."""
    found = _NUMBER.match(cell)
    if found is None:
        return None
    return float(found[1].replace(",", "").replace("−", "-")) * _WORTH.get(found[2] or "", 1.0)
