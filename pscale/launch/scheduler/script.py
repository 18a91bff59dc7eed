"""The part of a job's script that is the same for every scheduler."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from pscale.launch.scheduler.protocol import JobRequest

STARTED, EXIT = "started", "exit"  # files in a job's folder


def script(request: JobRequest, prefix: str, options: Sequence[str], job_id: str) -> str:
    """Return a script with `options` for the scheduler behind `prefix`; `job_id` is the shell's word for it.

    The exit code is left in a file, since a scheduler forgets. A shell handles a signal only once the
    command that it waits for has ended: hence the command in the background, and `wait`.
    """
    folder = shlex.quote(str(request.folder))
    lines = [
        "#!/bin/bash",
        *(f"{prefix} {option}" for option in options),
        "",
        f"folder={folder}",
        f'echo "{job_id}" > "$folder/{STARTED}"',
        f'trap \'echo "$?" > "$folder/{EXIT}.tmp"; mv "$folder/{EXIT}.tmp" "$folder/{EXIT}"\' EXIT',
        'trap \'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 143\' TERM',
        *(f"module load {shlex.quote(module)} || exit 1" for module in request.launch.modules),
        *request.launch.setup.splitlines(),
        "",
        f"{shlex.join(request.command)} &",
        "child=$!",
        'wait "$child"',
        "",
    ]
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Write a time as H:MM:SS, in whole minutes, rounded up."""
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02}:00"
