"""Predict, write the predictions down, then measure: how far the predictions of pscale can be trusted here.

    python benchmarks/validate.py [--quick] [--json FOLDER] [EXPERIMENT...]

    same      what was recorded is predicted again: strategies on two ranks
    networks  ghosts at 100 and 400 Mbit/s predict 200 and 800 (network namespaces; needs root)
    sizes     ghosts on 2 to 8 ranks predict 16 and 32: data, tensor, context, pipeline and expert parallel
    injected  one late rank, and jitter: the map of waits
    steps     the distribution of steps: the Kolmogorov-Smirnov distance
    contention  exchanges that meet on one link: SimGrid holds, the vector engine says where it cannot (root)
    computing the CPU time of a rank at one shape predicts that of sizes 4 and 16 times as large
    shapes    work of one shape, without and with probes, predicts it with sizes 4 and 16 times as large
    advice    every plan of a model on two ranks, from five and bare collectives: order, and the first choice

Predictions of what was not measured yet are in a file before it is measured; the figures have its hash. In
`shapes`, whose launches take turns, they are in it before what was measured is read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from figures import COMMITTED, machine
from link import Link, link, missing
from scipy.optimize import nnls
from scipy.stats import ks_2samp, spearmanr
from validate_suites import (
    ADVISED,
    ALONE,
    BARE,
    CHANGED,
    INJECTIONS,
    PLANS,
    SENT,
    SHAPED,
    SHARED,
    SMALL,
    UNCHANGED,
    late,
    shaped,
    shared,
    steady,
    strategies,
)

from pscale.analysis.frames import Run, load, restricted
from pscale.cli.launches import settle
from pscale.cli.options import SuiteOptions
from pscale.cli.predict import probed
from pscale.cli.prepare import prepare
from pscale.config import Case
from pscale.errors import PscaleError
from pscale.launch.blas import calibrate, measured
from pscale.launch.machine import inspect
from pscale.launch.runner import plan_launches
from pscale.launch.runner import run as launch
from pscale.launch.target import find_target
from pscale.parallel.recompute import executed_flops
from pscale.predict.costs import Costs
from pscale.predict.engine import Interval, Prediction, predict
from pscale.predict.flows import predict_flows
from pscale.predict.network import CONGESTED
from pscale.predict.plans import plans
from pscale.predict.profile import (
    Calibrated,
    Distribution,
    Profile,
    SegmentTimes,
    calibrated,
    case_of,
    empty_profile,
    small_models,
)
from pscale.predict.simgrid import MISSING, is_there
from pscale.predict.step_program import Segment, step_program
from pscale.runs.journal import Journal
from pscale.simulator.network import Link as PricedLink
from pscale.simulator.network import Network, Tier, Tiers, moved_bytes, rounds
from pscale.suite.derive import derived, work_of
from pscale.suite.expand import expand
from pscale.suite.load import load_suite
from pscale.training.dry_run import program

KS = 0.10
MARKS = "<!-- validation -->", "<!-- end of validation -->"
DOCUMENT = Path(__file__).parents[1] / "docs" / "prediction.md"
KEPT = COMMITTED / "validation"
MEASURED, PREDICTED = (100, 400), (200, 800)  # Mbit/s
BURST = 20_480  # bytes that pass a link at once, whatever its rate
FRAMES = {"mtu": 9000, "burst": f"{BURST}b"}
MBIT_BYTES = 1e6 / 8
GFLOPS = 20.0  # of ghosts on a link: they compute about as long as they send
NODE = Tier(name="node", ranks=2, link=PricedLink(latency_s=5e-6, bytes_per_s=2e9))
GOALS = {  # mean and largest error
    "same": (0.01, 0.03),
    "networks": (0.025, 0.06),
    "sizes": (0.025, 0.06),
    "injected": (0.025, 0.06),
    "steps": (0.025, 0.06),
    "contention": (0.10, 0.10),
    "computing": (math.inf, math.inf),  # its goals depend on how far the shape is
    "shapes": (math.inf, math.inf),  # likewise
    "advice": (math.inf, math.inf),  # its goals are those of the order
}
REGRET, SPEARMAN = 0.03, 0.95
NEAR, NEAR_ERROR = 4, 0.10  # times the FLOPs, and the mean error of what is no further
COVERED = 0.90, 0.98  # of the shapes lie in their intervals
BY_CHANGE = {
    "computing": "Errors of the CPU time of one rank at larger shapes",
    "shapes": "Errors of steps at larger shapes, without and with `--probe`",
}
LIMIT_S = 1800.0
PROBED = 0.02, 0.06  # mean and largest error of shapes whose ranks ran alone
PROBE_S = 12  # seconds of them, a case
BEST = 5  # plans that advise measures


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A prediction beside what was measured then; times are those of the steps of a launch."""

    case: str
    ranks: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    launches: int
    notes: tuple[str, ...]
    far: float = 1.0  # times the FLOPs of what was traced, or the inverse

    @property
    def error(self) -> float:
        """By how much the prediction is too high, relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def holds(self) -> bool:
        """Whether what was measured lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s

    def row(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "error": self.error, "holds": self.holds}


