"""Start a program of benchmarks/ on ranks bound to cores; send it a request, and return its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from link import Link

from pscale.config import Case, Launch
from pscale.launch.command import command
from pscale.launch.launcher import find as find_launcher
from pscale.launch.machine import inspect

HERE = Path(__file__).parent
LIMIT_S = 900


def started_on(
    program: str, arguments: Sequence[str], *, ranks: int, threads: int = 1, over: Link | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return what starts a program on ranks bound to a core each, or at the ends of the link."""
    launcher = find_launcher()
    options = tuple(over.options(launcher.flavour)) if over else ()
    launch = Launch(oversubscribe=True, bind="none" if over else "core", extra=options)
    case = Case(suite="benchmark", label=program, ranks=ranks, threads=threads, launch=launch)
    # mpi4py's own start ends all ranks when one fails, which the others would wait for
    argv = [sys.executable, "-m", "mpi4py", str(HERE / program), *arguments]
    job = command(case, launcher, argv, inspect(), environ=os.environ, root=os.geteuid() == 0)
    return [*(over.prefix if over else []), *job.argv], dict(job.env)


def ask(
    program: str, request: Mapping[str, Any], *, ranks: int, threads: int = 1, over: Link | None = None
) -> dict[str, Any]:
    """Run `program REQUEST ANSWER` on `ranks` ranks, bound to a core each or at each end of the link."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps({**request, "pin": over is not None}))
        files = [str(question), str(answer)]
        status = _run(*started_on(program, files, ranks=ranks, threads=threads, over=over))
        if status:
            sys.exit(f"{program} on {ranks} ranks ended with status {status}")
        return json.loads(answer.read_text())


def _run(argv: list[str], env: Mapping[str, str]) -> int:
    """Run a launcher and return its status; in any case it is asked to end its ranks."""
    with subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL) as launcher:
        try:
            return launcher.wait(LIMIT_S)
        finally:
            launcher.terminate()
