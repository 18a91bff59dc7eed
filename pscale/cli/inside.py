"""What a job of a scheduler runs: `python -m pscale.cli.inside JOB_FOLDER` does the job's launches."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pscale.cli.auto import UntilPrecise
from pscale.cli.keep import as_kept, keep, planned
from pscale.errors import INTERRUPTED, LaunchError, PscaleError
from pscale.launch import campaign, jobs, machine, ways
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal
from pscale.launch.outcome import Outcome
from pscale.launch.whereabouts import decide

_RESERVE_S = 10.0  # before the end of the job
_HEARSAY_S = 3.0  # until this process hears that the job is over, which its ranks may have heard already


def main(folder: Path) -> int:
    """Do the launches of the job in `folder`; returns its exit code."""
    try:
        order = json.loads((folder / jobs.ORDER).read_text(encoding="utf-8"))
        journal = Journal.open(Path(order["run"])).branch(jobs.branch(order["job"]))
        _launch(journal, order)
    except PscaleError as error:
        print(f"pscale: {error}", file=sys.stderr)
        with contextlib.suppress(LaunchError):  # the disk may be what is full
            jobs.write(folder / jobs.FAILURE, str(error))
        return error.exit_code
    except KeyboardInterrupt:  # the scheduler ends the job
        print("pscale: ended from outside", file=sys.stderr)
        return INTERRUPTED
    return 0


def _launch(journal: Journal, order: dict[str, Any]) -> None:
    where = decide("auto", os.environ)
    if where.inside is None:
        raise LaunchError(f"this is not inside a job: {where.why}")
    ground = where.inside.machine(machine.inspect()).at_least(order["cores_per_node"])
    mine = {(case, repeat) for case, repeat in order["launches"]}
    todo = [job for job in planned(journal) if job.key in mine]
    launcher = ways.find(todo[0].case.launch, where.inside, ground)
    print(f"{where.why}; started by {' '.join(launcher.opening)}", flush=True)
    until = UntilPrecise(journal) if journal.document.get("auto") else None
    turn = _Turn(journal, order["job"], time.monotonic() + order["time_limit_s"] - _RESERVE_S)

    def on_end(job: Job, outcome: Outcome) -> Outcome:
        if outcome.status == "failed":  # by what ends the job? Then an interrupt is to come
            time.sleep(_HEARSAY_S)
        kept = as_kept(outcome, keep(journal, job, outcome, ground))
        print(f"{job.case.label} #{job.repeat + 1}: {kept.status} {kept.reason}".rstrip(), flush=True)
        return kept

    campaign.run(
        journal,
        todo,
        launcher,
        ground,
        on_start=lambda _: None,
        on_end=on_end,
        attempts=campaign.ATTEMPTS_IN_JOBS,
        tell=lambda text: print(text, flush=True),
        wanted=lambda job: turn.has_come(job) and (until is None or until.wanted(job)),
    )


class _Turn:
    """Tells whether a launch is still this job's to do, and whether there is time for it."""

    def __init__(self, journal: Journal, number: int, deadline: float):
        self._journal, self._number, self._deadline = journal, number, deadline
        self._begun = False

    def has_come(self, job: Job) -> bool:
        """Leave to others what a later job was given, and what may be cut off; the first is tried anyway."""
        owner = jobs.owners(jobs.jobs_of(self._journal)).get(job.key)
        in_time = time.monotonic() + job.case.launch.time_limit_s < self._deadline
        if owner != self._number or (self._begun and not in_time):
            return False
        self._begun = True
        return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
