"""One line a series: how efficient its largest case is, whether that is enough, and what is lost to what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.efficiency import LOSSES, half
from pscale.analysis.stats import Estimate
from pscale.analysis.verdict import Verdict, size
from pscale.analysis.wording import duration, percent, rate

TARGET = {"holds": "meets target", "falls short": "misses target"}
_TOLD = 0.005  # of a step: a smaller loss is not worth a word


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The largest case of a series in one line, in the numbers of the tables; None: not measured."""

    suite: str
    series: str  # empty where the suite has one
    size: str  # such as "2 ranks"; empty: nothing was measured
    missing: str  # the largest size where that has no result, such as "4 ranks failed"
    base: str  # what the efficiency refers to, where that is not one core; "1 rank failed" where it has none
    step_s: Estimate | None
    samples_per_s: Estimate | None
    efficiency: Estimate | None  # None without a base of another size
    answer: Literal["", "holds", "undecided", "falls short"]  # empty: nothing is expected
    demand: str  # such as "≥ 85.0%"
    interference: str  # what others took from these cores, where that is instead of a cause
    lost: tuple[tuple[str, str], ...]  # names of losses and shares of the step, largest first
    reason: str  # why the first launch failed, where nothing was measured
    noise: tuple[tuple[str, str], ...]  # likewise, of those that do not exceed their uncertainty

    @property
    def figure(self) -> str:
        """The efficiency with half of its interval; without one the throughput, or the step time."""
        if self.efficiency is None:
            if self.samples_per_s is not None:
                return f"{rate(self.samples_per_s.value)} samples/s"
            return f"{duration(self.step_s.value, 4)} per step" if self.step_s else "no valid result"
        return known(self.efficiency) + f" of {self.base}" * bool(self.base)

    @property
    def judged(self) -> str:
        """The verdict on the target, such as "meets target (≥ 85.0%)"; empty without one."""
        if self.efficiency is None and self.base:
            return f"no efficiency: {self.base}"
        if not self.demand:
            return self.answer
        met = TARGET.get(self.answer)
        return f"{met} ({self.demand})" if met else f"{self.answer} (target {self.demand})"

    @property
    def causes(self) -> str:
        """Interference, else the losses in words, such as "lost to: transfer 2.0% ± 0.3%"."""
        if self.reason:
            return f"first failure: {self.reason}"
        if self.interference:
            return f"disturbed: {self.interference}"
        parts = {"lost to": self.lost, "not significant": self.noise}
        return "; ".join(
            f"{name}: {', '.join(map(' '.join, shares))}" for name, shares in parts.items() if shares
        )


def known(efficiency: Estimate) -> str:
    """Return an efficiency with half of its interval, or that this is too wide to state."""
    value = percent(efficiency.value)
    if efficiency.low is None or efficiency.high is None:
        return value
    if efficiency.stated is None:
        return f"{value} (interval too wide)"
    return f"{value} ± {percent((efficiency.high - efficiency.low) / 2)}"


def outcomes(
    suite: str,
    verdicts: Iterable[Verdict],
    series: Mapping[str, Sequence[Row]],
    lost: Mapping[str, Row],
) -> Iterator[Outcome]:
    """Yield the outcome of every series, given its verdict and its cases."""
    verdicts = list(verdicts)
    for verdict in verdicts:
        points = series[verdict.series]
        point = next((each for each in points if each.case == verdict.case), None)
        alone = point is None or point.base or point.efficiency is None
        losses = None if verdict.interference else lost.get(verdict.case)
        yield Outcome(
            suite=suite,
            series=verdict.series if len(verdicts) > 1 else "",
            size=size(point) if point else "",
            missing=_missing(point, points) if point else "",
            base=_base(point, points) if point else "",
            step_s=point.step_s if point else None,
            samples_per_s=point.samples_per_s if point else None,
            efficiency=None if point is None or alone else point.efficiency,
            answer=verdict.answer,
            demand=verdict.demand,
            interference=verdict.interference,
            reason="" if point else next((each.reason for each in points if each.reason), ""),
            lost=_lost(losses, firm=True),
            noise=_lost(losses, firm=False),
        )


def _missing(largest: Row, points: Sequence[Row]) -> str:
    above = [point for point in points if point.cores > largest.cores and not point.step_s]
    return f"{size(above[-1])} {above[-1].status}" if above else ""


def _base(largest: Row, points: Sequence[Row]) -> str:
    base = next((point for point in points if point.base), None)
    if base is None or base.step_s is None:
        return f"{size(base)} {base.status}" if base else ""
    return size(base) if base.cores > 1 and base is not largest else ""


def _lost(losses: Row | None, *, firm: bool) -> tuple[tuple[str, str], ...]:
    if losses is None:
        return ()
    shares = {name: share for name in LOSSES if (share := getattr(losses, name)) and share.value >= _TOLD}
    told = [name for name, share in shares.items() if firm == (share.value > (half(share) or 0.0))]
    largest_first = sorted(told, key=lambda name: -shares[name].value)
    return tuple((LOSSES[name], messages.loss(losses, name)) for name in largest_first)
