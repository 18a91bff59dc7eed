"""The journal of a run: what was requested, started and ended, on disk before anything depends on it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from pscale.errors import LaunchError, ResultsError, UsageError, writing
from pscale.runs import atomic_files
from pscale.runs.run_events import Closed, Ended, Enough, Event, Finished, Key, Launched, event_of, record_of
from pscale.runs.run_folders import NAME, check
from pscale.runs.run_shape import check_document, check_records

Observer = Callable[[Event], None]

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
        self._observers: list[Observer] = []
        self._told: dict[Path, int] = {}  # records of each file that observers know

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

    def note(self, event: Event) -> None:
        """Note what happened to the run, then tell the observers."""
        with writing_in(self._own):
            atomic_files.append(self._own / _RECORDS, json.dumps(record_of(event)).encode())
        self._tell(self._own / _RECORDS, [event])

    def observe(self, observer: Observer) -> None:
        """Call `observer` with each event from now on: of this writer, and what `look` finds of others."""
        self._observers.append(observer)
        self._told = {path: len(self._read(path)) for path in self._paths()}

    def ignore(self, observer: Observer) -> None:
        """Call `observer` no more."""
        self._observers = [each for each in self._observers if each is not observer]

    def finish(self) -> None:
        """Tell the observers that nothing more happens to the run, and then nothing else."""
        event = Finished(complete=self.is_finished())
        for observer in self._observers:
            observer(event)
        self._observers = []

    def look(self) -> None:
        """Tell the observers what all writers have noted since the last time."""
        for path in self._paths():
            self._tell(path, self._read(path)[self._told.get(path, 0) :])

    def _tell(self, path: Path, events: Sequence[Event]) -> None:
        self._told[path] = self._told.get(path, 0) + len(events)
        for event in events:
            for observer in self._observers:
                observer(event)

    def events(self) -> list[Event]:
        """Return what was noted, but for a last line that was cut off and events of other versions.

        What one writer noted is in its order, the run itself before its jobs.
        """
        return [event for path in self._paths() for event in self._read(path)]

    def _paths(self) -> list[Path]:
        return [self.folder / _RECORDS, *sorted((self.folder / "jobs").glob(f"*/{_RECORDS}"))]

    def own_events(self) -> list[Event]:
        """Return what this writer noted."""
        return self._read(self._own / _RECORDS)

    def _read(self, path: Path) -> list[Event]:
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
        return [event for record in records if (event := event_of(record))]

    def left(self, keys: Iterable[Key]) -> list[Key]:
        """Return the launches that have not ended and are still needed."""
        events = self.events()
        ended = {event.key for event in events if isinstance(event, Ended)}
        enough = {event.case for event in events if isinstance(event, Enough)}
        return [key for key in keys if key not in ended and key[0] not in enough]

    def finished(self) -> set[Key]:
        """Return the launches that have ended, well or not."""
        return set(self.ends())

    def ends(self) -> dict[Key, Ended]:
        """Return the end of each launch that has ended."""
        return {event.key: event for event in self.events() if isinstance(event, Ended)}

    def interrupted(self) -> set[Key]:
        """Return the launches of this writer without an end: it was killed, or is running them now."""
        return {event.key for event in self.own_events() if isinstance(event, Launched)} - self.finished()

    def is_finished(self) -> bool:
        """Tell whether every case has all the launches that it needs."""
        auto = self.document.get("auto")
        most = auto["most"] if auto else self.document["repeats"]
        needed = {case["id"] for case in self.document["cases"]} - self.enough()
        ended = Counter(case for case, repeat in self.finished() if repeat < most)
        return all(ended[case] >= most for case in needed)

    def is_over(self) -> bool:
        """Tell whether it is finished and reported, or finished and no report was wanted."""
        is_closed = any(isinstance(event, Closed) for event in self.own_events())
        return ((self.folder / _REPORT).exists() or is_closed) and self.is_finished()

    def enough(self) -> set[str]:
        """Return the cases that need no further launch, though they could have more."""
        return {event.case for event in self.events() if isinstance(event, Enough)}

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep every other pscale away from this run; yields false where the file system has no locks.

        The lock goes with its process, however that ends. Raises LaunchError if another one has it.
        """
        with ExitStack() as stack:
            with writing_in(self._own):
                try:
                    works = stack.enter_context(held(self._own))
                except TakenError as other:
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
        return is_left(self._own)

    def _cut_torn_line(self) -> None:
        path = self._own / _RECORDS
        if path.exists():
            with os.fdopen(atomic_files.open_to_append(path, os.O_RDWR), "rb") as file:
                file.seek(0)
                os.ftruncate(file.fileno(), file.read().rfind(b"\n") + 1)


