"""`pscale verify`: every plan of a suite against the serial program, with this machine's MPI and BLAS."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from pscale.cli import verdicts as tables
from pscale.cli.console import new_console
from pscale.cli.work import Chosen, prepare
from pscale.config import Case, Timing
from pscale.errors import FAILED
from pscale.launch import campaign
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal
from pscale.launch.outcome import Outcome
from pscale.number import ROUNDINGS, narrow

STEPS, EPSILON, SCALE = 10, 1e-6, 2.0**10
_HEADING = (
    "Largest differences from the serial program, relative to the largest value of the tensor: losses of all "
    f"steps, gradients of the first, weights after {STEPS}. Calls, bytes, and messages from rank to rank are "
    "those of all ranks in a step, as predicted or counted ≠ predicted."
)
_OFFLOADED = "file: bytes of all ranks in a step, from files or to them, of what is offloaded."
_ROUNDED = (
    f"With numbers of 16 bits: the loss of the first step, and its gradients, within {ROUNDINGS} roundings; "
    "and how far the weights of ranks are from each other."
)
_ROUTED = (
    "With experts too: as the serial program sends every token where the plan did; and by how much less "
    "probable, relative to the largest probability, that was to it than its own choice in the first step."
)
_COMPRESSED = (
    "With compression, which changes what is learned: the loss of the first step; its gradients, as the sum "
    "of what was sent and of what ranks hold back; and how far the weights of ranks are from each other."
)

Verdict = dict[str, Any]


def verify(path: Path, chosen: Chosen, reports: Path, *, every_tensor: bool, as_json: bool) -> int:
    """Run each case and the serial program for STEPS steps; return 1 if any differs.

    Inside a job that is on its nodes; nothing is submitted.
    """
    work = prepare(path, chosen, submits=False)
    here = work.ground.machine
    work = replace(work, cases=[_proof(case) for case in work.cases], repeats=1, auto=None)
    launcher = work.launcher()
    journal = Journal.create(reports / "verify", work.suite.name, work.document())
    verdicts: list[Verdict] = []
    console = new_console(stderr=as_json, highlight=False)

    def on_start(job: Job) -> None:
        console.print(f"[dim]verifying {escape(job.case.label)} …[/dim]")

    def on_end(job: Job, outcome: Outcome) -> None:
        verdicts.append(_verdict(journal, job, outcome))

    jobs = [Job(case=case, repeat=0, order=order) for order, case in enumerate(work.cases)]
    campaign.run(journal, jobs, launcher, here, on_start=on_start, on_end=on_end, task="verify")
    if as_json:
        print(json.dumps(verdicts, indent=1))
    else:
        for verdict in verdicts if every_tensor else ():
            console.print(*tables.details(verdict), sep="\n")
        console.print(tables.summary(verdicts))
        console.print(_HEADING, style="dim")
        if any(case.plan.compression != "none" for case in work.cases):
            console.print(_COMPRESSED, style="dim")
        if any(narrow(case.model.dtype) for case in work.cases):
            console.print(_ROUNDED, style="dim")
        if any(case.plan.offload != "none" for case in work.cases):
            console.print(_OFFLOADED, style="dim")
        if any(verdict["errors"].get("choice") for verdict in verdicts):
            console.print(_ROUTED, style="dim")
        for verdict in verdicts:
            if not verdict["passed"]:
                console.print(f"[red]{escape(verdict['label'])}[/red]: {escape(verdict['reason'])}")
    return 0 if all(verdict["passed"] for verdict in verdicts) else FAILED


def _proof(case: Case) -> Case:
    """Return the case as it is proved: in float64 or its 16 bits, a few steps, nothing measured beside them.

    The bias of the keys has no gradient but rounding (softmax does not see it), which Adam with a small
    epsilon would blow up to a weight; hence the larger one. No gradient overflows at the smaller scale.
    """
    return replace(
        case,
        model=case.model if narrow(case.model.dtype) else replace(case.model, dtype="float64"),
        precision=replace(case.precision, initial_scale=min(case.precision.initial_scale, SCALE)),
        train=replace(case.train, steps=STEPS, warmup=0, epsilon=max(case.train.epsilon, EPSILON)),
        timing=Timing(gemm_peak=False, overhead_steps=0),
    )


def _verdict(journal: Journal, job: Job, outcome: Outcome) -> Verdict:
    verdict: Verdict = {"label": job.case.label, "case": job.case.id, "ranks": job.case.ranks}
    if outcome.status != "ok":
        return {**verdict, "passed": False, "reason": outcome.reason, "errors": {}}
    path = journal.case_folder(job.key) / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))["verified"]
    reason = "" if result["passed"] else tables.reason(result)
    return {**verdict, **result, "totals": tables.totals(result), "reason": reason}
