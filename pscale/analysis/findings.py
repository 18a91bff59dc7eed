"""What follows from what in a run: each finding worked out once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import pandas as pd

from pscale.analysis import axes, efficiency, evidence, headline, losses, phases, scaling
from pscale.analysis.axes import AxisTree
from pscale.analysis.efficiency import Tree
from pscale.analysis.evidence import Remark
from pscale.analysis.frames import Run
from pscale.analysis.late import Late, late_ranks
from pscale.analysis.losses import Losses
from pscale.analysis.memory import Memory, memory
from pscale.analysis.models import Model, models
from pscale.analysis.phases import CallTime, PhaseTime, RankTime, WaitMap
from pscale.analysis.ranking import Place, Spent, ranking
from pscale.analysis.scaling import Point
from pscale.analysis.skipped import Skipped, skipped
from pscale.analysis.stats import Sample
from pscale.analysis.threads import ThreadTime, thread_times, with_threads
from pscale.analysis.verdict import Costs, Verdict, verdict


class Findings:
    """The findings of a run on which others stand; those that stand alone are asked of their modules."""

    def __init__(self, run: Run):
        self.run = run

    @cached_property
    def times(self) -> Mapping[str, Sample]:
        """The step times of every measured case."""
        return scaling.step_samples(self.run, self.run.seed)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """All cases."""
        return scaling.points(self.run, self.times)

    @cached_property
    def threads(self) -> tuple[ThreadTime, ...]:
        """What the threads of ranks did."""
        return thread_times(self.run)

    @cached_property
    def trees(self) -> Mapping[str, Tree]:
        """The efficiencies of every case."""
        return with_threads(efficiency.trees(self._launches, self._bases, self.run.seed), self.threads)

    @cached_property
    def phase_trees(self) -> tuple[Tree, ...]:
        """The efficiencies of every phase of every case."""
        return efficiency.phase_trees(self._of_phases, self._bases, self._launches)

    @cached_property
    def axis_trees(self) -> tuple[AxisTree, ...]:
        """The efficiencies of every axis of every case."""
        return axes.axis_trees(self.run, self._launches)

    @cached_property
    def losses(self) -> Mapping[str, Losses]:
        """Where the step of every case went."""
        return losses.losses(self._launches, self.trees, self._bases, self.threads)

    @cached_property
    def phases(self) -> tuple[PhaseTime, ...]:
        """The time of every phase."""
        return phases.by_phase(self.run)

    @cached_property
    def ranks(self) -> tuple[RankTime, ...]:
        """The slowest ranks."""
        return phases.slowest_ranks(self.run)

    @cached_property
    def calls(self) -> tuple[CallTime, ...]:
        """The time of every kind of call."""
        return phases.calls(self.run)

    @cached_property
    def memory(self) -> tuple[Memory, ...]:
        """What the fullest ranks hold."""
        return memory(self.run)

    @cached_property
    def skipped(self) -> tuple[Skipped, ...]:
        """Steps without an update."""
        return skipped(self.run)

    @cached_property
    def late(self) -> tuple[Late, ...]:
        """Ranks that the others wait for."""
        return late_ranks(self.run)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What to read first about every series."""
        costs = Costs(
            losses=self.losses,
            phases=self.phases,
            ranks=self.ranks,
            axes=self.axis_trees,
            late=self.late,
            threads=self.threads,
        )
        return tuple(
            verdict(name, members, costs, self.run.planned)
            for name, members in scaling.by_series(self.points).items()
        )

    @cached_property
    def remarks(self) -> tuple[Remark, ...]:
        """What speaks against trusting the figures."""
        return evidence.remarks(self.run, self.points, self.times, self.late, self.skipped)

    @cached_property
    def ranking(self) -> tuple[Place, ...]:
        """Plans of the same work, fastest first."""
        spent = Spent(phases=self.phases, calls=self.calls, sharing=self._sharing)
        return ranking(self.run.planned, self.points, self.times, spent)

    def models(self, asked: Sequence[int]) -> tuple[Model, ...]:
        """Return a law for every series; `asked` are the sizes to foretell."""
        return models(
            self.points, self.times, self._of_phases, asked=asked, sharing=self._sharing, seed=self.run.seed
        )

    def largest_wait(self) -> WaitMap | None:
        """Return the waits of the largest case."""
        measured = [point for point in self.points if point.steps]
        if not measured:
            return None
        return phases.wait_map(self.run, max(measured, key=lambda point: (point.ranks, point.cores)).case)

    @cached_property
    def _launches(self) -> pd.DataFrame:
        return efficiency.launches(self.run)

    @cached_property
    def _of_phases(self) -> pd.DataFrame:
        return efficiency.phases(self.run)

    @cached_property
    def _bases(self) -> Mapping[str, str]:
        return scaling.bases(self.points)

    @cached_property
    def _sharing(self) -> Collection[str]:
        return headline.sharing(self.remarks)
