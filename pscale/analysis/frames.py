"""A run as data frames: what was planned, what was measured, what is pending.

A run of very many cases is truncated before anything is computed to those that a report shows, which then
costs little more than reading them; files for programs have all cases.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from pscale.analysis.reading import (
    LOST,
    Unclear,
    blurred_sums,
    call_sums,
    document_from_rows,
    frame,
    joined,
    planned_from_rows,
    read_document,
    rows_of,
    step_sums,
    unclear,
    with_disagreement,
)
from pscale.config.case import RECORDED
from pscale.errors import ResultsError
from pscale.runs import store
from pscale.runs.schema import Table

KINDS = ("compute_s", "transfer_s", "wait_s", "wait_or_transfer_s", "copy_s", "offload_s", "hidden_s")
CASE_TABLES = (  # tables of a Run with a row for each launch and more
    *("ranks", "phases", "seats", "ends", "caused_waits", "waited", "calls", "kernels", "figures"),
)
_WHOLE: tuple[Table, ...] = ("ranks", "kernels", "figures")
_NAMED = 4
MANY = 1000  # cases that are shown one by one
SHOWN = 200  # of more than that

Planned = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as stored. `document` is run.json; `pending` counts launches without a row, by case.

    `cases` has every launch that ended, and `ranks` every rank of those that ended well. Of steps and calls
    there are sums alone, a row for each
    * `phases`: launch, rank and phase: the kinds of time over all steps; `wait_or_transfer_s` among them is
      wait and transfer of the `unclear` calls;
    * `seats`: launch and rank: how many `steps`;
    * `ends`: launch and step: when it ended on the last rank, the largest injected delay of a rank;
    * `caused_waits`: launch, rank and step: waits of others that it caused, less its own; `waited` by launch;
    * `calls`: launch, axis and verb.

    `figures` are those of merit that workloads have given, a row for each launch and figure.
    `kernels` are sums over ranks by launch, phase and class of kernels, with the number of `ranks`.
    """

    path: Path
    document: Mapping[str, Any]
    cases: pd.DataFrame
    ranks: pd.DataFrame
    phases: pd.DataFrame
    seats: pd.DataFrame
    ends: pd.DataFrame
    caused_waits: pd.DataFrame
    waited: pd.DataFrame
    calls: pd.DataFrame
    kernels: pd.DataFrame
    figures: pd.DataFrame
    unclear: tuple[Unclear, ...]
    pending: Counter[str]
    gaps: tuple[str, ...]  # what is lost of the run, in sentences
    origins: Mapping[str, tuple[Path, str]] = field(default_factory=dict)  # folder and id of cases of others

    @property
    def name(self) -> str:
        """The run's name, which is that of its folder unless that was moved."""
        return str(self.document.get("run") or self.path.name)

    @property
    def machine(self) -> Mapping[str, Any]:
        """What is known of the machine that it was started on."""
        machine: Mapping[str, Any] = self.document.get("provenance", {}).get("machine", {})
        return machine

    @cached_property
    def planned(self) -> Mapping[str, Mapping[str, Any]]:
        """The configuration of every case of the suite, by case id, in the suite's order."""
        return {case["id"]: case for case in self.document["cases"]}

    @property
    def seed(self) -> int:
        """The seed of a run's draws; 0 where its document has none that is one."""
        seed = self.document.get("seed")
        return seed if isinstance(seed, int) and seed >= 0 else 0

    @cached_property
    def bare(self) -> frozenset[str]:
        """The cases of bare collectives, which train nothing."""
        models = {case: planned.get("model", {}) for case, planned in self.planned.items()}
        return frozenset(case for case, model in models.items() if model.get("kind") == "collectives")

    @cached_property
    def paces(self) -> Mapping[tuple[str, int], Sequence[float]]:
        """How long a fixed piece of work took beside every measured step, by launch, where that was asked."""
        found = self.cases.loc[self.cases["work_quantum_s"].notna(), ["case", "repeat", "work_quantum_s"]]
        return {(str(case), int(repeat)): paces for case, repeat, paces in found.itertuples(index=False)}

    @property
    def suite(self) -> Mapping[str, Any]:
        """The suite's name, title, scaling and text."""
        suite: Mapping[str, Any] = self.document.get("suite", {})
        return suite


