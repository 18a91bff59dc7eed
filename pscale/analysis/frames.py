"""A run as data frames: what was planned, what was measured, what is pending.

A run of very many cases is truncated before anything is computed to those that a report shows, which then
costs little more than reading them; files for programs have all cases.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from pscale.analysis.columns import plain
from pscale.analysis.text import plural
from pscale.config import JOINT, Workload, from_dict
from pscale.config.axes import PLAN_AXES
from pscale.config.case import RECORDED
from pscale.errors import ResultsError
from pscale.runs import atomic_files, store, sums
from pscale.runs.run_folders import check
from pscale.runs.run_shape import check_document
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
    # Folder, id and number of the first launch of what a case is made of, where it is not one of this run.
    origins: Mapping[str, Sequence[tuple[Path, str, int]]] = field(default_factory=dict)

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
    def good(self) -> pd.DataFrame:
        """The launches that ended well and count."""
        return self.cases[self.cases["status"] == "ok"]

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
    planned = document or _document_from_rows(cases)
    foreign = _planned_from_rows(cases[~cases["case"].isin([case["id"] for case in planned["cases"]])])
    document = {**planned, "cases": [*planned["cases"], *foreign]}
    cases = _with_disagreement(cases, {case["id"]: case for case in document["cases"]})
    calls = _summed(data, "calls", sums.CALL_COLUMNS, sums.calls, damaged)
    blurred = unclear(_of_good(calls["calls"], _with_faults(cases, damaged, [calls["broken"]])))
    steps = _step_sums(data, damaged, blurred)
    tables = {name: frame(data, name, damaged) for name in _WHOLE} | steps | calls
    tables["kernels"] = _kernel_sums(tables["kernels"])
    cases = _with_faults(cases, damaged, [steps["broken"], calls["broken"]])
    good: dict[str, Any] = {name: _of_good(tables[name], cases) for name in CASE_TABLES}
    good |= {name: _broken_down(good[name], good["phases"]) for name in ("seats", "phases")}
    known = good["calls"]
    good["calls"] = _moved(known, known[["wait_s", "transfer_s"]].mul(of_unclear(known, blurred), axis=0))
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
    parts = run.origins.get(case, [(run.path, case, 0)])
    if repeat is not None:
        parts = [part for part in parts if part[2] <= repeat][-1:]
    tables = []
    for path, name, first in parts:
        rows = rows_of(path / "data", table, name, None if repeat is None else repeat - first, columns)
        renamed = rows["case"].cat.rename_categories({name: case})
        tables.append(rows.assign(case=renamed, repeat=rows["repeat"] + first))
    return _of_good(tables[0] if len(tables) == 1 else _concat(tables), run.cases)


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


def workloads(run: Run) -> dict[str, Workload]:
    """Return the workloads of the cases that have one."""
    return {
        case: from_dict(Workload, planned["workload"])
        for case, planned in run.planned.items()
        if is_program(planned)
    }


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
    columns = {str(name): plain(column) for name, column in frame.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _with_faults(
    cases: pd.DataFrame, damaged: Sequence[store.Damaged], broken: Sequence[pd.DataFrame]
) -> pd.DataFrame:
    """Return the cases with launches marked invalid of which a part is lost or has no numbers for times."""
    impossible = "its steps or calls have impossible times: not finite, or zero"
    faults = {
        (str(case), int(repeat)): impossible
        for table in broken
        for case, repeat in table[["case", "repeat"]].itertuples(index=False)
    }
    for part in damaged:
        if part.table != "cases" and part.case is not None:
            faults[part.case, part.repeat] = f"its {part.table} table is damaged: {part.why}; run it again"
    launches = zip(cases["case"], cases["repeat"], cases["status"], strict=True)
    reasons = [
        faults.get((case, repeat)) if status in RECORDED else None for case, repeat, status in launches
    ]
    return _invalid(cases, {place: why for place, why in zip(cases.index, reasons, strict=True) if why})


def _invalid(cases: pd.DataFrame, reasons: Mapping[Any, str]) -> pd.DataFrame:
    """Return the cases with launches marked invalid, for reasons by index."""
    if not reasons:
        return cases
    marked = cases.copy()
    marked.loc[list(reasons), "status"] = "invalid"
    marked.loc[list(reasons), "reason"] = list(reasons.values())
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
    stated = document.get("repeats")
    repeats = stated if isinstance(stated, int) else 1
    planned = Counter({case["id"]: repeats for case in document["cases"]})
    ended = set(zip(cases["case"], cases["repeat"], strict=True))
    return planned - Counter(case for case, repeat in ended if repeat < repeats)


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
    measured = {*run.good.loc[run.good["step_s"].notna(), "case"], *run.ends["case"].unique()}
    told = (_told(members, measured) for members in ordered if any(case["id"] in first for case in members))
    note = (
        f"Tables and figures show the first {SHOWN} of {len(run.planned)} cases; "
        "`pscale report --format csv` and `--format json` have all."
    )
    return replace(restricted(run, first.union(*told)), gaps=(note, *run.gaps))


_NAMES_OF_CASE = ("label", "series")
_LOSSES = ("loss_first", "loss_last", "losses", "validation_losses")


def seeds_as_launches(run: Run) -> Run:
    """Return a run in which cases that differ in the seed alone are launches of one; its losses are means."""
    seeds = {case: str((planned.get("train") or {}).get("seed")) for case, planned in run.planned.items()}
    if len({*seeds.values()}) < 2:
        return run
    groups = grouped(run.planned.values(), lambda case: shared_work(case, train=("seed",))).values()
    if any(len({seeds[case["id"]] for case in members}) < len(members) for members in groups):
        return run  # cases that differ in their names alone
    most = max(int(run.document.get("repeats") or 1), 1 + max(run.cases["repeat"], default=0))
    first: dict[str, str] = {}
    before: dict[str, int] = {}  # launches of other seeds
    origins = dict(run.origins)
    for ids in ([case["id"] for case in members] for members in groups):
        first |= dict.fromkeys(ids, ids[0])
        before |= {case: most * place for place, case in enumerate(ids)}
        parts = [(case, *run.origins.get(case, [(run.path, case, 0)])) for case in ids]
        origins[ids[0]] = [(*part[:2], before[case]) for case, part in parts]
    planned = {members[0]["id"]: _of_all(members) for members in groups}

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        case = table["case"].astype(str)
        repeat = table["repeat"] + case.map(before).astype("int32")
        return table.assign(case=case.map(first), repeat=repeat)

    tables: dict[str, Any] = {name: moved(getattr(run, name)) for name in CASE_TABLES}
    tables = {name: table.astype({"case": "category"}) for name, table in tables.items()}
    cases = moved(run.cases).sort_values(["case", "repeat"], ignore_index=True)
    for name in _NAMES_OF_CASE:
        cases[name] = [planned[case].get(name) for case in cases["case"]]
    for _, rows in cases[cases["status"] == "ok"].groupby("case"):
        for name in _LOSSES:
            known = [*rows[name].dropna()]
            if len(rows) > most and len({*map(np.shape, known)}) == 1:
                cases.at[rows.index[0], name] = np.mean(known, axis=0)
    expect = [
        {**entry, "cases": [*dict.fromkeys(first[case] for case in entry.get("cases") or run.planned)]}
        for entry in run.document.get("expect") or []
    ]
    return replace(
        run,
        document={**run.document, "cases": [*planned.values()], "expect": expect},
        cases=cases,
        unclear=tuple(call._replace(case=first[call.case]) for call in run.unclear),
        pending=sum((Counter({first[case]: count}) for case, count in run.pending.items()), Counter()),
        origins=origins,
        **tables,
    )


def _of_all(members: Sequence[Planned]) -> Planned:
    """Return the first of some cases, named by what the names of all have in common."""
    names = {}
    for name in _NAMES_OF_CASE:
        words, *others = (str(case.get(name) or "").split(JOINT) for case in members)
        names[name] = JOINT.join(word for word in words if all(word in other for other in others))
    return {**members[0], **names}


def _size(case: Planned) -> tuple[int, int]:
    """Return cores and ranks, by which reports put cases in order."""
    ranks, threads = int(case.get("ranks") or 1), int(case.get("threads") or 1)
    return ranks * threads, ranks


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

    expected = [(entry, entry.get("cases")) for entry in run.document.get("expect") or []]
    tables: dict[str, Any] = {name: rows(getattr(run, name)) for name in CASE_TABLES}
    return replace(
        run,
        document={
            **run.document,
            "cases": [case for case in run.document["cases"] if case["id"] in kept],
            "expect": [
                entry for entry, about in expected if not about or any(case in kept for case in about)
            ],
        },
        cases=rows(run.cases).reset_index(drop=True),
        unclear=tuple(call for call in run.unclear if call.case in kept),
        pending=Counter({case: count for case, count in run.pending.items() if case in kept}),
        **tables,
    )


# The folder of a run
#
# Small tables are read whole, those of steps and calls summed batch by batch. Where the clocks of several
# nodes cannot distinguish the wait of calls from their transfer, the two are one. The first loss is that of
# the initial weights, which are drawn the same under every plan, on the first batch: that of the serial
# program.

FORMAT = 1
LOST = "run_json_lost"  # set in a document that was made up from rows
_MODEL = ("layers", "width", "heads", "sequence", "vocabulary", "dtype", "attention")
_PLAN = (*PLAN_AXES, "sp", "zero", "shard", "schedule", "virtual_stages", "reduction")
_TRAIN = ("batch", "micro_batches", "optimizer", "steps", "warmup")
_OF_CASE = ("label", "series", "scaling", "ranks", "threads")
_OF_SUITE = {"name": "suite", "scaling": "scaling"}


def read_document(path: Path) -> Mapping[str, Any] | None:
    """Return the document of the run in folder `path`; None where it is lost but rows are there.

    Raises ResultsError for a folder that is none of a run, and for a document that is damaged or newer.
    """
    file = path / "run.json"
    if not path.is_dir():
        raise ResultsError(f"{path}: no such folder; name a run such as reports/weak/<run>")
    check(path)
    if not file.exists() and any((path / "data").glob("cases*.parquet")):
        return None
    try:
        document = atomic_files.read_json(file)
    except FileNotFoundError:
        raise ResultsError(f"{path}: not a run's folder: it has no run.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(
            f"{file}: cannot be read as JSON ({error}); restore it, or remove it to see what the rows tell"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ResultsError(f"{file}: not written by pscale")
    if document["format"] > FORMAT:
        raise ResultsError(
            f"{file}: written by a newer pscale: format {document['format']}, "
            f"this one reads up to {FORMAT}; upgrade pscale"
        )
    check_document(document, file)
    return document


def _document_from_rows(cases: pd.DataFrame) -> Mapping[str, Any]:
    """Return what the rows of `cases` tell of a run whose document is lost; nothing is pending then."""
    suite = {name: next(iter(cases[column].dropna()), "") for name, column in _OF_SUITE.items()}
    return {"format": FORMAT, LOST: True, "suite": suite, "cases": _planned_from_rows(cases), "repeats": 1}


def _planned_from_rows(cases: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the configuration of every case, as far as its row has it."""
    names = ["case", "base", "model", *_OF_CASE, *_MODEL, *_PLAN, *_TRAIN]
    rows = cases[names].drop_duplicates("case").to_dict("records")
    known = [{name: value for name, value in row.items() if not pd.isna(value)} for row in rows]
    return [
        {
            "id": row["case"],
            **_part(row, _OF_CASE),
            "base": bool(row.get("base", False)),
            "model": {"kind": row.get("model", ""), **_part(row, _MODEL)},
            "train": _part(row, _TRAIN),
            "plan": {
                name: int(value) if isinstance(value, float) else value
                for name, value in _part(row, _PLAN).items()
            },
        }
        for row in known
    ]


