"""A suite made ready: its cases on what there is to launch on, checked, and the document of a run of them."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pscale.config import Case, Launch, to_dict
from pscale.errors import UsageError
from pscale.launch import requirements, ways
from pscale.launch.allocation import allocation
from pscale.launch.ground import Ground, survey
from pscale.launch.mpi import Launcher
from pscale.launch.placement import place
from pscale.launch.provenance import provenance
from pscale.suite import Auto, Expectation, Site, Suite, expand, find_site, load_suite


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the command line says of a suite."""

    overrides: Sequence[str] = ()
    only: str | None = None
    site: str | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A suite that is ready to run."""

    suite: Suite
    site: Site
    ground: Ground
    cases: Sequence[Case]
    expect: Sequence[Expectation]
    repeats: int  # launches of each case; with `auto` the fewest
    auto: Auto | None

    def document(self) -> dict[str, Any]:
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
            "site": self.site.name,
            "scheduler": self.ground.where.scheduler.name if self.ground.where.scheduler else None,
            "poll_s": self.site.poll_s,
            "expect": [asdict(expectation) for expectation in self.expect],
            "cases": [{**to_dict(case), "id": case.id} for case in self.cases],
            "repeats": self.repeats,
            "auto": asdict(self.auto) if self.auto else None,
            "seed": secrets.randbits(32),
            "provenance": {**provenance(), "machine": self.ground.machine.summary()},
        }

    def launcher(self) -> Launcher:
        """Find the launcher that all cases name."""
        choices = {case.launch.launcher for case in self.cases}
        if len(choices) > 1:
            raise UsageError(f"a suite runs under one launcher, not {', '.join(sorted(choices))}")
        return ways.find(self.cases[0].launch, self.ground.where.inside, self.ground.machine)


def settled(path: Path, chosen: Chosen, *, submits: bool = True) -> tuple[Suite, Site, Ground]:
    """Load the suite at `path` with the site's profile, and look at what there is to launch on."""
    site = find_site(chosen.site, path.parent, socket.gethostname())
    suite = load_suite(path, chosen.overrides, site)
    asked = {name: suite.resolved["launch"][name] for name in ("scheduler", "partition", "constraint")}
    if not submits and allocation(os.environ) is None:
        asked["scheduler"] = "none"
    ground = survey(Launch(**asked), os.environ, nodes=site.nodes, cores_per_node=site.cores_per_node)
    return suite, site, ground


def prepare(path: Path, chosen: Chosen, *, submits: bool = True) -> Work:
    """Load the suite at `path` and expand it for this machine; raises for whatever could not be started.

    Without `submits` it is for this machine, or for the job around pscale, even if there is a scheduler.
    """
    suite, site, ground = settled(path, chosen, submits=submits)
    expansion = expand(suite, ground.machine.names(), chosen.only)
    for case in expansion.cases:
        place(case, ground.machine)
    requirements.check(expansion.cases, os.environ)
    return Work(
        suite=suite,
        site=site,
        ground=ground,
        cases=expansion.cases,
        expect=expansion.expect,
        repeats=suite.repeat,
        auto=suite.auto,
    )
