"""`pscale predict`: a suite's cases on sizes and networks that were not measured, from a traced run."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pscale.analysis.columns import Row
from pscale.analysis.columns import row as row_of
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run, load
from pscale.analysis.predictions import agreement, score_in
from pscale.analysis.text import size_of
from pscale.cli import tell
from pscale.cli.console import new_console
from pscale.cli.costs import EMPTY_PROCESS_BYTES
from pscale.cli.options import Predict
from pscale.cli.prepare import load as load_suite
from pscale.config import Case, to_dict
from pscale.config.metrics import duration_s
from pscale.errors import LaunchError, PlanError, ResultsError, SuiteError, UsageError, writing
from pscale.launch import local
from pscale.launch.blas import calibrate
from pscale.launch.command import command
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import STDERR
from pscale.launch.runner import signals_as_interrupts, worker
from pscale.launch.selection import select
from pscale.launch.target import Target
from pscale.predict.datasheet import by_sheet, check_sheet, profile_by_sheet
from pscale.predict.engine import Prediction
from pscale.predict.engine import predict as predict_case
from pscale.predict.flows import predict_flows
from pscale.predict.outlook import bases_of, outlook
from pscale.predict.probe import Kind, Probes, check_probe
from pscale.predict.profile import Profile, empty_profile, kept_calibration, small_models
from pscale.predict.record import hash_of, recorded
from pscale.predict.trust import replays, sentences
from pscale.report.predictions import print_outlook, write_page
from pscale.runs import predictions as records
from pscale.runs.atomic_files import to_json
from pscale.runs.run_folders import run_folder
from pscale.simulator.network import Network
from pscale.suite.derive import resized, unlimited
from pscale.suite.expand import expand
from pscale.suite.load import Override, Suite
from pscale.suite.network import load_data_sheet, load_network
from pscale.training.prediction import predict as predict_rank

_ENGINES: Mapping[str, Callable[..., Prediction]] = {"vector": predict_case, "simgrid": predict_flows}
_COUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kMBT]?)")
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_RANKS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){0,99}")


def predict(options: Predict) -> None:
    """Predict the cases of a suite, record and print it, and write its page into the suite's folder."""
    reports = options.reports
    goal = _tokens(options.tokens)
    if options.price is not None and goal is None:
        raise UsageError("--price is the cost of training on --tokens; add them, such as --tokens 1.4T")
    sheet = load_data_sheet(options.sheet) if options.sheet else None
    tiers = load_network(options.network) if options.network else sheet and sheet.network
    network = Network(tiers=tiers) if tiers else None
    run = load(run_folder(options.profiled, reports)) if options.profiled else None
    suite, cases, target = _cases(options)
    if any(case.workload.command for case in cases):
        raise UsageError(
            f"{options.suite} has a workload: only the steps of pscale's own trainer can be predicted"
        )
    profile_for: Callable[[Case], Profile]
    if sheet:
        measured = {"--from": options.profiled, "--probe": options.probe, "--bare": options.bare}
        check_sheet(sheet, cases, measured, tiers=tiers is not None)
        profile, profile_for = profile_by_sheet(sheet, cases[0]), partial(profile_by_sheet, sheet)
    else:
        profile = _profile(run, cases, options, target.machine)
        profile_for = probed(cases, profile, target, options.probe).profile_for
    with new_console(stderr=True).status(f"predicting {len(cases)} cases …"):
        replayed = replays(run, profile) if run else []
        score = score_in(reports, (profile.machine.host, profile.machine.cpu_model))
        sizes = [each.ranks for each in replayed] + ([score.largest_ranks] if score else [])
        checked = max([0 if sheet else 1, *sizes])

        def predict_one(case: Case) -> Prediction:
            made = _ENGINES[options.engine](case, profile_for(case), network, draws=options.draws)
            return replace(made, checked_ranks=checked)

        found = [*map(predict_one, cases)]
        bases = bases_of(found, profile, predict_one)
    described = str(options.network or "")
    whole = outlook(
        found,
        bases,
        profile,
        title=suite.title or suite.name,
        network=described,
        trust=by_sheet(sheet) if sheet else sentences(replayed, score, found, described),
    )
    folder, price = reports / suite.name, options.price
    if sheet and sheet.price and price is None and len({case.threads for case in cases}) == 1:
        price = sheet.price * sheet.share(cases[0].threads)
    written = None if sheet else recorded_in(folder, found, profile, options.network)
    if options.as_json:
        print(to_json(whole.document))
        return
    print_outlook(whole, new_console(), goal, price)
    tell(f"page: {write_page(whole, folder, goal, price)}")
    if written:
        tell(f"record: {written}; a later run of the suite is compared with it")


