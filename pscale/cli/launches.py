"""The launches of a run: which are planned, which are still needed, and the row that each leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pscale.cli.workload_tables import program_columns
from pscale.config import Case, from_dict
from pscale.launch.journal import Journal, writing_in
from pscale.launch.outcome import Outcome
from pscale.launch.runner import CaseLaunch, plan_launches
from pscale.runs.store import launch_row, write_part


def planned(journal: Journal) -> list[CaseLaunch]:
    """Return all launches that a run may need, as its document says."""
    document = journal.document
    cases = [from_dict(Case, case) for case in document["cases"]]
    auto = document.get("auto")
    return plan_launches(cases, auto["most"] if auto else document["repeats"], document["seed"])


def needed(journal: Journal) -> str:
    """Return how many launches a run has, in words; with `repeat: auto` that is known in the end."""
    document = journal.document
    count = len(document["cases"]) * document["repeats"]
    return f"at least {count}" if document.get("auto") else str(count)


def write_row(
    journal: Journal,
    launch: CaseLaunch,
    outcome: Outcome,
    predicted: Mapping[str, Any],
    analysed: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the row of a launch that has ended, with the columns that are `predicted` of its case.

    `analysed` is called with the share of its record that is analysed.
    """
    ended = {
        "status": outcome.status,
        "reason": outcome.reason.replace(f"{journal.folder}/", ""),  # runs are moved, with their logs
        "wall_s": outcome.wall_s,
        "started_unix_s": outcome.started_unix_s,
        "launch_index": launch.index,
    }
    row = {**predicted, **launch_row(launch.case, journal.case_folder(launch.key), ended)}
    with writing_in(journal.data):
        if launch.case.workload.command:
            row |= program_columns(journal, launch, outcome, analysed)
        if row["status"] == "ok" and (well := launch.case.well(launch.repeat)) != "ok":
            row |= {"status": well, "step_s": None}
        write_part(journal.data, "cases", *launch.key, [row])
    return row


def outcome_of(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    """Return the outcome as its row states it: the worker may have found its own figures invalid."""
    return replace(outcome, status=row["status"], reason=row["reason"])
