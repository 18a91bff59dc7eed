"""Everything that a report says about a run, worked out; rendering adds no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from pscale.analysis import expect, headline, injected, scaling
from pscale.analysis.axes import AxisTree
from pscale.analysis.bandwidth import Bandwidth, bandwidths
from pscale.analysis.bare import Bare, beside_bare
from pscale.analysis.bubble import Bubble, bubbles
from pscale.analysis.circumstances import circumstances
from pscale.analysis.compression import Compressed, compressed
from pscale.analysis.efficiency import Tree
from pscale.analysis.evidence import Remark
from pscale.analysis.expect import Expectation
from pscale.analysis.fewer_bits import FewerBits, fewer_bits
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run
from pscale.analysis.headline import Headline
from pscale.analysis.late import Late
from pscale.analysis.losses import Losses
from pscale.analysis.machine import machine
from pscale.analysis.memory import Memory
from pscale.analysis.models import Model
from pscale.analysis.notes import notes
from pscale.analysis.offload import Offloaded, offloaded
from pscale.analysis.optimizers import Optimized, optimized
from pscale.analysis.phases import CallTime, PhaseTime, RankTime, WaitMap
from pscale.analysis.ranking import Place
from pscale.analysis.scaling import Failure, Point
from pscale.analysis.shortened import SHOWN, shortened
from pscale.analysis.skipped import Skipped
from pscale.analysis.splits import best_splits
from pscale.analysis.threads import ThreadTime
from pscale.analysis.timeline import Timeline, timelines
from pscale.analysis.verdict import Verdict
from pscale.analysis.what_if import Network, WhatIf, what_if

FORMAT = 1


class OfACase(Protocol):
    """What was found of one case."""

    @property
    def case(self) -> str:
        """Its id."""
        ...


Finding = TypeVar("Finding", bound=OfACase)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The findings of one run. Times are seconds, sizes bytes, shares and efficiencies fractions."""

    run: str
    path: str
    suite: str
    title: str
    scaling: str
    machine: tuple[tuple[str, str], ...]  # what it ran on: names and values
    launches: int
    repeats: int
    verdicts: tuple[Verdict, ...]  # one a series
    points: tuple[Point, ...]
    trees: tuple[Tree, ...]
    phase_trees: tuple[Tree, ...]
    axis_trees: tuple[AxisTree, ...]
    losses: tuple[Losses, ...]
    phases: tuple[PhaseTime, ...]
    ranks: tuple[RankTime, ...]
    calls: tuple[CallTime, ...]
    bandwidths: tuple[Bandwidth, ...]  # of bare collectives
    bares: tuple[Bare, ...]  # what the network gives to `calls`, as another run measured it
    ranking: tuple[Place, ...]  # group by group, fastest plan first
    memory: tuple[Memory, ...]
    bubbles: tuple[Bubble, ...]
    compressed: tuple[Compressed, ...]  # cases that differ in compression alone
    precision: tuple[FewerBits, ...]  # cases that differ in precision alone
    skipped: tuple[Skipped, ...]  # steps of cases whose loss is scaled
    offloaded: tuple[Offloaded, ...]  # cases that differ in offload alone
    optimizers: tuple[Optimized, ...]  # cases that differ in optimizer alone
    models: tuple[Model, ...]  # one a series; empty if not asked for
    wait: WaitMap | None  # of the largest case
    timelines: tuple[Timeline, ...]  # of some traced cases, to look at
    what_ifs: tuple[WhatIf, ...]  # on the networks that were asked about
    remarks: tuple[Remark, ...]
    expectations: tuple[Expectation, ...]
    failures: tuple[Failure, ...]
    threads: tuple[ThreadTime, ...]
    late: tuple[Late, ...]  # ranks that the others wait for
    answers: tuple[str, ...]  # to what the suite asks beside scaling
    notes: tuple[str, ...]  # how to read the intervals and rates of this run
    provenance: tuple[tuple[str, str], ...]  # all that is known of what made the run: dotted names and values
    given: str  # the suite's file

    @cached_property
    def series(self) -> dict[str, list[Point]]:
        """The cases of every series, smallest first."""
        return scaling.by_series(self.points)

    @property
    def side_by_side(self) -> bool:
        """Whether cases are variants to be compared with each other, and not sizes of a few series."""
        return len(self.points) > 1 and 2 * len(self.series) > len(self.points)

    @property
    def headlines(self) -> tuple[Headline, ...]:
        """What to read first."""
        if self.bandwidths:
            found = headline.of_network(self.bandwidths)
        elif self.side_by_side and self.ranking:
            found = headline.of_plans(self.ranking, self.points)
        else:
            found = headline.of_series(self.verdicts)
        return (*found, *(Headline(topic="", text=answer) for answer in self.answers))

    @property
    def oversubscribed(self) -> str:
        """Whether ranks share cores, in words; empty if none do."""
        return headline.oversubscribed(self.remarks, self.points)

    def point(self, case: str) -> Point:
        """Return the case of that id."""
        return self._by_case[case]

    @cached_property
    def _by_case(self) -> Mapping[str, Point]:
        return {point.case: point for point in self.points}

    @property
    def complete(self) -> bool:
        """Whether every case ran well, but for those that were left out by rule."""
        return not self.failures and all(point.status in scaling.FINE for point in self.points)

    @property
    def passed(self) -> bool:
        """Whether every case ran well and every expectation is known to hold."""
        return self.complete and all(expectation.held for expectation in self.expectations)


