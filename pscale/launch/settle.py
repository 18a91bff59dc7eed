"""What a job that has ended means for its launches: done, to be tried again, or never to be."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pscale.launch import jobs
from pscale.launch.jobs import SubmittedJob
from pscale.launch.journal import Journal, Key, key_of
from pscale.launch.outcome import Outcome, Status
from pscale.launch.scheduler.protocol import Ending, Sighting
from pscale.launch.scheduler.script import EXIT

_MOST_ATTEMPTS = 2
_QUOTED_LINES, _QUOTED_BYTES = 3, 16 << 10
_LOGGED: tuple[tuple[Ending, str], ...] = (  # what schedulers leave in the log when they end a job
    ("timeout", r"DUE TO TIME LIMIT|job killed: walltime \d+ exceeded limit|TERM_RUNLIMIT"),
    ("node_failed", r"DUE TO NODE FAILURE"),
    ("preempted", r"DUE TO PREEMPTION|TERM_PREEMPT"),
    ("out_of_memory", r"oom[-_]kill|job killed: mem|TERM_MEMLIMIT"),
    ("cancelled", r"\*\*\* JOB \S+ ON \S+ CANCELLED AT|TERM_OWNER|TERM_ADMIN"),
)
_STATUS: Mapping[Ending, Status] = {
    "timeout": "timeout",
    "cancelled": "cancelled",
    "preempted": "preempted",
    "node_failed": "node_failed",
    "vanished": "vanished",
}
_PHRASES: Mapping[Ending, str] = {
    "completed": "ended without an error but did not do all of its launches",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
    "preempted": "was preempted",
    "node_failed": "lost a node",
    "out_of_memory": "ran out of memory",
    "vanished": "is unknown to the scheduler and left no exit code",
}


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What becomes of the launches that a job did not do. Others were done, or are to be tried again.

    `rows` are over: they get the row and are not tried again. `aside` get the row too, but stay to be done by
    the next `pscale run`: a person has cancelled them. `charged` count as an attempt.
    """

    ending: Ending
    note: str
    rows: Mapping[Key, Outcome] = field(default_factory=dict)
    aside: Mapping[Key, Outcome] = field(default_factory=dict)
    charged: tuple[Key, ...] = ()


def ending_of(folder: Path, sighting: Sighting | None) -> Ending | None:
    """Return how the job in `folder` ended, by the scheduler's word and by the exit code that it left.

    None: it has not, as far as both know. The scheduler knows better why; the file is there when the
    scheduler has forgotten, and the log may say why it was ended.
    """
    code = exit_code(folder)
    if sighting is None:
        return None if code is None else "completed" if code == 0 else _logged(folder) or "failed"
    if sighting.phase != "ended":
        return None
    if sighting.ending == "completed" and code:
        return "failed"
    if sighting.ending in {"cancelled", "failed"}:  # PBS says in the log alone that it was for the time
        return _logged(folder) or sighting.ending
    return sighting.ending


def _logged(folder: Path) -> Ending | None:
    said = last_words(folder)
    return next((ending for ending, pattern in _LOGGED if re.search(pattern, said)), None)


def exit_code(folder: Path) -> int | None:
    """Return the exit code that the job's script left; None: it did not come to its end."""
    try:
        return int((folder / EXIT).read_text())
    except (OSError, ValueError):
        return None


def settle(
    journal: Journal, job: SubmittedJob, ending: Ending, note: str, before: Mapping[Key, int]
) -> Settlement:
    """Decide about each launch of a job that has ended; `before` counts the attempts of earlier jobs.

    Tried again is what a failed, preempted, lost or vanished job has begun, and what a job that reached its
    time limit has not come to. A job that has not begun anything is to blame for all of its launches.
    """
    records = journal.branch(job.branch).own_records()
    begun = {key_of(record): float(record["unix_s"]) for record in records if record["event"] == "launched"}
    left = journal.left(job.keys)
    if not left:
        return Settlement(ending=ending, note=note)
    reason = _reason(journal, job, ending, note)
    started = {key: begun.get(key, time.time()) for key in left}

    def outcome(key: Key) -> Outcome:
        return Outcome(
            status=_STATUS.get(ending, "failed"),
            reason=reason,
            wall_s=time.time() - started[key],
            exit_code=exit_code(journal.job_folder(job.branch)) or 0,
            started_unix_s=started[key],
        )

    if ending == "cancelled":
        return Settlement(ending=ending, note=note, aside={key: outcome(key) for key in left})
    in_flight = [key for key in left if key in begun]
    charged = in_flight if begun else left
    hopeless = ending in {"timeout", "out_of_memory"} and bool(in_flight)
    over = [key for key in charged if hopeless or before.get(key, 0) + 1 >= _MOST_ATTEMPTS]
    return Settlement(
        ending=ending, note=note, rows={key: outcome(key) for key in over}, charged=tuple(charged)
    )


def _reason(journal: Journal, job: SubmittedJob, ending: Ending, note: str) -> str:
    folder = journal.job_folder(job.branch)
    said = f" ({note})" if note else ""
    return f"job {job.id or job.name} {_PHRASES[ending]}{said}{last_words(folder)}"


def last_words(folder: Path) -> str:
    """Return why the job itself says that it failed, or the end of its log, and where that is."""
    log = folder / "log.txt"
    for path, most in ((folder / jobs.FAILURE, None), (log, -_QUOTED_LINES)):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _QUOTED_BYTES))
                lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        except OSError:
            continue
        if said := [line for line in lines if line][most:]:
            return f": {' / '.join(said)} [{log}]"
    return f" [{log}]"
