"""Where runs are: `reports`/<suite>/<run>, each with its run.json."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pscale.errors import ResultsError

_EXAMPLES = "gallery/[!0-9]*"  # reports that are shipped; the name of a run begins with its date


def run_folders(root: Path) -> list[Path]:
    """Return the runs in `root`/<suite>/<run> and those in `root` itself.

    The shipped reports are among them only where `root` is their folder: they are nobody's newest run.
    """
    inside = [file.parent for file in root.glob("*/run.json")]
    of_suites = [file.parent for file in root.glob("*/*/run.json")]
    return inside + [folder for folder in of_suites if not folder.match(_EXAMPLES)]


def check(folder: Path) -> None:
    """Raise ResultsError where something in a run's folder leads out of it, or never ends: others made it."""
    inside = os.path.realpath(folder)
    for entry in _entries(folder):
        if entry.is_symlink():
            if not Path(os.path.realpath(entry.path)).is_relative_to(inside):
                raise ResultsError(f"{entry.path}: leads out of the folder of the run")
        elif not entry.is_file() and not entry.is_dir():
            raise ResultsError(f"{entry.path}: is neither a file nor a folder")


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and its folders, other than the logs of launches, and through no links."""
    waiting, logs = [str(folder)], str(folder / "cases")
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False) and entry.path != logs:
                    waiting.append(entry.path)


def newest(root: Path, command: str = "'pscale run SUITE'") -> Path:
    """Return the run in `root` that was begun last; an error says which `command` makes one."""
    found = run_folders(root)
    if not found:
        raise ResultsError(f"{root}: no runs here; make one with {command}, or name a run's folder")
    return max(found, key=lambda folder: ((folder / "run.json").stat().st_mtime_ns, str(folder)))
