"""What a job of a scheduler runs: `python -m pscale.cli.job JOB_FOLDER` does the job's launches."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pscale.cli import fail, tell
from pscale.cli.costs import memory_fits, refusals
from pscale.cli.launches import Rounds, planned, settle
from pscale.cli.workload_tables import watching
from pscale.errors import INTERRUPTED, LaunchError, PscaleError
from pscale.launch import jobs, machine, runner
from pscale.launch.outcome import Outcome
from pscale.launch.runner import CaseLaunch
from pscale.launch.selection import select
from pscale.launch.target import detect_site
from pscale.runs import atomic_files
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended

_RESERVE_S = 10.0  # before the end of the job
_END_DELAY_S = 3.0  # the scheduler may end the ranks before this process


def main(folder: Path, sleep: Callable[[float], None] = time.sleep) -> int:
    """Do the launches of the job in `folder`; returns its exit code."""
    try:
        work_order = atomic_files.read_json(folder / jobs.WORK_ORDER)
        journal = Journal.open(Path(work_order["run"])).branch(jobs.branch(work_order["job"]))
        _launch(journal, work_order, sleep)
    except PscaleError as error:
        fail(str(error))
        with contextlib.suppress(LaunchError):  # the disk may be what is full
            jobs.write(folder / jobs.FAILURE, str(error))
        return error.exit_code
    except KeyboardInterrupt:  # the scheduler ends the job
        print("pscale: terminated by a signal", file=sys.stderr)
        return INTERRUPTED
    return 0


def _launch(journal: Journal, work_order: dict[str, Any], sleep: Callable[[float], None]) -> None:
    site = detect_site("auto", os.environ)
    if site.allocation is None:
        raise LaunchError(f"this is not inside a job: {site.reason}")
    nodes = site.allocation.machine(machine.inspect()).at_least(work_order["cores_per_node"])
    mine = {(case, repeat) for case, repeat in work_order["launches"]}
    todo = [launch for launch in planned(journal) if launch.key in mine]
    launcher = select(todo[0].case.launch, site.allocation, nodes)
    tell(f"{site.reason}; started by {' '.join(launcher.opening)}")
    cases = {launch.case.id: launch.case for launch in todo}.values()
    fits = memory_fits(cases, nodes)
    own = {case for case, _ in mine}
    rounds = Rounds(journal, own) if journal.document.get("auto") else None
    deadline = time.monotonic() + work_order["time_limit_s"] - _RESERVE_S
    begun = False

    def is_due(launch: CaseLaunch) -> bool:
        """Tell whether to start a launch: the first always, others if they are still ours and in time."""
        nonlocal begun
        owner = jobs.owners(jobs.jobs_of(journal)).get(launch.key)
        in_time = time.monotonic() + launch.case.launch.time_limit_s < deadline
        if owner != work_order["job"] or (begun and not in_time):
            return False
        begun = True
        return rounds is None or rounds.wanted(launch)

    def settled(launch: CaseLaunch, outcome: Outcome) -> Ended:
        if outcome.status == "failed":  # by what ends the job? Then an interrupt follows
            sleep(_END_DELAY_S)
        end = settle(journal, fits, launch, outcome)
        tell(f"{launch.case.label} #{launch.repeat + 1}: {end.status} {end.reason}".rstrip())
        return end

    runner.run(
        journal,
        todo,
        launcher,
        nodes,
        settle=settled,
        refused=refusals(fits, starts_here=True),
        attempts=runner.ATTEMPTS_IN_JOBS,
        tell=tell,
        watching=watching(launcher),
        wanted=is_due,
    )
    if rounds:
        rounds.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