class Lab:
    """A folder in which suites are run; `quick`: smaller ones."""

    def __init__(self, folder: Path, *, quick: bool):
        self.folder, self.quick = folder, quick
        self._count = 0

    def written(self, text: str) -> Path:
        """Write a suite."""
        self._count += 1
        path = self.folder / f"suite-{self._count}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def cases(self, text: str) -> list[Case]:
        """Return the cases of a suite that was not run."""
        suite = load_suite(self.written(text))
        return list(expand(suite, inspect().names()).cases)

    def run(self, text: str, over: Link | None = None) -> Run:
        """Run a suite, at one end of a link if there is one."""
        path = self.written(text)
        reports = self.folder / path.stem
        command = [sys.executable, "-m", "pscale", "run", str(path), "--no-report", "--reports", str(reports)]
        done = subprocess.run(
            [*(over.prefix if over else []), *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PscaleError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return load(max(reports.glob("*/*")))  # the newest, in a folder that was kept

    def rounds(self, text: str) -> Iterator[Path]:
        """Launch the cases of a suite round by round, in random order; yield the run's folder after each."""
        path = self.written(text)
        suite = prepare(path, SuiteOptions(), submits=False)
        journal = Journal.create(self.folder / path.stem, suite.suite.name, suite.document())
        planned, launcher = plan_launches(suite.cases, suite.suite.repeat, 0), suite.launcher()
        settled = partial(settle, journal, suite.fits)
        for repeat in range(suite.suite.repeat):
            now = [each for each in planned if each.repeat == repeat]
            launch(journal, now, launcher, suite.target.machine, settle=settled)
            yield journal.folder

    def freeze(self, name: str, predictions: Mapping[str, Prediction]) -> str:
        """Write predictions down before anything of it is measured; returns the hash of the file."""
        rows = [
            {"case": label, **asdict(each.step_s), "notes": each.notes} for label, each in predictions.items()
        ]
        text = json.dumps({"unix_s": time.time(), "predictions": rows}, indent=1)
        (self.folder / f"frozen-{name}.json").write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()


def measured_s(run: Run, case: str) -> list[float]:
    """Return the step time of every launch of a case."""
    good = run.cases[(run.cases["case"] == case) & (run.cases["status"] == "ok")]
    return [float(value) for value in good["step_s"]]


def geometric_mean(times: Sequence[float]) -> float:
    """Return the mean of step times by their logarithms."""
    return float(np.exp(np.mean(np.log(times))))


def label_of(run: Run, case: str) -> str:
    """Return what a case is called."""
    return str(run.planned[case]["label"])


def short(label: str) -> str:
    """Return a label without the word that the computing was slept."""
    return label.partition(" · ghost")[0]


def scored(run: Run, predictions: Mapping[str, Prediction]) -> list[Scored]:
    """Set predictions, by label, beside what a run measured."""
    found = []
    for case in run.planned:
        label, times = label_of(run, case), measured_s(run, case)
        if label in predictions and times:
            step_s, notes = predictions[label].step_s, predictions[label].notes
            found.append(
                Scored(
                    case=label,
                    ranks=int(run.planned[case]["ranks"]),
                    predicted_s=step_s.value,
                    low_s=step_s.low,
                    high_s=step_s.high,
                    measured_s=geometric_mean(times),
                    launches=len(times),
                    notes=notes,
                )
            )
    return found


def same(lab: Lab) -> dict[str, Any]:
    """Predict again what was recorded: strategies on two ranks, really computing."""
    steps, repeats = (20, 2) if lab.quick else (40, 4)
    run = lab.run(strategies(SMALL, steps=steps, repeats=repeats))
    profile = Profile.of_run(run)
    found = {label_of(run, case): predict(case_of(run, case), profile) for case in run.planned}
    return {"cases": scored(run, found)}


def networks(lab: Lab) -> dict[str, Any]:
    """Predict ghosts of strategies on links of two rates from what was measured at two others."""
    if reason := missing():
        return {"missing": f"no link of limited rate: {reason}"}
    size: dict[str, Any] = {"steps": 6, "repeats": 1} if lab.quick else {"steps": 8, "repeats": 2}
    size["gflops"] = GFLOPS
    profiles: dict[int, Profile] = {}
    for rate in MEASURED:
        with link(f"{rate}mbit", **FRAMES) as over:
            text = strategies(SENT, over.options("mpich"), **size)
            profiles[rate] = Profile.of_run(lab.run(text, over))
    latency_s, on_wire, host_s_per_byte = _fitted(profiles)
    frozen: dict[str, str] = {}
    found: list[Scored] = []
    for rate in PREDICTED:
        bytes_per_s = 1 / (on_wire / (rate * MBIT_BYTES) + host_s_per_byte)
        network = Network(links={"all": PricedLink(latency_s=latency_s, bytes_per_s=bytes_per_s)})
        with link(f"{rate}mbit", **FRAMES) as over:
            text = strategies(SENT, over.options("mpich"), **size)
            predictions = {
                case.label: predict(case, profiles[rate // 2], network) for case in lab.cases(text)
            }
            frozen[f"{rate} Mbit/s"] = lab.freeze(f"networks-{rate}", predictions)
            measured = scored(lab.run(text, over), predictions)
            found += [replace(each, case=f"{short(each.case)}, {rate} Mbit/s") for each in measured]
    fitted = {"latency_s": latency_s, "on_wire": on_wire, "host_s_per_byte": host_s_per_byte}
    return {"cases": found, "frozen": frozen, "fitted": fitted}


def _fitted(profiles: Mapping[int, Profile]) -> tuple[float, float, float]:
    """Return what blocking calls take by message, by byte on the wire, and by byte at any rate: the host's.

    A byte on the wire takes so many times what the rate says.
    """
    rows, times_s = [], []
    for rate, profile in profiles.items():
        for key, call in profile.calls.items():
            if key.mode == "call":
                moved = moved_bytes(key.verb, key.size, key.bytes)
                moved = moved if moved > BURST else 0
                rows.append([rounds(key.verb, key.size), moved / (rate * MBIT_BYTES), moved])
                times_s.append(float(np.median(call.after_last.values)))  # few are far off
    taken = np.array(times_s)
    relative = np.array(rows) / taken[:, None]
    scale = relative.max(axis=0)
    solved, _ = nnls(relative / scale, np.ones(len(taken)))
    latency_s, on_wire, host_s_per_byte = (solved / scale).tolist()
    return latency_s, on_wire, host_s_per_byte


def sizes(lab: Lab) -> dict[str, Any]:
    """Predict ghosts on many ranks from ghosts on few: every plan, healthy and with jitter."""
    large = (8,) if lab.quick else (16, 32)
    few, many = ({"steps": 5, "repeats": repeats} for repeats in (1 if lab.quick else 2, 1))
    frozen: dict[str, str] = {}
    found: list[Scored] = []
    for plan in PLANS[:: 3 if lab.quick else 1]:
        for jitter_s in (0.0,) if lab.quick else (0.0, 0.01):
            name = f"{plan.name}{' with jitter' if jitter_s else ''}"
            known = (2, 4) if lab.quick else plan.known
            profile = Profile.of_run(lab.run(plan.suite(known, jitter_s=jitter_s, **few)))
            text = plan.suite(large, jitter_s=jitter_s, **many)
            predictions = {case.label: predict(case, profile) for case in lab.cases(text)}
            frozen[name] = lab.freeze(f"sizes-{name.replace(' ', '-')}", predictions)
            run = lab.run(text)
            found += [replace(each, case=f"{name}, {each.ranks} ranks") for each in scored(run, predictions)]
    return {"cases": found, "frozen": frozen}


def injected(lab: Lab) -> dict[str, Any]:
    """Predict where ranks wait for one late rank, and under jitter, from a healthy run."""
    count = 12 if lab.quick else 20
    profile = Profile.of_run(lab.run(late(count)))
    frozen: dict[str, str] = {}
    found: list[Scored] = []
    waits: dict[str, list[dict[str, Any]]] = {}
    for name, injection in INJECTIONS.items():
        text = late(count, injection)
        (case,) = lab.cases(text)
        predictions = {case.label: predict(case, profile)}
        frozen[name] = lab.freeze(f"injected-{name.replace(' ', '-')}", predictions)
        run = lab.run(text)
        found += [replace(each, case=name) for each in scored(run, predictions)]
        waits[name] = _waits(case, run, predictions[case.label])
    return {"cases": found, "frozen": frozen, "waits": waits}


def _waits(case: Case, run: Run, prediction: Prediction) -> list[dict[str, Any]]:
    """Return predicted and measured seconds of wait in a step, by class of ranks and phase."""
    steps = float(run.seats["steps"].mean())
    return [
        {
            "ranks": list(each.ranks),
            "phase": phase,
            "predicted_s": float(prediction.waits.get((each.ranks[0], str(phase)), 0.0)),
            "measured_s": float(wait_s) / steps,
        }
        for each in program(case)
        for phase, wait_s in run.phases[run.phases["rank"].isin(each.ranks)]
        .groupby("phase")["wait_s"]
        .mean()
        .items()
    ]


def steps(lab: Lab) -> dict[str, Any]:
    """Compare the distribution of predicted steps with that of measured ones, on twice the ranks."""
    count = 60 if lab.quick else 300
    profile = Profile.of_run(lab.run(steady(4, count)))
    text = steady(8, count)
    (case,) = lab.cases(text)
    prediction = predict(case, profile, draws=2000)
    frozen = {case.label: lab.freeze("steps", {case.label: prediction})}
    run = lab.run(text)
    taken = np.diff(run.ends.sort_values("step")["end_s"].to_numpy())
    ks = float(ks_2samp(prediction.draws, taken).statistic)
    return {"cases": scored(run, {case.label: prediction}), "frozen": frozen, "ks": ks, "steps": len(taken)}


def contention(lab: Lab) -> dict[str, Any]:
    """Predict exchanges that meet on one link: by SimGrid, and by the vector engine, which has to warn."""
    if reason := missing() or ("" if is_there() else MISSING):
        return {"missing": reason}
    rate, count = 200, 6 if lab.quick else 12
    wire = PricedLink(latency_s=50e-6, bytes_per_s=rate * MBIT_BYTES)
    network = Network(tiers=Tiers(tiers=(NODE, Tier(name="wire", ranks=4, link=wire))))
    frozen: dict[str, str] = {}
    rows: dict[str, list[Scored]] = {"cases": [], "vector": []}
    for name in SHARED:
        profile = Profile.of_run(lab.run(shared(name, count)))
        with link(f"{rate}mbit", **FRAMES, ranks=2) as over:
            text = shared(name, count, over.options("mpich"))
            (case,) = lab.cases(text)
            engines = {"cases": predict_flows, "vector": predict}
            predictions = {each: engine(case, profile, network) for each, engine in engines.items()}
            frozen[name] = lab.freeze(f"contention-{name.replace(' ', '-')}", predictions)
            run = lab.run(text, over)
            for each, prediction in predictions.items():
                rows[each] += [replace(one, case=name) for one in scored(run, {case.label: prediction})]
    return {**rows, "frozen": frozen}


def computing(lab: Lab) -> dict[str, Any]:
    """Predict the CPU time of a rank at shapes that were not measured, from that at one and small models."""
    changes = [each for each in CHANGED if not lab.quick or each[1] == NEAR]
    frozen: dict[str, str] = {}
    found: list[Scored] = []
    for name in ALONE:
        first, *cases = lab.cases(shaped(name, [UNCHANGED, *changes], steps=1, repeats=1))
        times = SimpleNamespace(phases=measured([first], os.environ, LIMIT_S)[0], small=_calibration(first))
        made = {case.label: _alone(case, first, times.phases, times.small) for case in cases}
        frozen[name] = lab.freeze(f"computing-{name.replace(' ', '-')}", made)
        for case, change, phases in zip(cases, changes, measured(cases, os.environ, LIMIT_S), strict=True):
            ratio = executed_flops(case) / executed_flops(first)
            step_s = made[case.label].step_s
            found.append(
                Scored(
                    case=f"{name}: {_change(*change)}",
                    ranks=1,
                    predicted_s=step_s.value,
                    low_s=step_s.low,
                    high_s=step_s.high,
                    measured_s=sum(phases.values()),
                    launches=1,
                    notes=(),
                    far=max(ratio, 1 / ratio),
                )
            )
    return {"cases": found, "frozen": frozen}


def _calibration(case: Case) -> tuple[Calibrated, ...]:
    small = small_models(case)
    return calibrated(small, calibrate(small, os.environ))


def _alone(
    case: Case, first: Case, phases_s: Mapping[str, float], small: tuple[Calibrated, ...]
) -> SimpleNamespace:
    """Return what a rank computes in a step, and its 90 % interval, from the phases of the first case."""
    known = {
        each.key: SegmentTimes(
            work=each.work,
            phase=each.phase,
            overlapped=False,
            amounts=each.amounts,
            times=Distribution.of(np.array([phases_s[each.phase]])),
            polled=0.0,
            copied=0.0,
            stalled=0.0,
        )
        for each in _computed(first)
        if each.phase in phases_s
    }
    costs = Costs(replace(empty_profile("", "", 1), segments=known, calibration=small), None)
    parts = [costs.segment(each) for each in _computed(case) if each.phase in phases_s]
    seconds = sum(each.mean_s for each in parts)
    factor = math.exp(1.645 * sum(each.unsure_s for each in parts) / seconds)
    return SimpleNamespace(
        step_s=Interval(value=seconds, low=seconds / factor, high=seconds * factor), notes=()
    )


def _computed(case: Case) -> list[Segment]:
    """Return the segments in which the one rank of a case computes."""
    (block,) = step_program(case).blocks
    return [each for each in block.step if isinstance(each, Segment) and each.operations]


def shapes(lab: Lab) -> dict[str, Any]:
    """Predict work of shapes that were not measured from one that was, without and with probes.

    Launches of what is traced, of what is predicted and of probes take turns: the machine's pace changes from
    one minute to the next by more than what is to be found. What was traced is compared with itself, every
    other launch with the others: no prediction can be shown to be better than that repeats itself.
    """
    steps, repeats = (5, 4) if lab.quick else (8, 6)
    changes = [each for each in CHANGED if not lab.quick or (each[1] == NEAR and len(each[0]) == 1)]
    frozen: dict[str, str] = {}
    pace: dict[str, float] = {}
    rows: dict[str, list[Scored]] = {"cases": [], "probed": []}
    for name in SHAPED:
        small: tuple[Calibrated, ...] = ()
        for change in changes:
            text = shaped(name, [UNCHANGED, change], steps=steps, repeats=repeats)
            traced, case = lab.cases(text)
            small = small or _calibration(traced)
            turns = lab.rounds(text)
            folder = next(turns)
            first, target = (
                _profile_of(folder, traced, small),
                find_target(case.launch, os.environ, submits=False),
            )
            probes = probed([case], first, target, f"{PROBE_S}s", lambda turns=turns: next(turns, None))
            for _ in turns:
                pass
            probes.profile = _profile_of(folder, traced, small)
            predictions = {
                "cases": predict(case, probes.profile),
                "probed": predict(case, probes.profile_for(case)),
            }
            words = f"{name}: {_change(*change)}"
            frozen[words] = lab.freeze(f"shapes-{case.id}", predictions)
            run = load(folder)
            traced_s = measured_s(run, traced.id)
            pace[words] = geometric_mean(traced_s[1::2]) / geometric_mean(traced_s[::2])
            far = executed_flops(case) / executed_flops(traced)
            row = {"case": words, "far": max(far, 1 / far)}
            for each, made in predictions.items():
                rows[each] += [replace(one, **row) for one in scored(run, {case.label: made})]
    return {**rows, "frozen": frozen, "pace": pace}


def _profile_of(folder: Path, traced: Case, small: tuple[Calibrated, ...]) -> Profile:
    """Return the profile of what was traced in a run, and of nothing else in it."""
    return replace(Profile.of_run(restricted(load(folder), {traced.id})), calibration=small)


def _change(fields: Sequence[str], times: int) -> str:
    return f"{', '.join(fields).replace('_', '-')} × {times}"


def advice(lab: Lab) -> dict[str, Any]:
    """Predict every plan of a model on two ranks from five and bare collectives, then measure them all."""
    steps, repeats = (10, 1) if lab.quick else (40, 5)
    text = strategies(ADVISED, steps=steps, repeats=repeats)
    profile = Profile.of_run(lab.run(text), lab.run(BARE))
    suite = load_suite(lab.written(text))
    work = replace(work_of(suite, 2, inspect().names())[1], scaling="throughput", base=False)
    every = derived(suite, "plans", "Every plan on two ranks", list(plans(work)))
    predictions = {case.label: predict(case, profile) for case in lab.cases(every)}
    frozen = {"plans": lab.freeze("advice", predictions)}
    return {"cases": scored(lab.run(every), predictions), "frozen": frozen, "plans": len(predictions)}


EXPERIMENTS: Mapping[str, Callable[[Lab], dict[str, Any]]] = {
    each.__name__: each
    for each in (same, networks, sizes, injected, steps, contention, computing, shapes, advice)
}


def findings(content: Mapping[str, Any]) -> str:
    """Say in a line how an experiment ended."""
    if "missing" in content:
        return str(content["missing"])
    errors = [abs(each["error"]) for each in content["cases"]]
    holds = [each["holds"] for each in content["cases"]]
    mean, most = GOALS[content["experiment"]]
    said = f"{len(errors)} cases: error {np.mean(errors):.1%} on average{_goal(mean)}, "
    said += f"{max(errors):.1%} at most{_goal(most)}; the 90 % interval holds in {np.mean(holds):.0%}"
    return "; ".join([said, *_also(content)])


def _goal(error: float) -> str:
    return f" (goal {error:.1%})" if math.isfinite(error) else ""


def _also(content: Mapping[str, Any]) -> list[str]:
    """Say what an experiment found beside errors of steps."""
    said = []
    if "vector" in content:
        alone = max(abs(each["error"]) for each in content["vector"])
        warned = sum(any(CONGESTED in note for note in each["notes"]) for each in content["vector"])
        said.append(f"vector engine: {alone:.1%} at most, warns of {warned} of {len(content['vector'])}")
    if "ks" in content:
        said.append(
            f"Kolmogorov-Smirnov distance {content['ks']:.3f} over {content['steps']} steps (goal {KS})"
        )
    if "waits" in content:
        said.append(f"waits by rank and phase: {_off(content):.1%} of the step at most")
    if content.get("experiment") in ("computing", "shapes"):
        said += _by_distance(content)
    if "plans" in content:
        said.append(_order(content))
    return said


def _by_distance(content: Mapping[str, Any]) -> list[str]:
    """Say how far shapes are off that need few times the FLOPs, and that need more; and with probes."""
    errors = np.array([abs(each["error"]) for each in content["cases"]])
    near = np.array([each["far"] for each in content["cases"]]) <= NEAR
    low, high = COVERED
    said = [f"within {NEAR} times the FLOPs {np.mean(errors[near]):.1%} on average (goal {NEAR_ERROR:.0%})"]
    if not near.all():
        said.append(f"beyond {np.mean(errors[~near]):.1%}")
    said.append(f"goal of the intervals {low:.0%} to {high:.0%}")
    if "probed" not in content:
        return said
    errors = np.array([abs(each["error"]) for each in content["probed"]])
    mean, most = PROBED
    holds = sum(each["holds"] for each in content["probed"])
    said.append(
        f"with `--probe` {errors.mean():.1%} on average (goal {mean:.0%}), {errors.max():.1%} at most (goal "
        f"{most:.0%}), {holds} of {len(errors)} in their intervals"
    )
    paces = np.array([*content["pace"].values()])
    said.append(f"what was traced took {np.mean(np.abs(paces - 1)):.1%} more or less when measured again")
    return said


def by_change(content: Mapping[str, Any]) -> str:
    """Return the errors of shapes without and with probes, by what is changed and the kind of work."""
    kinds = list(dict.fromkeys(each["case"].partition(": ")[0] for each in content["cases"]))
    lines = [f"| larger | {' | '.join(kinds)} |", "|---" * (1 + len(kinds)) + "|"]
    changes = dict.fromkeys(each["case"].partition(": ")[2] for each in content["cases"])
    errors = {
        (engine, each["case"]): f"{each['error']:+.0%}" if each["holds"] else f"**{each['error']:+.0%}**"
        for engine in ("cases", "probed")
        for each in content.get(engine, [])
    }
    for change in changes:
        cells = (
            " · ".join(
                errors[key]
                for engine in ("cases", "probed")
                if (key := (engine, f"{kind}: {change}")) in errors
            )
            for kind in kinds
        )
        lines.append(f"| {change} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _order(content: Mapping[str, Any]) -> str:
    """Say how well the order of plans was predicted, and what the first choices cost."""
    predicted, measured = (
        np.array([each[name] for each in content["cases"]]) for name in ("predicted_s", "measured_s")
    )
    first = measured[np.argsort(predicted)] / measured.min() - 1
    order = spearmanr(predicted, measured).statistic
    return (
        f"{len(measured)} of {content['plans']} plans run; regret of the first choice {first[0]:.1%} "
        f"(goal {REGRET:.0%}), of the best of {BEST} {first[:BEST].min():.1%} (goal 0%); "
        f"Spearman {order:.2f} (goal {SPEARMAN})"
    )


def _off(content: Mapping[str, Any]) -> float:
    """Return the largest error of a wait of a class of ranks in a phase, as a share of its step."""
    steps_s = {each["case"]: each["measured_s"] for each in content["cases"]}
    return max(
        abs(wait["predicted_s"] - wait["measured_s"]) / steps_s[name]
        for name, waits in content["waits"].items()
        for wait in waits
    )


def table(folder: Path) -> str:
    """Return the figures of a folder as a table of Markdown, and how many held-out cases lie in intervals."""
    lines = [
        "| experiment | cases | mean error | largest error | 90 % interval holds | also |",
        "|---|---|---|---|---|---|",
    ]
    held_out: list[bool] = []
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        content = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"missing": "not measured"}
        )
        if "missing" in content:
            lines.append(f"| {name} | {content['missing']} | | | | |")
            continue
        cases = content["cases"]
        worst = max(cases, key=lambda each: abs(each["error"]))
        mean = float(np.mean([abs(each["error"]) for each in cases]))
        goals = GOALS[name]
        holds = [bool(each["holds"]) for each in cases]
        held_out += holds if "frozen" in content else []
        lines.append(
            f"| {name}{' (quick)' if content['quick'] else ''} | {len(cases)} | {_judged(mean, goals[0])} "
            f"| {_judged(abs(worst['error']), goals[1])}: {worst['case']} | {sum(holds)} of {len(holds)} "
            f"| {'; '.join(_also(content))} |"
        )
    if held_out:
        lines += [
            "",
            f"Of {len(held_out)} held-out cases {np.mean(held_out):.0%} lie in their 90 % interval.",
        ]
    for name, what in BY_CHANGE.items():
        if (path := folder / f"{name}.json").exists():
            said = f"{what}; **bold**: outside the interval."
            lines += ["", said, "", by_change(json.loads(path.read_text(encoding="utf-8")))]
    return "\n".join(lines)


def _judged(error: float, goal: float) -> str:
    return f"{error:.1%}" if error <= goal else f"**{error:.1%}** (goal {goal:.1%})"


def in_document(text: str, folder: Path) -> str:
    """Return the text of a document with the table of a folder between its marks."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n{table(folder)}\n{MARKS[1]}{after}"


def perform(name: str, lab: Lab) -> dict[str, Any]:
    """Do an experiment; returns the content of its file of figures."""
    began = time.monotonic()
    found = EXPERIMENTS[name](lab)
    rows = {
        engine: [each.row() for each in found.pop(engine, [])] for engine in ("cases", "vector", "probed")
    }
    return {
        "experiment": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "quick": lab.quick,
        "took_s": round(time.monotonic() - began),
        **{engine: each for engine, each in rows.items() if each or engine == "cases"},
        **found,
    }


def main() -> None:
    """Do the experiments that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="smaller: about twenty minutes for all")
    parser.add_argument("--json", type=Path, help="folder of the figures")
    parser.add_argument("--keep", type=Path, help="keep suites, runs and predictions in this folder")
    asked = parser.parse_args()
    if unknown := set(asked.experiments) - set(EXPERIMENTS):
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    figures = asked.json or (COMMITTED / "new" / "validation" if asked.quick else KEPT)
    for folder in filter(None, (figures, asked.keep)):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pscale-validate-") as name:
        lab = Lab(asked.keep or Path(name), quick=asked.quick)
        failed = 0
        for each in asked.experiments or EXPERIMENTS:
            try:
                content = perform(each, lab)
            except (PscaleError, OSError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"{each}: failed: {error}", file=sys.stderr, flush=True)
                continue
            (figures / f"{each}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            for case in content["cases"]:
                mark = "" if case["holds"] else "  outside the interval"
                print(
                    f"  {case['case']:32} {case['predicted_s']:.4f} s, measured {case['measured_s']:.4f} s: "
                    f"{case['error']:+.1%}{mark}"
                )
            print(f"{each}: {findings(content)}, in {content['took_s']} s", flush=True)
    if figures == KEPT:
        DOCUMENT.write_text(in_document(DOCUMENT.read_text(encoding="utf-8"), KEPT), encoding="utf-8")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
