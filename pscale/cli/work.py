"""A suite made ready: its cases on this machine, checked, and the document that a run of them begins with."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pscale.config import Case, to_dict
from pscale.errors import UsageError
from pscale.launch import mpi, requirements
from pscale.launch.command import check
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.provenance import provenance
from pscale.suite import Auto, Expectation, Suite, expand, load_suite


@dataclass(frozen=True, kw_only=True)
class Work:
    """A suite that is ready to run."""

    suite: Suite
    cases: Sequence[Case]
    expect: Sequence[Expectation]
    repeats: int  # launches of each case; with `auto` the fewest
    auto: Auto | None

    def document(self, here: Machine) -> dict[str, Any]:
        """Return what `run.json` says of a new run of this work."""
        suite = self.suite
        return {
            "suite": {
                "name": suite.name,
                "title": suite.title,
                "scaling": suite.scaling,
                "given": suite.given,
                "resolved": suite.resolved,
            },
            "expect": [asdict(expectation) for expectation in self.expect],
            "cases": [{**to_dict(case), "id": case.id} for case in self.cases],
            "repeats": self.repeats,
            "auto": asdict(self.auto) if self.auto else None,
            "seed": secrets.randbits(32),
            "provenance": {**provenance(), "machine": here.summary()},
        }

    def launcher(self) -> Launcher:
        """Find the launcher that all cases name."""
        choices = {case.launch.launcher for case in self.cases}
        if len(choices) > 1:
            raise UsageError(f"a suite runs under one launcher, not {', '.join(sorted(choices))}")
        return mpi.find(choices.pop())


def prepare(path: Path, overrides: Sequence[str], only: str | None, here: Machine) -> Work:
    """Load the suite at `path` and expand it for this machine; raises for whatever could not be started."""
    suite = load_suite(path, overrides)
    expansion = expand(suite, here.names(), only)
    for case in expansion.cases:
        check(case, here)
    requirements.check(expansion.cases, os.environ)
    return Work(
        suite=suite, cases=expansion.cases, expect=expansion.expect, repeats=suite.repeat, auto=suite.auto
    )
