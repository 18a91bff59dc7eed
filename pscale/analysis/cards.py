"""A folder of runs, a card each: what was run when, how it went, and its best figure.

A card is kept in the folder of its run and made again when the run has changed, so that a list of many runs
takes no longer than reading their cards. Figures are those of the report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from pscale import atomic_files
from pscale.analysis.difference import standing
from pscale.analysis.stats import Estimate, Sample, base_of, lower_median, ratio, work_ratio
from pscale.atomic_files import write_json
from pscale.errors import ResultsError
from pscale.run_folders import check, run_folders
from pscale.run_shape import mismatch, trouble_of

CARD = "card.json"
_VERSION = 6
_COLUMNS = (
    *("case", "repeat", "status", "label", "series", "base", "scaling", "ranks", "threads", "batch"),
    *("step_s", "step_resolution_s", "model_flops", "started_unix_s"),
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """One run. `trouble` says what is wrong with its folder; all else is then as far as it is known."""

    run: str
    path: str
    suite: str
    title: str
    begun_unix_s: float | None
    cases: int
    cases_ok: int  # with a launch that ended well
    launches: int  # that ended
    failed: int  # of them
    pending: int  # planned, and without a row
    ranks: int  # of the largest case that ended well
    metric: str  # of the best figure: efficiency samples_per_s, or empty
    value: float | None
    low: float | None  # the bounds of its interval
    high: float | None
    answer: str  # to what the suite expects of it; of samples_per_s undecided where another may be as fast
    at: str  # the case that it is of
    host: str
    trouble: str = ""


def cards(root: Path, suite: str | None = None) -> list[Card]:
    """Return the runs in `root`, of one suite or of all, those begun last first."""
    named = [card(folder) for folder in run_folders(root) if suite in (None, folder.parent.name)]
    direct = [card(folder) for folder in run_folders(root) if folder.parent == root and suite is not None]
    found = [*named, *(one for one in direct if one.suite == suite and one not in named)]
    return sorted(found, key=lambda one: (one.begun_unix_s or 0.0, one.run), reverse=True)


def card(folder: Path) -> Card:
    """Return the card of a run, as it is kept if the run has not changed since."""
    stamp = _stamp(folder)
    kept = _kept(folder, stamp)
    if kept is not None:
        return kept
    made = _made(folder)
    with suppress(OSError):  # a folder that may only be read
        write_json(folder / CARD, {"version": _VERSION, "stamp": stamp, **asdict(made)})
    return made


def _stamp(folder: Path) -> list[int]:
    """Return what changes when a run does: launches add files to its data."""
    times = []
    for path in (folder / "run.json", folder / "data"):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return times


def _kept(folder: Path, stamp: Sequence[int]) -> Card | None:
    file = folder / CARD
    if file.is_symlink():
        return None
    try:
        document = atomic_files.read_json(file)
        if document["version"] != _VERSION or document["stamp"] != stamp:
            return None
        known = {field.name: document[field.name] for field in fields(Card)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if mismatch(Card, known):
        return None
    return Card(**(known | {"path": str(folder)}))  # the folder may have been moved


def _made(folder: Path) -> Card:
    from pscale.results.store import Damaged, read_table  # noqa: PLC0415 - cards that are kept need no Arrow

    damaged: list[Damaged] = []
    try:
        check(folder)
        document = atomic_files.read_json(folder / "run.json")
        if trouble_of(document):
            return _unreadable(folder, "run.json is damaged")
        planned = {case["id"]: case for case in document["cases"]}
        rows = read_table(folder / "data", "cases", _COLUMNS, damaged).to_pylist()
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ResultsError) as error:
        return _unreadable(folder, str(error) if isinstance(error, ResultsError) else "run.json is damaged")
    suite, provenance = document.get("suite", {}), document.get("provenance", {})
    good = [row for row in rows if row["status"] == "ok"]
    begun = [row["started_unix_s"] for row in rows if row["started_unix_s"]]
    repeats = document.get("repeats") or 1
    metric, best, at, answer = _best(rows, planned)
    if best and metric == "efficiency":
        answer = _answer(document, best, at)
    if answer in {"holds", "falls short"} and _are_cores_taken(folder, at):
        answer = "undecided"
    return Card(
        run=str(document.get("run") or folder.name),
        path=str(folder),
        suite=str(suite.get("name", "")),
        title=str(suite.get("title", "")),
        begun_unix_s=min(begun) if begun else (folder / "run.json").stat().st_mtime,
        cases=len(planned),
        cases_ok=len({row["case"] for row in good}),
        launches=len(rows),
        failed=sum(row["status"] not in ("ok", "skipped") for row in rows),
        pending=(Counter(dict.fromkeys(planned, repeats)) - _ended(rows, repeats)).total(),
        ranks=max((row["ranks"] or 0 for row in good), default=0),
        metric=metric,
        value=best.value if best else None,
        low=best.low if best else None,
        high=best.high if best else None,
        answer=answer,
        at=planned.get(at, {}).get("label") or at,
        host=str(provenance.get("machine", {}).get("host", "")),
        trouble=f"{len(damaged)} parts cannot be read" if damaged else "",
    )


def _unreadable(folder: Path, why: str) -> Card:
    counts = dict.fromkeys(("cases", "cases_ok", "launches", "failed", "pending", "ranks"), 0)
    known: dict[str, Any] = counts | dict.fromkeys(("suite", "title", "metric", "at", "host", "answer"), "")
    known |= dict.fromkeys(("value", "low", "high"))
    begun = _stamp(folder)[0] * 1e-9
    return Card(run=folder.name, path=str(folder), begun_unix_s=begun, trouble=why, **known)


def _ended(rows: Sequence[Mapping[str, Any]], repeats: int) -> Counter[str]:
    """Return how many of the planned launches of each case have a row."""
    launches = {(row["case"], row["repeat"]) for row in rows}
    return Counter(case for case, repeat in launches if repeat < repeats)


def _answer(document: Mapping[str, Any], found: Estimate, case: str) -> str:
    """Return what the expectations of a run say to the efficiency of a case, the worst first."""
    from pscale.analysis.expect import judged  # noqa: PLC0415 - cards that are kept need no pandas

    asked = [entry for entry in document.get("expect") or [] if entry.get("metric") == "efficiency"]
    about = [entry for entry in asked if entry.get("cases") is None or case in entry["cases"]]
    answers = {judged(entry, found) for entry in about}
    return next((answer for answer in ("falls short", "undecided", "holds") if answer in answers), "")


def _are_cores_taken(folder: Path, case: str) -> bool:
    """Tell whether others took so much of the cores of a case, or of its base, that neither is judged."""
    from pscale.analysis import scaling  # noqa: PLC0415 - cards that are kept need no pandas
    from pscale.analysis.findings import Findings  # noqa: PLC0415
    from pscale.analysis.frames import load, restricted  # noqa: PLC0415
    from pscale.analysis.interference import GRAVE  # noqa: PLC0415

    try:
        run = load(folder)
    except ResultsError:
        return True  # for all that is known
    series = run.planned.get(case, {}).get("series")
    findings = Findings(
        restricted(run, {each["id"] for each in run.planned.values() if each.get("series") == series})
    )
    both = case, scaling.bases(findings.rows("cases")).get(case, case)
    return any(row.share >= GRAVE for row in findings.rows("interference") if row.case in both)


def _best(
    rows: Sequence[Mapping[str, Any]], planned: Mapping[str, Any]
) -> tuple[str, Estimate | None, str, str]:
    """Return metric, value and case of the figure to show: the best efficiency at the largest size.

    Without an efficiency it is the largest throughput, and last whether it is known to be the largest.
    """
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == "ok" and row["step_s"] and 0 < row["step_s"] < math.inf:
            by_case.setdefault(row["case"], []).append(row)
    left_out = {row["case"] for row in rows if row["status"] == "skipped"}
    cases = [
        _Case(case, by_case.get(case, ()), planned.get(case, {}))
        for case in {**planned, **by_case}
        if case not in left_out
    ]
    efficiencies = list(_efficiencies(cases))
    if efficiencies:
        _, value, case = max(efficiencies, key=lambda one: (one[0], one[1].value))
        return "efficiency", value, case.id, ""
    trained = [case for case in cases if case.batch and case.launches]
    if not trained:
        return "", None, "", ""
    best = max(trained, key=lambda case: case.batch / case.times.value)
    rivals = (case for case in trained if (case.batch, case.cores) == (best.batch, best.cores))
    answer = "undecided" * any(_may_be_faster(case, best) for case in rivals)
    return "samples_per_s", Estimate(value=best.batch / best.times.value), best.id, answer


def _may_be_faster(case: _Case, best: _Case) -> bool:
    return standing(case.times, best.times).answer == "undecided"


class _Case:
    """What the launches of a case say, of those that ended well; none where none did."""

    def __init__(self, case: str, rows: Sequence[Mapping[str, Any]], planned: Mapping[str, Any]):
        known = {**(rows[0] if rows else {}), **planned}
        self.id = case
        self.series, self.scaling = (known.get(name) or "" for name in ("series", "scaling"))
        self.base = bool(known.get("base"))
        self.cores = (known.get("ranks") or 1) * (known.get("threads") or 1)
        self.batch = rows[0]["batch"] or 0 if rows else 0
        self.work = (planned.get("workload") or {}).get("work")
        self.launches = len(rows)
        self.times = Sample(
            medians=tuple(row["step_s"] for row in rows),
            repeats=tuple(row["repeat"] for row in rows),
            resolution=lower_median(row["step_resolution_s"] for row in rows),
        )
        flops = [row["model_flops"] for row in rows if row["model_flops"]]
        self.flops = median(flops) if flops else None


def _efficiencies(cases: Sequence[_Case]) -> Iterator[tuple[int, Estimate, _Case]]:
    """Yield cores, efficiency and case of all that have a base other than themselves."""
    series: dict[str, list[_Case]] = {}
    for case in cases:
        if case.scaling != "throughput":
            series.setdefault(case.series, []).append(case)
    for members in series.values():
        base = base_of(members)
        for case in members:
            if base is not None and base.launches and case.launches and case is not base:
                work = work_ratio(
                    case.scaling, (case.cores, base.cores), (case.flops, base.flops), (case.work, base.work)
                )
                factor = work * base.cores / case.cores
                yield case.cores, ratio(base.times, case.times, factor), case
