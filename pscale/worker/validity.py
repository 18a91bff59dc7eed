"""Whether the figures of a launch are valid; if not, why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.config.axes import SAME_TOKEN_AXES
from pscale.mesh.axis import Array, Axis, Mesh
from pscale.nn.dtypes import compute_dtype
from pscale.nn.param import Param
from pscale.parallel.tensor import ReplicatedLoss
from pscale.parallel.zero import Replicas
from pscale.runs.host import as_ranges, numbers_in
from pscale.training.trainer import Trainer
from pscale.worker.environment import unmet
from pscale.worker.recorder import Recorder

Ranks = Sequence[Mapping[str, Any]]  # rows of the table `ranks`

# Replicas sum the same numbers in the same order; what remains is the library's choice of order per rank.
_SPREAD_LIMIT = {"float64": 1e-12, "float32": 1e-5, "fp16": 1e-5, "bf16": 1e-5}  # 16 bits: equal


def reason_invalid(case: Case, ranks: Ranks, losses: Sequence[float], columns: Mapping[str, Any]) -> str:
    """Return why the figures of this launch are invalid; empty if they are valid."""
    return next(iter(_reasons(case, ranks, losses, columns)), "")


def _reasons(case: Case, ranks: Ranks, losses: Sequence[float], columns: Mapping[str, Any]) -> Iterator[str]:
    if not all(math.isfinite(loss) for loss in losses):
        yield "the loss is not finite; lower train.lr or set train.clip"
    if losses and len(columns.get("skipped_steps") or ()) == len(losses):
        yield (
            "every step was skipped: gradients overflowed down to a loss scale of "
            f"{columns['loss_scales'][-1]:.10g}; lower precision.initial_scale or train.lr"
        )
    limit = _SPREAD_LIMIT[case.model.dtype]
    for what, column in (("replicas", "replica_spread"), ("losses", "loss_spread")):
        if not (spread := columns.get(column, 0.0)) <= limit:  # ghosts have neither
            of = "the largest weight" if what == "replicas" else "the loss, on ranks that compute the same"
            yield f"{what} disagree by {spread:.1e} of {of}, over the limit of {limit:.0e}"
    for rank in ranks:
        if (fell_s := rank["clock_backwards_s"]) > 0:
            yield f"the clock of rank {rank['rank']} went backwards by {fell_s * 1e6:.3g} µs"
        if reason := unmet(case, rank):
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
        if found := oversubscription(threads):
            whose = f"rank{'s' * (len(found.ranks) > 1)} {as_ranges(found.ranks)}"
            count = len(found.cpus)
            yield (
                f"{found.threads} threads of {whose} on {hosts[node]} share {count} CPU{'s' * (count != 1)} "
                f"({as_ranges(sorted(found.cpus))}); bind ranks to different cores, "
                "or say launch: {oversubscribe: true}"
            )


@dataclass(frozen=True, kw_only=True)
class Oversubscription:
    """Threads that together have fewer CPUs than there are of them."""

    threads: int
    ranks: tuple[int, ...]
    cpus: frozenset[int]


def masks(rank: Mapping[str, Any], threads: int) -> list[frozenset[int]]:
    """Return where each of the threads that compute may run: the main one and those that used most CPU time.

    Idle threads of libraries are not among them. Threads that were not seen may run where the process may.
    """
    seen = [numbers_in(cpus) for cpus in (rank.get("thread_cpus") or [])[:threads]]
    return seen + [numbers_in(rank["cpus"])] * (threads - len(seen))


def oversubscription(wanted: Sequence[tuple[int, frozenset[int]]]) -> Oversubscription | None:
    """Return threads that cannot all have a CPU of their own, or None if each can.

    `wanted` has the rank and the CPUs of every thread of one host. CPUs are assigned thread by thread, each
    of which may move those before it (augmenting paths); threads on a path that ends nowhere are too many for
    their CPUs (Hall's theorem).
    """
    owner: dict[int, int] = {}

    def assign(thread: int, visited: set[int]) -> bool:
        if free := wanted[thread][1] - owner.keys():
            owner[min(free)] = thread
            return True
        for cpu in wanted[thread][1] - visited:
            visited.add(cpu)
            if assign(owner[cpu], visited):
                owner[cpu] = thread
                return True
        return False

    for thread in range(len(wanted)):
        visited: set[int] = set()
        if not assign(thread, visited):
            inside = [rank for rank, cpus in wanted if cpus <= visited]
            return Oversubscription(
                threads=len(inside), ranks=tuple(sorted(set(inside))), cpus=frozenset(visited)
            )
    return None


def replica_spread(replicas: Replicas, mesh: Mesh) -> float:
    """Return the largest difference of a weight between replicas, relative to its tensor's largest value."""
    worst = 0.0
    for param, value in replicas.weights():
        axis = mesh.axis(*_holders(param))
        high, low = _extremes(axis, value.astype(compute_dtype(value.dtype)))
        scale = max(float(np.abs(high).max()), float(np.abs(low).max()))
        spread = float((high - low).max()) / scale if scale else 0.0
        worst = spread if np.isnan(spread) else max(worst, spread)
    return float(_extremes(mesh.world, np.array([worst]))[0][0])  # ranks hold different parameters


def loss_spread(trainer: Trainer[Recorder], stop: int, mesh: Mesh) -> float:
    """Return the largest relative difference between losses of the ranks that compute the same."""
    spread = 0.0
    shared = trainer.stage.loss
    if isinstance(shared, ReplicatedLoss) and trainer.expert_load.alike(shared.axis.size):
        high, low = _extremes(shared.axis, trainer.losses[:stop])
        spread = ((high - low) / np.where(high == 0, 1.0, np.abs(high))).max(initial=0.0)
    return float(_extremes(mesh.world, np.array([spread]))[0][0])


def _extremes(axis: Axis, values: Array) -> tuple[Array, Array]:
    """Return the largest and the least of each value over the ranks of an axis; collective."""
    high, low = values.copy(), values.copy()
    axis.all_reduce(high, "max")
    axis.all_reduce(low, "min")
    return high, low


def _holders(param: Param) -> tuple[str, ...]:
    """Return the axes whose ranks hold the same: also those that see the same tokens."""
    cut = param.cut.axes if param.cut else ()
    return tuple(dict.fromkeys((*param.sync, *({*SAME_TOKEN_AXES} - {*cut}))))
