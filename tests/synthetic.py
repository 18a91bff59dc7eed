"""Synthetic runs: folders as `pscale run` leaves them, whose every number is known beforehand.

A step is compute (data, forward, backward), one all-reduce in `sync` that ends for all ranks together, and
compute (update). A rank waits in the all-reduce for the one that computed longest before it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pscale.analysis.columns import FRAMES
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Case, Launch, Model, Plan, Train, Workload, to_dict
from pscale.runs.store import part_path, schema_of, write_part

SHARES = {"data": 0.02, "forward": 0.30, "backward": 0.60, "update": 0.08}
BYTES = 40_000_000


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case and what it shall have cost, in seconds per step."""

    ranks: int
    compute_s: float = 0.100  # of every rank
    transfer_s: float = 0.0
    hidden_s: float = 0.0  # of the all-reduce, while the rank computed
    late_s: Mapping[int, float] = field(default_factory=dict)  # more compute in `backward`, by rank
    injected: bool = False  # that delay
    spikes_s: Mapping[int, float] = field(default_factory=dict)  # more compute of rank 0, by step
    noise: float = 0.0  # deviation of the compute of a rank and step, relative
    launch_noise: float = 0.0  # of all steps of a launch
    threads: int = 1
    status: str = "ok"
    reason: str = ""
    scaling: str = "weak"
    series: str = "dp"
    base: bool = False
    label: str = ""
    hosts: Sequence[str] = ("node",)
    plan: Plan | None = None  # else dp ranks
    workload: Workload = field(default_factory=lambda: Workload(command=""))
    launch: Launch = field(default_factory=Launch)
    dtype: str = "float32"
    train: Mapping[str, Any] = field(default_factory=dict)  # fields to set otherwise
    axis: str = "dp"  # of the all-reduce
    losses: Sequence[float] = ()
    clock_bound_s: float = 0.0  # of every call
    row: Mapping[str, Any] = field(default_factory=dict)  # columns of the cases table to set otherwise
    plan_row: Mapping[str, Any] = field(default_factory=dict)  # the same, also of what has not run
    rank_row: Mapping[str, Any] = field(default_factory=dict)
    kernels: Sequence[Mapping[str, Any]] = ()  # rows of every launch, each with its `rank`
    only_repeats: Sequence[int] | None = None  # those that have run; None: all
    bad_repeats: Sequence[
        int
    ] = ()  # these end as `bad_status`; an invalid one has figures, five times too slow
    bad_status: str = "failed"

    @property
    def case(self) -> Case:
        weak = self.scaling == "weak"
        return Case(
            suite="synthetic",
            label=self.label or f"{self.series} {self.ranks} ranks",
            series=self.series,
            base=self.base,
            scaling=self.scaling,  # type: ignore[arg-type]
            ranks=self.ranks,
            threads=self.threads,
            model=Model(layers=2, width=len(self.series) * 64, dtype=self.dtype),  # type: ignore[arg-type]
            train=Train(**{"batch": 4 * self.ranks if weak else 64, "steps": 20, **self.train}),
            plan=self.plan or Plan(dp=self.ranks),
            workload=self.workload,
            launch=self.launch,
        )


def write_run(
    folder: Path,
    points: Sequence[Point],
    *,
    repeats: int = 3,
    steps: int = 20,
    seed: int = 1,
    expect: Sequence[Mapping[str, Any]] = (),
    title: str = "Weak scaling of something made up",
    auto: Mapping[str, Any] | None = None,
    joined: bool = True,
    cores: int = 64,
) -> Path:
    """Write a run's folder and return it; `joined`: a file for each table, as when it has ended."""
    (folder / "data").mkdir(parents=True)
    document = {
        "format": 1,
        "run": folder.name,
        "suite": {"name": "synthetic", "title": title, "scaling": "weak", "given": "", "resolved": {}},
        "expect": list(expect),
        "cases": [to_dict(point.case) | {"id": point.case.id} for point in points],
        "repeats": repeats,
        "auto": auto,
        "seed": seed,
        "provenance": {"machine": {"cpu_model": "Made-up CPU", "cores": cores, "memory_bytes": 64 << 30}},
    }
    (folder / "run.json").write_text(json.dumps(document))
    random, whole = np.random.default_rng(seed), defaultdict[str, list[dict[str, Any]]](list)
    for point in points:
        for repeat in range(repeats) if point.only_repeats is None else point.only_repeats:
            tables = _launch(point, repeat, steps, random)
            for table, rows in tables.items():
                if not joined:
                    write_part(folder / "data", table, point.case.id, repeat, rows)  # type: ignore[arg-type]
                whole[table] += rows
    if joined:
        _write_joined(folder / "data", whole)
    return folder


