"""The BLAS of NumPy: what it is, how fast it is, and whether cases can use it.

NumPy is loaded by probes in processes of their own, never here.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pscale import __version__
from pscale.blas.forwarding import BlasError, path_of
from pscale.config import Case, Omp, Require, to_dict
from pscale.errors import PlanError
from pscale.launch import isolated_process
from pscale.launch.command import environment
from pscale.runs import atomic_files

_PROBE_LIMIT_S = 30


def probe(
    threads: int, environ: Mapping[str, str], choice: str = "auto", limit_s: float = _PROBE_LIMIT_S
) -> dict[str, Any]:
    """Multiply matrices in a process of its own; return its report, or `error`."""
    argv = [*_probe(choice), "blas", "--threads", str(threads)]
    size = ["--size", "2048"] if threads > 4 else []  # large enough for every thread to have work
    try:
        done = isolated_process.ask([*argv, *size], limit_s, env=environment(threads, environ))
    except subprocess.TimeoutExpired:
        return {"error": f"a product of matrices took more than {limit_s:.0f} s"}
    if done.code:
        said = done.err.strip().splitlines() or [f"exit code {done.code}"]
        return {"error": f"NumPy cannot multiply matrices: {said[-1]}"}
    answers = isolated_process.documents(done.out)
    return answers[-1] if answers else {"error": f"a product of matrices answers: {done.last_words}"}


def _probe(choice: str) -> tuple[str, ...]:
    return sys.executable, "-P", "-m", "pscale.blas", choice, "-m", "pscale.worker.probe"


def absent(cases: Sequence[Case], environ: Mapping[str, str]) -> dict[str, str]:
    """Return why cases cannot have their BLAS here, by their ids; raises PlanError if none can."""
    reasons: dict[tuple[str, str], str] = {}  # by what decides it
    found = {}
    for case in cases:
        key = (case.launch.blas, json.dumps(to_dict(case.launch)["env"], sort_keys=True))
        if key not in reasons:
            reasons[key] = _reason_absent(case.launch.blas, {**environ, **case.launch.env})
        if reasons[key]:
            found[case.id] = reasons[key]
    if cases and len(found) == len(cases):
        raise PlanError(f"{cases[0].label}: launch.blas: {found[cases[0].id]}")
    return found


def _reason_absent(choice: str, environ: Mapping[str, str]) -> str:
    try:
        path_of(choice, environ)
    except BlasError as error:
        return str(error)
    return ""


def _unmet(case: Case, environ: Mapping[str, str]) -> str:
    env = {**environment(case.threads, environ), **case.launch.env}
    said = isolated_process.output(
        [*_probe(case.launch.blas), "unmet"], _PROBE_LIMIT_S, stdin=json.dumps(to_dict(case)), env=env
    )
    answers = [each["unmet"] for each in isolated_process.documents(said or "") if "unmet" in each]
    return str(answers[-1]) if answers else ""  # where NumPy does not work the launch reports it


def check_requirements(
    cases: Sequence[Case],
    environ: Mapping[str, str],
    unmet: Callable[[Case, Mapping[str, str]], str] = _unmet,
) -> None:
    """Raise PlanError for the first case that would find another BLAS than it needs, by `unmet`.

    Costs nothing where no case needs one. What cannot be known here, each rank finds out.
    """
    needs: dict[str, Case] = {}  # one case of each kind: the same needs have the same answer
    for case in cases:
        if case.require != Require() or case.launch.omp != Omp() or case.launch.blas != "auto":
            launch = to_dict(case.launch)
            kind = json.dumps(
                [to_dict(case.require), *map(launch.get, ("blas", "omp", "env"))], sort_keys=True
            )
            needs.setdefault(kind, case)
    for case in needs.values():
        if reason := unmet(case, environ):
            raise PlanError(f"{case.label}: {reason}")


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
    except ValueError:
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
    return _phases(isolated_process.output(argv, limit_s, stdin=stdin, env=env) or "")


def _phases(text: str) -> Phases:
    """Return what a process answered; raises ValueError where it did not."""
    try:
        return [{name: float(took) for name, took in each.items()} for each in json.loads(text)]
    except (AttributeError, TypeError) as error:
        raise ValueError(text[:40]) from error
