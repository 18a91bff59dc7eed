"""What is seen while launches run: a line for each that has ended, and one that moves for the next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from pscale.analysis.stats import Estimate, Sample, base_of, ratio, work_ratio
from pscale.analysis.text import duration, duration_3, plural, rough
from pscale.cli.launches import Rounds
from pscale.config import Case
from pscale.config.case import UNCOUNTED
from pscale.launch.runner import CaseLaunch
from pscale.runs.run_events import Ended, Event, Launched
from pscale.runs.step_counter import StepCounter

STATUS_STYLES = {"ok": "green", "skipped": "yellow", **dict.fromkeys(UNCOUNTED, "green")}
_REFRESHES_PER_SECOND = 1  # drawing takes CPU time from the ranks
_NARROW = 100  # characters of a line, below which the bar is short
_TELLING = 0.2  # of a launch: its steps say how long the others take


@dataclass(kw_only=True)
class Known:
    """What the launches so far tell of the next: how long they take, and how efficient their cases are."""

    flops: Mapping[str, float]  # of a step, by case
    costs: Mapping[str, float]  # seconds of a launch, as far as they can be told before
    walls_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[str, dict[int, float]] = field(default_factory=dict)  # by case and round
    skipped: set[str] = field(default_factory=set)  # cases left out by rule

    def add(self, end: Ended) -> None:
        """Learn from a launch that has ended."""
        if end.status == "skipped":
            self.skipped.add(end.case)
        else:
            self.walls_s.setdefault(end.case, []).append(end.wall_s)
        if end.status == "ok" and end.step_s:
            self.steps_s.setdefault(end.case, {})[end.repeat] = end.step_s

    def expected_s(self, case: str) -> float:
        """Return how long a launch of a case should take."""
        if own := self.walls_s.get(case):
            return sum(own) / len(own)
        spent = sum(map(sum, self.walls_s.values()))
        costs = sum(self.costs[each] * len(walls) for each, walls in self.walls_s.items())
        return self.costs[case] * (spent / costs if costs else 1.0)

    def efficiency(self, cases: Iterable[Case]) -> tuple[Case, Estimate] | None:
        """Return the largest case that has a base, and how efficient it is, as the report will say."""
        sizes = [case for case in cases if case.scaling != "throughput" and case.id not in self.skipped]
        for case in sorted(sizes, key=lambda case: case.cores, reverse=True):
            base = base_of(other for other in sizes if other.series == case.series)
            if base is not None and base is not case and {base.id, case.id} <= self.steps_s.keys():
                own, least = case.cores, base.cores
                flops, stated = (
                    (self.flops[case.id], self.flops[base.id]),
                    (case.workload.work, base.workload.work),
                )
                work = work_ratio(case.scaling, (own, least), flops, stated)
                return case, ratio(self._sample(base), self._sample(case), factor=work * least / own)
        return None

    def _sample(self, case: Case) -> Sample:
        found = self.steps_s[case.id]
        return Sample(medians=tuple(found.values()), repeats=tuple(found))


class _Bar(Progress):
    """A bar that asks how far it is whenever it is drawn."""

    def __init__(self, look: Callable[[], Mapping[str, Any]], console: Console):
        self._look = look
        narrow = console.width < _NARROW
        one_line = Column(no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}", table_column=one_line, markup=False),
            BarColumn(bar_width=8 if narrow else 24),
            TextColumn("{task.fields[words]}", table_column=Column(no_wrap=True), markup=False),
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            disable=not console.is_interactive,  # it would leave an empty line
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Look, and draw."""
        for task in self.task_ids:
            self.update(task, **self._look())
        return super().get_renderables()