def _tokens(text: str | None) -> float | None:
    if text is None:
        return None
    found = _COUNT.fullmatch(text)
    if not found or not float(found[1]):
        raise UsageError(f"--tokens '{text[:40]}': expected how many, such as 300B or 1.4T")
    return float(found[1]) * _TIMES[found[2]]


def _profile(run: Run | None, cases: Sequence[Case], options: Predict, here: Machine) -> Profile:
    """Return the profile of the run, if there is any, with bare collectives."""
    bare = run_folder(options.bare, options.reports) if options.bare else None
    if options.probe is None and run is None:
        raise UsageError(
            "nothing to predict from: --from RUN (traced), --on FILE (data sheet), or --probe 30s"
        )
    if options.probe is not None:
        check_probe(cases, priced=bool(run or options.network or bare), anywhere=options.any_machine)
    if run is not None:
        return profile_of(run, bare, here, anywhere=options.any_machine)
    profile = empty_profile(here.host, here.cpu_model, here.cores)
    return profile.beside(load(bare)) if bare else profile


def _cases(options: Predict) -> tuple[Suite, Sequence[Case], Target]:
    """Return the suite and its cases; with `ranks` on so many each, on a machine that has the cores."""
    ranks = options.ranks
    if ranks is None:
        suite, _, target = load_suite(options.suite, options, submits=False)
        return suite, expand(suite, target.machine.names(), options.only).cases, target
    if not _RANKS.fullmatch(ranks):
        raise UsageError(f"--ranks '{ranks[:40]}': expected numbers such as 4096,1048576")
    sizes = [int(each) for each in ranks.split(",")]
    suite, target = _sized(options, sizes)
    names = {**target.machine.names(), **unlimited(max(sizes))}
    return suite, expand(suite, names, options.only).cases, target


def _sized(options: Predict, sizes: Sequence[int]) -> tuple[Suite, Target]:
    """Load a suite on other numbers of ranks, whether it sweeps them or not."""
    listed = f"[{', '.join(map(str, sizes))}]"
    option = f"--ranks {','.join(map(str, sizes))}"
    for override in (f"sweep.ranks={listed}", f"ranks={sizes[0]}" if len(sizes) == 1 else ""):
        if not override:
            continue
        changed = options.but(overrides=[*(options.overrides or []), Override(override, option)])
        try:
            suite, _, target = load_suite(options.suite, changed, submits=False)
        except SuiteError as error:
            failed = error
        else:
            return suite, target
    raise failed


def profile_of(run: Run, bare: Path | None, here: Machine, *, anywhere: bool) -> Profile:
    """Return the profile of a run and one of bare collectives, both of this machine or from `anywhere`."""
    runs = run, load(bare) if bare else None
    for each in filter(None, () if anywhere else runs):
        _check_machine(each, here)
    profile = Profile.of_run(*runs)
    small = small_models(profile.cases[0])
    if anywhere or profile.calibration or not small:
        return profile
    with new_console(stderr=True).status("measuring how fast this machine computes …"):
        return replace(profile, calibration=kept_calibration(run, small, calibrate(small, os.environ)))


def _check_machine(run: Run, here: Machine) -> None:
    """Raise ResultsError where a run is of another machine."""
    known = run.machine
    if known and known.get("cpu_model") != here.cpu_model:
        raise ResultsError(
            f"{run.path / 'run.json'}: provenance.machine.cpu_model: it was measured on "
            f"{known.get('cpu_model')} ({known.get('host')}), this is {here.cpu_model} ({here.host}); name a "
            "run of this machine, or add --any-machine to predict for that one"
        )


def recorded_in(
    folder: Path, found: Sequence[Prediction], profile: Profile, network: Path | None = None
) -> Path:
    """Add predictions to the record of a suite's folder, to which later runs of it are held."""
    hashed = hash_of(network.read_text(encoding="utf-8")) if network else ""
    with writing(f"in {folder}"):
        return records.add(folder, [recorded(each, profile.hash, hashed) for each in found])


def by_parts(run: Run, findings: Findings, sizes: Sequence[int]) -> Findings:
    """Return findings with what the parts of a run's steps say of `sizes`, or why there is nothing to say."""
    if not findings.rows("models"):
        why = (
            "the run compares no sizes, which only weak and strong scaling do; pscale predict SUITE --from "
            "RUN --ranks N predicts a training suite on other numbers of ranks"
        )
        name = str(run.suite.get("name", ""))
        none = row_of("models", model=0, series=name, asked=tuple(sizes), refusal=why)
        return findings.replaced(models=[none], projections=[])
    laws = {
        (row.model, row.size): row.time_s
        for row in findings.rows("law_predictions")
        if row.part == "step" and not row.curve
    }
    try:
        parts = Profile.of_run(run), run.suite.get("resolved") or {}
        refusal = "" if parts[1] else f"{run.path / 'run.json'}: suite.resolved: is missing"
    except (UsageError, ResultsError) as error:
        refusal = str(error)
    made = []
    for model in findings.rows("models"):
        for size in model.asked:
            found: dict[str, Any] = {"refusal": refusal} if refusal else _projected(*parts, model, size)
            law_s = laws.get((model.model, size))
            if law_s and "step_s" in found:
                found["answer"] = agreement(found["step_s"], law_s)
            key = {"model": model.model, "series": model.series, "ranks": size}
            made.append(row_of("projections", **key, **found, law_s=law_s))
    return findings.replaced(projections=made)


