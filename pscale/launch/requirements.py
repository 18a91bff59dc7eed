"""Whether NumPy here has the BLAS that cases are about: asked before the first of them is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pscale.config import Case, Omp, Require, to_dict
from pscale.errors import PlanError
from pscale.launch.command import environment

_PROBE = (sys.executable, "-P", "-m", "pscale.worker.probe", "unmet")
_LIMIT_S = 30


def check(cases: Sequence[Case], environ: Mapping[str, str]) -> None:
    """Raise PlanError for the first case that would find another BLAS than it needs.

    Costs nothing where no case needs one. What cannot be known here, each rank finds out.
    """
    needs: dict[str, Case] = {}  # one case of each kind: whoever needs the same gets the same answer
    for case in cases:
        if case.require != Require() or case.launch.omp != Omp():
            launch = to_dict(case.launch)
            kind = json.dumps([to_dict(case.require), launch["omp"], launch["env"]], sort_keys=True)
            needs.setdefault(kind, case)
    for case in needs.values():
        if reason := _unmet(case, environ):
            raise PlanError(f"{case.label}: {reason}")


def _unmet(case: Case, environ: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run(
            _PROBE,
            input=json.dumps(to_dict(case)),
            env={**environment(case.threads, environ), **case.launch.env},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""  # a NumPy that does not work at all: the launch says so in its own words
    return str(json.loads(answer.stdout)["unmet"])