def newest_unfinished(root: Path, suite: str, document: Mapping[str, Any]) -> Journal | None:
    """Return the newest run of `suite` that a new one may continue, with launches to do, or to report."""
    for path in sorted((root / suite).glob(f"*/{_DOCUMENT}"), reverse=True):
        try:
            journal = Journal.open(path.parent)
            if are_alike(journal.document, document) and not journal.is_over():
                return journal
        except (ResultsError, KeyError):  # not ours to continue
            continue
    return None


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two runs are of the same cases on the same kind of machine: one can continue the other.

    Fields of a suite that one of them lacks are those of another version; what they change, changes cases.
    """

    def of_run(document: Mapping[str, Any]) -> tuple[Any, ...]:
        machine = document["provenance"].get("machine", {})
        kind = [machine.get(name) for name in ("cpu_model", "cores")]
        return (
            sorted(case["id"] for case in document["cases"]),
            document["repeats"],
            kind,
            machine.get("nodes", 1),
        )

    def agree(value: Any, same: Any) -> bool:
        if isinstance(value, Mapping) and isinstance(same, Mapping):
            return all(agree(value[name], same[name]) for name in value.keys() & same.keys())
        return bool(value == same)

    suites = [json.loads(json.dumps(document["suite"]["resolved"])) for document in (one, other)]
    return of_run(one) == of_run(other) and agree(*suites)


def writing_in(folder: Path, advice: str = "") -> AbstractContextManager[None]:
    """Turn what the file system says against writing in a folder into a message."""
    return writing(f"in {folder}", LaunchError, advice)


FILE = "lock"
_PATIENCE_S, _PAUSE_S = 10.0, 0.05
UNLOCKED = (
    "this file system has no locks, so nothing prevents a second pscale from using this run: start none"
)


class TakenError(Exception):
    """Another process has the lock; names it, if known."""


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder`; yields false where its file system has no locks.

    It ends with its process, however that ends. Raises TakenError, and OSError where it cannot be written.
    """
    descriptor = atomic_files.open_to_append(folder / FILE, os.O_RDWR)
    with os.fdopen(descriptor, "a+", encoding="utf-8") as lock:
        works = _locked(lock.fileno(), folder)
        if works is None:
            lock.seek(0)
            raise TakenError(lock.read().strip() or "unknown")
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield works


def _locked(descriptor: int, folder: Path) -> bool | None:
    """Lock as `try_lock` does, waiting for what one that is gone has left behind.

    Killed while it starts a program, a process leaves a copy of itself that has the lock until it becomes
    that program.
    """
    patience = time.monotonic() + _PATIENCE_S
    while (works := try_lock(descriptor)) is None and is_left(folder) and time.monotonic() < patience:
        time.sleep(_PAUSE_S)
    return works


def is_left(folder: Path) -> bool:
    """Tell whether the last owner of the lock is known to have ended: a zombie has."""
    try:
        _, word, _, host = atomic_files.read(folder / FILE).decode().split()
        process = int(word)
    except (OSError, ValueError):
        return False
    import psutil  # noqa: PLC0415 - takes its time, and who only reads a journal asks for no lock

    if host != socket.gethostname():
        return False
    with suppress(psutil.Error):
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    return not psutil.pid_exists(process)  # of another user's it may be all that can be known


def try_lock(descriptor: int) -> bool | None:
    """Lock a file: true if it is ours now, None if it is another's, false where that cannot be known."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks
        return False
    return True
