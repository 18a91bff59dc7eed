"""What the end of a job means for its launches: done, to be tried again, or failed for good."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from pscale.launch import jobs
from pscale.launch.jobs import SubmittedJob
from pscale.launch.journal import Journal, Key, key_of
from pscale.launch.outcome import Outcome, Status, tail
from pscale.launch.scheduler import SCHEDULERS
from pscale.launch.scheduler.base import EXIT, Ending, JobStatus
from pscale.runs import atomic_files

_MOST_ATTEMPTS = 2
_QUOTED_LINES = 3
_LOGGED = [pair for scheduler in SCHEDULERS for pair in scheduler.log_endings]
_SAME_STATUS = frozenset(get_args(Status)) & frozenset(get_args(Ending))  # of the job and its launches
_PHRASES: Mapping[Ending, str] = {
    "completed": "ended without an error but did not do all of its launches",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
    "preempted": "was preempted",
    "node_failed": "lost a node",
    "out_of_memory": "ran out of memory",
    "vanished": "was missing in the queue and left no exit code; it was cancelled",
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to the launches that a job did not do. Those not named here are tried again.

    `final` get a row and are not tried again. `deferred` get a row too, but are left to the next
    `pscale run`: a user has cancelled them. `failed` count as an attempt.
    """

    ending: Ending
    note: str
    final: Mapping[Key, Outcome] = field(default_factory=dict)
    deferred: Mapping[Key, Outcome] = field(default_factory=dict)
    failed: tuple[Key, ...] = ()


def ending_of(folder: Path, status: JobStatus | None) -> Ending | None:
    """Return how the job in `folder` ended, from the scheduler's status and the exit code in its folder.

    None: it has not, as far as both know. The scheduler knows better why; the file is there when the
    scheduler has forgotten, and the log may say why it was ended.
    """
    code = exit_code(folder)
    if status is None:
        return None if code is None else "completed" if code == 0 else _logged(folder) or "failed"
    if status.phase != "ended":
        return None
    if status.ending == "completed" and code:
        return "failed"
    if status.ending in {"cancelled", "failed"}:  # some say only in the log that it was for the time
        return _logged(folder) or status.ending
    return status.ending


def _logged(folder: Path) -> Ending | None:
    said = last_words(folder)
    return next((ending for ending, pattern in _LOGGED if re.search(pattern, said)), None)


def exit_code(folder: Path) -> int | None:
    """Return the exit code that the job's script left; None: the script did not end."""
    try:
        return int((folder / EXIT).read_text())
    except (OSError, ValueError):
        return None


def decide(
    journal: Journal, job: SubmittedJob, ending: Ending, note: str, before: Mapping[Key, int]
) -> Decision:
    """Decide about each launch of a job that has ended; `before` counts the failed attempts of earlier jobs.

    Tried again are launches that a failed, preempted, lost or vanished job had started, and those that a job
    did not reach before its time limit. A job that has started none is a failed attempt of all its launches.
    """
    records = journal.branch(job.branch).own_records()
    begun = {key_of(record): float(record["unix_s"]) for record in records if record["event"] == "launched"}
    left = journal.left(job.keys)
    if not left:
        return Decision(ending=ending, note=note)
    folder = journal.job_folder(job.branch)
    said = f" ({note})" if note else ""
    reason = f"job {job.id or job.name} {_PHRASES[ending]}{said}{last_words(folder)}"
    started = {key: begun.get(key, time.time()) for key in left}

    def outcome(key: Key) -> Outcome:
        return Outcome(
            status=cast("Status", ending) if ending in _SAME_STATUS else "failed",
            reason=reason,
            wall_s=time.time() - started[key],
            exit_code=exit_code(folder) or 0,
            started_unix_s=started[key],
        )

    if ending == "cancelled":
        return Decision(ending=ending, note=note, deferred={key: outcome(key) for key in left})
    in_flight = [key for key in left if key in begun]
    failed = in_flight if begun else left
    hopeless = ending in {"timeout", "out_of_memory"} and bool(in_flight)
    over = [key for key in failed if hopeless or before.get(key, 0) + 1 >= _MOST_ATTEMPTS]
    return Decision(ending=ending, note=note, final={key: outcome(key) for key in over}, failed=tuple(failed))


def last_words(folder: Path) -> str:
    """Return the job's own reason for its failure, or the end of its log, and the path of the log."""
    log = folder / "log.txt"
    for path, most in ((folder / jobs.FAILURE, None), (log, -_QUOTED_LINES)):
        with suppress(OSError):
            lines = tail(atomic_files.open_file(path)).splitlines()
            if said := [text for line in lines if (text := line.strip())][most:]:
                return f": {' / '.join(said)} [{log}]"
    return f" [{log}]"
