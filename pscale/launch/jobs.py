"""The jobs of a run, as the journal knows them: what each was to do, and what has become of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pscale import durable
from pscale.errors import LaunchError
from pscale.launch.journal import Journal, Key
from pscale.launch.scheduler.protocol import JobRequest, Ticket

ORDER, SCRIPT, FAILURE, CANCEL = "job.json", "script.sh", "failure.txt", "cancel"  # files in its folder


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """One job. `id` is empty until the scheduler has told it; `ending` until the job is settled."""

    number: int
    name: str
    keys: tuple[Key, ...]
    id: str = ""
    ending: str = ""
    note: str = ""
    charged: tuple[Key, ...] = ()  # launches that the job is to blame for not having done

    @property
    def branch(self) -> str:
        """Name of its folder and of its part of the journal."""
        return branch(self.number)

    @property
    def ticket(self) -> Ticket:
        """What to ask the scheduler by."""
        return Ticket(name=self.name, id=self.id)


def branch(number: int) -> str:
    """Return the name of a job's folder."""
    return f"{number:03}"


def jobs_of(journal: Journal) -> list[SubmittedJob]:
    """Return all jobs of a run, oldest first; one that came to nothing has the ending "withdrawn"."""
    found: dict[int, SubmittedJob] = {}
    for record in Journal(journal.folder, journal.document).own_records():
        number = int(record.get("job", 0))
        match record["event"]:
            case "submitting":
                found[number] = SubmittedJob(
                    number=number, name=record["name"], keys=_keys(record["launches"])
                )
            case "submitted":
                found[number] = replace(found[number], id=record["id"])
            case "withdrawn":
                found[number] = replace(found[number], ending="withdrawn", note=record["note"])
            case "settled":
                found[number] = replace(
                    found[number],
                    ending=record["ending"],
                    note=record["note"],
                    charged=_keys(record["charged"]),
                )
    return list(found.values())


def owners(jobs: Iterable[SubmittedJob]) -> dict[Key, int]:
    """Return which job is to do each launch: the latest that was given it."""
    return {key: job.number for job in jobs if job.ending != "withdrawn" for key in job.keys}


def attempts(jobs: Iterable[SubmittedJob]) -> Counter[Key]:
    """Count how many jobs have failed to do each launch, by their own fault or their nodes'."""
    return Counter(key for job in jobs for key in job.charged)


def write(path: Path, text: str) -> None:
    """Write a file of a job, on disk when this returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, text)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error


def order(journal: Journal, number: int, keys: Iterable[Key], request: JobRequest) -> str:
    """Return what the job reads: which launches of which run, and what it has been asked for."""
    launches = [[case, repeat] for case, repeat in keys]
    document = {
        "format": 1,
        "run": str(journal.folder),
        "job": number,
        "launches": launches,
        "time_limit_s": request.time_limit_s,
        "cores_per_node": request.cores_per_node,
    }
    return json.dumps(document, indent=1)


def _keys(launches: Iterable[tuple[str, int]]) -> tuple[Key, ...]:
    return tuple((case, repeat) for case, repeat in launches)
