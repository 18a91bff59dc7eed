"""What tells the cases of a suite apart, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]  # of one case, by the dotted names of the fields that a sweep sets


def labels(cases: Sequence[Values]) -> list[tuple[str, str]]:
    """Return label and series of every case, from what varies over all of them.

    A series is what remains when its size is taken away: the ranks, or the threads where only they vary, and
    the numbers that grow with them. `ranks` and `threads` must be among the values.
    """
    varying = [name for name in cases[0] if len({values[name] for values in cases}) > 1]
    size = "threads" if "ranks" not in varying and "threads" in varying else "ranks"
    series = [name for name in varying if name != size and not _follows(name, size, cases)]
    return [(_text(varying or ["ranks"], values), _text(series, values)) for values in cases]


def _follows(name: str, size: str, cases: Sequence[Values]) -> bool:
    """Tell whether a number is decided by the size, as a width that grows with the ranks."""
    if name == "threads" or any(type(values[name]) not in (int, float) for values in cases):
        return False
    pairs = {(values[size], values[name]) for values in cases}
    return len(pairs) == len({values[size] for values in cases})


def _text(names: Sequence[str], values: Values) -> str:
    return " · ".join(_part(name, values[name]) for name in names)


def _part(name: str, value: Any) -> str:
    last = name.rpartition(".")[2]
    if name in ("ranks", "threads"):
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if isinstance(value, bool):
        return f"{last} {'on' if value else 'off'}"
    if isinstance(value, float):
        return f"{last} {value:g}"
    if isinstance(value, str) and value != "none" and not name.startswith("launch.env."):
        return value  # such as a reduction or a loading mode: clear without the name of its field
    if name == "plan.bucket" and value % 1024 == 0:
        return f"bucket {value >> 10} KiB" if value % (1 << 20) else f"bucket {value >> 20} MiB"
    return f"{last} {'none' if value is None else value}"