def summarise(
    run: Run,
    networks: Mapping[str, Network] | None = None,
    predict: Sequence[int] | None = (),
    bare: Run | None = None,
    *,
    short: bool = False,
) -> Summary:
    """Work out all findings of a run; with `short`, of very many cases those on as many as are shown.

    Its traced cases are replayed on other `networks`, by name; `predict` are the sizes to foretell, None for
    no models at all. Its calls are set beside those of a run of `bare` collectives.
    """
    whole, run = run, shortened(run) if short else run
    found = Findings(run)
    points, times, planned = found.points, found.times, run.planned
    phases, calls, memory, threads = found.phases, found.calls, found.memory, found.threads
    shown = timelines(run)
    order = {point.case: place for place, point in enumerate(points)}

    def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
        return tuple(sorted(findings, key=lambda finding: order[finding.case]))

    return Summary(
        run=str(run.document.get("run") or run.path.name),
        path=str(run.path),
        suite=str(run.suite.get("name", "")),
        title=_title(run, points),
        scaling=str(run.suite.get("scaling", "")),
        machine=machine(whole),
        launches=len(whole.cases),
        repeats=int(run.document.get("repeats") or 1),
        verdicts=found.verdicts,
        points=points,
        trees=ordered(found.trees.values()),
        phase_trees=ordered(found.phase_trees),
        axis_trees=ordered(found.axis_trees),
        losses=ordered(found.losses.values()),
        phases=ordered(phases),
        ranks=ordered(found.ranks),
        calls=ordered(calls),
        bandwidths=bandwidths(run),
        bares=ordered(beside_bare(calls, planned, bare) if bare else ()),
        compressed=compressed(planned, points, phases, calls),
        precision=fewer_bits(planned, points, memory, calls),
        offloaded=offloaded(run, points, memory),
        optimizers=optimized(planned, points, phases, memory),
        ranking=found.ranking,
        memory=ordered(memory),
        bubbles=ordered(bubbles(run, phases, calls)),
        skipped=ordered(found.skipped),
        models=() if predict is None else found.models(predict),
        wait=found.largest_wait(),
        timelines=shown,
        what_ifs=ordered(what_if(run, networks or {})),
        remarks=found.remarks,
        expectations=expect.expectations(run, points, found.trees),
        failures=scaling.failures(whole)[: SHOWN if run is not whole else None],
        late=ordered(found.late),
        threads=ordered(threads),
        answers=(*best_splits(planned, points, times, threads), *injected.costs(run, points, times)),
        notes=tuple(notes(run, points, found.trees, bare=bare, traced=bool(shown))),
        provenance=tuple(circumstances(whole).items()),
        given=str(run.suite.get("given") or ""),
    )


def _title(run: Run, points: Iterable[Point]) -> str:
    """Return the heading of the report and of every figure; lateness on purpose is part of it."""
    title = str(run.suite.get("title") or run.suite.get("name", ""))
    return f"{title} (with injected lateness)" if any(point.injected for point in points) else title
