"""`repeat: auto`: launch a case again until its step time is known well enough."""

from __future__ import annotations

from pscale.launch.campaign import Job
from pscale.launch.journal import Journal

_FEWEST_GOOD = 2  # of the first launches; a case that fails as often is not tried to the end


class UntilPrecise:
    """Decides which launches are wanted, from what those before them told; the journal keeps decisions.

    Every decision follows from launches of earlier rounds alone, which have all ended by then, so that a run
    that was killed goes on as if it had not been.
    """

    def __init__(self, journal: Journal):
        self._journal = journal
        self._enough = journal.enough()
        self._least: int = journal.document["repeats"]
        self._precision: float = journal.document["auto"]["precision"]
        self._widths: dict[str, float] = {}

    @property
    def settled(self) -> int:
        """How many cases need no further launch."""
        return len(self._enough)

    def wanted(self, job: Job) -> bool:
        """Tell whether the case of `job` needs this launch too, as far as that can be known already."""
        case = job.case.id
        if job.repeat < self._least:
            return True
        if case in self._enough or not self._have_ended(case, job.repeat):
            return False
        if self._is_enough(case, job.repeat):
            self._enough.add(case)
            return False
        return True

    def _have_ended(self, case: str, launches: int) -> bool:
        """Tell whether the first launches of a case are over; another job may still be at one of them."""
        return {(case, repeat) for repeat in range(launches)} <= self._journal.finished()

    def _is_enough(self, case: str, launches: int) -> bool:
        from pscale.analysis.precision import known

        so_far = known(self._journal.data, case, range(launches), self._journal.document["seed"])
        width = so_far.half_width
        if width is not None:
            self._widths[case] = width
        precise = width is not None and width <= self._precision
        if precise or so_far.good < _FEWEST_GOOD:
            self._journal.note("enough", case=case, launches=launches, half_width=width)
            return True
        return False

    def reached(self, job: Job) -> str:
        """Say how well the case of `job` was known before it, where that was asked."""
        width = self._widths.get(job.case.id)
        return "" if width is None else f"known to ±{width:.1%} before"