def _projected(profile: Profile, suite: Mapping[str, Any], model: Row, size: int) -> dict[str, Any]:
    """Return what the parts say of a size of a series, or why they do not."""
    if model.unit != "ranks":
        return {"refusal": f"sizes are {model.unit}: the parts are those of ranks"}
    try:
        cases = resized(suite, [round(known) for known in model.sizes], size)
        (case,) = (each for each in cases if each.series == model.series)
        made = predict_case(case, profile)
    except (SuiteError, PlanError, UsageError) as error:
        return {"refusal": str(error).partition("\n")[0].rpartition("suite.yaml:1: ")[2]}
    except ValueError:
        return {"refusal": f"the suite has no one case of the series on {size:,} ranks"}
    return {
        "step_s": made.stated_s,
        "first_loss": made.largest_loss,
        "checked_ranks": made.checked_ranks,
        "notes": made.notes,
    }


_LONGEST_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LoneRanks:
    """Launches ranks alone on this machine, in copies at once; what they leave is in `folder`."""

    launcher: Launcher
    here: Machine
    folder: Path

    def __call__(self, kind: Kind, repeat: int, seconds: float) -> Path:
        """Run a rank of a kind for so many seconds; return the folder of its tables.

        Raises PlanError where it does not fit in memory, LaunchError where it fails.
        """
        if shortage := self.shortage(kind):
            raise PlanError(shortage)
        folder = self.folder / f"{kind.name}-{repeat}"
        (data := folder / "data").mkdir(parents=True)
        document = {
            "task": "probe",
            "case": to_dict(kind.case),
            "repeat": repeat,
            "data": str(data),
            "launched_unix_s": time.time(),
            "seconds": seconds,
            **{name: getattr(kind, name) for name in ("rank", "copies", "cpu_time")},
        }
        (folder / "case.json").write_text(json.dumps(document), encoding="utf-8")
        case, root = replace(kind.case, ranks=kind.copies), os.geteuid() == 0
        started = command(case, self.launcher, worker(folder), self.here, environ=os.environ, root=root)
        with signals_as_interrupts():
            outcome = local.launch(started, folder, kind.case.launch.time_limit_s)
        if outcome.status != "ok":
            reason = outcome.reason.removesuffix(f" [{folder / STDERR}]")
            raise LaunchError(f"--probe: rank {kind.rank} of {kind.case.label}, alone: {reason}")
        return data

    def shortage(self, kind: Kind) -> str:
        """Say by how much a rank does not fit in memory; empty if it does, or if that is not known."""
        needed_bytes = kind.copies * (predict_rank(kind.case, kind.rank).total_bytes + EMPTY_PROCESS_BYTES)
        limit_bytes = kind.case.launch.memory_limit_bytes or self.here.memory_bytes
        if not limit_bytes or needed_bytes <= limit_bytes:
            return ""
        return (
            f"--probe: rank {kind.rank} of {kind.case.label} needs {size_of(needed_bytes)} with "
            f"{kind.case.model.layers} layers alone, more than the {size_of(limit_bytes)} there are; without "
            "--probe its computing is extrapolated"
        )


def probed(
    cases: Sequence[Case],
    profile: Profile,
    target: Target,
    asked: str | None,
    before: Callable[[], None] = lambda: None,
) -> Probes:
    """Run the kinds of ranks of cases that a profile does not know alone, for the time that is asked for."""
    if asked is None:
        return Probes(profile)
    here = replace(target.machine, nodes=1, hosts={}, hostfile="")
    launcher = select(cases[0].launch, target.site.allocation, here)
    status = new_console(stderr=True).status(f"running ranks alone, one of each kind, for {asked} …")
    with tempfile.TemporaryDirectory(prefix="pscale-probe-") as folder, status:
        ranks = LoneRanks(launcher=launcher, here=here, folder=Path(folder))
        probes = Probes(profile, ranks, lambda kind: not ranks.shortage(kind), here.usable_cores)
        probes.measure(cases, _seconds(asked), before)
    return probes


def _seconds(asked: str) -> float:
    try:
        seconds = duration_s(asked)
    except ValueError as error:
        raise UsageError(f"--probe: {error}") from None
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"--probe {asked}: expected a time up to a day, such as 30s")
    return seconds
