"""Sentences are readings of the tables of the same report: every number in them is a cell, to the digit."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from patience import THOROUGH
from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Plan, Workload
from pscale.report.brief import Answer
from pscale.report.topics import TOPICS
from pscale.runs import predictions

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# What is no finding: the level of all intervals, thresholds, and counts of what is listed.
CONSTANT = re.compile(
    r"95% interval|No single loss reaches 1%|(?:within|less than|difference of) 5%|rank \d+"
    r"|\d+ (?:plans|larger cases?|more\b(?! round))"
)
LOSS = [5.0, 3.0]


def sizes(series, **settings):
    late, transfer_s = settings.pop("late_s", {}), settings.pop("transfer_s", 0.0)
    return [
        Point(
            ranks=ranks,
            series=series,
            losses=LOSS,
            late_s=late if ranks > 1 else {},
            transfer_s=transfer_s * (ranks > 1),
            **settings,
        )
        for ranks in (1, 2, 4)
    ]


def plans(group, **settings):
    kinds = {"a": Plan(dp=2), "b": Plan(tp=2), "c": Plan(dp=2, zero=1), "d": Plan(pp=2)}
    return [
        Point(
            ranks=2,
            label=f"{name} · {group}",
            series=f"{name} {group}".ljust(9),
            scaling="throughput",
            plan=plan,
            axis="pp" if name == "d" else "dp",
            train={"lr": 0.001 * group},
            **settings,
        )
        for name, plan in kinds.items()
    ]


def splits():
    threads = {"threads": 4, "thread_cpu_s": [2.0, 1.0, 1.0, 0.8]}
    one = Point(ranks=1, threads=4, scaling="strong", compute_s=0.12, noise=0.01, rank_row=threads)
    return [Point(ranks=4, scaling="strong", noise=0.01, rank_row={"thread_cpu_s": [2.0]}), one]


def predict(run):
    """Write down, as before the run, what each case would take."""
    first_s, made = float(run.cases["started_unix_s"].min()), []
    for case, row in run.cases.groupby("case", observed=True).first().iterrows():
        step_s = 1.1 * float(row["step_s"])
        made.append(
            predictions.Predicted(
                case=str(case),
                label="any",
                ranks=int(row["ranks"]),
                made_unix_s=first_s - 10,
                step_s=step_s,
                low_s=step_s / 1.12,
                high_s=step_s * 1.1,
                losses_s={"compute": 0.8 * step_s, "jitter": 0.2 * step_s},
                quantiles_s=[step_s],
                checked_ranks=1,
                notes=[],
                inputs={},
            )
        )
    predictions.add(run.path.parent, made)
    return run


def every_kind(folder):
    """Write runs whose sentences are of all kinds: sizes, plans, crossings, splits, programs, predicted."""
    weak = [
        *sizes("dp", noise=0.01, launch_noise=0.03, transfer_s=0.01, late_s={1: 0.02}),
        *sizes("noisy", noise=0.05, launch_noise=0.2, rank_row={"t_ideal_s": 2.2, "unaccounted_s": 0.05}),
        *sizes("slow network", noise=0.01, transfer_s=0.05),
        *sizes("turns", noise=0.2),
        *sizes("shared machine", noise=0.02, rank_row={"cpus": "0-3", "steal_s": 0.9}),
        *sizes("spiky fives", noise=0.01, spikes_s={3: 0.4, 7: 0.3}, late_s={1: 0.001}),
    ]
    expect = [{"metric": "efficiency", "at_least": 0.85}]
    document = {"sizes": weak, "plans": plans(1, noise=0.02, launch_noise=0.03)}
    document["swept"] = [*plans(1, noise=0.01), *plans(2, noise=0.01)]
    watched = {"noise": 0.02, "launch_noise": 0.03, "workload": Workload(command="./a.out", watch=True)}
    document["programs"] = [*sizes("even", **watched), *sizes("late", late_s={1: 0.02}, **watched)]
    document["splits"] = splits()
    document["predicted"] = [*sizes("dp", noise=0.02, launch_noise=0.03), *sizes("late", late_s={1: 0.03})]
    for name, points in document.items():
        run = load(write_run(folder / name / "run", points, steps=8, expect=expect))
        yield predict(run) if name == "predicted" else run


def drawn(run, random):
    """Return the run as if its launches, ranks and phases had taken other times."""

    def factors(rows, names, spread):
        places = rows.groupby(names, observed=True).ngroup().to_numpy()
        return np.exp(random.normal(scale=spread, size=places.max() + 1))[places]

    spread = float(random.choice([0.001, 0.02, 0.1, 0.5]))
    ends = run.ends.assign(end_s=run.ends["end_s"] * factors(run.ends, ["case", "repeat"], spread))
    phases = run.phases.copy()
    for kind in ("compute_s", "wait_s", "transfer_s"):
        phases[kind] *= factors(phases, ["case", "repeat", "rank"], spread)
    ranks = run.ranks.assign(
        steal_s=random.choice([0.0, 0.02, 0.5], size=len(run.ranks)),
        unaccounted_s=run.ranks["wall_s"] * random.choice([0.0, 0.03]),
    )
    return replace(run, ends=ends, phases=phases, ranks=ranks)


def tables_of(summary):
    return [table for topic in TOPICS for table in (*topic.tables(summary), *topic.details(summary))]


def cells(summary):
    """Return all numbers in the tables of a report."""
    return {
        number
        for table in tables_of(summary)
        for _, texts in table.texts()
        for each in texts
        for number in NUMBER.findall(each)
    }


def strange(summary):
    """Return the numbers of sentences that are no cell, each with its sentence."""
    known = cells(summary)
    sentences = [headline.text for headline in summary.headlines]
    sentences += [each.caption.rpartition(". ")[0] for each in tables_of(summary)]
    for line in Answer.of(summary).lines:
        sentences += [line.causes, line.figure.partition(" ± ")[0]]
    found = []
    for sentence in sentences:
        plain = CONSTANT.sub("", sentence)
        found += [(number, sentence) for number in NUMBER.findall(plain) if number not in known]
    return found


@pytest.mark.slow
def test_every_number_in_a_sentence_is_a_cell_of_a_table_of_the_report(tmp_path):
    random, count, said = np.random.default_rng(5), 0, set()
    variants = max(3, round(12 * THOROUGH))
    for run in every_kind(tmp_path):
        for variant in [run, *(drawn(run, random) for _ in range(variants))]:
            summary = Findings(variant, predict=None)
            assert strange(summary) == []
            count += len(summary.headlines)
            said |= {word for verdict in summary.rows("verdicts") for word in (verdict.cause, verdict.answer)}
            said |= {place.answer for place in summary.rows("ranking")}
    assert count >= 10 * variants
    assert {"holds", "undecided", "falls short", "slower", "imbalance"} <= said


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sorted(Path(__file__).parents[2].glob("reports/gallery/*/data")),
    ids=lambda path: path.parent.name,
)
def test_every_number_of_the_gallery_is_a_cell(path):
    assert strange(Findings(load(path.parent), predict=None)) == []