def summary_of(folder: Path, points: Sequence[Point], **settings: Any) -> Findings:
    """Write a run and work out its findings."""
    return Findings(load(write_run(folder, points, **settings)))


def write_bare(
    folder: Path, ranks: int, calls: Mapping[int, Sequence[Mapping[str, Any]]], **row: Any
) -> Path:
    """Write a run of bare collectives, of one launch of one step a size: rows of calls by size, on dp."""
    points = {  # whose ids differ by the letters of their series
        size: Point(ranks=ranks, label=f"message {size}", series="m" * place, row=row)
        for place, size in enumerate(calls, start=1)
    }
    write_run(folder, list(points.values()), repeats=1, steps=1, joined=False)
    document = json.loads((folder / "run.json").read_text())
    for case, size in zip(document["cases"], calls, strict=True):
        case["model"] |= {"kind": "collectives", "message_bytes": size}
    (folder / "run.json").write_text(json.dumps(document))
    for size, rows in calls.items():
        key = {"case": points[size].case.id, "repeat": 0, "step": 0}
        write_part(folder / "data", "calls", str(key["case"]), 0, [{**key, **each} for each in rows])
    return folder


def _write_joined(data: Path, whole: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write tables as `compact` leaves them."""
    for table, rows in whole.items():
        launches = {(row["case"], row["repeat"]) for row in rows}
        parts = {part_path(data, table, case, repeat).name for case, repeat in launches}  # type: ignore[arg-type]
        written = pa.Table.from_pylist(rows, schema_of(table))  # type: ignore[arg-type]
        known = {**written.schema.metadata, b"pscale_parts": json.dumps(sorted(parts))}
        pq.write_table(written.replace_schema_metadata(known), data / f"{table}.parquet")


def _launch(
    point: Point, repeat: int, steps: int, random: np.random.Generator
) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of one launch."""
    key = {"case": point.case.id, "repeat": repeat}
    status = point.bad_status if repeat in point.bad_repeats else point.status
    row = _case_row(point) | dict(point.plan_row) | {"status": status, "reason": point.reason} | key
    found: dict[str, list[dict[str, Any]]] = {}
    if status in ("ok", "invalid", "watched"):
        shown = point if status == "ok" else replace(point, compute_s=5 * point.compute_s)
        tables = _tables(shown, steps, random)
        found = {table: [key | values for values in rows] for table, rows in tables.items() if rows}
        ends = np.array(sorted({values["end_s"] for values in tables["steps"]}))
        row |= _measured_row(shown, float(np.median(np.diff(ends, prepend=0)))) | dict(point.row)
    return {**found, "cases": [row]}


def _tables(point: Point, steps: int, random: np.random.Generator) -> dict[str, list[dict[str, Any]]]:
    launch = 1 + point.launch_noise * random.normal()
    rows: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    end = 0.0
    for step in range(steps):
        noise = launch * (1 + point.noise * random.normal(size=point.ranks))
        late = np.array([point.late_s.get(rank, 0.0) for rank in range(point.ranks)])
        compute = {phase: share * point.compute_s * noise for phase, share in SHARES.items()}
        compute["backward"] = compute["backward"] + late
        compute["backward"][0] += point.spikes_s.get(step, 0.0)
        before = sum(compute[phase] for phase in ("data", "forward", "backward"))
        wait = before.max() - before
        end += float(before.max() + point.transfer_s + compute["update"].max())
        tail = compute["update"].max() - compute["update"]  # until the next step's all-reduce: waited there
        for rank in range(point.ranks):
            cell = {"rank": rank, "step": step}
            for phase, times in compute.items():
                rows.append(cell | {"phase": phase, "end_s": end} | _times(compute_s=float(times[rank])))
                rows[-1]["injected_delay_s"] = float(late[rank]) * (point.injected and phase == "backward")
            waited = float(wait[rank] + tail[rank])
            times = _times(wait_s=waited, transfer_s=point.transfer_s)
            rows.append(cell | {"phase": "sync", "end_s": end, "injected_delay_s": 0.0} | times)
            if point.ranks > 1:
                call = {"phase": "sync", "axis": point.axis, "verb": "all_reduce", "count": 1, "bytes": BYTES}
                moved = {"wait_s": waited, "transfer_s": point.transfer_s, "hidden_s": point.hidden_s}
                moved["clock_bound_s"] = point.clock_bound_s
                calls.append(cell | call | moved)
    return {
        "steps": rows,
        "calls": calls,
        "ranks": [_rank_row(point, rank, end) for rank in range(point.ranks)],
        "kernels": [dict(row) for row in point.kernels],
    }


def _times(**known: float) -> dict[str, float]:
    times = dict.fromkeys(("compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s"), 0.0) | known
    return times | {"wall_s": sum(times.values())}


def _rank_row(point: Point, rank: int, wall_s: float) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": point.hosts[rank % len(point.hosts)],
        "threads": point.threads,
        "blas": "openblas",
        "blas_library": None,
        "blas_version": "0.3.29",
        "blas_architecture": "SkylakeX",
        "blas_threading": "pthreads",
        "peak_rss_bytes": 300_000_000,
        "clock_bound_s": 0.0,
        "wall_s": wall_s,
        "unaccounted_s": 0.0,
        "involuntary_context_switches": 0,
        "steal_s": 0.0,
    } | dict(point.rank_row)


