"""The environment of a run: what it ran on, and what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.analysis.frames import NAMING, Run
from pscale.runs.store import provenance_of

_PASSING = ("load_average", "steal_s")  # of the moment
_BLAS = ("blas", "blas_version", "blas_architecture", "blas_threading", "blas_library")  # of a rank


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that differs; empty where a run does not know it."""

    name: str
    a: str
    b: str


def changes(a: Run, b: Run, pairs: Iterable[tuple[str, str]]) -> tuple[Change, ...]:
    """Return what differs, first in the cases that are compared: `pairs`, each an id of A and one of B."""
    return (*_of_cases(a, b, pairs), *_between(environment(a), environment(b)))


def _of_cases(a: Run, b: Run, pairs: Iterable[tuple[str, str]]) -> Iterator[Change]:
    """Yield each field that differs between matched cases, with all values that it takes."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for first, second in pairs:
        sides = [_flat(run.planned[case]) for run, case in ((a, first), (b, second)) if case in run.planned]
        if len(sides) == len((a, b)):
            for change in _between(*sides):
                if change.name not in (*NAMING, "suite"):
                    values = found.setdefault(change.name, ([], []))
                    values[0].append(change.a)
                    values[1].append(change.b)
    for name, (left, right) in found.items():
        yield Change(name=name, a=", ".join(dict.fromkeys(left)), b=", ".join(dict.fromkeys(right)))


def environment(run: Run) -> dict[str, str]:
    """Return all that is known of what made a run, under dotted names; all values where they vary."""
    document = {
        name: value for name, value in run.document.get("provenance", {}).items() if name not in _PASSING
    }
    known = {name: [text] for name, text in _flat(document).items()}
    jobs = run.cases.loc[run.cases["status"] == "ok", "provenance"].dropna().unique()
    for text in jobs:
        for name, value in _flat(provenance_of(text)).items():
            known.setdefault(f"job.{name}", []).append(value)
    for name in (*_BLAS, "host", "governor"):
        values = run.ranks[name].dropna().astype(str).unique()
        known[f"job.{name}"] = sorted(values)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in known.items()}


def _between(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys([*a, *b]):
        left, right = a.get(name, ""), b.get(name, "")
        if left != right:
            yield Change(name=name, a=left, b=right)


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return the leaves of nested dictionaries as texts under dotted names."""
    try:
        if not isinstance(value, Mapping):
            return {name: " ".join((value if isinstance(value, str) else json.dumps(value)).split())}
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= _flat(inner, f"{name}.{key}" if name else str(key))
    except RecursionError:  # a document may be nested as deeply as can be read
        return {name: "..."}
    return found


def machine(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what the launches ran on; several values where they differ."""
    ranks = run.ranks
    blas = ranks[list(_BLAS)].astype(object).fillna("")
    kernels = ranks[["kernels", "kernel_threads"]]
    found = {
        "Hosts": sorted(set(ranks["host"].dropna().astype(str))),
        "CPU": [_processor(run.machine)],
        "BLAS": sorted({_blas(*row) for row in blas.drop_duplicates().to_numpy()}),
        "Kernels": sorted({_kernels(*row) for row in kernels.dropna().to_numpy()}),
        "MPI": sorted({_mpi(text) for text in run.cases["provenance"].dropna().unique()}),
    }
    return tuple((name, listed(values)) for name, values in found.items() if any(values))


def elsewhere(run: Run, other: Run) -> list[str]:
    """Return in what another run's hosts or MPI differ."""
    own, others = dict(machine(run)), dict(machine(other))
    return [
        name for name, key in (("set of hosts", "Hosts"), ("MPI", "MPI")) if own.get(key) != others.get(key)
    ]


def listed(values: Sequence[str], most: int = 4) -> str:
    """Return the first values, and how many more there are."""
    named = ", ".join(value for value in values[:most] if value)
    return named if len(values) <= most else f"{named} and {len(values) - most} more"


def _blas(*said: str) -> str:
    *words, library = map(str, said)
    return " ".join(filter(None, (*words, f"({library})" if library else "")))


def _kernels(name: str, threads: int) -> str:
    return f"{name}, {threads} threads" if threads > 1 else name


def _processor(known: Mapping[str, Any]) -> str:
    cores = known.get("cores")
    said = [known.get("cpu_model"), f"{cores} cores" if cores else None]
    return ", ".join(str(value) for value in said if value)


def _mpi(provenance: str) -> str:
    try:
        found = provenance_of(provenance)["mpi"]
        name = f"{found['vendor']} {found['version']}" if "vendor" in found else str(found["library"])
    except KeyError:
        return ""
    return " ".join(name.replace(" Version:", "").split())[:60]