NAMING = ("id", "label", "series", "base")  # what a case is called, not what it does


def shared_work(planned: Mapping[str, Any], *fields: str, **members: Collection[str]) -> str:
    """Return what a case shares with those that differ in some fields, or members of groups, alone."""
    same = {name: value for name, value in planned.items() if name not in (*NAMING, *fields)}
    for group, names in members.items():
        held = same.get(group) or {}
        same[group] = {name: value for name, value in held.items() if name not in names}
    return json.dumps(same, sort_keys=True)


def load(path: Path) -> Run:
    """Read the run in folder `path`, as far as it has got and can be read.

    Launches of which a part cannot be read, or has times that are no numbers, are invalid and say so. Raises
    ResultsError for folders that are none of a run, and for what a newer pscale has written.
    """
    document = read_document(path)
    data = path / "data"
    if not data.is_dir():
        raise ResultsError(f"{path}: has no folder 'data', so nothing was measured; run the suite again")
    damaged: list[store.Damaged] = []
    cases = frame(data, "cases", damaged).sort_values(["case", "repeat"], ignore_index=True)
    planned = document or document_from_rows(cases)
    document, foreign = _with_foreign(planned, cases)
    cases = with_disagreement(cases, {case["id"]: case for case in document["cases"]})
    calls = call_sums(data, damaged)
    blurred = unclear(_of_good(calls["calls"], _with_faults(cases, damaged, [calls["broken"]])))
    steps = step_sums(data, damaged, blurred)
    tables = {name: frame(data, name, damaged) for name in _WHOLE} | steps | calls
    tables["kernels"] = _kernel_sums(tables["kernels"])
    cases = _with_faults(cases, damaged, [steps["broken"], calls["broken"]])
    good: dict[str, Any] = {name: _of_good(tables[name], cases) for name in CASE_TABLES}
    good |= {name: _broken_down(good[name], good["phases"]) for name in ("seats", "phases")}
    good["calls"] = blurred_sums(good["calls"], blurred)
    return Run(
        path=path,
        document=document,
        cases=cases,
        **good,
        unclear=blurred,
        pending=_pending(planned, cases),
        gaps=tuple(_gaps(document, cases, good["ends"], damaged, foreign)),
    )


