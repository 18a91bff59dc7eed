"""Where runs are: `reports`/<suite>/<run>, each with its run.json."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pscale.errors import ResultsError, UsageError

NAME = "%Y-%m-%dT%H%M%S"  # begins the name of a run: the local time when it began
_DATED = 17  # characters of that
_EXAMPLES = "gallery/[!0-9]*"  # reports that are shipped; the name of a run begins with its date
_PREDICTION = ".prediction"  # ends names beside the folder of a suite, which has runs alone


def run_folders(root: Path) -> list[Path]:
    """Return the runs in `root`/<suite>/<run> and those in `root` itself.

    The shipped reports are among them only where `root` is their folder: they are nobody's newest run.
    """
    inside = [file.parent for file in root.glob("*/run.json")]
    of_suites = [file.parent for file in root.glob("*/*/run.json")]
    return inside + [folder for folder in of_suites if not folder.match(_EXAMPLES)]


def prediction_file(folder: Path, suffix: str = ".json") -> Path:
    """Return the file of what was predicted of the suite whose runs are in a folder; it lies beside that."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}{_PREDICTION}{suffix}")


def predicted_suites(reports: Path) -> Iterator[Path]:
    """Yield the folders of the suites in `reports` of which something was predicted."""
    for file in reports.glob(f"*{_PREDICTION}.json"):
        yield file.with_name(file.name.removesuffix(f"{_PREDICTION}.json"))


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


def newest(root: Path, command: str = "'pscale run SUITE'", before: int = 0) -> Path:
    """Return the run in `root` that was begun last, or the one that was begun so many `before` it.

    An error says which `command` makes a run.
    """
    runs = sorted(run_folders(root), key=_begun, reverse=True)
    if not runs:
        raise ResultsError(f"{root}: no runs here; make one with {command}, or name a run's folder")
    if before >= len(runs):
        raise ResultsError(f"{root}: has {len(runs)} run{'s' * (len(runs) != 1)}, so there is no ~{before}")
    return runs[before]


def _begun(folder: Path) -> tuple[float, int, str]:
    """Return a key by which runs sort in time: the date in a name outlives copies and resumed runs."""
    changed_ns = (folder / "run.json").stat().st_mtime_ns
    try:
        begun_s = datetime.strptime(folder.name[:_DATED], NAME).timestamp()
    except ValueError:
        begun_s = changed_ns / 1e9
    return begun_s, changed_ns, str(folder)


def run_folder(named: Path | None, reports: Path, command: str = "'pscale run SUITE'") -> Path:
    """Return the run that is named, `None`: the newest in `reports`.

    A run is named by its folder, or by its name; a suite, by its folder or its name in `reports`, means its
    newest run, and `weak~1` the one before it. Raises ResultsError with the nearest name where there is none.
    """
    if named is None:
        return newest(reports, command)
    text, tilde, before = str(named).rpartition("~")
    if not tilde or not before.isdecimal() or named.exists():
        text, before = str(named), "0"
    for folder in dict.fromkeys([Path(text), reports / text, *reports.glob(f"*/{glob.escape(text)}")]):
        if (folder / "run.json").is_file() or (folder / "data").is_dir():
            if int(before):
                raise ResultsError(f"{named}: is a run, not a suite: only of a suite is there one before it")
            return folder
        if folder.is_dir() and run_folders(folder):
            return newest(folder, command, int(before))
    if Path(text).is_dir():
        return newest(Path(text), command)
    if Path(text).suffix in (".yaml", ".yml"):
        raise UsageError(
            f"{named}: is a file, not a run; expected a run's folder, or a suite's name for its newest run. "
            "To validate a suite: `pscale show SUITE`"
        )
    known = sorted({folder.parent.name for folder in run_folders(reports)})
    folders = [str(folder) for folder in Path(text).parent.glob("*/")]
    near = difflib.get_close_matches(text, [*known, *folders], n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"{reports} has runs of {', '.join(known) or 'no suite'}"
    raise ResultsError(f"{named}: there is no such run; expected a run's folder, or a suite; {hint}")
