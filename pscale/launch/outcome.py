"""How one launch ended, told from what it left behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal[  # the last four: what became of the job around a launch
    "ok",
    "failed",
    "timeout",
    "skipped",
    "hung",
    "invalid",
    "cancelled",
    "preempted",
    "node_failed",
    "vanished",
]

RESULT, BORN, STDOUT, STDERR = "result.json", "born", "stdout.log", "stderr.log"

_QUOTED_LINES = 3
_INNERMOST_FIRST = "(most recent call first):"  # how `faulthandler` heads a stack
_QUOTED_BYTES = 64 << 10
_DECORATION = re.compile(r"[\s=-]*")
_AFTERMATH = re.compile(  # what launchers say of ranks once something has gone wrong
    r"srun: (error: [^:]+: tasks? |Terminating|launch/|Job step aborted)"
    r"|slurmstepd: error: \*\*\* |mpirun noticed "
)
_SIGNALLED = re.compile(r"\(signal (\d+)\)|exited on\s+signal (\d+)")  # Hydra, Open MPI
_ADVICE = (  # what launchers say when they refuse, and what a person can do about it
    (
        r"not enough slots|Out of resource",
        "Open MPI counts fewer cores than this needs: use fewer ranks, or `launch: {oversubscribe: true}`",
    ),
    (
        r"attempt to run as root",
        "run as another user, or allow it with `launch: {extra: [--allow-run-as-root]}`",
    ),
    (
        r"larger than total system size",
        "more cores asked for than there are: use fewer threads, or `launch: {bind: none}`",
    ),
    (
        r"duplicate setting|listed more than once",
        "`launch: {extra: ...}` repeats an option that pscale gives itself",
    ),
    (
        r"unsupported PMI version|no-pmix|PMI_Init|PMIX_Init|suspicious MPI execution environment",
        "launcher and the MPI library that mpi4py loads are of different kinds: `pscale doctor` names both",
    ),
    (
        r"cannot load MPI library",
        "mpi4py finds no MPI: `pip install 'pscale[mpich]'`, or load the site's module",
    ),
    (r"No space left on device|Disk quota exceeded", "the disk is full"),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one launch. `reason` is one line, or empty; `exit_code` is minus the number of a signal."""

    status: Status
    reason: str
    wall_s: float
    exit_code: int
    started_unix_s: float
    unborn: bool = False  # it failed before its ranks had met


def judge(folder: Path, exit_code: int) -> tuple[Status, str]:
    """Return status and reason of a launch that ended by itself and left `folder`."""
    if failure := _first_failure(folder):
        return failure["status"], _quoted(failure)
    if exit_code == 0 and (folder / RESULT).exists():
        return "ok", ""
    return "failed", _cause(folder, exit_code) + _last_words(folder)


def overdue(folder: Path, limit_s: float) -> str:
    """Return the reason of a launch that was ended because it took more than `limit_s`."""
    failure = _first_failure(folder)
    known = f": {_quoted(failure)}" if failure else _last_words(folder)
    return f"no end after {limit_s:g} s (time_limit){known}"


def _last_words(folder: Path) -> str:
    """Return what to do about the end of stderr.log, that end, and where it is, to be put behind a cause."""
    text = _tail(folder / STDERR)
    lines = [line.strip() for line in text.splitlines() if not _DECORATION.fullmatch(line)]
    said = f": {' / '.join(_telling(lines))}" if lines else ""
    advice = next((f"; {advice}" for pattern, advice in _ADVICE if re.search(pattern, text)), "")
    return f"{advice}{said} [{folder / STDERR}]"


def _telling(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines or, of a stack that a rank left when it was ended, where it was.

    What launchers say of ranks that ended only counts where nobody else has said a thing.
    """
    lines = [line for line in lines if not _AFTERMATH.match(line)] or lines
    stacks = [number for number, line in enumerate(lines, 1) if line.endswith(_INNERMOST_FIRST)]
    if stacks and all(line.startswith("File ") for line in lines[stacks[-1] :]):
        return lines[stacks[-1] :][:_QUOTED_LINES]
    return lines[-_QUOTED_LINES:]


def _first_failure(folder: Path) -> dict[str, Any] | None:
    """Return what the first rank to fail left behind: it takes the others with it."""
    return min(_failures(folder), key=lambda failure: float(failure["unix_s"]), default=None)


def _failures(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("failure-*.json"):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the disk was full, say: the log will have to do
            continue


def _quoted(failure: dict[str, Any]) -> str:
    lines = (failure["traceback"] or failure["message"]).strip().splitlines()
    return f"rank {failure['rank']}: {lines[-1] if failure['traceback'] else ' '.join(lines)}"


def _cause(folder: Path, exit_code: int) -> str:
    if exit_code == 0:
        return "ended without an error but left no results"
    if exit_code < 0:
        return f"the launcher was ended by {_signal_name(-exit_code)}"
    if told := _SIGNALLED.search(_tail(folder / STDOUT) + _tail(folder / STDERR)):
        return f"a rank was ended by {_signal_name(int(told[1] or told[2]))}"
    return f"exit code {exit_code}"


def _signal_name(number: int) -> str:
    names = {member.value: member.name for member in signal.Signals}
    memory = " (often: too little memory)" if number == signal.SIGKILL else ""
    return names.get(number, f"signal {number}") + memory


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _QUOTED_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
