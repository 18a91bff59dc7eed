"""Whether every thread of every rank can have a CPU of its own, given where each may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Threads that together have fewer CPUs than they are."""

    threads: int
    ranks: tuple[int, ...]
    cpus: frozenset[int]


def numbers(ranges: str) -> frozenset[int]:
    """Return the CPUs of a list such as "0-3,8"."""
    spans = [part.partition("-") for part in ranges.split(",") if part]
    return frozenset(cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1))


def masks(rank: Mapping[str, Any], threads: int) -> list[frozenset[int]]:
    """Return where each of the threads that compute may run: the main one and those that used most CPU time.

    Idle helpers of libraries are not among them. Threads that were not seen may run where the process may.
    """
    seen = [numbers(cpus) for cpus in (rank.get("thread_cpus") or [])[:threads]]
    return seen + [numbers(rank["cpus"])] * (threads - len(seen))


def crowd(wanted: Sequence[tuple[int, frozenset[int]]]) -> Crowd | None:
    """Return threads that cannot all have a CPU of their own, or None if each can.

    `wanted` has the rank and the CPUs of every thread of one host. CPUs are dealt out thread by thread, each
    of which may move those before it (augmenting paths); those met on a way that leads nowhere are too many
    for their CPUs (Hall's theorem).
    """
    owner: dict[int, int] = {}

    def place(thread: int, met: set[int]) -> bool:
        if free := wanted[thread][1] - owner.keys():
            owner[min(free)] = thread
            return True
        for cpu in wanted[thread][1] - met:
            met.add(cpu)
            if place(owner[cpu], met):
                owner[cpu] = thread
                return True
        return False

    for thread in range(len(wanted)):
        met: set[int] = set()
        if not place(thread, met):
            inside = [rank for rank, cpus in wanted if cpus <= met]
            return Crowd(threads=len(inside), ranks=tuple(sorted(set(inside))), cpus=frozenset(met))
    return None
