"""The journal of a run: what was requested, started and ended, on disk before anything depends on it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pscale.errors import LaunchError, ResultsError, UsageError, writing
from pscale.launch import lock
from pscale.runs import atomic_files
from pscale.runs.run_folders import NAME, check
from pscale.runs.run_shape import check_document, check_records

Key = tuple[str, int]  # case id and repeat

_FORMAT = 1
_DOCUMENT, _RECORDS, _REPORT = "run.json", "journal.jsonl", "report.md"
_CASES, _DATA = "cases", "data"
_PROGRAMS_REACH = _DOCUMENT, _RECORDS, _CASES, _DATA  # from the folders of their launches


class Journal:
    """The folder of one run. Make one with `create` or `open`; hold `locked` while launching.

    Each job of a scheduler writes a `branch` of its own, so that no two hosts ever write to one file; all
    branches are read as one.
    """

    def __init__(self, folder: Path, document: Mapping[str, Any], branch: str = ""):
        self.folder = folder
        self.document = document
        self._branch = branch
        self._place = folder.stat() if folder.is_dir() else None

    @property
    def _own(self) -> Path:
        return self.job_folder(self._branch) if self._branch else self.folder

    def branch(self, name: str) -> Journal:
        """Return this run as job `name` writes it."""
        return Journal(self.folder, self.document, name)

    def job_folder(self, name: str) -> Path:
        """Return where a job has its script, log and branch."""
        return self.folder / "jobs" / name

    @classmethod
    def create(cls, root: Path, suite: str, run_document: Mapping[str, Any]) -> Journal:
        """Make `root`/`suite`/<date and time>/ with its `run.json`, given `format` and `run` here."""
        if suite in ("", ".", "..") or Path(suite).name != suite:
            raise UsageError(f"{suite!r} cannot be the name of a suite: it has to be that of a folder")
        name = f"{datetime.now().strftime(NAME)}-{secrets.token_hex(2)}"
        folder = root.absolute() / suite / name
        document = {**run_document, "format": _FORMAT, "run": name}
        with writing_in(folder, "; --reports FOLDER keeps runs elsewhere"):
            (folder / _CASES).mkdir(parents=True)
            (folder / _DATA).mkdir()
            atomic_files.write(folder / _DOCUMENT, json.dumps(document, indent=1))  # last: now it is a run
        return cls(folder, document)

    @classmethod
    def open(cls, folder: Path) -> Journal:
        """Read the run in `folder`; raises ResultsError if it is none, or of a newer pscale."""
        path = folder.absolute() / _DOCUMENT
        check(path.parent)
        try:
            document = atomic_files.read_json(path)
            version = document["format"]
        except FileNotFoundError as error:
            raise ResultsError(f"{path.parent} is not a run of pscale: it has no {_DOCUMENT}") from error
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ResultsError(
                f"{path.parent} is not a run of pscale: its {_DOCUMENT} cannot be read ({error})"
            ) from error
        if isinstance(version, int) and version > _FORMAT:
            raise ResultsError(f"{path}: format {version}, this pscale reads up to {_FORMAT}; upgrade pscale")
        check_document(document, path)
        return cls(path.parent, document)

    @property
    def name(self) -> str:
        """Name of the run, which sorts by time."""
        return self.folder.name

    @property
    def data(self) -> Path:
        """Folder of the tables."""
        return self.folder / _DATA

    def case_folder(self, key: Key) -> Path:
        """Return where one launch has its input, logs and result."""
        case, repeat = key
        return self.folder / _CASES / f"{case}-{repeat}"

    def launched(self, key: Key, index: int) -> None:
        """Note that a launch is about to be started."""
        self.note("launched", case=key[0], repeat=key[1], order=index)

    def ended(self, key: Key, status: str, reason: str, wall_s: float) -> None:
        """Note that a launch has ended and its row is written."""
        self.note("ended", case=key[0], repeat=key[1], status=status, reason=reason, wall_s=wall_s)

    def note(self, event: str, **facts: Any) -> None:
        """Note anything that happened to the run."""
        record = {"event": event, **facts, "unix_s": time.time()}
        with writing_in(self._own):
            atomic_files.append(self._own / _RECORDS, json.dumps(record).encode())

    def records(self) -> list[dict[str, Any]]:
        """Return all that was noted; a last line that was cut off is left out.

        What one writer noted is in its order, the run itself before its jobs.
        """
        paths = [self.folder / _RECORDS, *sorted((self.folder / "jobs").glob(f"*/{_RECORDS}"))]
        return [record for path in paths for record in self._read(path)]

    def own_records(self) -> list[dict[str, Any]]:
        """Return what this writer noted."""
        return self._read(self._own / _RECORDS)

    def _read(self, path: Path) -> list[dict[str, Any]]:
        try:
            content = atomic_files.read(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1].splitlines()
        try:  # one list is read several times as fast as its lines
            records: list[dict[str, Any]] = json.loads(b"[" + b",".join(whole) + b"]")
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"{path}: a line is damaged: {error}") from error
        check_records(records, path)
        return records

    def left(self, keys: Iterable[Key]) -> list[Key]:
        """Return the launches that have not ended and are still needed."""
        records = self.records()
        finished, enough = _keys(records, "ended"), _enough(records)
        return [key for key in keys if key not in finished and key[0] not in enough]

    def finished(self) -> set[Key]:
        """Return the launches that have ended, well or not."""
        return _keys(self.records(), "ended")

    def statuses(self) -> set[str]:
        """Return how launches have ended."""
        return {record["status"] for record in self.records() if record["event"] == "ended"}

    def interrupted(self) -> set[Key]:
        """Return the launches of this writer without an end: it was killed, or is running them now."""
        return _keys(self.own_records(), "launched") - self.finished()

    def is_finished(self) -> bool:
        """Tell whether every case has all the launches that it needs."""
        auto = self.document.get("auto")
        most = auto["most"] if auto else self.document["repeats"]
        needed = {case["id"] for case in self.document["cases"]} - self.enough()
        ended = Counter(case for case, repeat in self.finished() if repeat < most)
        return all(ended[case] >= most for case in needed)

    def is_over(self) -> bool:
        """Tell whether it is finished and reported, or finished and no report was wanted."""
        reported = (self.folder / _REPORT).exists() or any(r["event"] == "closed" for r in self.own_records())
        return reported and self.is_finished()

    def enough(self) -> set[str]:
        """Return the cases that need no further launch, though they could have more."""
        return _enough(self.records())

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep every other pscale away from this run; yields false where the file system has no locks.

        The lock goes with its process, however that ends. Raises LaunchError if another one has it.
        """
        with ExitStack() as stack:
            with writing_in(self._own):
                try:
                    works = stack.enter_context(lock.held(self._own))
                except lock.TakenError as other:
                    raise LaunchError(
                        f"{self.folder} is in use by another pscale ({other}): "
                        "wait for it or stop it, or start another run with `--new`"
                    ) from None
                self._cut_torn_line()
            yield works

    def check_place(self) -> None:
        """Raise LaunchError where a program has put something else in the place of this run or its files."""
        links = [path for name in _PROGRAMS_REACH if (path := self.folder / name).is_symlink()]
        moved = self._place and not os.path.samestat(self._place, self.folder.stat())
        if links or moved:
            path = links[0] if links else self.folder
            raise LaunchError(f"{path}: a program replaced it; nothing more is written")

    def is_abandoned(self) -> bool:
        """Tell whether the pscale that was the last to work on this run is known to be gone."""
        return lock.is_left(self._own)

    def _cut_torn_line(self) -> None:
        path = self._own / _RECORDS
        if path.exists():
            with os.fdopen(atomic_files.open_to_append(path, os.O_RDWR), "rb") as file:
                file.seek(0)
                os.ftruncate(file.fileno(), file.read().rfind(b"\n") + 1)


