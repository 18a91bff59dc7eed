"""`pscale status` and `pscale cancel`: what the jobs of a run do, and their end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pscale.cli.console import changing, new_console
from pscale.errors import LaunchError, ResultsError
from pscale.launch import jobs
from pscale.launch.fleet import POLL_S
from pscale.launch.jobs import SubmittedJob
from pscale.launch.journal import Journal, key_of, newest_run
from pscale.launch.scheduler import SCHEDULERS, Scheduler
from pscale.launch.scheduler.protocol import Sighting
from pscale.launch.settle import ending_of

_LOOK_S = 2.0
_STYLES = {"running": "green", "completed": "green", "queued": "yellow"}


@dataclass(frozen=True, kw_only=True)
class State:
    """A run as it is now."""

    journal: Journal
    jobs: list[SubmittedJob]
    sightings: Mapping[str, Sighting]
    trouble: str = ""  # why the scheduler could not be asked

    def document(self) -> dict[str, Any]:
        """Return the state for JSON."""
        journal = self.journal
        finished = journal.is_finished()  # before the records: if so, they have every end
        records = journal.records()
        ended = {key_of(record): record for record in records if record["event"] == "ended"}
        begun = {key_of(record) for record in records if record["event"] == "launched"}
        labels = {case["id"]: case["label"] for case in journal.document["cases"]}
        return {
            "run": str(journal.folder),
            "launches": len(labels) * journal.document["repeats"],
            "until_precise": journal.document.get("auto") is not None,
            "ended": dict(Counter(record["status"] for record in ended.values())),
            "stopped": self._is_stopped(),
            "under_way": sorted(f"{labels[case]} #{repeat + 1}" for case, repeat in begun - ended.keys()),
            "finished": finished,
            "jobs": [self._job(job, ended.keys()) for job in self.jobs],
            "trouble": self.trouble,
        }

    def _is_stopped(self) -> bool:
        """Tell whether it will not go on by itself: no job is to do it, and who was at it here is gone."""
        return (
            not self.journal.document.get("scheduler")
            and self.journal.is_abandoned()
            and not self.journal.is_finished()
        )

    def _job(self, job: SubmittedJob, ended: Any) -> dict[str, Any]:
        sighting = self.sightings.get(job.name)
        folder = self.journal.job_folder(job.branch)
        state = job.ending or ending_of(folder, sighting) or (sighting.phase if sighting else "unknown")
        return {
            "job": job.id or job.name,
            "state": state,
            "launches": len(job.keys),
            "ended": sum(key in ended for key in job.keys),
            "note": job.note or (sighting.note if sighting else ""),
            "log": str(folder / "log.txt"),
        }


def status(path: Path | None, reports: Path, *, as_json: bool, watch: bool) -> int:
    """Print how a run is; with `watch` until it has finished."""
    journal = _run(path, reports)
    if as_json:
        print(json.dumps(_state(journal).document(), indent=1))
        return 0
    console = new_console()
    if not watch:
        console.print(_page(_state(journal).document()), highlight=False)
        return 0
    poll_s = max(_LOOK_S, float(journal.document.get("poll_s", POLL_S)))
    state, asked = _state(journal), time.monotonic()
    document = state.document()
    with changing(console) as show:
        show(_page(document))
        while not document["finished"]:
            time.sleep(_LOOK_S)
            if time.monotonic() - asked >= poll_s:
                state, asked = _state(journal), time.monotonic()
            else:
                state = State(
                    journal=journal,
                    jobs=jobs.jobs_of(journal),
                    sightings=state.sightings,
                    trouble=state.trouble,
                )
            before, document = document, state.document()
            if document != before:
                show(_page(document))
    return 0


def cancel(path: Path | None, reports: Path) -> int:
    """End all jobs of a run; what has ended is kept, and `pscale run` goes on with the rest."""
    journal = _run(path, reports)
    scheduler = _scheduler(journal)
    open_jobs = [job for job in jobs.jobs_of(journal) if not job.ending]
    if scheduler is None or not open_jobs:
        print(f"{journal.folder} has no jobs that are at work")
        return 0
    known = scheduler.poll_many([job.ticket for job in open_jobs])
    ids = [
        sighting.id for job in open_jobs if (sighting := known.get(job.name)) and sighting.phase != "ended"
    ]
    if ids:
        scheduler.cancel(ids)
    print(
        f"cancelled {', '.join(ids) or 'nothing: no job is at work'}; `pscale run` goes on with what is left"
    )
    return 0


def _run(path: Path | None, reports: Path) -> Journal:
    if path is not None:
        return Journal.open(path)
    found = newest_run(reports)
    if found is None:
        raise ResultsError(f"{reports}: no runs here; make one with 'pscale run SUITE', or name its folder")
    return found


def _scheduler(journal: Journal) -> Scheduler | None:
    name = journal.document.get("scheduler")
    return next((each for each in SCHEDULERS if each.name == name), None)


def _state(journal: Journal) -> State:
    """Ask the scheduler once, if a job may be at work."""
    known, scheduler = jobs.jobs_of(journal), _scheduler(journal)
    open_jobs = [job for job in known if not job.ending]
    if scheduler is None or not open_jobs:
        return State(journal=journal, jobs=known, sightings={})
    try:
        sightings = scheduler.poll_many([job.ticket for job in open_jobs])
    except LaunchError as error:
        return State(journal=journal, jobs=known, sightings={}, trouble=str(error))
    return State(journal=journal, jobs=known, sightings=sightings)


def _page(document: Mapping[str, Any]) -> RenderableType:
    """Return what people see: how many launches have ended and how, and a line for each job."""
    ended, total = document["ended"], document["launches"]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(ended.items()))
    least = "at least " if document["until_precise"] else ""
    lines = [
        document["run"],
        f"{sum(ended.values())} of {least}{total} launches have ended{f': {counts}' if counts else ''}",
    ]
    if document["under_way"]:
        now = "interrupted" if document["stopped"] else "under way"
        lines.append(f"{now}: {', '.join(document['under_way'])}")
    if document["stopped"]:
        lines.append("nobody is at work on it: the same `pscale run` goes on")
    if document["trouble"]:
        lines.append(document["trouble"])
    text = Text("\n".join(lines), overflow="fold")
    return Group(text, "", _jobs(document["jobs"])) if document["jobs"] else text


def _jobs(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in (("job", "left"), ("state", "left"), ("launches", "right"), ("", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for job in rows:
        style = _STYLES.get(job["state"], "red")
        table.add_row(
            escape(job["job"]),
            f"[{style}]{job['state']}[/{style}]",
            f"{job['ended']}/{job['launches']}",
            escape(job["note"]),
        )
    return table
