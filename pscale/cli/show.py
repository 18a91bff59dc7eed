"""`pscale show`: the cases of a suite and what each will cost, without starting anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pscale.config import Case, to_dict
from pscale.launch import machine
from pscale.parallel.dry_run import bubble, dry_run, table
from pscale.parallel.pipeline import timetable
from pscale.parallel.predict import Prediction, predict
from pscale.suite import Suite, expand, load_suite

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def show(path: Path, overrides: Sequence[str], only: str | None, *, as_json: bool, schedule: bool) -> None:
    """Print the cases of the suite at `path`, with `schedule` also what the stages of pipelines do."""
    suite = load_suite(path, overrides)
    cases = expand(suite, machine.inspect().names(), only)
    predictions = [predict(case) for case in cases]
    if as_json:
        rows = [_document(case, prediction) for case, prediction in zip(cases, predictions, strict=True)]
        print(json.dumps({"suite": suite.name, "repeat": suite.repeat, "cases": rows}, indent=1))
        return
    console = Console()
    console.print(f"[bold]{escape(suite.title)}[/bold]  {escape(str(path))}", highlight=False)
    console.print(_heading(suite, cases), highlight=False)
    console.print(_table(cases, predictions))
    console.print("Per rank and step; FLOPs over all ranks, attention counted causal.", style="dim")
    if schedule:
        for text in _schedules(cases):
            console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)


def _schedules(cases: Sequence[Case]) -> list[str]:
    """Return a picture of every different pipeline, with the share of time that its stages are idle."""
    tables = {timetable(case.plan, case.train.micro_batches): case for case in reversed(cases)}
    texts = []
    for drawn, case in reversed(tables.items()):
        if drawn.stages > 1:
            idle = f"bubble {bubble(dry_run(drawn)):.1%} of the work if all parts cost the same"
            texts.append(f"{case.label}: {drawn.schedule}, {idle}\n{table(drawn)}")
    return texts or ["No case has more than one pipeline stage."]


def _document(case: Case, prediction: Prediction) -> dict[str, Any]:
    return {
        "id": case.id,
        **to_dict(case),
        "predicted": {**to_dict(prediction), "sent_bytes": prediction.sent_bytes},
    }


def _heading(suite: Suite, cases: Sequence[Case]) -> str:
    launches = len(cases) * suite.repeat
    return f"{suite.scaling} scaling · {len(cases)} cases × {suite.repeat} repeats = {launches} launches"


def _table(cases: Sequence[Case], predictions: Sequence[Prediction]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "case", "plan"):
        table.add_column(name, overflow="fold")
    for name in ("batch", "parameters", "GFLOP", "calls", "sent", "memory"):
        table.add_column(name, justify="right")
    for case, prediction in zip(cases, predictions, strict=True):
        base = " (base)" if case.base else ""
        table.add_row(
            case.id,
            escape(case.label + base),
            _plan(case),
            str(case.train.batch),
            f"{prediction.parameters:,}",
            f"{prediction.model_flops * 1e-9:,.3g}",
            str(sum(call.count for call in prediction.calls)),
            size(prediction.sent_bytes),
            size(sum(prediction.memory_bytes.values())),
        )
    return table


def _plan(case: Case) -> str:
    return f"dp {case.plan.dp} × {case.threads} threads" if case.threads > 1 else f"dp {case.plan.dp}"


def size(count: float) -> str:
    """Write a number of bytes as a person would: 3.2 MiB."""
    for unit in _BINARY:
        if count < 1024 or unit == _BINARY[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
