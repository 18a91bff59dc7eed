"""The figures of a case of which something can be expected: their names and units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Metric = Literal[
    "step_s",
    "speedup",
    "efficiency",
    "samples_per_s",
    "tokens_per_s",
    "gflops",
    "peak_fraction",
    "loss_first",
    "loss_last",
    "startup_s",
    "wall_s",
    "pe",
    "lb",
    "comm_e",
    "ser_e",
    "te",
    "comp",
    "ge",
]
METRICS: tuple[str, ...] = get_args(Metric)

_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_RATE = {"1/s": 1.0, "k/s": 1e3, "M/s": 1e6}
_LOSS = {"nats": 1.0}
_SHARE = {"1": 1.0, "%": 0.01}
_OF: dict[str, Mapping[str, float]] = {
    **dict.fromkeys(("step_s", "startup_s", "wall_s"), _TIME),
    **dict.fromkeys(("samples_per_s", "tokens_per_s"), _RATE),
    "speedup": {"1": 1.0},
    "gflops": {"GFLOP/s": 1.0, "TFLOP/s": 1e3},
    **dict.fromkeys(("loss_first", "loss_last"), _LOSS),
}


def units(metric: str) -> Mapping[str, float]:
    """Return the units of a metric and what each is worth, the one it is measured in first."""
    return _OF.get(metric, _SHARE)
