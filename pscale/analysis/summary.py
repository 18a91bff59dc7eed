"""Everything that a report says about a run, worked out; rendering adds no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from pscale.analysis import answers, efficiency_tree, expect, headline, phases, scaling
from pscale.analysis.answers import DelayCost, Split
from pscale.analysis.bandwidth import Bandwidth, bandwidths
from pscale.analysis.bare_collectives import Bare, beside_bare
from pscale.analysis.crossing import Crossing, crossings
from pscale.analysis.efficiency_tree import AxisTree, Tree
from pscale.analysis.environment import environment, machine
from pscale.analysis.expect import Expectation
from pscale.analysis.frames import Finding, OfACase, Run, grouped
from pscale.analysis.headline import Headline
from pscale.analysis.interference import Interference, interferences, observations
from pscale.analysis.kernels import KernelTime, kernel_times
from pscale.analysis.loss_scaling import LossScaling, loss_scaling
from pscale.analysis.lost_time import LostTime, lost_time
from pscale.analysis.memory import Memory, memory
from pscale.analysis.merits import Merit, merits
from pscale.analysis.models import Model, curves, models
from pscale.analysis.notes import notes
from pscale.analysis.outcome import Outcome, outcomes
from pscale.analysis.phases import CallTime, PhaseTime, RankTime, WaitMap
from pscale.analysis.predicted import Held, held
from pscale.analysis.ranking import Place, Spent, ranking
from pscale.analysis.scaling import Failure, Point
from pscale.analysis.stats import Sample
from pscale.analysis.stragglers import Straggler, stragglers
from pscale.analysis.threads import ThreadTime, thread_times, with_threads
from pscale.analysis.timeline import Timeline, timelines
from pscale.analysis.truncation import SHOWN, shortened
from pscale.analysis.verdict import Verdict, verdicts
from pscale.analysis.warnings import CaseWarning, case_warnings
from pscale.analysis.what_if import WhatIf, what_if
from pscale.simulator.network import Network

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2


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
    pending: int  # launches that are planned and have no row
    unsuccessful: int  # launches that failed or are invalid
    repeats: int
    verdicts: tuple[Verdict, ...]  # one a series
    points: tuple[Point, ...]
    launch_steps_s: Mapping[str, tuple[float, ...]]  # the step time of every launch that ended well, by case
    trees: tuple[Tree, ...]
    phase_trees: tuple[Tree, ...]
    axis_trees: tuple[AxisTree, ...]
    lost_time: tuple[LostTime, ...]
    phases: tuple[PhaseTime, ...]
    ranks: tuple[RankTime, ...]
    calls: tuple[CallTime, ...]
    kernels: tuple[KernelTime, ...]
    merits: tuple[Merit, ...]  # figures of merit of workloads
    bandwidths: tuple[Bandwidth, ...]  # of bare collectives
    bares: tuple[Bare, ...]  # what the network gives to `calls`, as another run measured it
    ranking: tuple[Place, ...]  # group by group, fastest plan first
    crossings: tuple[Crossing, ...]  # variants over a swept number, in pairs
    memory: tuple[Memory, ...]
    loss_scaling: tuple[LossScaling, ...]  # steps of cases whose loss is scaled
    models: tuple[Model, ...]  # one a series; empty if not asked for
    predictions: tuple[Held, ...]  # made before the cases were measured
    wait: WaitMap | None  # of the case that waits most
    timelines: tuple[Timeline, ...]  # of some traced cases, to look at
    what_ifs: tuple[WhatIf, ...]  # on the networks that were asked about
    warnings: tuple[CaseWarning, ...]
    expectations: tuple[Expectation, ...]
    interference: tuple[Interference, ...]
    failures: tuple[Failure, ...]
    threads: tuple[ThreadTime, ...]
    stragglers: tuple[Straggler, ...]  # ranks that the others wait for
    splits: tuple[Split, ...]  # of the same cores into ranks and threads
    delay_costs: tuple[DelayCost, ...]  # of injected delays
    notes: tuple[str, ...]  # how to read the intervals and rates of this run
    provenance: tuple[tuple[str, str], ...]  # all that is known of what made the run: dotted names and values
    given: str  # the suite's file
    source: Run | None = field(default=None, repr=False, compare=False)  # of findings that few ask for

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs to draw: not the frames."""
        return {**self.__dict__, "source": None}

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels of all cases."""
        return {point.case: point.label for point in self.points}

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
        turning = headline.of_crossings(self.crossings)
        if self.bandwidths:
            found = headline.of_network(self.bandwidths)
        elif self.side_by_side and self.ranking:
            found = (*turning, *headline.of_plans(self._untold, self.points, self.interference))
        else:
            found = (*headline.of_series(self.verdicts), *turning)
        return (*found, *(Headline(topic="", text=answer) for answer in self.answers))

    @property
    def answers(self) -> tuple[str, ...]:
        """What the suite asks beside scaling, in sentences."""
        groups = grouped(self.splits, lambda split: split.group)
        best = (answers.best_split(own) for own in groups.values())
        return (*best, *map(answers.delay_cost, self.delay_costs))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """A line a series; none for variants side by side, which a ranking compares."""
        if self.side_by_side or self.bandwidths:
            return ()
        return tuple(outcomes(self.suite, self.verdicts, self.series, self.lost_time))

    @property
    def _untold(self) -> list[Place]:
        """Return the ranking without plans that a sentence on a crossing compares."""
        told = {
            case
            for crossing in self.crossings
            for each in crossing.values
            for case in (each.case, each.reference_case)
        }
        return [place for place in self.ranking if place.case not in told]

    @property
    def oversubscribed(self) -> str:
        """Whether ranks share cores, in words; empty if none do."""
        return headline.oversubscribed(self.warnings, self.points)

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
        """Whether every case ran well, something is expected, and all of that is known to hold."""
        answers = {each.answer for each in self.expectations}
        return self.complete and answers == {"holds"}

    @property
    def undecided(self) -> bool:
        """Whether nothing failed, and yet not every expectation is known to hold or not."""
        answers = {each.answer for each in self.expectations}
        return self.complete and "undecided" in answers and answers <= {"holds", "undecided"}


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """Findings on the cases of a run that others are made of."""

    times: Mapping[str, Sample]  # step times of launches, by case
    points: tuple[Point, ...]
    bases: Mapping[str, str]
    launches: pd.DataFrame
    threads: tuple[ThreadTime, ...]
    trees: Mapping[str, Tree]
    axis_trees: tuple[AxisTree, ...]
    lost_time: Mapping[str, LostTime]
    phases: tuple[PhaseTime, ...]
    ranks: tuple[RankTime, ...]
    calls: tuple[CallTime, ...]
    loss_scaling: tuple[LossScaling, ...]
    stragglers: tuple[Straggler, ...]
    interference: Mapping[str, Interference]
    warnings: tuple[CaseWarning, ...]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Work them out."""
        times = scaling.step_samples(run)
        points = scaling.points(run, times)
        bases, threads = scaling.bases(points), thread_times(run)
        launches = efficiency_tree.launches(run)
        trees = with_threads(efficiency_tree.trees(launches, points), threads)
        scales, late, observed = loss_scaling(run), stragglers(run), observations(run.ranks)
        return cls(
            times=times,
            points=points,
            bases=bases,
            launches=launches,
            threads=threads,
            trees=trees,
            axis_trees=efficiency_tree.axis_trees(run, launches),
            lost_time=lost_time(launches, trees, bases, threads),
            phases=phases.by_phase(run),
            ranks=phases.slowest_ranks(run),
            calls=phases.calls(run),
            loss_scaling=scales,
            stragglers=late,
            interference=interferences(observed, points, threads),
            warnings=case_warnings(run, points, times, observed, stragglers=late, loss_scaling=scales),
        )

    def costs(self) -> dict[str, Iterable[OfACase]]:
        """Return what cost time, by the names of the findings."""
        return {
            "phases": self.phases,
            "ranks": self.ranks,
            "axes": self.axis_trees,
            "trees": self.trees.values(),
            "lost_time": self.lost_time.values(),
            "stragglers": self.stragglers,
            "threads": self.threads,
            "interference": self.interference.values(),
        }


