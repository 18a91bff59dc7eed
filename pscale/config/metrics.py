"""The figures of a case of which something can be expected, kinds of memory, and quantities with units.

Units are compared by what they measure: GB/s and MB/s, µs (in either of its two spellings) and s.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_DECIMAL = {"": 1.0, **{prefix: 1e3**power for power, prefix in enumerate("kMGTPE", start=1)}}
_BINARY = {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)}
_SMALL = {"m": 1e-3, "u": 1e-6, "n": 1e-9}
# Units by name: what they measure, and their worth in its base unit.
_UNITS: dict[str, tuple[str, float]] = {
    **{
        name: ("s", worth) for name, worth in {"min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}.items()
    },
    **{f"{prefix}s": ("s", worth) for prefix, worth in {"": 1.0, **_SMALL}.items()},
    **{f"{prefix}B": ("B", worth) for prefix, worth in {**_DECIMAL, **_BINARY, "K": 1e3}.items()},
    **{f"{prefix}bit": ("B", worth / 8) for prefix, worth in {**_DECIMAL, **_BINARY}.items()},
    **{
        f"{prefix}{name}": (name, worth)
        for name in ("FLOP", "Hz", "W", "J")
        for prefix, worth in {**_DECIMAL, **({} if name == "FLOP" else _SMALL)}.items()
    },
    **{prefix: ("", worth) for prefix, worth in {**_DECIMAL, "1": 1.0, "%": 0.01}.items()},
}
_FLOPS_TEXT = re.compile(r"([kMGTPE]?)flops?(/s(?:ec)?)?", re.IGNORECASE)


def conversion(unit: str, other: str) -> float | None:
    """Return the factor from values in `unit` to those in `other`; None where they measure other things."""
    (measures, worth), (others, divisor) = _meaning(unit), _meaning(other)
    return worth / divisor if measures == others else None


def depends_on_time(metric: str, unit: str) -> bool:
    """Tell whether a metric, or a figure in such a unit, changes with how fast the program runs."""
    if metric in METRICS:
        return METRICS[metric].units != _LOSS
    measures, _ = _meaning(unit)
    return measures == "s" or measures.endswith("/s")


def _meaning(unit: str) -> tuple[str, float]:
    """Return what a unit measures, in base units, and its worth in those; of an unknown one its own name."""
    text = unicodedata.normalize("NFKC", unit).replace("μ", "u").strip()
    if flops := _FLOPS_TEXT.fullmatch(text):
        per_s = bool(flops[2]) or text.casefold().endswith("flops")
        text = f"{flops[1].upper().replace('K', 'k')}FLOP{'/s' * per_s}"
    whole, slash, part = text.rpartition("/")
    if not slash:
        return _UNITS.get(text, (text, 1.0))
    (above, worth), (below, divisor) = _meaning(whole), _meaning(part)
    return f"{above}/{below}", worth / divisor


@dataclass(frozen=True)
class Metric:
    """The usual units, the one that the metric is measured in first, and what it says."""

    units: tuple[str, ...]
    meaning: str


_TIME = ("s", "ms", "us")
_RATE = ("1/s", "k/s", "M/s")
_FLOPS = ("GFLOP/s", "TFLOP/s")
_LOSS = ("nats",)
_SHARE = ("1", "%")
METRICS: dict[str, Metric] = {
    "step_s": Metric(_TIME, "median step time"),
    "speedup": Metric(("1",), "speed-up relative to the base of the series"),
    "efficiency": Metric(_SHARE, "efficiency relative to the base of the series"),
    "samples_per_s": Metric(_RATE, "throughput of all ranks in samples"),
    "tokens_per_s": Metric(_RATE, "throughput of all ranks in tokens"),
    "gflops": Metric(_FLOPS, "model FLOPs of all ranks"),
    "peak_fraction": Metric(_SHARE, "executed FLOPs over the matrix-product peak, from 0 to 1"),
    "loss_first": Metric(_LOSS, "loss of the first step, warm-up included"),
    "loss_last": Metric(_LOSS, "loss of the last measured step"),
    "startup_s": Metric(_TIME, "time from the launch to the first step"),
    "wall_s": Metric(_TIME, "time of the whole launch"),
    "pe": Metric(_SHARE, "POP: parallel efficiency"),
    "lb": Metric(_SHARE, "POP: load balance"),
    "comm_e": Metric(_SHARE, "POP: communication efficiency"),
    "ser_e": Metric(_SHARE, "POP: serialisation efficiency"),
    "te": Metric(_SHARE, "POP: transfer efficiency"),
    "comp": Metric(_SHARE, "POP: computation efficiency"),
    "ge": Metric(_SHARE, "POP: global efficiency"),
}

# Metrics that no program but the trainer has: figures of a workload may have their names.
OF_TRAINING = frozenset(
    ("samples_per_s", "tokens_per_s", "gflops", "peak_fraction", "loss_first", "loss_last")
)

# What a rank holds, each a column of results.
MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")


def unit_of(metric: str) -> str:
    """Return the unit in which a metric is measured; an unknown one is a share."""
    return METRICS[metric].units[0] if metric in METRICS else _SHARE[0]


LONGEST = 60  # characters, so that no pattern and no conversion takes long
SIZE = r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]?B|[KMGT]iB)"
_PART = r"([0-9]+(?:\.[0-9]+)?) ?(min|[nuµμm]s|[smhd])"
_CLOCK = r"([0-9]+):([0-5][0-9]):([0-5][0-9])"
DURATION = rf"{_PART}( ?{_PART})*|{_CLOCK}"
SHARE = r"[0-9]+(\.[0-9]+)?%"
_MEASURED = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([a-zA-Zµμ/]+)"


def size_bytes(text: str) -> int:
    """Read a size such as 4MiB, 1GB or 1.5GiB: whole bytes."""
    size = _matched(SIZE, text)
    if not size:
        raise ValueError(
            f"expected a size such as 512KiB, 4MiB or 1GB, or a number of bytes, got {quoted(text)}"
        )
    count = Fraction(size[1]) * int(conversion(size[2], "B") or 0)
    if count.denominator != 1:
        raise ValueError(f"{quoted(text)} is not a whole number of bytes")
    return int(count)


def duration_s(text: str) -> float:
    """Read a time such as 10us, 90s, 1h 30m or 01:30:00."""
    if clock := _matched(_CLOCK, text):
        hours, minutes, seconds = map(int, clock.groups())
        return float(3600 * hours + 60 * minutes + seconds)
    if not _matched(DURATION, text):
        expected = "a time such as 10us, 90s, 5 min, 1h 30m or 01:30:00, or a number of seconds"
        raise ValueError(f"expected {expected}, got {quoted(text)}")
    parts = ((number, "min" if unit == "m" else unit) for number, unit in re.findall(_PART, text))
    return sum(float(number) * (conversion(unit, "s") or 0.0) for number, unit in parts)


def share(text: str) -> float:
    """Read a share such as 3%."""
    if not _matched(SHARE, text):
        raise ValueError(f"expected a share such as 3% or 0.03, got {quoted(text)}")
    return float(text[:-1]) / 100


def quoted(text: str) -> str:
    """Quote a text of a suite in a message, shortened if it is long."""
    return f"'{text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}'"


def _matched(pattern: str, text: str) -> re.Match[str] | None:
    return re.fullmatch(pattern, text) if len(text) <= LONGEST else None


def measured(value: Any, unit: str, expected: str) -> float:
    """Read a number with a unit, such as 5us, as one in `unit`; raises ValueError with what was expected."""
    if value == "inf":
        return float(value)
    parts = _matched(_MEASURED, value) if isinstance(value, str) else None
    factor = conversion(parts[2], unit) if parts else None
    if not parts or factor is None:
        raise ValueError(f"expected {expected}, got '{value}'")
    return float(parts[1]) * factor
