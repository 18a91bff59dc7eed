"""Bring the notes of all ranks together and write them: the one place where ranks meet on rank 0."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.mesh.axis import Axis, Mesh
from pscale.results.events import PHASES
from pscale.results.files import write_json
from pscale.results.store import write_columns, write_part
from pscale.worker import blame
from pscale.worker.clock import axis_bounds_ns
from pscale.worker.job import JobResult, work
from pscale.worker.observe import identity
from pscale.worker.order import Order
from pscale.worker.replay import ideal
from pscale.worker.require import unmet
from pscale.worker.tables import call_table, phase_table
from pscale.worker.trace import event_table
from pscale.worker.waits import waits

Columns = dict[str, Any]

# Replicas sum the same numbers in the same order; what remains is the library's choice of order per rank.
_SPREAD_LIMIT = {"float32": 1e-5, "float64": 1e-12}


def collect(order: Order, mesh: Mesh, axes: Sequence[Axis], result: JobResult, provenance: Any) -> None:
    """Write the tables of this launch and `result.json`; collective, rank 0 writes."""
    case = order.case
    measured = result.measured
    names = [axis.name for axis in axes]
    wait = waits(measured.rows, axes)
    start_ns = _first_start_ns(mesh.world, measured.start_ns)
    ideal_wait, ideal_s = ideal(measured.rows, wait, axes, start_ns)
    phases = phase_table(measured.rows, wait, ideal_wait, start_ns)
    phases["ideal_end_s"] = np.repeat(ideal_s, len(PHASES))
    phases["caused_s"] = blame.by_phase(measured.rows, blame.caused(measured.rows, wait, axes))
    calls = call_table(measured.rows, wait, ideal_wait, names)
    bounds_ns = axis_bounds_ns(mesh, measured.clock, axes)
    calls["clock_bound_s"] = np.array([bounds_ns[name] * 1e-9 for name in calls["axis"].tolist()])
    ends = phases["end_s"][:: len(PHASES)]
    events = None
    if case.timing.trace:
        events = event_table(measured.rows, wait, axes, mesh.world.rank, start_ns)
    rank_row = {
        **identity(),
        **result.rank,
        "rank": mesh.world.rank,
        "node": mesh.nodes[mesh.world.rank],
        "clock_bound_s": measured.clock.bound_ns * 1e-9,
        "clock_drift": measured.clock.drift,
        "clock_backwards_s": measured.backwards_ns * 1e-9,
        "wall_s": measured.wall_s,
        "t_ideal_s": ideal_s[-1],
        "unaccounted_s": measured.wall_s - float(np.sum(phases["wall_s"])),
    }
    reports = mesh.world.gather_objects((phases, calls, rank_row, ends, events))
    if not reports:
        return
    data, key = order.data, (case.id, order.repeat)
    ranks = [report[2] for report in reports]
    write_columns(data, "steps", *key, _stacked([report[0] for report in reports]))
    write_columns(data, "calls", *key, _stacked([report[1] for report in reports]))
    write_part(data, "ranks", *key, ranks)
    if traced := [report[4] for report in reports if report[4] is not None]:
        write_columns(data, "events", *key, _stacked(traced))
    step_s = _step_s([report[3] for report in reports])
    problem = trouble(case, ranks, result)
    columns = {
        **result.columns,
        **_summary(case, step_s, ranks, result),
        "provenance": json.dumps(provenance),
    }
    write_json(
        order.folder / "result.json",
        {"status": "invalid" if problem else "ok", "reason": problem, "columns": columns},
    )


def _first_start_ns(world: Axis, start_ns: int) -> int:
    """Return when the first rank began to measure; the others came later out of the barrier before."""
    first = np.array([start_ns])
    world.all_reduce(first, "min")
    return int(first[0])


def _stacked(tables: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Columns:
    """Put the tables of all ranks below each other, with a column that says whose rows they are."""
    lengths = [len(table["step"]) for table in tables]
    columns: Columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    columns["rank"] = np.repeat(np.arange(len(tables)), lengths)
    return columns


def _step_s(ends: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return the median time between consecutive step ends of the slowest rank."""
    slowest = np.max(ends, axis=0)
    return float(np.median(np.diff(slowest, prepend=0.0)))


def _summary(case: Case, step_s: float, ranks: Sequence[Mapping[str, Any]], result: JobResult) -> Columns:
    losses, warmup = result.losses, case.train.warmup
    peaks = [rank["gemm_peak_gflops"] for rank in ranks]
    figures = work(case)
    return {
        **figures,
        "step_s": step_s,
        "gflops": figures["model_flops"] / step_s * 1e-9,
        "gemm_peak_gflops": sum(peaks) if None not in peaks else None,
        "nodes": len({rank["node"] for rank in ranks}),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "losses": losses,
        "steps": case.train.steps,
        "warmup": warmup,
    }


def trouble(case: Case, ranks: Sequence[Mapping[str, Any]], result: JobResult) -> str:
    """Return why this point must not be believed, or nothing."""
    if not all(math.isfinite(loss) for loss in result.losses):
        return "the loss is not finite; lower train.lr or set train.clip"
    spread, limit = result.columns["replica_spread"], _SPREAD_LIMIT[case.model.dtype]
    if not spread <= limit:
        return f"replicas disagree by {spread:.1e} of the largest weight, over the limit of {limit:.0e}"
    for rank in ranks:
        if (fell_s := rank["clock_backwards_s"]) > 0:
            return f"the clock of rank {rank['rank']} went backwards by {fell_s * 1e6:.3g} µs"
        if reason := unmet(case.require, case.launch.omp, rank):
            return f"rank {rank['rank']}: {reason}"
    wrong = [rank for rank in ranks if rank["threads"] not in (None, case.threads)]
    if wrong:
        got = wrong[0]
        return f"rank {got['rank']} got {got['threads']} BLAS threads, the case asked for {case.threads}"
    return "" if case.launch.oversubscribe else _shared_cores(case, ranks)


def _shared_cores(case: Case, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which node has fewer CPUs in its ranks' affinity masks than the ranks have threads."""
    cpus: dict[int, set[int]] = defaultdict(set)
    needed: dict[int, int] = defaultdict(int)
    for rank in ranks:
        cpus[rank["node"]] |= _numbers(rank["cpus"])
        needed[rank["node"]] += case.threads
    for node, need in needed.items():
        if len(cpus[node]) < need:
            host = next(rank["host"] for rank in ranks if rank["node"] == node)
            return (
                f"{need} threads of the ranks on {host} share {len(cpus[node])} CPUs; "
                "bind ranks to different cores, or say launch: {oversubscribe: true}"
            )
    return ""


def _numbers(ranges: str) -> set[int]:
    """Return the CPUs of a list such as "0-3,8"."""
    spans = [part.partition("-") for part in ranges.split(",")]
    return {cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)}
