"""The figures of a case of which something can be expected: names, units, meaning; and kinds of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Units and what each is worth, the one that the metric is measured in first; and what it says."""

    units: Mapping[str, float]
    meaning: str


_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_RATE = {"1/s": 1.0, "k/s": 1e3, "M/s": 1e6}
_FLOPS = {"GFLOP/s": 1.0, "TFLOP/s": 1e3}
_LOSS = {"nats": 1.0}
_SHARE = {"1": 1.0, "%": 0.01}
METRICS: dict[str, Metric] = {
    "step_s": Metric(_TIME, "median step time"),
    "speedup": Metric({"1": 1.0}, "speed-up relative to the base of the series"),
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

# What a rank holds, each a column of results.
MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")


def units(metric: str) -> Mapping[str, float]:
    """Return the units of a metric and what each is worth, its own first; an unknown one is a share."""
    return METRICS[metric].units if metric in METRICS else _SHARE