def _part(row: Mapping[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


# Of the loss; what other orders of summation leave is far less.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9, "fp16": 5e-4, "bf16": 4e-3}
_NOT_THE_TRAINING = ("ranks", "threads", "plan", "timing", "launch", "require", "inject", "jitter", "ghost")
_NAMES = ("id", "suite", "label", "series", "base", "scaling")


def _with_disagreement(cases: pd.DataFrame, planned: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cases with launches marked invalid whose first loss is not that of their reference.

    The reference of a training is its launch on fewest ranks that ended well, the serial one if there is any.
    """
    good = cases[(cases["status"] == "ok") & cases["loss_first"].notna()]
    training = good["case"].map(
        {case: _training(planned.get(case, {"id": case})) for case in good["case"].unique()}
    )
    first = good.sort_values(["ranks", "threads", "repeat"], kind="stable").groupby(training).head(1)
    reasons: dict[Any, str] = {}
    for (_, rows), (_, reference) in zip(good.groupby(training), first.groupby(training), strict=True):
        expected, ranks, dtype = (reference[name].iloc[0] for name in ("loss_first", "ranks", "dtype"))
        apart = (rows["loss_first"] - expected).abs() > TOLERANCE.get(dtype, TOLERANCE["float32"]) * abs(
            expected
        )
        for place, loss in rows.loc[apart, "loss_first"].items():
            reasons[place] = (
                f"its first loss is {loss:.8g}, but {expected:.8g} on {plural(int(ranks), 'rank')}, which "
                "starts from the same weights and data: check the plan with `pscale verify`"
            )
    return _invalid(cases, reasons)


_READING = ("loading", "prefetch", "hints")  # the same samples


def _training(planned: Mapping[str, Any]) -> str:
    """Return what decides the first loss of a case."""
    same = {name: value for name, value in planned.items() if name not in (*_NAMES, *_NOT_THE_TRAINING)}
    if "data" in same:
        same["data"] = {name: value for name, value in same["data"].items() if name not in _READING}
    if "train" in same:
        same["train"] = {name: same["train"].get(name) for name in ("batch", "seed")}
    return json.dumps(same or planned, sort_keys=True, default=str)


_CATEGORIES: dict[Table, list[str]] = {
    "cases": [],
    "steps": ["case", "phase"],
    "calls": ["case", "phase", "axis", "verb"],
    "events": ["case", "phase", "kind", "label", "axis", "verb"],
    "kernels": ["case", "phase", "kernel"],
    "figures": ["case", "figure", "unit", "better"],
    "ranks": [
        "case",
        "host",
        "cpus",
        "blas",
        "blas_version",
        "blas_architecture",
        "blas_threading",
        "blas_library",
    ],
}
_KEYS = {"repeat", "rank", "step"}


def frame(data: Path, table: Table, damaged: list[store.Damaged] | None = None) -> pd.DataFrame:
    """Read a whole table."""
    return _as_frame(store.read_table(data, table, damaged=damaged), table)


def rows_of(
    data: Path, table: Table, case: str, repeat: int | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read the rows of one case, or of one launch of it; `columns` are all by default."""
    return _as_frame(store.read_case(data, table, case, repeat, columns), table)


def _as_frame(rows: Any, table: Table) -> pd.DataFrame:
    return _small(rows.to_pandas(categories=_CATEGORIES[table]))


def _small(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its keys in 32 bits, which are never null."""
    for name in _KEYS.intersection(table.columns):
        table[name] = table[name].to_numpy(np.int32)
    return table


def _step_sums(
    data: Path, damaged: list[store.Damaged], unclear: Sequence[Unclear]
) -> dict[str, pd.DataFrame]:
    """Return the tables of `sums.steps`; wait and transfer of `unclear` calls are one."""
    calls = frame(data, "calls", []) if unclear else pd.DataFrame()

    def summed(rows: Any) -> dict[str, Any]:
        if unclear:
            blurred = joined(_as_frame(rows, "steps"), calls, unclear)
            times = ("wait_s", "transfer_s", "wait_or_transfer_s")
            rows = sums.with_columns(rows, {name: blurred[name].to_numpy(np.float64) for name in times})
        return sums.steps(rows)

    found = _summed(data, "steps", sums.STEP_COLUMNS, summed, damaged)
    phases = found["phases"]
    offload = {name: phases[name].fillna(0.0) for name in sums.OFFLOAD}
    known = {"wait_or_transfer_s": phases.get("wait_or_transfer_s", 0.0)}
    return {**found, "phases": phases.assign(**known, **offload)}


def _summed(
    data: Path,
    table: Table,
    columns: Sequence[str],
    reduction: Callable[[Any], dict[str, Any]],
    damaged: list[store.Damaged],
) -> dict[str, pd.DataFrame]:
    """Return the sums of all batches of a table, by name."""
    texts = [name for name in columns if name in _CATEGORIES[table]]
    batches = store.batches(data, table, columns, damaged, texts)
    found = [reduction(rows.unify_dictionaries()) for rows in _ahead(batches) if len(rows)]
    found = found or [reduction(store.schema_of(table, columns, texts).empty_table())]
    return {name: _small(sums.joined([part[name] for part in found]).to_pandas()) for name in found[0]}


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, and read each while the one before it is summed: Arrow needs no lock of Python."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (rows := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield rows


LIMIT = 0.10  # of a call's mean wait: beyond it, the bound of the clocks leaves too little of the wait sure
_GROUP = ["case", "axis", "verb"]
_PLACE = ["case", "repeat", "rank", "step", "phase"]


class Unclear(NamedTuple):
    """Calls of one verb on one axis in a case, whose wait is known worse than `LIMIT`; means per call."""

    case: str
    axis: str
    verb: str
    bound_s: float
    wait_s: float


def unclear(calls: pd.DataFrame) -> tuple[Unclear, ...]:
    """Return the calls whose wait and transfer must be read as one, from sums with `bound_s`."""
    times = ["bound_s", "wait_s"]
    of_all = calls.groupby(_GROUP, observed=True)[[*times, "count"]].sum()
    found = of_all[(of_all["bound_s"] > 0) & (of_all["bound_s"] > LIMIT * of_all["wait_s"])]
    means = found[times].div(found["count"], axis=0).reset_index().astype(dict.fromkeys(_GROUP, str))
    return tuple(map(Unclear._make, means.itertuples(index=False)))


def joined(steps: pd.DataFrame, calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.DataFrame:
    """Return rows of steps with wait and transfer of unclear calls moved to `wait_or_transfer_s`."""
    moved = calls.loc[of_unclear(calls, found)].groupby(_PLACE, observed=True)[["wait_s", "transfer_s"]].sum()
    parts = moved.reindex(pd.MultiIndex.from_frame(steps[_PLACE]), fill_value=0.0).set_axis(steps.index)
    return _moved(steps, parts)


def of_unclear(calls: pd.DataFrame, found: Sequence[Unclear]) -> pd.Series[bool]:
    """Tell which rows are of unclear calls."""
    names = {(call.case, call.axis, call.verb) for call in found}
    return pd.Series(pd.MultiIndex.from_frame(calls[_GROUP].astype(str)).isin(names), index=calls.index)


def _moved(table: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    rest = table[["wait_s", "transfer_s"]] - parts
    return table.assign(
        wait_s=rest["wait_s"].clip(lower=0.0),
        transfer_s=rest["transfer_s"].clip(lower=0.0),
        wait_or_transfer_s=parts["wait_s"] + parts["transfer_s"],
    )


# Several runs as one


def overlay(runs: Sequence[Run], path: Path) -> Run:
    """Return one run with the cases of all, a series of its own for each series of each run.

    `path` is where its report goes. Suites may differ; what they are is said in the notes.
    """
    names = [run.name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run.path) for run in runs]
    marked = [_renamed(run, name) for run, name in zip(runs, names, strict=True)]
    document = runs[0].document
    suites = list(dict.fromkeys(str(run.suite.get("name", "")) for run in runs))
    titles = dict.fromkeys(str(run.suite.get("title") or run.suite.get("name", "")) for run in runs)
    models = dict.fromkeys(str(model) for run in runs if (model := run.machine.get("cpu_model")))
    machine: dict[str, Any] = {"cpu_model": " / ".join(models)}
    if len(cores := {run.machine.get("cores") for run in runs}) == 1:
        machine |= {"cores": cores.pop()}
    notes = [f"{name}: {gap}" for name, run in zip(names, runs, strict=True) for gap in run.gaps]
    if len(suites) > 1:
        notes.append(f"The runs are of different suites: {', '.join(suites)}. Compare only equal cases.")
    alike = len({str(run.document.get("auto")) for run in runs}) == 1
    return replace(
        marked[0],
        path=path,
        document={
            **document,
            "run": " + ".join(names),
            "suite": {**runs[0].suite, "name": "+".join(suites), "title": " / ".join(titles)},
            "cases": [case for run in marked for case in run.document["cases"]],
            "expect": [entry for run in marked for entry in run.document["expect"]],
            "auto": document.get("auto") if alike else None,
            "provenance": {"machine": machine},
        },
        cases=pd.concat([run.cases for run in marked], ignore_index=True),
        unclear=tuple(call for run in marked for call in run.unclear),
        pending=sum((run.pending for run in marked), Counter()),
        gaps=tuple(notes),
        origins={case: origin for run in marked for case, origin in run.origins.items()},
        **{table: _concat([getattr(run, table) for run in marked]) for table in CASE_TABLES},
    )


def _renamed(run: Run, name: str) -> Run:
    """Return a run whose cases, labels and series bear its name."""

    def marked(case: str) -> str:
        return f"{case}@{name}"

    names = ("label", "series")
    cases = run.cases.assign(
        case=run.cases["case"].map(marked),
        **{each: run.cases[each].map(lambda text: _with_name(text, name)) for each in names},
    )
    planned = [
        {**case, "id": marked(case["id"]), "run": name}
        | {each: _with_name(case.get(each), name) for each in names}
        for case in run.document["cases"]
    ]
    expect = [
        {**entry, "cases": [marked(case) for case in entry.get("cases") or run.planned]}
        for entry in run.document.get("expect") or []
    ]
    tables = {name: getattr(run, name) for name in CASE_TABLES}
    return replace(
        run,
        document={**run.document, "cases": planned, "expect": expect},
        cases=cases,
        unclear=tuple(call._replace(case=marked(call.case)) for call in run.unclear),
        pending=Counter({marked(case): count for case, count in run.pending.items()}),
        origins={marked(case): [(run.path, case, 0)] for case in run.planned},
        **{
            name: rows.assign(case=rows["case"].cat.rename_categories(marked))
            for name, rows in tables.items()
        },
    )


def _with_name(text: Any, name: str) -> str:
    return f"{text} · {name}" if isinstance(text, str) and text else name


def _concat(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables as one; texts that are categories stay so."""
    texts = {name: str for table in tables for name in table.columns if table[name].dtype == "category"}
    kept = dict.fromkeys(texts, "category")
    plain = [table.astype(dict.fromkeys(texts, object)) for table in tables if len(table)] or [tables[0]]
    return pd.concat(plain, ignore_index=True).astype(kept)
