"""What makes the programs and inputs of workloads before any launch: once for each set of its parameters."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pscale.config import Case, workload_command
from pscale.launch.journal import Journal
from pscale.launch.outcome import tail
from pscale.launch.search import visible

_EVENT = "built"
_QUOTED_LINES = 3


def build(journal: Journal, cases: Sequence[Case], tell: Callable[[str], None]) -> None:
    """Run what builds these cases and was not run yet; the journal keeps how it ended and what it made."""
    notes = _notes(journal)
    reasons = {note["command"]: note["reason"] for note in notes.values()}
    for case in cases:
        if not case.workload.build or case.id in notes:
            continue
        words = workload_command.build_words(case)
        command = shlex.join(words)
        if command not in reasons:
            tell(f"building: {command}")
            reasons[command] = _ended(words, case)
        made = dict(workload_command.digests(case))
        journal.note(_EVENT, case=case.id, command=command, reason=reasons[command], sha256=made)


class Builds:
    """What the journal says of the builds of a run."""

    def __init__(self, journal: Journal):
        self._notes = _notes(journal)

    def why_not(self, case: Case) -> str:
        """Say why a case that is built cannot be launched; empty: it can."""
        note = self._notes.get(case.id)
        if not case.workload.build or note is None:
            return ""
        made, now = note["sha256"], workload_command.digests(case)
        changed = [name for name in {**made, **now} if made.get(name) != now.get(name)]
        if changed and not note["reason"]:
            return f"{', '.join(changed)} changed after it was built: `pscale run --new` starts another run"
        return str(note["reason"])


def _notes(journal: Journal) -> Mapping[str, Mapping[str, Any]]:
    return {record["case"]: record for record in journal.records() if record["event"] == _EVENT}


def _ended(words: Sequence[str], case: Case) -> str:
    """Run a build, at most as long as a launch may take; say why it failed, empty if it did not."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                words,
                cwd=case.program.folder,
                env={**os.environ, **case.launch.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"the build cannot be started: {words[0]}: {error.strerror}"
        try:
            code = process.wait(case.launch.time_limit_s)
            ending = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, ending = 1, f"no end after {case.launch.time_limit_s:g} s (time_limit)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = [visible(line.strip()) for line in _read(log).splitlines() if line.strip()]
    if code == 0:
        return ""
    said = " / ".join(lines[-_QUOTED_LINES:])
    return f"the build failed, {ending}{f': {said}' if said else ''}"


def _read(log: Any) -> str:
    return tail(os.fdopen(os.dup(log.fileno()), "rb"))
