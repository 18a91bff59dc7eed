"""`pscale verify`: every plan of a suite against the serial program, with this machine's MPI and BLAS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pscale.cli.work import prepare
from pscale.config import Case, Timing
from pscale.errors import FAILED
from pscale.launch import campaign, machine
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal
from pscale.launch.outcome import Outcome

STEPS, EPSILON = 10, 1e-6

Verdict = dict[str, Any]


def verify(path: Path, overrides: Sequence[str], only: str | None, reports: Path, *, as_json: bool) -> int:
    """Run each case and the serial program for STEPS steps in float64; return 1 if any differs."""
    here = machine.inspect()
    work = prepare(path, overrides, only, here)
    work = replace(work, cases=[_proof(case) for case in work.cases], repeats=1)
    launcher = work.launcher()
    journal = Journal.create(reports / "verify", work.suite.name, work.document(here))
    verdicts: list[Verdict] = []
    console = Console(stderr=as_json, highlight=False)

    def on_start(job: Job) -> None:
        console.print(f"[dim]verifying {escape(job.case.label)} …[/dim]")

    def on_end(job: Job, outcome: Outcome) -> None:
        verdicts.append(_verdict(journal, job, outcome))

    jobs = [Job(case=case, repeat=0, order=order) for order, case in enumerate(work.cases)]
    campaign.run(journal, jobs, launcher, here, on_start=on_start, on_end=on_end, task="verify")
    if as_json:
        print(json.dumps(verdicts, indent=1))
    else:
        console.print(_table(verdicts))
        for verdict in verdicts:
            if not verdict["passed"]:
                console.print(f"[red]{escape(verdict['label'])}[/red]: {escape(verdict['reason'])}")
    return 0 if all(verdict["passed"] for verdict in verdicts) else FAILED


def _proof(case: Case) -> Case:
    """Return the case as it is proved: in float64, a few steps, nothing measured beside them.

    The bias of the keys has no gradient but rounding (softmax does not see it), which Adam with a small
    epsilon would blow up to a weight; hence the larger one.
    """
    return replace(
        case,
        model=replace(case.model, dtype="float64"),
        train=replace(case.train, steps=STEPS, warmup=0, epsilon=max(case.train.epsilon, EPSILON)),
        timing=Timing(gemm_peak=False, overhead_steps=0),
    )


def _verdict(journal: Journal, job: Job, outcome: Outcome) -> Verdict:
    verdict: Verdict = {"label": job.case.label, "case": job.case.id, "ranks": job.case.ranks}
    if outcome.status != "ok":
        return {**verdict, "passed": False, "reason": outcome.reason, "errors": {}}
    path = journal.case_folder(job.key) / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))["verified"]
    return {**verdict, **result, "reason": "" if result["passed"] else _reason(result)}


def _reason(result: dict[str, Any]) -> str:
    """Say what differs most, or which calls were not predicted."""
    if result["counted"] != result["predicted"]:
        counted, predicted = ({tuple(row) for row in result[name]} for name in ("counted", "predicted"))
        differing = sorted(counted ^ predicted)[0]
        side = "made" if differing in counted else "predicted"
        rank, axis, verb, calls, size = differing
        return f"calls differ: {side} on rank {rank}: {calls} × {verb} over {axis}, {size} bytes"
    kind, (name, error) = max(
        ((kind, rows[0]) for kind, rows in result["errors"].items()), key=lambda worst: worst[1][1]
    )
    limit = f"over the limit of {result['limit']:.0e}"
    return f"{kind} {name} differs by {error:.1e} of its largest value, {limit}"


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case", overflow="fold")
    for name in ("ranks", "loss", "gradient", "weight", "calls", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("")
    for verdict in verdicts:
        counted = verdict.get("counted", [])
        worst = [f"{rows[0][1]:.1e}" for rows in verdict["errors"].values()] or ["", "", ""]
        agrees = "=" if counted == verdict.get("predicted") else "≠"
        table.add_row(
            escape(verdict["label"]),
            str(verdict["ranks"]),
            *worst,
            f"{agrees} {sum(row[3] for row in counted)}",
            f"{agrees} {sum(row[4] for row in counted):,}",
            "[green]equal[/green]" if verdict["passed"] else "[red]differs[/red]",
        )
    return table
