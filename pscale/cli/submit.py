"""`pscale run` on a login node: submit jobs, tell what becomes of them, come back at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from pscale.cli.keep import keep, needed, planned
from pscale.cli.room import refusals
from pscale.cli.work import Work
from pscale.launch import jobs
from pscale.launch.campaign import Job
from pscale.launch.fleet import Fleet, Yard
from pscale.launch.journal import Journal
from pscale.launch.outcome import Outcome

_STATUS_STYLES = {"ok": "green"}


def fleet(work: Work, journal: Journal, console: Console) -> Fleet:
    """Return the jobs of a run."""
    scheduler = work.ground.where.scheduler
    assert scheduler is not None, "only called where jobs are submitted"

    def on_end(job: Job, outcome: Outcome) -> None:
        keep(journal, job, outcome, work.ground.machine)

    return Fleet(
        journal=journal,
        todo=planned(journal),
        refused=refusals(work.cases, work.ground.machine),
        yard=Yard(scheduler=scheduler, shape=work.ground.shape, poll_s=work.site.poll_s),
        on_end=on_end,
        tell=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )


def wait(found: Fleet, console: Console) -> bool:
    """Stay until all jobs have ended; tell whether all launches have: those that were cancelled are left."""
    teller = _Teller(found, console)
    with console.status("") as line:

        def on_look(fleet: Fleet) -> None:
            teller.news()
            line.update(teller.state(fleet))

        found.launch(wait=True, on_look=on_look)
    return found.journal.is_finished()


class _Teller:
    """Prints each launch once, when it has ended."""

    def __init__(self, found: Fleet, console: Console):
        self._fleet, self._console = found, console
        self._jobs = {job.key: job for job in found.todo}
        self._told, self._needed = found.journal.finished(), needed(found.journal)

    def news(self) -> None:
        """Print what has ended since the last time."""
        ended: Sequence[dict[str, Any]] = [
            record for record in self._fleet.journal.records() if record["event"] == "ended"
        ]
        for record in ended:
            job = self._jobs.get((record["case"], record["repeat"]))
            if job is None or job.key in self._told:
                continue
            self._told.add(job.key)
            style = _STATUS_STYLES.get(record["status"], "red")
            place = f"{len(self._told)}/{self._needed}"
            said = escape(record["reason"]) or f"{record['wall_s']:.3g} s"
            self._console.print(
                f"{place}  {escape(job.case.label)} #{job.repeat + 1}  "
                f"[{style}]{record['status']}[/{style}]  {said}",
                highlight=False,
            )

    def state(self, found: Fleet) -> str:
        """Say in one line what the jobs do."""
        open_jobs = [job for job in jobs.jobs_of(found.journal) if not job.ending]
        phases = Counter(
            sighting.phase if (sighting := found.sightings.get(job.name)) else "submitted"
            for job in open_jobs
        )
        said = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none open"
        return f"{len(self._told)} of {self._needed} launches; jobs: {said}; Ctrl-C leaves them at work"


def detached(journal: Journal) -> str:
    """Say how to go on with a run whose jobs are at work without pscale."""
    folder = journal.folder
    ended = f"{len(journal.finished())} of {needed(journal)} launches have ended"
    return (
        f"{ended}, jobs go on without pscale; run: {folder}\n"
        f"see how it is:       pscale status '{folder}'\n"
        "wait and report:     the same command again\n"
        f"end its jobs:        pscale cancel '{folder}'"
    )