def summarise(
    run: Run,
    networks: Mapping[str, Network] | None = None,
    predict: Sequence[int] | None = (),
    bare: Run | None = None,
    *,
    short: bool = False,
) -> Summary:
    """Work out all findings of a run; with `short`, of very many cases those on as many as are shown.

    Its traced cases are simulated on other `networks`, by name; `predict` are the sizes to predict, None for
    no models at all. Its calls are set beside those of a run of `bare` collectives.
    """
    whole, run = run, shortened(run) if short else run
    basis = _Basis.of(run)
    points, times, spent = basis.points, basis.times, basis.phases
    shown, found, swept = timelines(run), merits(run), curves(run, points)
    of_phases, round_s = efficiency_tree.phases(run), scaling.round_s(whole)
    judged = expect.expectations(run, points, basis.trees, round_s, found)
    expected = expect.withheld(judged, basis.bases, basis.interference)
    sharing, ordered = headline.sharing(basis.warnings), partial(_ordered, points)
    return Summary(
        **_of_document(whole, points),
        verdicts=verdicts(points, run.planned, basis.costs() | {"expectations": expected}, round_s),
        points=points,
        launch_steps_s=_launch_steps_s(run),
        trees=ordered(basis.trees.values()),
        phase_trees=ordered(efficiency_tree.phase_trees(of_phases, basis.bases, basis.launches)),
        axis_trees=ordered(basis.axis_trees),
        lost_time=ordered(basis.lost_time.values()),
        phases=ordered(spent),
        ranks=ordered(basis.ranks),
        calls=ordered(basis.calls),
        kernels=ordered(kernel_times(run)),
        merits=ordered(found),
        bandwidths=bandwidths(run),
        bares=ordered(beside_bare(basis.calls, run.planned, bare) if bare else ()),
        ranking=ranking(run.planned, points, times, Spent(phases=spent, calls=basis.calls, sharing=sharing)),
        crossings=crossings(run, points, times),
        memory=ordered(memory(run)),
        loss_scaling=ordered(basis.loss_scaling),
        predictions=ordered(held(run)),
        models=models(points, times, of_phases, asked=predict, sharing=sharing, seed=run.seed, curves=swept),
        wait=phases.wait_map(run, phases.by_waiting(points, spent)),
        timelines=shown,
        what_ifs=ordered(what_if(run, networks or {})),
        warnings=basis.warnings,
        expectations=expected,
        interference=ordered(basis.interference.values()),
        failures=scaling.failures(whole)[: SHOWN if run is not whole else None],
        stragglers=ordered(basis.stragglers),
        threads=ordered(basis.threads),
        splits=tuple(answers.splits(run.planned, points, times, basis.threads)),
        delay_costs=tuple(answers.delay_costs(run, points, times)),
        notes=tuple(notes(run, points, times, bare=bare, traced=bool(shown))),
        source=run,
    )


