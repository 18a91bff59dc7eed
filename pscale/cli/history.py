"""`pscale history`: what became of a suite from run to run, and whether the newest level is worse."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pscale.analysis import messages
from pscale.analysis.difference import RELEVANT
from pscale.analysis.frames import load
from pscale.analysis.history import SuiteHistory, accepting, entries_of, is_worse, suite_history
from pscale.cli import tell
from pscale.cli.console import new_console
from pscale.cli.options import History, percentage
from pscale.errors import FAILED, UNDECIDED, ResultsError, UsageError, writing
from pscale.report.comparison import FORMAT, history_document, history_sheet
from pscale.runs import history as files
from pscale.runs.atomic_files import to_json
from pscale.runs.run_folders import run_folder

_CODES = {"slower": FAILED, "undecided": UNDECIDED, "faster": 0, "equal": 0}


def added(path: Path, folder: Path) -> str:
    """Add a run to the history of its suite, but for what already exists; return what was done."""
    run = load(path)
    suite = str(run.suite.get("name") or "")
    file, measured = files.path_of(folder, suite), entries_of(run)
    if not measured:
        raise ResultsError(f"{path}: no case was measured, so there is nothing to add")
    known = {(entry.run, entry.label): len(entry.steps) for entry in files.read(folder, suite).entries}
    new = [entry for entry in measured if known.get((entry.run, entry.label), 0) < len(entry.steps)]
    if new:
        files.append(folder, suite, new)
    left = f", {len(measured) - len(new)} were there" if len(new) < len(measured) else ""
    return f"{file}: {len(new)} of {len(measured)} cases of {measured[0].run} added{left}"


def history(options: History) -> int:
    """Show the histories of suites, or add runs to them; returns what a check answers, else 0.

    `accept` is a reason to accept newest levels as normal: those of `cases`, or all that are worse.
    """
    words, accept, cases = options.words or [], options.accept, options.cases or []
    folder, check, as_format = options.folder, options.check, options.as_format
    if words[:1] == ["add"]:
        if check or accept is not None or cases:
            raise UsageError("'pscale history add' only adds runs; --check and --accept take a suite")
        runs = [run_folder(Path(word), options.reports) for word in words[1:]]
        for path in runs or [run_folder(None, options.reports)]:
            tell(added(path, folder))
        return 0
    if len(words) > 1:
        raise UsageError(f"name one suite, or none for all: got {', '.join(words)}")
    least = RELEVANT if options.relevant is None else percentage("--relevant", options.relevant)
    suites = list(words) or files.suites(folder)
    if cases and accept is None:
        raise UsageError("--case names what --accept takes for normal; give --accept REASON with it")
    if accept is not None and len(suites) != 1:
        raise UsageError("--accept takes one suite: pscale history SUITE --accept REASON")
    if not suites:
        raise ResultsError(f"{folder}: no histories here; begin one with 'pscale history add RUN'")
    histories = [_read(suite, folder, least) for suite in suites]
    if accept is not None:
        _accept(histories[0], folder, accept.strip(), cases)
        histories = [_read(suites[0], folder, least)]
    _show(histories, folder, as_format, quiet=check and as_format == "terminal")
    return max((_CODES[each.answer] for each in histories), key=(0, UNDECIDED, FAILED).index) if check else 0


def _read(suite: str, folder: Path, relevant: float) -> SuiteHistory:
    path = files.path_of(folder, suite)
    if not path.exists():
        known = ", ".join(files.suites(folder)) or "none yet: pscale history add RUN"
        raise ResultsError(f"{path}: no history of '{suite}'; known here: {known}")
    return suite_history(files.read(folder, suite), relevant)


def _accept(history: SuiteHistory, folder: Path, reason: str, cases: Sequence[str]) -> None:
    """Record that newest levels are normal from now on."""
    if not reason:
        raise UsageError("--accept: give a reason, such as 'checkpointing saves memory'")
    labels = [case.label for case in history.cases]
    if unknown := [case for case in cases if case not in labels]:
        raise UsageError(f"--case: no case '{unknown[0]}'; known are {', '.join(labels)}")
    accepted = accepting(history, cases, reason, time.time())
    if not accepted:
        raise UsageError(
            f"{history.suite}: no case is worse, so there is nothing to accept; --case names one"
        )
    files.append(folder, history.suite, accepted)


def _show(histories: Sequence[SuiteHistory], folder: Path, as_format: str, *, quiet: bool) -> None:
    match as_format:
        case "terminal":
            _print(histories, quiet=quiet)
        case "json":
            suites = [history_document(each) for each in histories]
            print(to_json({"format": FORMAT, "kind": "pscale history", "suites": suites}))
        case "html":
            _write_pages(histories, folder)
        case _:
            print("".join(history_sheet(each).render(as_format) for each in histories), end="")


def _print(histories: Sequence[SuiteHistory], *, quiet: bool) -> None:
    """Print tables, or for a check what is worse or undecided alone."""
    console = new_console(highlight=False)
    for place, each in enumerate(histories):
        if place:
            console.print()
        if not quiet:
            history_sheet(each).print(console)
            continue
        tell(history_sheet(each).headline)
        for case in each.cases:
            if is_worse(case) or case.answer == "undecided":
                since = f", since {case.since}: {case.cause}" if case.since and is_worse(case) else ""
                tell(f"  {case.label}: {messages.case_history(case)}{since}")
        if each.damaged:
            tell(f"  {messages.damaged_lines(each.damaged)}")


def _write_pages(histories: Sequence[SuiteHistory], folder: Path) -> None:
    from pscale.report.brief import write_changed
    from pscale.report.comparison import render_history

    for each in histories:
        path = files.path_of(folder, each.suite).with_suffix(".html")
        with writing(path):
            tell(str(write_changed(path, render_history(each))))
