"""The findings of a run: frames by name, and facts of the whole run, worked out when asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from pscale.analysis import (
    compare,
    contrasts,
    efficiency,
    environment,
    expect,
    interference,
    merits,
    messages,
    network,
    predictions,
    scaling,
    steps,
)
from pscale.analysis.caveats import caveats
from pscale.analysis.columns import FRAMES, Row, frame, rows
from pscale.analysis.frames import SHOWN, Run, by_case, grouped, shortened
from pscale.analysis.memory import memory
from pscale.analysis.messages import Headline
from pscale.analysis.notes import notes
from pscale.analysis.settings import setting_columns
from pscale.analysis.stats import Sample
from pscale.analysis.threads import thread_times
from pscale.analysis.timeline import timeline
from pscale.analysis.verdict import EVIDENCE, verdicts
from pscale.analysis.what_if import what_if
from pscale.simulator.network import Network

FORMAT = 3


def _declared(
    name: str, work: Callable[[Any], pd.DataFrame | Iterable[Mapping[str, Any] | Row]]
) -> cached_property[pd.DataFrame]:
    """Return a property that keeps the declared frame of the rows that a function of findings returns."""
    return cached_property(lambda self: frame(name, work(self), self.labels))


def _table(
    work: Callable[[Any], pd.DataFrame | Iterable[Mapping[str, Any] | Row]],
) -> cached_property[pd.DataFrame]:
    """Return a property that keeps the declared frame of the rows that the method of its name returns."""
    return _declared(work.__name__, work)


def _choice(name: str) -> cached_property[pd.DataFrame]:
    """Return a property that keeps the frame of the cases that differ in one choice alone."""

    def choices(findings: Findings) -> Iterable[Mapping[str, Any]]:
        cases, times = findings.rows("cases"), findings._times
        return contrasts.choices(name, findings.source, cases, times, lambda: findings._costs)

    return _declared(name, choices)


def _model(name: str) -> cached_property[pd.DataFrame]:
    """Return a property that keeps one of the frames of fitted laws."""
    return _declared(name, lambda findings: findings._models[name])


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
    ):
        """Take a run; with `short`, of very many cases as many as are shown.

        Its traced cases are simulated on other `networks`, by name; `predict` are the sizes to predict, None
        for no models at all. Its calls are set beside those of a run of `bare` collectives.
        """
        self.source = shortened(run) if short else run
        self._whole, self._networks, self._predict, self._bare = run, networks or {}, predict, bare
        self._rows: dict[str, list[Row]] = {}
        self._of_case: dict[str, Mapping[str, Row]] = {}

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs to draw: findings without the run."""
        kept = {name: getattr(self, name) for name in self.names}
        return {**kept, "_rows": {}, "_of_case": {}, "source": None}

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
        kept = {name: value for name, value in self.__dict__.items() if name != "_series"}
        other.__dict__ = {**kept, "_rows": {}, "_of_case": {}, **findings}
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

    def of_cases(self, cases: Collection[str]) -> Findings:
        """Return the findings about these cases."""
        found: dict[str, Any] = {}
        for name in self.names:
            value = getattr(self, name)
            if name in FRAMES and "case" in value:
                found[name] = value[value["case"].isin(cases)].reset_index(drop=True)
            elif isinstance(value, tuple) and value and hasattr(value[0], "case"):
                found[name] = tuple(each for each in value if each.case in cases)
        return self.replaced(**found)

    @cached_property
    def run(self) -> str:
        """Its name."""
        return self.source.name

    @cached_property
    def path(self) -> str:
        """Its folder."""
        return str(self.source.path)

    @cached_property
    def suite(self) -> str:
        """The name of its suite."""
        return str(self.source.suite.get("name", ""))

    @cached_property
    def title(self) -> str:
        """The title of the suite, which says so where delays were injected."""
        title = str(self.source.suite.get("title") or self.suite)
        return f"{title} (with injected delays)" if any(row.injected for row in self.rows("cases")) else title

    @cached_property
    def scaling(self) -> str:
        """What the suite scales: strong, weak or throughput."""
        return str(self.source.suite.get("scaling", ""))

    @cached_property
    def machine(self) -> tuple[tuple[str, str], ...]:
        """The machine it ran on: names and values."""
        return environment.machine(self._whole)

    @cached_property
    def launches(self) -> int:
        """How many launches have ended."""
        return len(self._whole.cases)

    @cached_property
    def pending(self) -> int:
        """How many launches are planned and have no row."""
        return self._whole.pending.total()

    @cached_property
    def unsuccessful(self) -> int:
        """How many launches failed or are invalid."""
        return int((~self._whole.cases["status"].isin(scaling.FINE)).sum())

    @cached_property
    def provenance(self) -> tuple[tuple[str, str], ...]:
        """All that is known of what made the run: dotted names and values."""
        return tuple(environment.environment(self._whole).items())

    @cached_property
    def given(self) -> str:
        """The suite's file."""
        return str(self.source.suite.get("given") or "")

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How to read the intervals and rates of this run."""
        traced = not self.timeline.empty
        return tuple(notes(self.source, self.rows("cases"), self._times, bare=self._bare, traced=traced))

    @cached_property
    def _times(self) -> Mapping[str, Sample]:
        return scaling.step_samples(self.source)

    @cached_property
    def _cases(self) -> list[dict[str, Any]]:
        return scaling.cases(self.source, self._times)

    @cached_property
    def _bases(self) -> Mapping[str, str]:
        return scaling.bases(self.rows("cases"))

    @cached_property
    def _rank_means(self) -> pd.DataFrame:
        return steps.rank_means(self.source)

    @cached_property
    def _launches(self) -> pd.DataFrame:
        return efficiency.launches(self.source)

    @cached_property
    def _of_phases(self) -> pd.DataFrame:
        return efficiency.phases(self.source)

    @cached_property
    def _round_s(self) -> float:
        return scaling.round_s(self._whole)

    @cached_property
    def _observed(self) -> Mapping[str, Mapping[str, Any]]:
        return interference.observations(self.source.ranks)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels of all cases, by series and size."""
        return {row["case"]: row["label"] for row in self._cases}

    @cached_property
    def launch_steps_s(self) -> Mapping[str, tuple[float, ...]]:
        """The step time of every launch that ended well, by case."""
        cases = self.source.cases
        good = cases[(cases["status"] == "ok") & cases["step_s"].notna()]
        return {str(case): tuple(map(float, times)) for case, times in good.groupby("case")["step_s"]}

    @cached_property
    def cases(self) -> pd.DataFrame:
        """Every case, with the degrees of its plan and the settings that vary behind `scaling`."""
        table = frame("cases", self._cases, self.labels)
        place = 1 + [*table.columns].index("scaling")
        added = pd.DataFrame(setting_columns(self.source, table), index=table.index)
        return pd.concat([table.iloc[:, :place], added, table.iloc[:, place:]], axis=1)

    @_table
    def phases(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return steps.phases(self.source, self._rank_means)

    @_table
    def calls(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return steps.calls(self.source)

    @_table
    def ranks(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return steps.slowest_ranks(self.source, self._rank_means)

    @_table
    def roofline(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return steps.kernels(self.source)

    @_table
    def stragglers(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return steps.stragglers(self.source)

    @_table
    def threads(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return thread_times(self.source)

    @_table
    def interference(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return interference.interferences(self._observed, self.rows("cases"), self.rows("threads"))

    @_table
    def efficiency(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        whole = efficiency.trees(self._launches, self.rows("cases"), self.rows("threads"))
        return (*whole, *efficiency.phase_trees(self._of_phases, self._bases, self._launches))

    @_table
    def lost_time(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        trees = self.of_case("efficiency")
        return efficiency.lost_time(self._launches, trees, self._bases, self.rows("threads"))

    @_table
    def axes(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return efficiency.axis_trees(self.source, self._launches)

    @_table
    def bubbles(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return steps.bubbles(self.source, self.rows("phases"), self.rows("calls"))

    @_table
    def costs(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return scaling.costs(self.rows("cases"))

    @_table
    def loss_scaling(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return scaling.loss_scaling(self.source)

    @_table
    def memory(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return memory(self.source)

    @cached_property
    def _recorded(self) -> predictions.Recorded:
        return predictions.recorded(self.source)

    @_table
    def predicted(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return predictions.held(self._recorded)

    @_table
    def predicted_kinds(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return predictions.kinds(self._recorded, self.by_case("phases"))

    @_table
    def prediction_score(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return predictions.score(self.rows("predicted"))

    @_table
    def merits(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return merits.merits(self.source)

    @_table
    def bandwidths(self) -> pd.DataFrame:  # noqa: D102 - declared in columns
        return network.bandwidths(self.source)

    @_table
    def bare(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        if self._bare is None:
            return ()
        return network.beside_bare(self.rows("calls"), self.source.planned, self._bare)

    @_table
    def what_if(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return what_if(self.source, self._networks)

    @_table
    def failures(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return scaling.failures(self._whole)[: SHOWN if self.source is not self._whole else None]

    @_table
    def warnings(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return caveats(
            self.source,
            self.rows("cases"),
            self._times,
            self._observed,
            stragglers=self.rows("stragglers"),
            loss_scaling=self.rows("loss_scaling"),
        )

    @_table
    def expectations(self) -> Iterable[Row]:  # noqa: D102 - declared in columns
        points, trees = self.rows("cases"), self.of_case("efficiency")
        judged = expect.expectations(self.source, points, trees, self._round_s, self.rows("merits"))
        return expect.withheld(judged, self._bases, self.of_case("interference"))

    @_table
    def verdicts(self) -> Iterable[Row]:  # noqa: D102 - declared in columns
        evidence = {name: self.by_case(name) for name in EVIDENCE}
        return verdicts(self.rows("cases"), self.source.planned, evidence, self._round_s)

    @_table
    def ranking(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return contrasts.ranking(
            self.source.planned,
            self.rows("cases"),
            self._times,
            self.rows("phases"),
            self.rows("calls"),
            sharing=self._sharing,
        )

    @_table
    def crossings(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return compare.crossings(self.source, self.rows("cases"), self._times)

    @cached_property
    def _costs(self) -> contrasts.Costs:
        return contrasts.Costs(self.source, self.of_case("memory"), self.rows("phases"), self.rows("calls"))

    compressed, precision, offloaded, optimizers = map(
        _choice, ("compressed", "precision", "offloaded", "optimizers")
    )

    @cached_property
    def _models(self) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        return predictions.models(
            self.source,
            self.rows("cases"),
            self._times,
            self._of_phases,
            asked=self._predict,
            sharing=self._sharing,
        )

    models, laws, law_predictions, named_laws = map(_model, predictions.FITTED)

    @_table
    def projections(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return ()

    @_table
    def wait(self) -> pd.DataFrame | Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        cases = steps.by_waiting(self.rows("cases"), self.rows("phases"))
        return next(steps.wait_maps(self.source, cases[:1]), ())

    @_table
    def timeline(self) -> Iterable[Row]:  # noqa: D102 - declared in columns
        return timeline(self.source)

    @_table
    def splits(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return contrasts.splits(self.source.planned, self.rows("cases"), self._times, self.rows("threads"))

    @_table
    def delay_costs(self) -> Iterable[Mapping[str, Any]]:  # noqa: D102 - declared in columns
        return contrasts.delay_costs(self.source, self.rows("cases"), self._times)

    @property
    def series(self) -> dict[str, list[Row]]:
        """The cases of every series, smallest first."""
        return self._series

    @cached_property
    def _series(self) -> dict[str, list[Row]]:
        return scaling.by_series(self.rows("cases"))

    @property
    def side_by_side(self) -> bool:
        """Whether cases are variants to be compared with each other, and not sizes of a few series."""
        return len(self.cases) > 1 and 2 * len(self.series) > len(self.cases)

    @property
    def headlines(self) -> tuple[Headline, ...]:
        """What to read first."""
        pairs = grouped(self.rows("crossings"), messages.variants)
        turning = tuple(Headline(pair, messages.crossing(rows)) for pair, rows in pairs.items())
        if len(self.bandwidths):
            found = messages.of_network(self.rows("bandwidths"))
        elif self.side_by_side and len(self.ranking):
            grave = {row.case: row for row in self.rows("interference") if row.share >= interference.GRAVE}
            found = (*turning, *messages.of_plans(self._untold, self.rows("cases"), grave))
        else:
            found = (*messages.of_series(self.rows("verdicts")), *turning)
        return (*found, *(Headline("", answer) for answer in self.answers))

    @property
    def answers(self) -> tuple[str, ...]:
        """What the suite asks beside scaling, in sentences."""
        groups = grouped(self.rows("splits"), lambda split: split.group)
        best = (messages.best_split(own) for own in groups.values())
        return (*best, *map(messages.delay_cost, self.rows("delay_costs")))

    @property
    def _untold(self) -> list[Row]:
        """Return the ranking without plans that a sentence on a crossing compares."""
        told = {case for each in self.rows("crossings") for case in (each.case, each.reference_case)}
        return [place for place in self.rows("ranking") if place.case not in told]

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
