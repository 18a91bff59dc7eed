"""Prepare a suite to run: its cases on their target, checked, and the document of a run of them."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pscale.cli.costs import MemoryFit, memory_fits, refusals
from pscale.cli.options import SuiteOptions
from pscale.config import Case, Launch, to_document
from pscale.errors import UsageError
from pscale.launch.target import Target, find_target
from pscale.suite.document import Document
from pscale.suite.expand import expand
from pscale.suite.load import Expectation, Site, Suite, find_site, load_suite
from pscale.suite.shipped import suite_file

if TYPE_CHECKING:
    from pscale.launch.launcher import Launcher

_OF_SUITE = ("name", "title", "scaling", "given", "resolved")  # what a run keeps


@dataclass(frozen=True, kw_only=True)
class PreparedSuite:
    """A suite that is ready to run."""

    suite: Suite
    site: Site
    target: Target
    cases: Sequence[Case]
    expect: Sequence[Expectation]
    fits: Mapping[str, MemoryFit]  # the memory that each case needs on the target, by the case's id

    def document(self) -> dict[str, Any]:
        """Return what `run.json` says of a new run of this suite."""
        from pscale.launch.provenance import provenance

        suite, scheduler = self.suite, self.target.site.scheduler
        return {
            "suite": {name: getattr(suite, name) for name in _OF_SUITE},
            "site": self.site.name,
            "scheduler": scheduler.name if scheduler else None,
            "poll_s": self.site.profile.poll_s,
            "expect": [asdict(expectation) for expectation in self.expect],
            "cases": [to_document(case) for case in self.cases],
            "repeats": suite.repeat,
            "auto": asdict(suite.auto) if suite.auto else None,
            "seed": secrets.randbits(32),
            "provenance": {**provenance(), "machine": self.target.machine.summary()},
        }

    @cached_property
    def refused(self) -> dict[str, str]:
        """Why cases are not started, by their ids; raises PlanError if none can have its BLAS."""
        return refusals(self.fits, starts_here=self.target.site.scheduler is None)

    def check_blas(self) -> None:
        """Raise PlanError where NumPy would have another BLAS than a case needs; it is started to tell."""
        from pscale.launch.blas import check_requirements

        wanted = (fit for case, fit in self.fits.items() if fit.is_known and case not in self.refused)
        check_requirements([fit.case for fit in wanted], os.environ)

    def launcher(self, *, asks: bool = True) -> Launcher:
        """Find the launcher that all cases name; unless it `asks`, without starting any that they bring."""
        from pscale.cli.workload_tables import launcher_of
        from pscale.launch.selection import likely, select

        choices = {launcher_of(case) for case in self.cases}
        if len(choices) > 1:
            raise UsageError(f"all cases of a suite need the same launcher, not {', '.join(sorted(choices))}")
        launch = replace(self.cases[0].launch, launcher=choices.pop())
        if not asks:
            return likely(launch, self.target.site.allocation)
        return select(launch, self.target.site.allocation, self.target.machine)


def load(
    source: Path | Document, options: SuiteOptions, *, submits: bool = True
) -> tuple[Suite, Site, Target]:
    """Load the suite of that path or name with the site's profile, and find the target of its launches."""
    folder = options.folder or (source.parent if isinstance(source, Path) else Path())
    site = find_site(options.site, folder, socket.gethostname())
    file = suite_file(source) if isinstance(source, Path) else source
    suite = load_suite(file, options.overrides or (), site, options.folder)
    asked = {
        name: suite.resolved["launch"][name] for name in ("scheduler", "hosts", "partition", "constraint")
    }
    known = {name: getattr(site.profile, name) for name in ("nodes", "cores_per_node")}
    return suite, site, find_target(Launch(**asked), os.environ, **known, submits=submits)


def prepare(source: Path | Document, options: SuiteOptions, *, submits: bool = True) -> PreparedSuite:
    """Load a suite and expand it for its target; raises for whatever could not be started. Starts nothing.

    Without `submits` the target is this machine, or the job around pscale, even if there is a scheduler.
    """
    suite, site, target = load(source, options, submits=submits)
    expansion = expand(suite, target.machine.names(), options.only)
    return PreparedSuite(
        suite=suite,
        site=site,
        target=target,
        cases=expansion.cases,
        expect=expansion.expect,
        fits=memory_fits(expansion.cases, target.machine),
    )
