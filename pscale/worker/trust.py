"""Whether the figures of a launch may be believed; if not, why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pscale.config import Case
from pscale.ranges import as_ranges
from pscale.worker.affinity import crowd, masks
from pscale.worker.require import unmet

Ranks = Sequence[Mapping[str, Any]]  # rows of the table `ranks`

# Replicas sum the same numbers in the same order; what remains is the library's choice of order per rank.
_SPREAD_LIMIT = {"float64": 1e-12, "float32": 1e-5, "fp16": 1e-5, "bf16": 1e-5}  # 16 bits: equal


def trouble(case: Case, ranks: Ranks, losses: Sequence[float], columns: Mapping[str, Any]) -> str:
    """Return why this launch must not be believed, or nothing."""
    return next(iter(_troubles(case, ranks, losses, columns)), "")


def _troubles(case: Case, ranks: Ranks, losses: Sequence[float], columns: Mapping[str, Any]) -> Iterator[str]:
    if not all(math.isfinite(loss) for loss in losses):
        yield "the loss is not finite; lower train.lr or set train.clip"
    if losses and len(columns.get("skipped_steps") or ()) == len(losses):
        yield (
            "every step was skipped: gradients overflowed down to a loss scale of "
            f"{columns['loss_scales'][-1]:.10g}; lower precision.initial_scale or train.lr"
        )
    limit = _SPREAD_LIMIT[case.model.dtype]
    for what, spread in (("replicas", columns["replica_spread"]), ("losses", columns["loss_spread"])):
        if not spread <= limit:
            of = "the largest weight" if what == "replicas" else "the loss, on ranks that compute the same"
            yield f"{what} disagree by {spread:.1e} of {of}, over the limit of {limit:.0e}"
    for rank in ranks:
        if (fell_s := rank["clock_backwards_s"]) > 0:
            yield f"the clock of rank {rank['rank']} went backwards by {fell_s * 1e6:.3g} µs"
        if reason := unmet(case.require, case.launch.omp, rank):
            yield f"rank {rank['rank']}: {reason}"
    for rank in ranks:
        if rank["threads"] not in (None, case.threads):
            yield f"rank {rank['rank']} got {rank['threads']} BLAS threads, the case asked for {case.threads}"
    if not case.launch.oversubscribe:
        yield from _shared_cpus(case, ranks)


def _shared_cpus(case: Case, ranks: Ranks) -> Iterator[str]:
    """Yield, by node, threads that cannot all have a CPU of their own."""
    wanted: dict[int, list[tuple[int, frozenset[int]]]] = defaultdict(list)
    for rank in ranks:
        wanted[rank["node"]] += [(rank["rank"], cpus) for cpus in masks(rank, case.threads)]
    hosts = {rank["node"]: rank["host"] for rank in ranks}
    for node, threads in wanted.items():
        if found := crowd(threads):
            whose = f"rank{'s' * (len(found.ranks) > 1)} {as_ranges(found.ranks)}"
            count = len(found.cpus)
            yield (
                f"{found.threads} threads of {whose} on {hosts[node]} share {count} CPU{'s' * (count != 1)} "
                f"({as_ranges(sorted(found.cpus))}); bind ranks to different cores, "
                "or say launch: {oversubscribe: true}"
            )