def _case_row(point: Point) -> dict[str, Any]:
    case = point.case
    return {
        "suite": case.suite,
        "label": case.label,
        "series": case.series,
        "base": case.base,
        "scaling": case.scaling,
        "ranks": case.ranks,
        "threads": case.threads,
        "nodes": 1,
        "dp": case.plan.dp,
        "pp": case.plan.pp,
        "schedule": case.plan.schedule if case.plan.pp > 1 else None,
        "virtual_stages": case.plan.virtual_stages,
        "micro_batches": case.train.micro_batches,
        "batch": case.train.batch,
        "dtype": case.model.dtype,
        "provenance": json.dumps({"mpi": {"library": "MPICH Version:      4.3"}}),
    }


def _measured_row(point: Point, step_s: float) -> dict[str, Any]:
    batch = point.case.train.batch
    return {
        "tokens": batch * 256,
        "steps": 20,
        "wall_s": 30.0,
        "startup_s": 5 * point.compute_s,
        "step_s": step_s,
        "parameters": 1_000_000,
        "model_flops": batch * 1e9,
        "executed_flops": batch * 1.2e9,
        "gemm_peak_gflops": 100.0 * point.ranks * point.threads,
        "recording_ratio": 1.0,
        "replica_spread": 0.0,
        "losses": list(point.losses) or None,
        "loss_first": point.losses[0] if len(point.losses) else None,
        "loss_last": point.losses[-1] if len(point.losses) else None,
        "loss_unigram": 3.2 if len(point.losses) else None,
    }


def replicated(summary: Findings, copies: int) -> Findings:
    """Return a run with every case of this one `copies` times, each copy a series of its own."""
    found: dict[str, Any] = {}
    for name in summary.names:
        value = summary.rows(name) if name in FRAMES else getattr(summary, name)
        if isinstance(value, list | tuple) and value and hasattr(value[0], "case"):
            found[name] = tuple(_renamed(each, copy) for copy in range(copies) for each in value)
    found["labels"] = {row.case: row.label for row in found["cases"]}
    found["wait"] = found["wait"][: len(summary.wait)]
    return summary.replaced(labels=found.pop("labels")).replaced(**found)


def _renamed(finding: Any, copy: int) -> Any:
    """Return a finding of the same case in another series."""
    changed = {
        name: f"{getattr(finding, name)} {copy:03}" for name in ("series", "label") if hasattr(finding, name)
    }
    changed |= {"case": f"{finding.case}{copy:03}"} if finding.case else {}
    return finding._replace(**changed) if hasattr(finding, "_replace") else replace(finding, **changed)
