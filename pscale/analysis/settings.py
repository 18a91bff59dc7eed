"""What a run was made of: settings of its cases by dotted name, its environment, and what differs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pscale.analysis.frames import NAMING, Run
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.config.workload import numeric
from pscale.runs.store import provenance_of

DEGREES = {
    **{f"plan.{axis}": axis for axis in PLAN_AXES},
    **{f"plan.matrix.{axis}": axis for axis in GRID_AXES},
}  # names of columns by those of settings
SIZES = ("ranks", "threads")  # of a launch; other numbers are of its program
_PARAMS = "workload.params."
Case = Mapping[str, Any]  # settings by dotted name
NAMES = frozenset({*NAMING, "suite", "run"})  # of a case: no settings


def settings(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a case by dotted name: `ranks`, `model.width`, `plan.matrix.tx`."""
    return dict(_leaves({name: value for name, value in planned.items() if name not in NAMES}, ""))


def of_cases(run: Run) -> dict[str, Case]:
    """Return the settings of cases that curves may join: none of bare collectives, none of several runs."""
    planned = {} if run.origins else run.planned
    return {case: settings(known) for case, known in planned.items() if case not in run.bare}


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", numeric(value) if above == _PARAMS else value


def varied(run: Run) -> list[str]:
    """Return the settings that the suite sweeps, in its order, then others in which its cases differ."""
    cases = [settings(case) for case in run.planned.values()]
    known = dict.fromkeys(name for case in cases for name in case)
    differing = [name for name in known if len({repr(case.get(name)) for case in cases}) > 1]
    sweep = (run.suite.get("resolved") or {}).get("sweep") or {}
    swept = [*(name for name in sweep if name not in ("zip", "cases")), *(sweep.get("zip") or {})]
    return list(dict.fromkeys([*(name for name in swept if name in known), *differing]))


def is_number(value: object) -> bool:
    """Tell whether a setting is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def swept_numbers(run: Run, cases: Mapping[str, Case]) -> list[str]:
    """Return the numbers that vary and that all of these cases have, but for degrees of a plan."""
    return [
        name
        for name in varied(run)
        if not name.startswith("plan.") and all(is_number(case.get(name)) for case in cases.values())
    ]


def following(name: str, cases: Sequence[Case]) -> set[str]:
    """Return the numbers that the swept one decides, such as a batch of so many tokens; it is one of them."""
    values = {case[name] for case in cases}
    return {
        other
        for other, value in (cases[0] if cases else {}).items()
        if is_number(value) and len({(case[name], case.get(other)) for case in cases}) == len(values)
    }


def apart_from(case: Case, name: str, decided: Collection[str]) -> str:
    """Return what the cases of one curve over a number share; degrees that are all ranks grow with these."""
    known = {field: value for field, value in case.items() if field not in decided or field in DEGREES}
    if name == "ranks":
        known |= {degree: "ranks" for degree in DEGREES if case.get(degree) == case["ranks"]}
    return json.dumps({**known, name: None}, sort_keys=True)


def setting_columns(run: Run, cases: pd.DataFrame) -> dict[str, list[Any]]:
    """Return degrees and varying settings of every case, by the last part of a name where that is free."""
    names = dict(DEGREES)
    for name in varied(run):
        last = name.rpartition(".")[2]
        if name not in (*DEGREES, *cases.columns, "train.batch"):
            names[name] = name if last in cases.columns or last in names.values() else last
    planned = [settings(run.planned.get(case, {})) for case in cases["case"]]
    return {column: [_cell(known.get(name)) for known in planned] for name, column in names.items()}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | float | int) else json.dumps(value)


# The environment of a run

_PASSING = ("load_average", "steal_s")  # of the moment
_BLAS = ("blas", "blas_version", "blas_architecture", "blas_threading", "blas_library")  # of a rank


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that differs; empty where a run does not know it."""

    name: str
    a: str
    b: str


def changes(a: Run, b: Run, pairs: Iterable[tuple[str, str]]) -> tuple[Change, ...]:
    """Return what differs, first in the cases that are compared: `pairs`, each an id of A and one of B.

    Of a field of several cases, all values that it takes.
    """
    found: dict[str, list[Change]] = {}
    for one, other in pairs:
        if one in a.planned and other in b.planned:
            for change in _between(_flat(a.planned[one]), _flat(b.planned[other])):
                if change.name not in (*NAMING, "suite"):
                    found.setdefault(change.name, []).append(change)
    of_cases = (
        Change(
            name=name,
            a=", ".join(dict.fromkeys(each.a for each in of_name)),
            b=", ".join(dict.fromkeys(each.b for each in of_name)),
        )
        for name, of_name in found.items()
    )
    return (*of_cases, *_between(environment(a), environment(b)))


def environment(run: Run) -> dict[str, str]:
    """Return all that is known of what made a run, under dotted names; all values where they vary."""
    document = {
        name: value for name, value in run.document.get("provenance", {}).items() if name not in _PASSING
    }
    known = {name: [text] for name, text in _flat(document).items()}
    jobs = run.good["provenance"].dropna().unique()
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


def hints(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the MPI-IO hints that cases ask for, each with what the library says it uses."""
    for case, said in run.good.groupby("case", observed=True)["file_hints"].first().items():
        used = dict(each.partition("=")[::2] for each in str(said or "").split("; "))
        for name, value in run.planned[str(case)].get("data", {}).get("hints", {}).items():
            found = used.get(name)
            answer = "taken" if found == value else "not taken"
            yield {"case": case, "hint": name, "asked": value, "used": found, "answer": answer}


def machine(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what the launches ran on; several values where they differ."""
    ranks, cores = run.ranks, run.machine.get("cores")
    blas = ranks[list(_BLAS)].astype(object).fillna("").drop_duplicates().to_numpy()
    kernels = ranks[["kernels", "kernel_threads"]].dropna().to_numpy()
    processor = (run.machine.get("cpu_model"), cores and f"{cores} cores")
    found = {
        "Hosts": {*ranks["host"].dropna().astype(str)},
        "CPU": {", ".join(str(value) for value in processor if value)},
        "BLAS": {
            " ".join(filter(None, (*map(str, words), f"({library})" * bool(library))))
            for *words, library in blas
        },
        "Kernels": {f"{name}, {count} threads" if count > 1 else name for name, count in kernels},
        "MPI": {_mpi(text) for text in run.cases["provenance"].dropna().unique()},
    }
    return tuple((name, listed(sorted(values))) for name, values in found.items() if any(values))


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


def _mpi(provenance: str) -> str:
    try:
        found = provenance_of(provenance)["mpi"]
        name = f"{found['vendor']} {found['version']}" if "vendor" in found else str(found["library"])
    except KeyError:
        return ""
    return " ".join(name.replace(" Version:", "").split())[:60]
