"""The findings of a run: frames by name, and facts of the whole run, worked out when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import pandas as pd

from pscale.analysis import (
    contrasts,
    efficiency,
    expect,
    messages,
    network,
    predictions,
    resources,
    scaling,
    settings,
    steps,
)
from pscale.analysis.caveats import caveats, notes
from pscale.analysis.columns import FRAMES, Row, frame, rows
from pscale.analysis.expect import EVIDENCE, verdicts
from pscale.analysis.frames import SHOWN, Run, by_case, grouped, is_program, seeds_as_launches, shortened
from pscale.analysis.messages import Headline
from pscale.analysis.network import what_if
from pscale.analysis.resources import memory, thread_times
from pscale.analysis.settings import setting_columns
from pscale.analysis.timeline import timeline
from pscale.config.case import UNCOUNTED
from pscale.config.workload import IMPORTED
from pscale.errors import clean
from pscale.simulator.network import Network

FORMAT = 4
Texts = tuple[tuple[str, str], ...]


class _Frame(cached_property[pd.DataFrame]):
    """A declared frame of the rows that a function of findings returns."""

    def __init__(self, work: Callable[[Findings], pd.DataFrame | Iterable[Mapping[str, Any] | Row]]):
        super().__init__(lambda findings: frame(str(self.attrname), work(findings), findings.labels))


class Findings:
    """The findings of one run. Times are seconds, sizes bytes, shares and efficiencies fractions.

    Frames are those that `columns.FRAMES` declares; `rows` has one as named tuples.
    """

    def __init__(
        self,
        run: Run,
        networks: Mapping[str, Network] | None = None,
        predict: Sequence[int] | None = (),
        bare: Run | None = None,
        *,
        short: bool = False,
        proposal: contrasts.Proposal | None = None,
    ):
        """Take a run; with `short`, seeds are launches, and of very many cases as many as are shown.

        Its traced cases are simulated on other `networks`, by name; `predict` are the sizes to predict, None
        for no models at all. Its calls are set beside those of a run of `bare` collectives. Sizes are judged
        for a `proposal`; those of programs also without.
        """
        together = seeds_as_launches(run) if short else run
        self.source = shortened(together) if short else run
        self._whole, self._networks, self._predict, self._bare = together, networks or {}, predict, bare
        self._proposal = proposal
        self._by_seed = self if together is run else Findings(run)
        self._rows: dict[str, list[Row]] = {}
        self._of_case: dict[str, Mapping[str, Row]] = {}

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs to draw: findings without the run."""
        kept = {name: getattr(self, name) for name in self.names}
        return {**kept, "_rows": {}, "_of_case": {}, "source": None}

    @property
    def whole(self) -> Findings:
        """The findings of all cases."""
        return self if self.source is self._whole else Findings(self._whole)

    @property
    def names(self) -> list[str]:
        """All that is found, frames and others."""
        found = [name for name, value in vars(Findings).items() if isinstance(value, cached_property)]
        return [name for name in found if not name.startswith("_")]

    def replaced(self, **findings: Any) -> Findings:
        """Return the same findings but for some; frames may be given by their rows."""
        for name in FRAMES.keys() & findings.keys():
            if not isinstance(findings[name], pd.DataFrame):
                findings[name] = frame(name, [row._asdict() for row in findings[name]], self.labels)
        other = object.__new__(Findings)
        other.__dict__ = {**self.__dict__, "_rows": {}, "_of_case": {}, **findings}
        return other

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a frame: unknown is None, and an interval one Estimate."""
        if name not in self._rows:
            self._rows[name] = rows(name, getattr(self, name))
        return self._rows[name]

    def of_case(self, name: str) -> Mapping[str, Row]:
        """Return the row of each case, the first of several."""
        if name not in self._of_case:
            self._of_case[name] = {case: rows[0] for case, rows in self.by_case(name).items()}
        return self._of_case[name]

    def by_case(self, name: str) -> dict[str, list[Row]]:
        """Return the rows of a frame by the case that they are about."""
        return by_case(self.rows(name))

    run: cached_property[str] = cached_property(lambda of: of.source.name)  # its name
    path: cached_property[str] = cached_property(lambda of: str(of.source.path))  # its folder
    suite: cached_property[str] = cached_property(lambda of: str(of.source.suite.get("name", "")))
    # Its file.
    given: cached_property[str] = cached_property(lambda of: str(of.source.suite.get("given") or ""))

    @cached_property
    def title(self) -> str:
        """The title of the suite, which says so where delays were injected."""
        title = str(self.source.suite.get("title") or self.suite)
        return f"{title} (with injected delays)" if any(row.injected for row in self._points) else title

    # What the suite scales: strong, weak or throughput.
    scaling: cached_property[str] = cached_property(lambda of: str(of.source.suite.get("scaling", "")))
    # The machine it ran on, and all that is known of what made it: names and values.
    machine: cached_property[Texts] = cached_property(lambda of: settings.machine(of._whole))
    provenance: cached_property[Texts] = cached_property(
        lambda of: tuple(settings.environment(of._whole).items())
    )
    # Launches that ended, that are planned and have no row, and that failed or are invalid.
    launches: cached_property[int] = cached_property(lambda of: len(of._whole.cases))
    pending: cached_property[int] = cached_property(lambda of: of._whole.pending.total())
    unsuccessful: cached_property[int] = cached_property(
        lambda of: int((~of._whole.cases["status"].isin((*scaling.FINE, *UNCOUNTED))).sum())
    )

    @cached_property
    def program(self) -> str:
        """The command of the program, of imported launches the name of the study; empty for trainings."""
        workloads = (planned.get("workload") or {} for planned in self.source.planned.values())
        commands = [*dict.fromkeys(filter(None, (each.get("command") for each in workloads)))]
        return str(self.source.suite["name"]) if commands == [IMPORTED] else ", ".join(commands)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How to read the intervals and rates of this run."""
        traced = not self.timeline.empty
        return tuple(notes(self.source, self._points, self._times, bare=self._bare, traced=traced))

    @property
    def _points(self) -> list[Row]:
        return self.rows("cases")

    _times = cached_property(lambda of: scaling.step_samples(of.source))
    _cases = cached_property(lambda of: scaling.cases(of.source, of._times))
    _bases = cached_property(lambda of: scaling.bases(of._points))
    _rank_means = cached_property(lambda of: steps.rank_means(of.source))
    _launches = cached_property(lambda of: efficiency.launches(of.source))
    _of_phases = cached_property(lambda of: efficiency.phases(of.source))
    _round_s = cached_property(lambda of: scaling.round_s(of._whole))
    _observed = cached_property(lambda of: resources.observations(of.source.ranks))

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels of all cases, by series and size."""
        return {row["case"]: row["label"] for row in self._cases}

    @cached_property
    def launch_steps_s(self) -> Mapping[str, tuple[float, ...]]:
        """The step time of every launch that ended well, by case."""
        good = self.source.good.dropna(subset=["step_s"])
        return {str(case): tuple(map(float, times)) for case, times in good.groupby("case")["step_s"]}

    @cached_property
    def cases(self) -> pd.DataFrame:
        """Every case, with the degrees of its plan and the settings that vary behind `scaling`."""
        table = frame("cases", self._cases, self.labels)
        place = 1 + [*table.columns].index("scaling")
        added = pd.DataFrame(setting_columns(self.source, table), index=table.index)
        return pd.concat([table.iloc[:, :place], added, table.iloc[:, place:]], axis=1)

    phases = _Frame(lambda of: steps.phases(of.source, of._rank_means))
    calls = _Frame(lambda of: network.with_bare(steps.calls(of.source), of.source.planned, of._bare))
    ranks = _Frame(lambda of: steps.slowest_ranks(of.source, of._rank_means))
    roofline = _Frame(lambda of: steps.kernels(of.source))
    stragglers = _Frame(lambda of: steps.stragglers(of.source))
    threads = _Frame(lambda of: thread_times(of.source))
    interference = _Frame(lambda of: resources.interferences(of._observed, of._points, of.rows("threads")))
    efficiency = _Frame(
        lambda of: (
            *efficiency.trees(of._launches, of._points, of.rows("threads")),
            *efficiency.phase_trees(of._of_phases, of._bases, of._launches),
        )
    )
    lost_time = _Frame(
        lambda of: efficiency.lost_time(of._launches, of.of_case("efficiency"), of._bases, of.rows("threads"))
    )
    axes = _Frame(lambda of: efficiency.axis_trees(of.source, of._launches))
    bubbles = _Frame(lambda of: steps.bubbles(of.source, of.rows("phases"), of.rows("calls")))
    costs = _Frame(lambda of: scaling.costs(of._points))
    evidence = _Frame(lambda of: of._evidence())

    def _evidence(self) -> Iterable[Mapping[str, Any]]:
        run, asked = self.source, self._proposal
        programs = [is_program(run.planned.get(row["case"], {})) for row in self._cases]
        kept = self._cases if asked else [*compress(self._cases, programs)]
        sizes = scaling.from_smallest(kept, self._times)
        points = rows("cases", frame("cases", sizes, self.labels))
        asked = asked or contrasts.Proposal()
        demand = {"metric": "efficiency", "at_least": asked.target}
        entries, disturbed = [demand] if points else [], self.of_case("interference")
        answers = expect.expectations(run, points, {}, self._round_s, interference=disturbed, entries=entries)
        costs = {row["case"]: row for row in scaling.costs(points)}
        judged = {row.case: row for row in answers}
        return contrasts.evidence(run, sizes, self._times, costs, judged=judged, asked=asked)

    loss_scaling = _Frame(lambda of: scaling.loss_scaling(of.source))
    memory = _Frame(lambda of: memory(of.source))

    _recorded = cached_property(lambda of: predictions.recorded(of.source))
    predicted = _Frame(lambda of: predictions.held(of._recorded))
    predicted_kinds = _Frame(lambda of: predictions.kinds(of._recorded, of.by_case("phases")))
    prediction_score = _Frame(lambda of: predictions.score(of.rows("predicted")))
    merits = _Frame(lambda of: scaling.merits(of.source))
    bandwidths = _Frame(lambda of: network.bandwidths(of.source))
    what_if = _Frame(lambda of: what_if(of.source, of._networks))
    failures = _Frame(lambda of: scaling.failures(of._whole)[: SHOWN if of.source is not of._whole else None])
    warnings = _Frame(
        lambda of: caveats(
            of.source,
            of._points,
            of._times,
            of._observed,
            stragglers=of.of_case("stragglers"),
            loss_scaling=of.of_case("loss_scaling"),
            hints=of.by_case("hints"),
        )
    )
    expectations = _Frame(
        lambda of: expect.expectations(
            of.source,
            of._points,
            of.of_case("efficiency"),
            of._round_s,
            of.rows("merits"),
            interference=of.of_case("interference"),
        )
    )
    verdicts = _Frame(
        lambda of: verdicts(
            of._points, of.source.planned, {name: of.by_case(name) for name in EVIDENCE}, of._round_s
        )
    )
    ranking = _Frame(
        lambda of: contrasts.ranking(
            of.source.planned, of._points, of._times, of.rows("phases"), of.rows("calls"), sharing=of._sharing
        )
    )
    crossings = _Frame(lambda of: contrasts.crossings(of.source, of._points, of._times))

    _costs = cached_property(
        lambda of: contrasts.Costs(of.source, of.of_case("memory"), of.rows("phases"), of.rows("calls"))
    )

    choices = _Frame(lambda of: contrasts.choices(of.source, of._points, of._times, lambda: of._costs))
    hints = _Frame(lambda of: settings.hints(of.source))
    time_to_loss = _Frame(
        lambda of: contrasts.time_to_loss(of._by_seed.source.planned, of._by_seed._points, of._by_seed._times)
    )
    saved = _Frame(lambda of: contrasts.saved(of.source, of._points))

    _models = cached_property(
        lambda of: predictions.models(
            of.source,
            of._points,
            of._times,
            of._of_phases,
            asked=of._predict,
            sharing=of._sharing,
        )
    )
    models = _Frame(lambda of: of._models["models"])
    laws = _Frame(lambda of: of._models["laws"])
    law_predictions = _Frame(lambda of: of._models["law_predictions"])
    named_laws = _Frame(lambda of: of._models["named_laws"])
    projections = _Frame(lambda _: ())
    wait = _Frame(
        lambda of: next(steps.wait_maps(of.source, steps.by_waiting(of._points, of.rows("phases"))[:1]), ())
    )
    timeline = _Frame(lambda of: timeline(of.source))
    delay_costs = _Frame(lambda of: contrasts.delay_costs(of.source, of._points, of._times))

    @property
    def series(self) -> dict[str, list[Row]]:
        """The cases of every series, smallest first."""
        return scaling.by_series(self._points)

    @property
    def side_by_side(self) -> bool:
        """Whether cases are variants to be compared with each other, and not sizes of a few series."""
        return len(self.cases) > 1 and 2 * len(self.series) > len(self.cases)

    @property
    def heading(self) -> str:
        """The title of a figure of times, which says so where ranks share cores."""
        return f"{self.title} (ranks share cores)" if self.oversubscribed else self.title

    def titled(self, title: str, series: str) -> str:
        """Return a title with its series where there are several and each has a table of its own."""
        alone = len(self.series) == 1 or self.side_by_side
        return title if alone else f"{title}: {clean(series)}"

    @property
    def headlines(self) -> tuple[Headline, ...]:
        """What to read first."""
        pairs = grouped(self.rows("crossings"), messages.variants)
        turning = tuple(messages.crossing(pair, rows) for pair, rows in pairs.items())
        if len(self.bandwidths):
            found = messages.of_network(self.rows("bandwidths"))
        elif self.side_by_side and self.ranked("plan"):
            grave = {row.case: row for row in self.rows("interference") if row.share >= resources.GRAVE}
            told = {case for each in self.rows("crossings") for case in (each.case, each.reference_case)}
            untold = [plan for plan in self.ranked("plan") if plan.case not in told]
            found = (*turning, *messages.of_ranking(untold, grave))
        else:
            found = (*messages.of_series(self.rows("verdicts")), *turning)
        return (*found, *self.answers)

    @property
    def answers(self) -> tuple[Headline, ...]:
        """What the suite asks beside scaling, in sentences."""
        loading = [messages.loading(row) for row in self.rows("saved") if row.answer]
        delays = map(messages.delay_cost, self.rows("delay_costs"))
        trainings = grouped(self.rows("time_to_loss"), lambda row: row.target).values()
        stops = [Headline("", (words,)) for rows in trainings if (words := messages.stops_paying(rows))]
        return (*stops, *messages.of_ranking(self.ranked("split"), {}), *delays, *loading)

    def ranked(self, choice: str) -> list[Row]:
        """Return the ranking of plans, or of splits of cores into ranks and threads."""
        return [row for row in self.rows("ranking") if row.choice == choice]

    @property
    def oversubscribed(self) -> str:
        """Whether ranks share cores, in words; empty if none do."""
        return messages.oversubscribed(len(self._sharing), len(self.cases))

    @property
    def _sharing(self) -> set[str]:
        """Return the cases in which ranks share cores."""
        return {row.case for row in self.rows("warnings") if row.kind == "oversubscribed"}

    def case(self, case: str) -> Row:
        """Return the row of a case."""
        return self.of_case("cases")[case]

    @property
    def complete(self) -> bool:
        """Whether every case ran well, but for those that were left out by rule."""
        return self.failures.empty and bool(self.cases["status"].isin(scaling.FINE).all())

    @property
    def passed(self) -> bool:
        """Whether every case ran well, something is expected, and all of that is known to hold."""
        answers = set(self.expectations["answer"])
        return self.complete and answers == {"holds"}

    @property
    def undecided(self) -> bool:
        """Whether nothing failed, and yet not every expectation is known to hold or not."""
        answers = set(self.expectations["answer"])
        return self.complete and "undecided" in answers and answers <= {"holds", "undecided"}