def _launch_steps_s(run: Run) -> Mapping[str, tuple[float, ...]]:
    good = run.cases[(run.cases["status"] == "ok") & run.cases["step_s"].notna()]
    return {str(case): tuple(map(float, times)) for case, times in good.groupby("case")["step_s"]}


def _ordered(points: Sequence[Point], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings on cases in the order of `points`."""
    order = {point.case: place for place, point in enumerate(points)}
    return tuple(sorted(findings, key=lambda finding: order[finding.case]))


def _of_document(run: Run, points: Sequence[Point]) -> dict[str, Any]:
    """Return what is known of a run without its times; injected delays are part of its title."""
    suite = run.suite
    title = str(suite.get("title") or suite.get("name", ""))
    return {
        "run": run.name,
        "path": str(run.path),
        "suite": str(suite.get("name", "")),
        "title": f"{title} (with injected delays)" if any(point.injected for point in points) else title,
        "scaling": str(suite.get("scaling", "")),
        "machine": machine(run),
        "launches": len(run.cases),
        "pending": run.pending.total(),
        "unsuccessful": int((~run.cases["status"].isin(scaling.FINE)).sum()),
        "repeats": int(run.document.get("repeats") or 1),
        "provenance": tuple(environment(run).items()),
        "given": str(suite.get("given") or ""),
    }
