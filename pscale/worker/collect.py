"""Gather the tables of all ranks on rank 0 and write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.mesh.axis import Axis, Mesh
from pscale.runs.atomic_files import write_json
from pscale.runs.schema import PHASES, Table
from pscale.runs.step_time import step_time, step_times
from pscale.simulator.program import Rows
from pscale.worker.clock import axis_bounds_ns
from pscale.worker.environment import identity
from pscale.worker.job import JobResult, JobSpec, work
from pscale.worker.tables import call_table, event_table, phase_table
from pscale.worker.validity import reason_invalid
from pscale.worker.waits import caused_waits, ideal, waits

Columns = dict[str, Any]
MOST_EVENTS = 1 << 17  # of a launch that nobody asked to trace


def collect(spec: JobSpec, mesh: Mesh, axes: Sequence[Axis], result: JobResult, provenance: Any) -> None:
    """Write the tables of this launch and `result.json`; collective, rank 0 writes."""
    everyone = mesh.world.gather_objects(_of_rank(spec, mesh, axes, result))
    if not everyone:
        return
    from pscale.runs.store import write_columns, write_part  # noqa: PLC0415 - one rank alone loads Arrow

    key = spec.case.id, spec.repeat
    for name in everyone[0][0]:
        write_columns(spec.data, name, *key, _stacked([tables[name] for tables, _ in everyone]))
    ranks = [row for _, row in everyone]
    write_part(spec.data, "ranks", *key, ranks)
    ends_s = np.max([tables["steps"]["end_s"][:: len(PHASES)] for tables, _ in everyone], axis=0)
    reason = reason_invalid(spec.case, ranks, result.losses, result.columns)
    columns = {
        **result.columns,
        **_summary(spec.case, step_time(step_times(ends_s)), ranks, result),
        "provenance": json.dumps(provenance),
    }
    document = {"status": "invalid" if reason else "ok", "reason": reason, "columns": columns}
    write_json(spec.folder / "result.json", document)


def _of_rank(
    spec: JobSpec, mesh: Mesh, axes: Sequence[Axis], result: JobResult
) -> tuple[dict[Table, Columns], dict[str, Any]]:
    """Return this rank's rows of every table but `ranks`, and its row there; collective."""
    measured, rows = result.measured, result.measured.rows
    wait = waits(rows, axes)
    first = np.array([measured.start_ns])
    mesh.world.all_reduce(first, "min")  # ranks left the barrier before it one after another
    start_ns = int(first[0])
    ideal_wait, ideal_s = ideal(rows, wait, axes, start_ns)
    steps = phase_table(rows, wait, caused_waits(rows, wait, axes), ideal_wait, start_ns)
    steps["ideal_end_s"] = np.repeat(ideal_s, len(PHASES))
    calls = call_table(rows, wait, ideal_wait, [axis.name for axis in axes])
    bounds_ns = axis_bounds_ns(mesh, measured.clock, axes)
    calls["clock_bound_s"] = np.array([bounds_ns[name] * 1e-9 for name in calls["axis"].tolist()])
    tables: dict[Table, Columns] = {"steps": steps, "calls": calls, "kernels": result.kernels}
    if kept := kept_events(spec, rows, mesh.world):
        first_rows = {name: values[:kept] for name, values in rows.items()}
        tables["events"] = event_table(first_rows, wait[:kept], axes, mesh.world.rank, start_ns)
    return tables, {
        **identity(),
        **result.rank,
        "rank": mesh.world.rank,
        "node": mesh.nodes[mesh.world.rank],
        "clock_bound_s": measured.clock.bound_ns * 1e-9,
        "clock_drift": measured.clock.drift,
        "clock_backwards_s": measured.backwards_ns * 1e-9,
        "wall_s": measured.wall_s,
        "events": len(rows["kind"]),
        "t_ideal_s": ideal_s[-1],
        "unaccounted_s": measured.wall_s - float(np.sum(steps["wall_s"])),
    }


def kept_events(spec: JobSpec, rows: Rows, world: Axis, most: int = MOST_EVENTS) -> int:
    """Return how many rows of this rank are kept as events: those of whole steps; collective."""
    asked = spec.case.timing.trace
    if asked is not None or spec.repeat != spec.case.launch.warmup:
        return len(rows["step"]) if asked else 0
    ends = np.cumsum(np.bincount(rows["step"]))
    of_all = ends.copy()
    world.all_reduce(of_all, "sum")
    steps = int(np.searchsorted(of_all, most, side="right"))
    return int(ends[steps - 1]) if steps else 0


def _stacked(tables: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Columns:
    """Put the tables of all ranks below each other, with a column that says whose rows they are."""
    lengths = [len(table["phase"]) for table in tables]
    columns: Columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    columns["rank"] = np.repeat(np.arange(len(tables)), lengths)
    return columns


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _summary(case: Case, step_s: float, ranks: Sequence[Mapping[str, Any]], result: JobResult) -> Columns:
    losses = result.losses
    of_losses = {"loss_first": losses[0], "loss_last": losses[-1], "losses": losses} if losses else {}
    figures = work(case)
    return {
        **figures,
        "step_s": step_s,
        "gflops": figures["model_flops"] / step_s * 1e-9,
        **{name: _sum([rank.get(name) for rank in ranks]) for name in ("gemm_peak_gflops", "stream_gb_s")},
        "nodes": len({rank["node"] for rank in ranks}),
        **({} if case.model.kind == "collectives" else of_losses),
        "steps": case.train.steps,
        "warmup": case.train.warmup,
    }
