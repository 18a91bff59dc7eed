"""What happens to a run: the records of its journal, which are the lines of `pscale run --events` too.

Fields and events may be added; names and meanings stay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

Key = tuple[str, int]  # case id and repeat


@dataclass(frozen=True, kw_only=True)
class _Event:
    unix_s: float = field(default_factory=time.time, compare=False)
    """Time of the event."""


@dataclass(frozen=True, kw_only=True)
class _OfLaunch(_Event):
    case: str
    """Content id of the case."""
    repeat: int
    """Number of the launch among those of its case, from 0."""

    @property
    def key(self) -> Key:
        """What identifies the launch in the journal."""
        return self.case, self.repeat


@dataclass(frozen=True, kw_only=True)
class Launched(_OfLaunch):
    """A launch is about to start."""

    order: int
    """Place of the launch in the run's random order, from 0."""


@dataclass(frozen=True, kw_only=True)
class Ended(_OfLaunch):
    """A launch has ended, or is not to be started; its row is written."""

    status: str
    """`ok`, or why the launch does not count: `failed`, `timeout`, `hung`, `skipped`, `warm-up` and so on."""
    reason: str
    """Why the status is not `ok`, in one line."""
    wall_s: float
    """Time of the whole launch."""
    step_s: float | None = None
    """Step time of the launch; null without one, and in runs of older versions."""


@dataclass(frozen=True, kw_only=True)
class Enough(_Event):
    """`repeat: auto`: a case needs no more launches."""

    case: str
    """Content id of the case."""
    launches: int = 0
    """Launches that count."""
    half_width: float | None = None
    """Half of the 95 % interval of the efficiency or step time, relative to the value; null: unknown."""


@dataclass(frozen=True, kw_only=True)
class Built(_Event):
    """The build of a case has ended."""

    case: str
    """Content id of the case."""
    command: str
    """Command of the build."""
    reason: str
    """Why the build failed; empty: it did not."""
    sha256: dict[str, str]
    """Hashes of the files that the case names, by their names."""


@dataclass(frozen=True, kw_only=True)
class Checked(_Event):
    """One launch has shown whether the ranks of a program meet in one MPI world."""

    program: str
    """The program, with its command."""
    reason: str
    """Why they do not; empty: they do, or nothing is known."""


@dataclass(frozen=True, kw_only=True)
class _OfJob(_Event):
    job: int
    """Number of the scheduler's job in the run, from 1."""


@dataclass(frozen=True, kw_only=True)
class Submitting(_OfJob):
    """A job is about to be submitted."""

    name: str
    """Name of the job for the scheduler."""
    launches: list[Key]
    """Launches of the job: case and repeat of each."""


@dataclass(frozen=True, kw_only=True)
class Submitted(_OfJob):
    """The scheduler has accepted a job."""

    id: str
    """Id of the job for the scheduler."""


@dataclass(frozen=True, kw_only=True)
class Withdrawn(_OfJob):
    """A job was not submitted."""

    note: str
    """Why not."""


@dataclass(frozen=True, kw_only=True)
class Settled(_OfJob):
    """A job has ended, and its launches count as done, are tried again, or have failed for good."""

    ending: str
    """How the job ended: `completed`, `failed`, `cancelled`, `timeout`, `preempted` and so on."""
    note: str
    """The scheduler's reason."""
    charged: list[Key]
    """Launches of which this was a failed attempt."""


@dataclass(frozen=True, kw_only=True)
class Closed(_Event):
    """All launches have ended, and no report is wanted: the last record of the journal."""


@dataclass(frozen=True, kw_only=True)
class Opened(_Event):
    """A run begins or is continued: the first of its lines, and in no journal."""

    folder: str
    """Folder of the run."""
    suite: str
    """Name of the suite."""
    cases: list[dict[str, Any]]
    """The cases: `id`, `label`, `series`, `ranks` and `threads` of each."""
    launches: int
    """Launches of the run; with `until_precise` the fewest."""
    until_precise: bool
    """Whether the suite has `repeat: auto`."""
    ended: int
    """Launches that have ended before."""


@dataclass(frozen=True, kw_only=True)
class Finished(_Event):
    """Nothing more happens to the run by this command: the last of its lines, and in no journal."""

    complete: bool
    """Whether every launch that the run needs has ended."""


def record_of(event: Event) -> dict[str, Any]:
    """Return an event as a journal has it."""
    return {"event": type(event).__name__.lower(), **vars(event)}


def event_of(record: Mapping[str, Any]) -> Event | None:
    """Return the event of a record; None for one of another version."""
    kind = KINDS.get(record["event"])
    known = kind.__dataclass_fields__.keys() & record.keys() if kind else ()
    return kind(**{name: record[name] for name in known}) if kind else None


_OfLaunches = Launched | Ended | Enough | Built | Checked
_OfJobs = Submitting | Submitted | Withdrawn | Settled
Event = Opened | _OfLaunches | _OfJobs | Closed | Finished
KINDS: dict[str, Any] = {kind.__name__.lower(): kind for kind in get_args(Event)}
