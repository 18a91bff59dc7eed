"""The launches of a run: which are planned, how the end of each is settled, and `repeat: auto`.

That chooses which cases each round launches, until what the report says first is known well enough. A round
launches its cases one after another, so that what the machine does meanwhile affects all alike. What counts
is the efficiency of a case against its base, where the suite has one, else its step time; the largest size
of each series comes first. Every decision follows from the ends of earlier rounds alone: a run that was
killed continues as if it had not been.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pscale.analysis.stats import Sample, ratio
from pscale.cli.costs import MemoryFit
from pscale.cli.workload_tables import program_columns
from pscale.config import Case, from_dict
from pscale.config.case import UNCOUNTED
from pscale.errors import ResultsError
from pscale.launch.outcome import Outcome
from pscale.launch.runner import CaseLaunch, plan_launches
from pscale.runs.journal import Journal, writing_in
from pscale.runs.run_events import Ended, Enough
from pscale.runs.store import launch_row, read_part, write_part

_TRIES = 3  # first launches of a case, of which one has to end well
_IN_A_ROW = 2  # rounds after which an interval has to be narrow: it may be by chance


def planned(journal: Journal) -> list[CaseLaunch]:
    """Return all launches that a run may need, as its document says."""
    document = journal.document
    cases = [from_dict(Case, case) for case in document["cases"]]
    auto = document.get("auto")
    return plan_launches(cases, auto["most"] if auto else document["repeats"], document["seed"])


def needed(journal: Journal) -> str:
    """Return how many launches a run has, in words; with `repeat: auto` that is known in the end."""
    document = journal.document
    count = len(document["cases"]) * document["repeats"]
    return f"at least {count}" if document.get("auto") else str(count)


def with_step_time(journal: Journal, end: Ended) -> Ended:
    """Return the end of a launch with its step time, which older versions have in its row alone."""
    if end.status == "ok" and end.step_s is None:
        with suppress(ResultsError):
            (row,) = read_part(journal.data, "cases", end.case, end.repeat).select(["step_s"]).to_pylist()
            return replace(end, step_s=row["step_s"])
    return end


def settle(
    journal: Journal,
    fits: Mapping[str, MemoryFit],
    launch: CaseLaunch,
    outcome: Outcome,
    analysed: Callable[[float], None] = lambda _: None,
) -> Ended:
    """Write the row of a launch that has ended, with what was predicted of its case; return its end.

    That is as the row says: the worker may have found its own figures invalid. `analysed` is called with the
    share of the launch's record that is analysed.
    """
    ended = {
        "status": outcome.status,
        "reason": outcome.reason.replace(f"{journal.folder}/", ""),  # runs are moved, with their logs
        "wall_s": outcome.wall_s,
        "started_unix_s": outcome.started_unix_s,
        "launch_index": launch.index,
    }
    row = {**fits[launch.case.id].columns, **launch_row(launch.case, journal.case_folder(launch.key), ended)}
    with writing_in(journal.data):
        if launch.case.workload.command:
            row |= program_columns(journal, launch, outcome, analysed)
        if row["status"] == "ok" and (well := launch.case.well(launch.repeat)) != "ok":
            row |= {"status": well, "step_s": None}
        write_part(journal.data, "cases", *launch.key, [row])
    told = {name: row[name] for name in ("status", "reason", "wall_s")}
    return Ended(case=launch.case.id, repeat=launch.repeat, **told, step_s=row.get("step_s"))


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure to get to know: the efficiency of a case against a base, or its step time without one."""

    case: str
    base: str | None
    first: bool  # before other figures, as the report's first sentence has it

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases that it takes launches of."""
        return (self.case, self.base) if self.base else (self.case,)


class Rounds:
    """The rounds of a run with `repeat: auto`; with `cases`, those of a job that has only some of the run's.

    Such a job cannot see launches of others in time, so that its cases count by their step times.
    """

    def __init__(self, journal: Journal, cases: Collection[str] | None = None):
        document = journal.document
        planned = {case["id"]: case for case in document["cases"]}
        self._journal = journal
        self._auto: Mapping[str, Any] = document["auto"]
        self._cases = {name: case for name, case in planned.items() if cases is None or name in cases}
        self._apart = len(self._cases) < len(planned)
        self._rounds: list[tuple[str, ...]] = []  # the cases of each
        self._ended: dict[str, dict[int, Ended]] = {name: {} for name in self._cases}

    def wanted(self, launch: CaseLaunch) -> bool:
        """Tell whether a launch is part of its round; not yet, where an earlier round has not ended."""
        return launch.case.id in (self._round(launch.repeat) or ())

    def close(self) -> None:
        """Note that nothing is left to do, if that is so."""
        self._round(self._auto["most"])

    def _round(self, number: int) -> tuple[str, ...] | None:
        """Return the cases of a round; None where that cannot be known yet."""
        if number >= len(self._rounds):
            ends = self._journal.ends()
            while number >= len(self._rounds):
                at = len(self._rounds)
                before = self._rounds[-1] if self._rounds else ()
                if any((case, at - 1) not in ends for case in before):
                    return None
                for case in before:
                    self._ended[case][at - 1] = with_step_time(self._journal, ends[case, at - 1])
                self._rounds.append(self._chosen(at) if before or at == 0 else ())
        return self._rounds[number]

    def _chosen(self, at: int) -> tuple[str, ...]:
        if at <= self._auto.get("uncounted", 0):
            return tuple(self._cases)
        goals = self.goals()
        first = [goal for goal in goals if goal.first]
        if at < self._auto["least"]:
            choices = [goals, first]
        else:
            unknown = [goal for goal in goals if not self._is_known(goal)]
            choices = [[goal for goal in unknown if goal.first] or unknown]
        for choice in choices:
            cases = dict.fromkeys(case for goal in choice for case in goal.cases)
            if cases and at < self._auto["most"] and self._is_in_budget(cases):
                return tuple(cases)
        self._stop(goals)
        return ()

    def _stop(self, goals: Iterable[Goal]) -> None:
        widths = {goal.case: self.half_width(goal) for goal in goals}
        noted = self._journal.enough()
        for case in self._cases:
            if case not in noted:
                count = len(self._ended[case]) - self._auto.get("uncounted", 0)
                self._journal.note(Enough(case=case, launches=count, half_width=widths.get(case)))

    def goals(self) -> list[Goal]:
        """Return what is to be known, as far as cases can be launched."""
        live = {name: case for name, case in self._cases.items() if not self._is_given_up(name)}
        series: dict[str, list[str]] = {}
        for name, case in live.items():
            series.setdefault(case["series"], []).append(name)
        return [goal for members in series.values() for goal in self._of_series(members, live)]

    def _of_series(self, members: list[str], live: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
        def cores(name: str) -> int:
            return int(self._cases[name]["ranks"] * self._cases[name]["threads"])

        series = live[members[0]]["series"]
        planned = [
            name
            for name, case in self._cases.items()
            if case["series"] == series and "skipped" not in self._statuses(name)
        ]
        named = [name for name in planned if self._cases[name]["base"]]
        base = named[0] if named else min(planned, key=cores)
        others = [name for name in members if name != base]
        if self._apart or not others or base not in live or live[base]["scaling"] == "throughput":
            return [Goal(case=name, base=None, first=True) for name in members]
        most = max(map(cores, others))
        return [Goal(case=name, base=base, first=cores(name) == most) for name in others]

    def _is_given_up(self, case: str) -> bool:
        statuses = [status for status in self._statuses(case) if status not in UNCOUNTED]
        return "skipped" in statuses or (len(statuses) >= _TRIES and "ok" not in statuses)

    def _statuses(self, case: str) -> list[str]:
        return [ended.status for ended in self._ended[case].values()]

    def half_width(self, goal: Goal, *, rounds: int | None = None) -> float | None:
        """Return how well a figure is known, from all its rounds, or from the first so many."""
        own, *base = (self._sample(case, rounds) for case in goal.cases)
        if own is None or None in base:
            return None
        known = ratio(base[0], own) if base and base[0] else own.estimate
        return known.half_width

    def _sample(self, case: str, rounds: int | None) -> Sample | None:
        good = {
            number: ended.step_s
            for number, ended in self._ended[case].items()
            if ended.status == "ok" and ended.step_s and (rounds is None or number < rounds)
        }
        return Sample(medians=tuple(good.values()), repeats=tuple(good)) if good else None

    def _is_known(self, goal: Goal) -> bool:
        last = max(self._ended[goal.case], default=-1)
        widths = [self.half_width(goal, rounds=last + 1 - back) for back in range(_IN_A_ROW)]
        return all(width is not None and width <= self._auto["precision"] for width in widths)

    def _is_in_budget(self, cases: Iterable[str]) -> bool:
        budget_s = self._auto["budget_s"]
        return budget_s is None or self._spent_s() + sum(map(self._launch_s, cases)) <= budget_s

    def _spent_s(self) -> float:
        return sum(ended.wall_s for launches in self._ended.values() for ended in launches.values())

    def _launch_s(self, case: str) -> float:
        launches = self._ended[case].values()
        return sum(ended.wall_s for ended in launches) / max(len(launches), 1)

    def left(self) -> dict[str, int]:
        """Return about how many launches are left by case: intervals narrow as the root of their number."""
        while self._round(len(self._rounds)):
            pass  # until a round that has not ended
        if not self._rounds[-1]:
            return {}
        goals, done = self.goals(), Counter(case for case, _ in self._journal.finished())
        round_s = sum(map(self._launch_s, {case for goal in goals for case in goal.cases}))
        rounds = self.budget_left_s / round_s if round_s else math.inf  # paid for, with the one under way
        found: dict[str, int] = {}
        for goal in goals:
            needed = self._needed(goal)
            for case in goal.cases:
                most = int(min(needed, len(self._ended[case]) + rounds))
                found[case] = max(found.get(case, 0), most - done[case])
        return found

    def _needed(self, goal: Goal) -> int:
        done, width = len(self._ended[goal.case]), self.half_width(goal)
        least, most, precision = (self._auto[name] for name in ("least", "most", "precision"))
        if width is None or done < least:
            return int(min(least, most))
        if self._is_known(goal):
            return done
        return int(min(math.ceil(done * max(width / precision, 1.0) ** 2) + 1, most))

    def known(self, case: str) -> str:
        """Say how precisely the figure of a case was known before this round; empty where it is not."""
        widths = [self.half_width(goal) for goal in self.goals() if goal.case == case]
        if not widths or widths[0] is None:
            return ""
        return f"interval so far ±{widths[0]:.1%}" if widths[0] < 1 else "interval so far too wide"

    @property
    def budget_left_s(self) -> float:
        """What is left of the budget after the rounds that have ended; infinite without one."""
        budget_s = self._auto["budget_s"]
        return math.inf if budget_s is None else max(budget_s - self._spent_s(), 0.0)
