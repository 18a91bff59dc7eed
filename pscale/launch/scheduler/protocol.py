"""What pscale asks of a scheduler, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch.machine import Machine

Phase = Literal["queued", "running", "ended"]
Ending = Literal[
    "completed", "failed", "cancelled", "timeout", "preempted", "node_failed", "out_of_memory", "vanished"
]


class LimitError(LaunchError):
    """The scheduler takes no more jobs of this user at the moment."""


class UnsureError(LaunchError):
    """The scheduler did not answer, so a job may or may not have been submitted."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job: `command` runs once, on its first node, and starts the ranks from there.

    `name` is one word that no other job has; log and exit code go to `folder`.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    cores_per_rank: int
    time_limit_s: float
    launch: Launch  # partition, account and the like; modules and setup

    @property
    def cores_per_node(self) -> int:
        """Cores that the job needs on each node."""
        return self.ranks_per_node * self.cores_per_rank

    @property
    def log(self) -> Path:
        """File of what the job says."""
        return self.folder / "log.txt"


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a job is known by: its name, and the scheduler's id as soon as that is known."""

    name: str
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What the scheduler says of a job. `note` is its reason, in its own words."""

    id: str
    phase: Phase
    ending: Ending | None = None  # once `phase` is "ended"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What jobs may have: nodes of one kind, and for how long; None: no limit, or none that is told."""

    machine: Machine
    longest_s: float | None = None


class Scheduler(Protocol):
    """One kind of batch system. Commands that fail raise LaunchError with what they said."""

    name: str
    submits: str  # the program that submits
    alive: tuple[str, ...]  # a command that fails where the scheduler does not answer
    down: str  # what it says where there is a scheduler, which cannot be reached now

    def render(self, request: JobRequest) -> str:
        """Return the job's script; pure."""
        ...

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command that submits the script; pure."""
        ...

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id.

        Raises LimitError where the user has too many jobs, UnsureError where no answer came.
        """
        ...

    def poll_many(self, tickets: Sequence[Ticket]) -> Mapping[str, Sighting]:
        """Ask once for all jobs; by name. Those of which the scheduler knows nothing are left out."""
        ...

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs; those that have ended are no error."""
        ...

    def shape(self, launch: Launch) -> Shape | None:
        """Return what jobs with this partition may have; None where the scheduler cannot be asked."""
        ...
