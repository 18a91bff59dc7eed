"""Whether the files of a report are still those of its run: then none is drawn or written again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pscale import __version__
from pscale.report.answer import Answer
from pscale.report.text import clean
from pscale.runs import atomic_files, run_folders

FILE = "drawn.json"  # in a run's folder; of this copy of the run alone, as it holds times of files
_OF_A_RUN = ("run.json", "journal.jsonl")
_CODE = Path(__file__).parents[1]
Stamp = list[list[str | int]]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a report is made of: files of a run, this version of pscale, and what was asked for."""

    folder: Path
    asked: Sequence[object]  # the version, and the formats of figures; None: no figures
    files: Stamp

    @classmethod
    def of(cls, folder: Path, formats: Sequence[str] | None) -> Sources:
        """Look at them as they are now: before they are read."""
        return cls(
            folder=folder,
            asked=[__version__, None if formats is None else list(formats)],
            files=[*_run(folder), *_code()],
        )

    def drawn(self) -> Answer | None:
        """Return what the last report said; None if it was not made of these, or its files have changed."""
        file = self.folder / FILE
        if file.is_symlink():
            return None
        try:
            known = atomic_files.read_json(file)
            written = [self.folder / name for name, *_ in known["written"]]
            now = {"asked": self.asked, "files": self.files, "written": _stamps(self.folder, written)}
            if any(known[name] != value for name, value in now.items()):
                return None
            answer = Answer.read(known["answer"])
            return replace(answer, page=answer.page and clean(str(self.folder / "report.html")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def remember(self, written: Sequence[Path], answer: Answer) -> None:
        """Note that a report was made of these, and what it said."""
        document = {
            "asked": self.asked,
            "files": self.files,
            "written": _stamps(self.folder, written),
            "answer": answer.document(),
        }
        with suppress(OSError), atomic_files.create(self.folder / FILE) as file:
            file.write(json.dumps(document).encode())


def _run(folder: Path) -> Stamp:
    data = sorted((folder / "data").glob("*"))
    predicted = run_folders.prediction_file(folder.absolute().parent)
    return _stamps(folder, [*(folder / name for name in _OF_A_RUN), predicted, *data])


def _code() -> Stamp:
    """Return the newest file of what analyses and reports, which may be edited in place."""
    times = [
        entry.stat().st_mtime_ns
        for name in ("analysis", "report", "report/topics", "report/templates", "runs", "simulator")
        for entry in os.scandir(_CODE / name)
        if entry.is_file()
    ]
    return [["pscale", len(times), max(times)]]


def _stamps(folder: Path, paths: Iterable[Path]) -> Stamp:
    """Return name, size and time of files that are there."""
    found: Stamp = []
    for path in paths:
        with suppress(OSError):
            known = path.stat()
            found.append([os.path.relpath(path, folder), known.st_size, known.st_mtime_ns])
    return found


def is_special(path: Path) -> bool:
    """Tell whether a path is of a device or a pipe, as /dev/stdout: no file may be put in its place."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, unless it is so already, under another name first: no reader sees half of it.

    A device or a pipe is written to.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_special(path):
        path.write_bytes(data)
        return path
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        return path
    atomic_files.write(path, data, synced=False)
    return path