def key_of(record: Mapping[str, Any]) -> Key:
    """Return which launch a record is about."""
    return record["case"], record["repeat"]


def _keys(records: Iterable[Mapping[str, Any]], event: str) -> set[Key]:
    return {key_of(record) for record in records if record["event"] == event}


def _enough(records: Iterable[Mapping[str, Any]]) -> set[str]:
    return {record["case"] for record in records if record["event"] == "enough"}


def newest_unfinished(root: Path, suite: str, wanted: str) -> Journal | None:
    """Return the newest run of `suite` with fingerprint `wanted` that has launches to do, or to report."""
    for path in sorted((root / suite).glob(f"*/{_DOCUMENT}"), reverse=True):
        try:
            journal = Journal.open(path.parent)
            if fingerprint(journal.document) == wanted and not journal.is_over():
                return journal
        except (ResultsError, KeyError):  # not ours to continue
            continue
    return None


def fingerprint(run_document: Mapping[str, Any]) -> str:
    """Return a hash that is equal for runs of the same cases on the same kind of machine.

    Only then one can continue the other.
    """
    machine = run_document["provenance"].get("machine", {})
    same = {
        "resolved": run_document["suite"]["resolved"],
        "cases": sorted(case["id"] for case in run_document["cases"]),
        "repeats": run_document["repeats"],
        "machine": {name: machine.get(name) for name in ("cpu_model", "cores")}
        | {"nodes": machine.get("nodes", 1)},
    }
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def writing_in(folder: Path, advice: str = "") -> AbstractContextManager[None]:
    """Turn what the file system says against writing in a folder into a message."""
    return writing(f"in {folder}", LaunchError, advice)
