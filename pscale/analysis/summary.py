"""Everything that a report says about a run, worked out; rendering adds no arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from pscale.analysis import axes, efficiency, evidence, expect, headline, injected, losses, phases, scaling
from pscale.analysis.axes import AxisTree
from pscale.analysis.bandwidth import Bandwidth, bandwidths
from pscale.analysis.bare import Bare, beside_bare, where
from pscale.analysis.bubble import Bubble, bubbles
from pscale.analysis.circumstances import circumstances
from pscale.analysis.compression import Compressed, compressed
from pscale.analysis.efficiency import Tree
from pscale.analysis.evidence import Remark
from pscale.analysis.expect import Expectation
from pscale.analysis.fewer_bits import FewerBits, fewer_bits
from pscale.analysis.frames import Run
from pscale.analysis.headline import Headline
from pscale.analysis.late import Late, late_ranks
from pscale.analysis.losses import Losses
from pscale.analysis.memory import Memory, memory
from pscale.analysis.models import Model, models
from pscale.analysis.offload import Offloaded, offloaded
from pscale.analysis.phases import CallTime, PhaseTime, RankTime, WaitMap
from pscale.analysis.ranking import Place, Spent, ranking
from pscale.analysis.recording import recording_note
from pscale.analysis.scaling import Failure, Point
from pscale.analysis.skipped import Skipped, skipped
from pscale.analysis.splits import best_splits
from pscale.analysis.threads import ThreadTime, thread_times, with_threads
from pscale.analysis.timeline import Timeline, timelines
from pscale.analysis.verdict import Costs, Verdict, verdict
from pscale.analysis.what_if import Network, WhatIf, what_if
from pscale.analysis.wording import duration

FORMAT = 1
_TRACED = "Every phase and call was kept: `pscale trace` writes them as a timeline, for ui.perfetto.dev."


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
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.series, []).append(point)
        return found

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
) -> Summary:
    """Work out all findings of a run.

    Its traced cases are replayed on other `networks`, by name; `predict` are the sizes to foretell, None for
    no models at all. Its calls are set beside those of a run of `bare` collectives.
    """
    seed = run.document.get("seed")
    seed = seed if isinstance(seed, int) and seed >= 0 else 0
    times = scaling.step_samples(run, seed)
    points = scaling.points(run, times)
    launches, bases = efficiency.launches(run), scaling.bases(points)
    threads = thread_times(run)
    trees = with_threads(efficiency.trees(launches, bases, seed), threads)
    by_launch = efficiency.phases(run)
    of_phases = efficiency.phase_trees(by_launch, bases, launches)
    of_axes = axes.axis_trees(run, launches)
    lost = losses.losses(launches, trees)
    by_phase, ranks, by_call = phases.by_phase(run), phases.slowest_ranks(run), phases.calls(run)
    late = late_ranks(run)
    costs = Costs(losses=lost, phases=by_phase, ranks=ranks, axes=of_axes, late=late, threads=threads)
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    verdicts = tuple(verdict(name, members, costs) for name, members in series.items())
    remarks = evidence.remarks(run, points, times, late)
    sharing = headline.sharing(remarks)
    spent = Spent(phases=by_phase, calls=by_call, sharing=sharing)
    laws = (
        () if predict is None else models(points, times, by_launch, asked=predict, sharing=sharing, seed=seed)
    )
    shown = timelines(run)
    held = memory(run)
    order = {point.case: place for place, point in enumerate(points)}

    def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
        return tuple(sorted(found, key=lambda finding: order[finding.case]))

    return Summary(
        run=str(run.document.get("run") or run.path.name),
        path=str(run.path),
        suite=str(run.suite.get("name", "")),
        title=_title(run, points),
        scaling=str(run.suite.get("scaling", "")),
        machine=_machine(run),
        launches=len(run.cases),
        repeats=int(run.document.get("repeats") or 1),
        verdicts=verdicts,
        points=points,
        trees=ordered(trees.values()),
        phase_trees=ordered(of_phases),
        axis_trees=ordered(of_axes),
        losses=ordered(lost.values()),
        phases=ordered(by_phase),
        ranks=ordered(ranks),
        calls=ordered(by_call),
        bandwidths=bandwidths(run),
        bares=ordered(beside_bare(by_call, run.planned, bare) if bare else ()),
        compressed=compressed(run.planned, points, by_phase, by_call),
        precision=fewer_bits(run.planned, points, held, by_call),
        offloaded=offloaded(run, points, held),
        ranking=ranking(run.planned, points, times, spent),
        memory=ordered(held),
        bubbles=ordered(bubbles(run, by_phase, by_call)),
        skipped=ordered(skipped(run)),
        models=laws,
        wait=_largest_wait(run, points),
        timelines=shown,
        what_ifs=ordered(what_if(run, networks or {})),
        remarks=remarks,
        expectations=expect.expectations(run, points, trees),
        failures=scaling.failures(run),
        late=ordered(late),
        threads=ordered(threads),
        answers=(
            *best_splits(run.planned, points, times, threads),
            *injected.costs(run, points, times),
        ),
        notes=(
            *run.gaps,
            *_notes(points, run.ranks["clock_bound_s"].max(), run.document.get("auto")),
            *filter(None, [recording_note(run), where(bare, _elsewhere(run, bare)) if bare else ""]),
            *((_TRACED,) if shown else ()),
        ),
        provenance=tuple(circumstances(run).items()),
        given=str(run.suite.get("given") or ""),
    )


def _title(run: Run, points: Iterable[Point]) -> str:
    """Return the heading of the report and of every figure; lateness on purpose is part of it."""
    title = str(run.suite.get("title") or run.suite.get("name", ""))
    return f"{title} (with injected lateness)" if any(point.injected for point in points) else title


def _largest_wait(run: Run, points: tuple[Point, ...]) -> WaitMap | None:
    measured = [point for point in points if point.steps]
    if not measured:
        return None
    return phases.wait_map(run, max(measured, key=lambda point: (point.ranks, point.cores)).case)


def _notes(
    points: tuple[Point, ...], clock_bound_s: float, auto: Mapping[str, Any] | None
) -> tuple[str, ...]:
    notes = []
    if clock_bound_s > 0:
        notes.append(
            "The clocks of the nodes were brought together: the times of a rank are off by "
            f"{duration(clock_bound_s)} from those of rank 0 at most."
        )
    good = [point for point in points if point.step_s]
    if auto and good:
        counts = sorted(point.launches for point in good)
        notes.append(
            f"Launches went on until the step time was known to ±{100 * auto['precision']:.3g}%, at most "
            f"{auto['most']} of a case (`repeat: auto`): it took {counts[0]} to {counts[-1]}."
        )
    if any(point.launches == 1 for point in good):
        notes.append(
            "Cases with one launch have no interval: what differs between launches is not known from one. "
            "Set `repeat: 3` or more."
        )
    if dropped := [point for point in good if point.dropped]:
        shares = [f"{point.label}: {point.dropped} of {point.dropped + point.steps}" for point in dropped]
        notes.append(
            "Further warm-up, found after the steps of `warmup` and left out of the step times "
            f"(all other steps count, however slow): {_listed(shares, most=8)}."
        )
    if any(point.peak_fraction for point in good):
        notes.append(
            "GFLOP/s counts model FLOPs (attention causal); `of peak` is executed FLOPs over the "
            "matrix-product peak measured in the same job on the same cores."
        )
    return tuple(notes)


def _machine(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what the launches ran on; several values where they differ."""
    ranks = run.ranks
    blas = ranks[["blas", "blas_version", "blas_architecture", "blas_threading"]].astype(object).fillna("")
    kernels = ranks[["kernels", "kernel_threads"]]
    found = {
        "Hosts": sorted(set(ranks["host"].dropna().astype(str))),
        "CPU": [_processor(run.document.get("provenance", {}).get("machine", {}))],
        "BLAS": sorted({" ".join(filter(None, map(str, row))) for row in blas.drop_duplicates().to_numpy()}),
        "Kernels": sorted({_kernels(*row) for row in kernels.dropna().to_numpy()}),
        "MPI": sorted({_mpi(text) for text in run.cases["provenance"].dropna().unique()}),
    }
    return tuple((name, _listed(values)) for name, values in found.items() if any(values))


def _elsewhere(run: Run, other: Run) -> list[str]:
    """Return in what another run's hosts or MPI differ."""
    own, others = dict(_machine(run)), dict(_machine(other))
    return [
        name for name, key in (("set of hosts", "Hosts"), ("MPI", "MPI")) if own.get(key) != others.get(key)
    ]


def _kernels(name: str, threads: int) -> str:
    return f"{name}, {threads} threads" if threads > 1 else name


def _processor(machine: Mapping[str, Any]) -> str:
    cores = machine.get("cores")
    known = [machine.get("cpu_model"), f"{cores} cores" if cores else None]
    return ", ".join(str(value) for value in known if value)


def _mpi(provenance: str) -> str:
    try:
        found = json.loads(provenance)["mpi"]
        name = f"{found['vendor']} {found['version']}" if "vendor" in found else str(found["library"])
    except (ValueError, KeyError, TypeError):
        return ""
    return " ".join(name.split())[:60]


def _listed(values: list[str], most: int = 4) -> str:
    named = ", ".join(value for value in values[:most] if value)
    return named if len(values) <= most else f"{named} and {len(values) - most} more"
