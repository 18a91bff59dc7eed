"""Bring the notes of all ranks together and write them: the one place where ranks meet on rank 0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.mesh.axis import Axis, Mesh
from pscale.results.events import PHASES
from pscale.results.files import write_json
from pscale.worker import blame
from pscale.worker.clock import axis_bounds_ns
from pscale.worker.job import JobResult, work
from pscale.worker.observe import identity
from pscale.worker.order import Order
from pscale.worker.replay import ideal
from pscale.worker.tables import call_table, phase_table
from pscale.worker.trace import event_table
from pscale.worker.trust import trouble
from pscale.worker.waits import waits

Columns = dict[str, Any]


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
        "notes": len(measured.rows["kind"]),
        "t_ideal_s": ideal_s[-1],
        "unaccounted_s": measured.wall_s - float(np.sum(phases["wall_s"])),
    }
    reports = mesh.world.gather_objects((phases, calls, rank_row, ends, events))
    if not reports:
        return
    from pscale.results.store import write_columns, write_part  # noqa: PLC0415 - one rank alone loads Arrow

    data, key = order.data, (case.id, order.repeat)
    ranks = [report[2] for report in reports]
    write_columns(data, "steps", *key, _stacked([report[0] for report in reports]))
    write_columns(data, "calls", *key, _stacked([report[1] for report in reports]))
    write_part(data, "ranks", *key, ranks)
    if traced := [report[4] for report in reports if report[4] is not None]:
        write_columns(data, "events", *key, _stacked(traced))
    step_s = _step_s([report[3] for report in reports])
    problem = trouble(case, ranks, result.losses, result.columns)
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


def _losses(losses: Sequence[float]) -> Columns:
    return {"loss_first": losses[0], "loss_last": losses[-1], "losses": losses}


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
        **(_losses(losses) if case.model.kind != "collectives" else {}),
        "steps": case.train.steps,
        "warmup": warmup,
    }
