"""A network that is not here, as people describe it: latency and bandwidth of each axis."""

from __future__ import annotations

import re
from typing import Any

import yaml

from pscale.errors import UsageError
from pscale.replay.network import IDEAL, Link
from pscale.suite.schema.plan import AXES, GRID

ALL = "all"
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RATES = {
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "KiB/s": 2.0**10,
    "MiB/s": 2.0**20,
    "GiB/s": 2.0**30,
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
    "Tbit/s": 1e12 / 8,
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([a-zA-Zµ/]+)")
_EXAMPLE = "such as 'dp: {latency: 5us, bandwidth: 10GB/s}' or 'all: ideal'"


def read_network(text: str) -> dict[str, Link]:
    """Return the links by axis (or `all`) that a text names; raises UsageError with what was expected."""
    try:
        document = yaml.safe_load(text)
        if not isinstance(document, dict) or not document:
            raise ValueError("not a network")
        return {_axis(name): _link(value) for name, value in document.items()}
    except (yaml.YAMLError, ValueError) as error:
        why = "it is not YAML" if isinstance(error, yaml.YAMLError) else str(error)
        raise UsageError(f"--what-if '{text}': {why}; expected axes with their links, {_EXAMPLE}") from error


def _axis(name: Any) -> str:
    parts = str(name).split("+")
    if name != ALL and not set(parts) <= {*AXES, *GRID, "replica", "shard"}:
        raise ValueError(
            f"'{name}' is no axis; there are {', '.join(AXES + GRID)}, products such as dp+cp, and {ALL}"
        )
    return str(name)


def _link(value: Any) -> Link:
    if value == "ideal":
        return IDEAL
    if not isinstance(value, dict) or not value or not set(value) <= {"latency", "bandwidth"}:
        raise ValueError(f"a link is latency and bandwidth, or ideal, not '{value}'")
    latency_s = _quantity(value.get("latency", "0s"), _TIMES, "a latency such as 5us")
    bytes_per_s = _quantity(value.get("bandwidth", "inf"), _RATES, "a bandwidth such as 10GB/s or 100Gbit/s")
    if not bytes_per_s > 0:
        raise ValueError("a bandwidth has to be above 0")
    return Link(latency_s=latency_s, bytes_per_s=bytes_per_s)


def _quantity(value: Any, units: dict[str, float], expected: str) -> float:
    if value == "inf":
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"expected {expected}, got '{value}'")
    return float(match[1]) * units[match[2]]
