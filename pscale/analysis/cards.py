"""A folder of runs, a card each: what was run when, how it went, and its best figure.

A card is kept in the folder of its run and made again when the run has changed, so that a list of many runs
takes no longer than reading their cards. Figures are those of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pscale.errors import ResultsError
from pscale.runs import atomic_files
from pscale.runs.run_folders import check, run_folders
from pscale.runs.run_shape import mismatch, trouble_of

if TYPE_CHECKING:  # cards that are kept need no pandas
    from pscale.analysis.findings import Findings

CARD = "card.json"
_VERSION = 6


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


def card(folder: Path, findings: Findings | None = None) -> Card:
    """Return the card of a run: as kept if the run has not changed since, else of its `findings`."""
    stamp = _stamp(folder)
    kept = _kept(folder, stamp)
    if kept is not None:
        return kept
    made = _made(folder, findings)
    with suppress(OSError):  # a folder that may only be read
        atomic_files.write_json(folder / CARD, {"version": _VERSION, "stamp": stamp, **asdict(made)})
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


def _made(folder: Path, findings: Findings | None) -> Card:
    from pscale.analysis.findings import Findings  # noqa: PLC0415 - see above
    from pscale.analysis.frames import load  # noqa: PLC0415
    from pscale.runs.store import Damaged, read_table  # noqa: PLC0415

    damaged: list[Damaged] = []
    try:
        check(folder)
        document = atomic_files.read_json(folder / "run.json")
        if trouble_of(document):
            return _unreadable(folder, "run.json is damaged")
        read_table(folder / "data", "cases", ("case",), damaged)
        findings = findings or Findings(load(folder))
        best = _best(findings)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ResultsError) as error:
        return _unreadable(folder, str(error) if isinstance(error, ResultsError) else "run.json is damaged")
    run, suite = findings.source, document.get("suite", {})
    good, begun = run.cases[run.cases["status"] == "ok"], run.cases["started_unix_s"].dropna()
    return Card(
        run=str(document.get("run") or folder.name),
        path=str(folder),
        suite=str(suite.get("name", "")),
        title=str(suite.get("title", "")),
        begun_unix_s=float(begun.min()) if len(begun) else (folder / "run.json").stat().st_mtime,
        cases=len(document["cases"]),
        cases_ok=good["case"].nunique(),
        launches=findings.launches,
        failed=findings.unsuccessful,
        pending=findings.pending,
        ranks=int(good["ranks"].max()) if len(good) else 0,
        host=str(run.machine.get("host", "")),
        trouble=f"{len(damaged)} parts cannot be read" if damaged else "",
        **best,
    )


_NO_FIGURE: dict[str, Any] = {
    **dict.fromkeys(("metric", "at", "answer"), ""),
    **dict.fromkeys(("value", "low", "high")),
}


def _unreadable(folder: Path, why: str) -> Card:
    counts = dict.fromkeys(("cases", "cases_ok", "launches", "failed", "pending", "ranks"), 0)
    known: dict[str, Any] = {
        "run": folder.name,
        "path": str(folder),
        "begun_unix_s": _stamp(folder)[0] * 1e-9,
    }
    return Card(suite="", title="", host="", trouble=why, **(known | counts | _NO_FIGURE))


def _best(findings: Findings) -> dict[str, Any]:
    """Return the best efficiency at the largest size; without any the largest throughput, and no interval.

    The answer to an efficiency is the worst of what is expected of it, that to a throughput undecided where
    another case of as much work on as many cores may be faster.
    """
    from pscale.analysis.difference import standing  # noqa: PLC0415 - see above
    from pscale.analysis.scaling import step_samples  # noqa: PLC0415

    cases = findings.rows("cases")
    compared = [case for case in cases if case.efficiency and not case.base]
    if compared:
        best = max(compared, key=lambda case: (case.cores, case.efficiency.value))
        asked = [each for each in findings.rows("expectations") if each.metric == "efficiency"]
        answers = {each.answer for each in asked if each.case == best.case}
        answer = next((each for each in ("falls short", "undecided", "holds") if each in answers), "")
        return {
            "metric": "efficiency",
            **{name: getattr(best.efficiency, name) for name in ("value", "low", "high")},
            "at": best.label,
            "answer": answer,
        }
    trained = [case for case in cases if case.samples_per_s]
    if not trained:
        return _NO_FIGURE
    best = max(trained, key=lambda case: case.samples_per_s.value)
    times = step_samples(findings.source)
    rivals = (case for case in trained if (case.batch, case.cores) == (best.batch, best.cores))
    undecided = any(standing(times[case.case], times[best.case]).answer == "undecided" for case in rivals)
    figure = {"metric": "samples_per_s", "value": best.samples_per_s.value, "at": best.label}
    return _NO_FIGURE | figure | {"answer": "undecided" * undecided}
