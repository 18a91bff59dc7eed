"""How fast this machine computes, remembered for a day in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pscale import __version__
from pscale.config import Case, to_dict
from pscale.launch import isolated_process
from pscale.launch.command import environment
from pscale.runs import atomic_files

Phases = list[dict[str, float]]  # seconds by phase of each shape
_LIMIT_S, _AGE_S = 60, 24 * 3600
_ALIKE = ("model", "train", "precision", "launch", "threads")


def calibrate(cases: Sequence[Case], environ: Mapping[str, str]) -> Phases:
    """Return the seconds of phases of small models, in order; none where it fails."""
    parts = [{name: value for name, value in to_dict(each).items() if name in _ALIKE} for each in cases]
    content = json.dumps([__version__, socket.gethostname(), os.cpu_count(), parts], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    path = atomic_files.user_folder("XDG_CACHE_HOME", ".cache") / "pscale" / f"calibration-{key}.json"
    with suppress(OSError, ValueError):
        if path.stat().st_mtime > time.time() - _AGE_S:
            return _phases(path.read_text(encoding="ascii"))
    try:
        found = measured(cases, environ, _LIMIT_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    with suppress(OSError):  # a place that cannot be written only costs another calibration
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, found)
    return found


def measured(cases: Sequence[Case], environ: Mapping[str, str], limit_s: float) -> Phases:
    """Return the seconds of phases of cases of one rank, in order; raises ValueError where they fail."""
    first = cases[0]
    argv = [sys.executable, "-P", "-m", "pscale.blas", first.launch.blas, "-m", "pscale.worker.calibration"]
    env = {**environment(first.threads, environ), **first.launch.env}
    stdin = json.dumps([to_dict(each) for each in cases])
    done = isolated_process.ask(argv, limit_s, stdin=stdin, env=env)
    if done.code:
        raise ValueError(done.err)
    return _phases(done.out)


def _phases(text: str) -> Phases:
    """Return what a process answered; raises ValueError where it did not."""
    try:
        return [{name: float(took) for name, took in each.items()} for each in json.loads(text)]
    except (AttributeError, TypeError) as error:
        raise ValueError(text[:40]) from error
