"""The row of a launch: written when it has ended, whoever saw it end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pscale.cli.room import Room
from pscale.config import Case, from_dict
from pscale.errors import LaunchError
from pscale.launch import campaign
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal
from pscale.launch.machine import Machine
from pscale.launch.outcome import Outcome
from pscale.results.rows import launch_row
from pscale.results.store import write_part


def keep(journal: Journal, job: Job, outcome: Outcome, here: Machine) -> dict[str, Any]:
    """Write the row of a launch that has ended on `here`."""
    ended = {
        "status": outcome.status,
        "reason": outcome.reason.replace(f"{journal.folder}/", ""),  # runs are moved, with their logs
        "wall_s": outcome.wall_s,
        "started_unix_s": outcome.started_unix_s,
        "order": job.order,
    }
    row = Room(job.case, here).columns() | launch_row(job.case, journal.case_folder(job.key), ended)
    try:
        write_part(journal.data, "cases", *job.key, [row])
    except OSError as error:
        raise LaunchError(f"cannot write in {journal.data}: {error.strerror or error}") from error
    return row


def as_kept(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    """Return how a launch ended as its row tells it: of figures that do not hold the job itself knows."""
    return replace(outcome, status=row["status"], reason=row["reason"])


def needed(journal: Journal) -> str:
    """Say how many launches a run has; with `repeat: auto` that is known in the end."""
    document = journal.document
    count = len(document["cases"]) * document["repeats"]
    return f"at least {count}" if document.get("auto") else str(count)


def planned(journal: Journal) -> list[Job]:
    """Return all launches that a run may need, as its document says."""
    document = journal.document
    cases = [
        from_dict(Case, {name: value for name, value in case.items() if name != "id"})
        for case in document["cases"]
    ]
    auto = document.get("auto")
    return campaign.launches(cases, auto["most"] if auto else document["repeats"], document["seed"])
