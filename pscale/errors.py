"""What can go wrong for a user, and the exit code that says so.

::

    PscaleError
    ├── UsageError     2   an option or path that cannot be
    │   └── SuiteError 2   a suite file, with line and field
    ├── PlanError      3   numbers that do not fit together
    ├── LaunchError    4   processes that could not be started
    └── ResultsError   5   files that are not ours, or damaged

A case that fails is not an error of the program: it becomes a row with its reason (exit code 1). A check that
the intervals leave open is no failure (exit code 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

FAILED = 1
UNDECIDED = 6
INTERRUPTED = 130


def clean(text: str) -> str:
    """Return text without control characters, which could move a terminal's cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


class PscaleError(Exception):
    """A mistake that a person can mend; its text is the whole message."""

    exit_code = FAILED


class UsageError(PscaleError):
    """An option, name or path that cannot be used."""

    exit_code = 2


class SuiteError(UsageError):
    """A suite file that says something impossible, with the place in the file."""

    def __init__(self, message: str, *, file: Path | None = None, line: int | None = None, field: str = ""):
        place = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(clean(": ".join(part for part in (place, field, message) if part)))

    @classmethod
    def of(cls, lines: Iterable[str]) -> Self:
        """Return the error of several mistakes, a line each."""
        error = cls("")
        error.args = ("\n".join(lines),)
        return error


class PlanError(PscaleError):
    """Sizes that do not divide or fit; names the numbers and the values that would work."""

    exit_code = 3


class LaunchError(PscaleError):
    """An MPI or scheduler that is missing or does not do what was asked."""

    exit_code = 4


class ResultsError(PscaleError):
    """Stored results that are missing, damaged or of another program."""

    exit_code = 5


@contextmanager
def writing(what: object, kind: type[PscaleError] = ResultsError, advice: str = "") -> Iterator[None]:
    """Turn what the file system says against writing inside the block into a message."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {what}: {error.strerror or error}{advice}") from error
