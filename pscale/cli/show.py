"""`pscale show`: the cases of a suite and what each will cost, without starting anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pscale.cli.console import new_console
from pscale.cli.room import Room
from pscale.cli.schedules import texts
from pscale.cli.work import Chosen, settled
from pscale.config import Case, to_dict
from pscale.parallel.memory import KINDS
from pscale.parallel.predict import Prediction, predict
from pscale.report.text import clean, plural, size_of
from pscale.suite import Suite, expand

_LEAST_LABEL = 20  # characters of a line
_DISPENSABLE = ("id", "plan", "parameters", "GFLOP", "calls", "sent", "memory")  # the first goes first
_MEMORY_DISPENSABLE = (
    "rank",
    "written",
    "read",
    "exchange",
    "optimizer",
    "gradients",
    "parameters",
    "activations",
)
_TOO_LARGE = "▲"
_BEFORE_LABELS_BREAK = 2  # of these go before labels take several lines


def show(
    path: Path, chosen: Chosen, *, as_json: bool, memory: bool, schedule: bool, figure: Path | None
) -> None:
    """Print the cases of the suite at `path`.

    With `memory` also what the fullest rank holds by kind, with `schedule` what the stages of pipelines do,
    which is drawn into the file `figure`, if there is to be one.
    """
    suite, _, ground = settled(path, chosen)
    here = ground.machine
    cases = expand(suite, here.names(), chosen.only).cases
    if figure is not None:
        from pscale.cli.draw import draw

        draw(cases, figure, suite.title or suite.name)
    predictions, rooms = [predict(case) for case in cases], [Room(case, here) for case in cases]
    if as_json:
        rows = [
            _document(case, prediction, room)
            for case, prediction, room in zip(cases, predictions, rooms, strict=True)
        ]
        often = {"repeat": suite.repeat, "auto": asdict(suite.auto) if suite.auto else None}
        print(json.dumps({"suite": suite.name, **often, "cases": rows}, indent=1))
        return
    console = new_console()
    console.print(f"[bold]{escape(suite.title or suite.name)}[/bold]  {escape(str(path))}", highlight=False)
    console.print(_heading(suite, cases), highlight=False)
    console.print(
        _fitted([_row(*known) for known in zip(predictions, rooms, strict=True)], _DISPENSABLE, console)
    )
    console.print(
        "Of rank 0 and a step; FLOPs of all ranks, attention counted causal; memory of the fullest rank.",
        style="dim",
    )
    refused = [room for room in rooms if room.refusal]
    if refused:
        console.print(
            f"{_TOO_LARGE} {plural(len(refused), 'case')} will not be started: {refused[0].case.label} "
            f"{refused[0].refusal}",
            style="yellow",
            markup=False,
            highlight=False,
        )
    if memory:
        offloads = any(case.plan.offload != "none" for case in cases)
        console.print(Text("\nMemory of the fullest rank", style="bold"))
        console.print(
            _fitted([_memory(room, offloads=offloads) for room in rooms], _MEMORY_DISPENSABLE, console)
        )
        beside = "; in a file, read, written: of a rank and a step, beside its memory" if offloads else ""
        console.print(f"all ranks: with 128 MiB for each process{beside}", style="dim")
    if schedule:
        for text in texts(cases):
            console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)


def _memory(room: Room, *, offloads: bool) -> dict[str, str]:
    """Return what the fullest rank of a case is predicted to hold, by kind."""
    mark = f" {_TOO_LARGE}" if room.refusal else ""
    return {
        "case": room.case.label,
        "rank": str(room.fullest.rank),
        **{kind: size_of(room.fullest.memory_bytes[kind]) for kind in KINDS},
        "a rank": size_of(room.fullest.total_bytes),
        **_offloaded(room, offloads=offloads),
        "all ranks": size_of(room.needed_bytes) + mark,
    }


def _offloaded(room: Room, *, offloads: bool) -> dict[str, str]:
    """Return what lies in a file in place of memory, and what of it moves in a step, if any case offloads."""
    found = room.fullest.offloaded
    moved = {"read": found.read_bytes, "written": found.written_bytes}
    sizes = {"in a file": found.file_bytes, **moved}
    return {name: size_of(size) if size else "-" for name, size in sizes.items()} if offloads else {}


def _document(case: Case, prediction: Prediction, room: Room) -> dict[str, Any]:
    """Return a case with what is predicted of its first and of its fullest rank."""
    fullest = room.fullest
    memory = {
        "rank": fullest.rank,
        "kept_bytes": fullest.kept_bytes,
        **{f"{kind}_bytes": size for kind, size in fullest.memory_bytes.items()},
        "total_bytes": fullest.total_bytes,
        "all_ranks_bytes": room.needed_bytes,
        "limit_bytes": room.limit_bytes,
        "refusal": room.refusal,
    }
    predicted = {**to_dict(prediction), "sent_bytes": prediction.sent_bytes, "fullest": memory}
    return {"id": case.id, **to_dict(case), "predicted": predicted}


def _heading(suite: Suite, cases: Sequence[Case]) -> str:
    counted = f"{len(cases)} case{'s' * (len(cases) != 1)}"
    if auto := suite.auto:
        often = f"{suite.repeat} to {auto.most} launches of each"
        goal = f"until it is known to ±{100 * auto.precision:.3g}%"
        return f"{suite.scaling} scaling · {counted}, {often}, {goal}"
    launches = f"{suite.repeat} launch{'es' * (suite.repeat != 1)} of each"
    return f"{suite.scaling} scaling · {counted}, {launches}"


def _fitted(rows: Sequence[Mapping[str, str]], dispensable: Sequence[str], console: Console) -> Table:
    """Return the table without the columns that the console has no room for."""
    longest = max(len(row["case"]) for row in rows)
    least = min(longest, _LEAST_LABEL)
    unbounded = console.options.update(width=10_000)
    for count in range(len(dispensable) + 1):
        table = _table(rows, [name for name in rows[0] if name not in dispensable[:count]], least)
        saved = longest - least if count >= _BEFORE_LABELS_BREAK else 0
        if Measurement.get(console, unbounded, table).maximum - saved <= console.width:
            break
    return table


def _table(rows: Sequence[Mapping[str, str]], shown: Sequence[str], least_label: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        if name == "case":
            table.add_column(name, overflow="fold", min_width=least_label)
        else:
            table.add_column(name, justify="left" if name in ("id", "plan") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(clean(row[name])) for name in shown))
    return table


def _row(prediction: Prediction, room: Room) -> dict[str, str]:
    case, mark = room.case, f" {_TOO_LARGE}" if room.refusal else ""
    return {
        "id": case.id,
        "case": case.label + (" (base)" if case.base else ""),
        "plan": _plan(case),
        "batch": str(case.train.batch),
        "parameters": f"{prediction.parameters:,}",
        "GFLOP": f"{prediction.model_flops * 1e-9:,.3g}",
        "calls": str(sum(call.count for call in prediction.calls)),
        "sent": size_of(prediction.sent_bytes),
        "memory": size_of(room.fullest.total_bytes) + mark,
    }


def _plan(case: Case) -> str:
    return f"{case.plan.product} × {case.threads} threads" if case.threads > 1 else case.plan.product
