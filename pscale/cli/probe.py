"""Launches of a rank alone, as a normal rank is launched, for `pscale predict --probe`."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pscale.cli.console import new_console
from pscale.cli.memory_fit import EMPTY_PROCESS_BYTES
from pscale.config import Case, to_dict
from pscale.errors import LaunchError, PlanError, UsageError
from pscale.launch import local
from pscale.launch.command import command
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import STDERR
from pscale.launch.runner import signals_as_interrupts, worker
from pscale.launch.selection import select
from pscale.launch.target import Target
from pscale.predict.probe import Kind, Probes
from pscale.predict.profile import Profile
from pscale.report.text import size_of
from pscale.suite.quantities import duration_s
from pscale.training.prediction import predict

_LONGEST_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LoneRanks:
    """Launches ranks alone on this machine; what they leave is in `folder`."""

    launcher: Launcher
    here: Machine
    folder: Path

    def __call__(self, kind: Kind, repeat: int, seconds: float) -> Path:
        """Run a rank of a kind for so many seconds; return the folder of its tables.

        Raises PlanError where it does not fit in memory, LaunchError where it fails.
        """
        self._check_memory(kind)
        folder = self.folder / f"{kind.name}-{repeat}"
        (data := folder / "data").mkdir(parents=True)
        document = {
            "task": "probe",
            "case": to_dict(kind.case),
            "repeat": repeat,
            "data": str(data),
            "launched_unix_s": time.time(),
            "rank": kind.rank,
            "seconds": seconds,
        }
        (folder / "case.json").write_text(json.dumps(document), encoding="utf-8")
        one = replace(kind.case, ranks=1)
        started = command(
            one, self.launcher, worker(folder), self.here, environ=os.environ, root=os.geteuid() == 0
        )
        with signals_as_interrupts():
            outcome = local.launch(started, folder, kind.case.launch.time_limit_s)
        if outcome.status != "ok":
            reason = outcome.reason.removesuffix(f" [{folder / STDERR}]")
            raise LaunchError(f"--probe: rank {kind.rank} of {kind.case.label}, alone: {reason}")
        return data

    def fits(self, kind: Kind) -> bool:
        """Tell whether a rank needs no more memory than there is."""
        needed_bytes, limit_bytes = self._memory(kind)
        return not limit_bytes or needed_bytes <= limit_bytes

    def _memory(self, kind: Kind) -> tuple[int, int]:
        """Return the bytes that a rank needs, and those there are; 0 where that is not known."""
        needed_bytes = predict(kind.case, kind.rank).total_bytes + EMPTY_PROCESS_BYTES
        return needed_bytes, kind.case.launch.memory_limit_bytes or self.here.memory_bytes

    def _check_memory(self, kind: Kind) -> None:
        """Raise PlanError where a rank does not fit in memory even with its fewest layers."""
        needed_bytes, limit_bytes = self._memory(kind)
        if not self.fits(kind):
            raise PlanError(
                f"--probe: rank {kind.rank} of {kind.case.label} needs {size_of(needed_bytes)} with "
                f"{kind.case.model.layers} layers alone, more "
                f"than the {size_of(limit_bytes)} there are; without --probe its computing is extrapolated"
            )


def probed(cases: Sequence[Case], profile: Profile, target: Target, asked: str | None) -> Probes:
    """Run the kinds of ranks of cases that a profile does not know alone, for the time that is asked for."""
    if asked is None:
        return Probes(profile)
    here = replace(target.machine, nodes=1, hosts={}, hostfile="")
    launcher = select(cases[0].launch, target.site.allocation, here)
    status = new_console(stderr=True).status(f"running ranks alone, one of each kind, for {asked} …")
    with tempfile.TemporaryDirectory(prefix="pscale-probe-") as folder, status:
        ranks = LoneRanks(launcher=launcher, here=here, folder=Path(folder))
        probes = Probes(profile, ranks, ranks.fits)
        probes.measure(cases, _seconds(asked))
    return probes


def check_probe(
    cases: Sequence[Case], network: Path | None, bare: Path | None, *, has_run: bool, anywhere: bool
) -> None:
    """Raise UsageError where probes do not tell what is needed."""
    if anywhere:
        raise UsageError(
            "--probe measures this machine, --any-machine predicts for another: give one of them"
        )
    if any(case.ghost.gflops for case in cases):
        raise UsageError("--probe measures computing, and ghosts only sleep: leave out --probe, or ghost")
    largest = max(cases, key=lambda case: case.ranks)
    if largest.ranks > 1 and not (network or bare or has_run):
        raise UsageError(
            f"--probe measures computing, and {largest.label} has {largest.ranks} ranks that exchange data: "
            "say what calls take by --from RUN, a traced run, --bare RUN, a run of the suite collectives, or "
            "--network FILE"
        )


def _seconds(asked: str) -> float:
    try:
        seconds = duration_s(asked)
    except ValueError as error:
        raise UsageError(f"--probe: {error}") from None
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"--probe {asked}: expected a time up to a day, such as 30s")
    return seconds