def steps(
    run: Run, case: str, repeat: int | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return the rows of steps of one case, or of one launch, if it ended well; read when asked for.

    `columns` are all by default; others have the keys and the kinds of time among them.
    """
    rows = _rows(run, "steps", case, repeat, columns)
    return (
        joined(rows, calls(run, case, repeat), run.unclear)
        if run.unclear
        else rows.assign(wait_or_transfer_s=0.0)
    )


def calls(run: Run, case: str, repeat: int | None = None) -> pd.DataFrame:
    """Return the rows of calls of one case, or of one launch, if it ended well; read when asked for."""
    return _rows(run, "calls", case, repeat)


def _rows(
    run: Run, table: Table, case: str, repeat: int | None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    path, name = run.origins.get(case, (run.path, case))
    rows = rows_of(path / "data", table, name, repeat, columns)
    return _of_good(rows.assign(case=rows["case"].cat.rename_categories({name: case})), run.cases)


def events(run: Run) -> pd.DataFrame:
    """Return the events of the traced launches that ended well; read when asked for, as they are many."""
    return _of_good(frame(run.path / "data", "events"), run.cases)


def _kernel_sums(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return sums over ranks, and how many ranks there are, by launch, phase and class of kernels."""
    groups = kernels.groupby(["case", "repeat", "phase", "kernel"], observed=True)
    sums = groups[["calls", "flops", "bytes", "time_s"]].sum().reset_index()
    ranks = kernels.groupby(["case", "repeat"], observed=True)["rank"].nunique().rename("ranks")
    return sums.join(ranks, on=["case", "repeat"])


def is_program(planned: Mapping[str, Any]) -> bool:
    """Tell whether a case is the program of somebody else, and so no training."""
    return bool((planned.get("workload") or {}).get("command"))


def no_training(planned: Mapping[str, Any]) -> bool:
    """Tell whether a case is no training: a program that was recorded or started."""
    return planned.get("model", {}).get("kind") == "program" or is_program(planned)


def bound(planned: Mapping[str, Any]) -> bool:
    """Tell whether a case asks for ranks that keep to their cores."""
    return str(planned.get("launch", {}).get("bind", "none")) != "none"


Member = TypeVar("Member")
Key = TypeVar("Key")


def grouped(members: Iterable[Member], key: Callable[[Member], Key]) -> dict[Key, list[Member]]:
    """Return the members of each group, in their order."""
    found: dict[Key, list[Member]] = {}
    for member in members:
        found.setdefault(key(member), []).append(member)
    return found


def by_case(rows: Iterable[Member]) -> dict[str, list[Member]]:
    """Return the rows of each case, in their order."""
    return grouped(rows, attrgetter("case"))


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries of plain Python values; nulls are None."""
    columns = {str(name): _plain(column) for name, column in frame.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(column: pd.Series[Any]) -> list[Any]:
    values, missing = column.tolist(), column.isna().to_numpy()
    if not missing.any():
        return values
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]


def _with_foreign(
    document: Mapping[str, Any], cases: pd.DataFrame
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Return the document with the cases that have rows but are none of its suite, and these alone."""
    known = [case["id"] for case in document["cases"]]
    foreign = planned_from_rows(cases[~cases["case"].isin(known)])
    return {**document, "cases": [*document["cases"], *foreign]}, foreign


def _with_faults(
    cases: pd.DataFrame, damaged: Sequence[store.Damaged], broken: Sequence[pd.DataFrame]
) -> pd.DataFrame:
    """Return the cases with launches marked invalid of which a part is lost or has no numbers for times."""
    faults = {
        (part.case, part.repeat): f"its {part.table} table is damaged: {part.why}; run it again"
        for part in damaged
        if part.table != "cases"
    }
    for table in broken:
        for case, repeat in zip(table["case"].astype(str), table["repeat"], strict=True):
            faults.setdefault(
                (case, int(repeat)),
                "its steps or calls have impossible times: not finite, or zero",
            )
    if not faults:
        return cases
    launches = list(zip(cases["case"], cases["repeat"], strict=True))
    wrong = [
        place
        for place, (launch, status) in enumerate(zip(launches, cases["status"], strict=True))
        if launch in faults and status in RECORDED
    ]
    marked = cases.copy()
    marked.loc[wrong, "status"] = "invalid"
    marked.loc[wrong, "reason"] = [faults[launches[place]] for place in wrong]
    return marked


def of_counted(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the rows of launches whose times count."""
    return _of_good(table, run.cases, ("ok",))


def _of_good(table: pd.DataFrame, cases: pd.DataFrame, statuses: Collection[str] = RECORDED) -> pd.DataFrame:
    """Return the rows of launches that ended well; whole numbers are compared, as there may be millions."""
    numbers = {case: number for number, case in enumerate(table["case"].cat.categories)}
    well = cases.loc[cases["status"].isin(statuses), ["case", "repeat"]]
    launches = zip(well["case"].tolist(), well["repeat"].tolist(), strict=True)
    good = [(numbers[case], repeat) for case, repeat in launches if case in numbers]
    number, repeat = np.array(good, np.int64).reshape(-1, 2).T
    codes, repeats = table["case"].cat.codes.to_numpy(np.int64), table["repeat"].to_numpy(np.int64)
    most = 1 + max(repeat.max(initial=0), repeats.max(initial=0))
    kept = np.isin(codes * most + repeats, number * most + repeat)
    return table if kept.all() else table[kept]


def _broken_down(table: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of launches whose steps were recorded: programs that list theirs tell only times."""
    keys = ["case", "repeat"]
    unknown = phases.loc[phases["compute_s"].isna(), keys].drop_duplicates()
    return (
        table
        if unknown.empty
        else table[~pd.MultiIndex.from_frame(table[keys]).isin(pd.MultiIndex.from_frame(unknown))]
    )


def _pending(document: Mapping[str, Any], cases: pd.DataFrame) -> Counter[str]:
    repeats = _repeats(document)
    planned = Counter({case["id"]: repeats for case in document["cases"]})
    ended = set(zip(cases["case"], cases["repeat"], strict=True))
    return planned - Counter(case for case, repeat in ended if repeat < repeats)


def _repeats(document: Mapping[str, Any]) -> int:
    repeats = document.get("repeats")
    return repeats if isinstance(repeats, int) else 1


def _gaps(
    document: Mapping[str, Any],
    cases: pd.DataFrame,
    steps: pd.DataFrame,
    damaged: Sequence[store.Damaged],
    foreign: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Yield what a reader has to know of what is lost, beside launches that are invalid for it."""
    if LOST in document:
        yield ("run.json is missing, so only cases with results are shown, without the suite's expectations.")
    if foreign:
        labels = [str(case.get("label", case["id"])) for case in foreign]
        yield f"Results of cases that are not in run.json: {_some(labels)}."
    for part in damaged:
        if part.table == "cases":
            yield f"The results of a launch are damaged: {part.why}. It counts as not run."
    good = records(cases.loc[cases["status"] == "ok", ["case", "repeat", "label"]])
    known = set(zip(steps["case"].astype(str), steps["repeat"], strict=True))
    have_none = {
        case["id"] for case in document["cases"] if is_program(case) and case["workload"]["watch"] is not True
    }
    without = [
        f"{row['label']} #{row['repeat'] + 1}"
        for row in good
        if (row["case"], row["repeat"]) not in known and row["case"] not in have_none
    ]
    if without and len(steps):
        yield f"Launches without step records, left out of breakdowns: {_some(without)}."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def shortened(run: Run) -> Run:
    """Return a run of more than `MANY` cases with the first of them, by series and size; else the run.

    What a sentence on a series is about stays as well: its base, its largest measured case, and all larger
    ones, which have no result.
    """
    if len(run.planned) <= MANY:
        return run
    series = grouped(run.planned.values(), lambda case: case.get("series") or "")
    ordered = [sorted(members, key=_size) for members in series.values()]
    first = {case["id"] for case in [case for members in ordered for case in members][:SHOWN]}
    measured = _measured(run)
    kept = first.union(
        *(_told(members, measured) for members in ordered if any(case["id"] in first for case in members))
    )
    note = (
        f"Tables and figures show the first {SHOWN} of {len(run.planned)} cases; "
        "`pscale report --format csv` and `--format json` have all."
    )
    return replace(restricted(run, kept), gaps=(note, *run.gaps))


def _size(case: Planned) -> tuple[int, int]:
    """Return cores and ranks, by which reports put cases in order."""
    ranks, threads = int(case.get("ranks") or 1), int(case.get("threads") or 1)
    return ranks * threads, ranks


def _measured(run: Run) -> set[str]:
    stated = run.cases.loc[(run.cases["status"] == "ok") & run.cases["step_s"].notna(), "case"]
    return {*stated, *run.ends["case"].unique()}


def _told(members: Sequence[Planned], measured: Collection[str]) -> Iterator[str]:
    """Yield the cases of a series, in order of size, of which the sentence on it speaks."""
    yield from (case["id"] for case in members if case.get("base"))
    good = [case for case in members if case["id"] in measured]
    if good:
        largest = next(case for case in good if _size(case) == _size(good[-1]))
        yield from (good[0]["id"], largest["id"])
        yield from (case["id"] for case in members if _size(case) > _size(largest))


def restricted(run: Run, kept: Collection[str]) -> Run:
    """Return the run as if these were its only cases."""

    def rows(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["case"].isin(kept)]

    tables: dict[str, Any] = {name: rows(getattr(run, name)) for name in CASE_TABLES}
    return replace(
        run,
        document={
            **run.document,
            "cases": [case for case in run.document["cases"] if case["id"] in kept],
            "expect": list(_expected(run.document.get("expect") or [], kept)),
        },
        cases=rows(run.cases).reset_index(drop=True),
        unclear=tuple(call for call in run.unclear if call.case in kept),
        pending=Counter({case: count for case, count in run.pending.items() if case in kept}),
        **tables,
    )


def _expected(entries: Iterable[Planned], kept: Collection[str]) -> Iterator[Planned]:
    """Yield the expectations that are about some of these cases, or about none at all."""
    for entry in entries:
        about = entry.get("cases")
        if not about or any(case in kept for case in about):
            yield entry
