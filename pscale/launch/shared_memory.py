"""Shared memory of MPI jobs on this host, which jobs leave that are killed.

MPICH names a segment by the job; a later job of that name takes what an earlier one has left for its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
_NAMES = "mpich_shm_*", "mpich_shar_tmp*", "sm_segment.*", "vader_segment.*"  # MPICH, Open MPI


def segments() -> frozenset[Path]:
    """Return the segments of this user's MPI jobs, in use or not."""
    found = set()
    for path in (path for name in _NAMES for path in FOLDER.glob(name)):
        with suppress(OSError):  # it is gone
            if path.lstat().st_uid == os.geteuid():
                found.add(path)
    return frozenset(found)


def unused(candidates: Collection[Path]) -> frozenset[Path]:
    """Return those of the segments that no process has open or mapped."""
    left = {str(path) for path in candidates}
    for process in Path("/proc").glob("[0-9]*") if left else ():
        left -= _of(process)
    return frozenset(map(Path, left))


def mapped_by(processes: Iterable[int]) -> frozenset[Path]:
    """Return the segments of these processes."""
    of_all = [_of(Path(f"/proc/{number}")) for number in processes]
    return frozenset(path for path in segments() if any(str(path) in each for each in of_all))


def remove(candidates: Collection[Path]) -> None:
    """Remove those of the segments that no process has open or mapped."""
    for path in unused(candidates):
        with suppress(OSError):
            path.unlink()


def _of(process: Path) -> set[str]:
    """Return the files in `FOLDER` that a process has: what is open first, as it maps before it closes."""
    found = set()
    with suppress(OSError):  # it has ended, or is another user's, who has none of ours
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
        for line in (process / "maps").read_text(errors="replace").splitlines():
            found.add(line[line.find("/") :] if f" {FOLDER}/" in line else "")
    return {path for path in found if path.startswith(f"{FOLDER}/")}