@contextmanager
def showing_share(what: str, console: Console) -> Iterator[Callable[[float], None]]:
    """Yield a function that shows which share of a work is done and when the rest will be, on a terminal."""
    columns = TextColumn(what, markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def end_line(count: str, launch: CaseLaunch, end: Ended) -> str:
    """Return the line of a launch that has ended, in the markup of rich: why, or what a step or all took."""
    style, timed = STATUS_STYLES.get(end.status, "red"), launch.case.workload.timed
    step = f"{duration(end.step_s)} a {timed}" if end.step_s else f"{duration_3(end.wall_s)} in all"
    name = f"{escape(launch.case.label)} #{launch.repeat + 1}"
    return f"{count}  {name}  [{style}]{end.status}[/{style}]  {escape(end.reason) or step}"


class LaunchProgress:
    """A bar, and a line for each launch that has ended; with `repeat: auto` launches become more.

    It observes the journal of the run. `counter` counts the steps of the launch under way.
    """

    def __init__(
        self,
        suite: str,
        known: Known,
        todo: Sequence[CaseLaunch],
        console: Console,
        counter: StepCounter | None,
        rounds: Rounds | None = None,
        *,
        ended: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._suite, self._known, self._console = suite, known, console
        self._launches = {launch.key: launch for launch in todo}
        self._rounds, self._counter, self._clock = rounds, counter, clock
        self._cases = list({launch.case.id: launch.case for launch in todo}.values())
        self._left = Counter(rounds.left() if rounds else (launch.case.id for launch in todo))
        self._ended, self._of = ended, ended + self._left.total()
        self._done = 0.0  # sum of costs
        self._now: CaseLaunch | None = None
        self._since_s = 0.0
        self._analysed: tuple[float, float] | None = None  # which share of its record is, and since when
        self.bar = _Bar(self.look, console)
        self.bar.add_task(suite, words="")

    def __call__(self, event: Event) -> None:
        """Take up what happens to the run."""
        if isinstance(event, Launched) and event.key in self._launches:
            self.started(self._launches[event.key])
        elif isinstance(event, Ended) and event.key in self._launches:
            self.ended(self._launches[event.key], event)

    def started(self, launch: CaseLaunch) -> None:
        """Name the launch that is about to start, and before the first say how long all will take."""
        if launch is self._now:  # once more, as its ranks have not met
            return
        if not self._since_s:
            # nobody knows how long the programs of others take
            ahead = plural(self._left.total(), "launch") if launch.case.workload.command else self.expected
            self._console.print(f"{escape(self._suite)}: {ahead}", highlight=False)
        if self._rounds:
            self._left = Counter(self._rounds.left())
        self._left[launch.case.id] = max(self._left[launch.case.id] - 1, 0)
        self._of = self._ended + 1 + self._left.total()
        self._now, self._since_s = launch, self._clock()

    def analysed(self, share: float) -> None:
        """Take up how much of the record of the launch under way is analysed."""
        self._analysed = share, self._analysed[1] if self._analysed else self._clock()

    def ended(self, launch: CaseLaunch, end: Ended) -> None:
        """Print how a launch went, and how precisely its case was known before."""
        if self._now is not launch:  # it was not to be started
            self.started(launch)
        self._ended += 1
        self._done += self._known.costs[launch.case.id]
        self._now = self._analysed = None
        self._known.add(end)
        count = f"{self._ended:>{len(str(self._of))}}/{self._of}"
        reached = self._rounds.known(end.case) if self._rounds else ""
        line = end_line(count, launch, end) + (f"  ({reached})" if reached else "")
        self._console.print(line, highlight=False, soft_wrap=True)

    def look(self) -> dict[str, Any]:
        """Return what the bar shows now."""
        now, costs = self._now, self._known.costs
        share, step = self._within(now.case) if now else (0.0, "")
        under_way = costs[now.case.id] if now else 0.0
        left = sum(costs[case] * count for case, count in self._left.items())
        words = [f"{self._ended}/{self._of}", step, self._time_left(share, under_way, left), self._so_far()]
        return {
            "description": f"{self._suite}: {now.case.label}" if now else self._suite,
            "completed": self._done + share * under_way,
            "total": self._done + under_way + left,
            "words": " · ".join(filter(None, words)),
        }

    def _within(self, case: Case) -> tuple[float, str]:
        """Return how much of the launch under way is done, and that in words."""
        if self._analysed:
            share, since_s = self._analysed
            rest_s = (self._clock() - since_s) * (1 - share) / max(share, 0.01)
            return 0.0, f"analysing its record, {share:.0%}, {about(rest_s)}"
        if case.workload.command:
            return 0.0, "running"
        steps = case.train.warmup + case.train.steps
        done = min(self._counter.value, steps) if self._counter else 0
        words = f"step {done}/{steps}" if done < steps else "finishing"
        return done / steps, words if done else "starting"

    @property
    def expected(self) -> str:
        """How long all of it should take, in words."""
        return f"about {rough(self._rest_s())}"

    def _rest_s(self) -> float:
        """Return how long the launches after this one should take: no longer than the budget."""
        rest_s = sum(self._known.expected_s(case) * count for case, count in self._left.items())
        return min(rest_s, self._rounds.budget_left_s) if self._rounds else rest_s

    def _time_left(self, share: float, under_way: float, left: float) -> str:
        """Return how long the rest should take, in words; `left` is the sum of its costs."""
        if self._now is None:
            return about(self._rest_s())
        elapsed_s = self._clock() - self._since_s
        if share <= _TELLING:
            return about(max(self._known.expected_s(self._now.case.id) - elapsed_s, 0.0) + self._rest_s())
        rest_s = self._rest_s() if self._known.walls_s else left / under_way * elapsed_s / share
        return about(elapsed_s * (1 - share) / share + rest_s)

    def _so_far(self) -> str:
        """Return how efficient the largest case is, as far as that is known."""
        found = self._known.efficiency(self._cases)
        if found is None:
            return ""
        case, value = found
        at = "" if self._console.width < _NARROW else f" at {case.label}"
        bounds = value.stated
        width = f" ± {(bounds[1] - bounds[0]) / 2:.0%}" if bounds else ""
        return f"efficiency{at} {value.value:.0%}{width}"


def about(seconds: float) -> str:
    """Return a time that is left, in words."""
    return f"{rough(seconds)} left"
