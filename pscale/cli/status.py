"""`pscale doctor`, `list`, `status` and `cancel`: the machine, the runs, and the launches and jobs of one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pscale.analysis.text import rate
from pscale.cli import tell
from pscale.cli.console import changing, new_console
from pscale.cli.options import Cancel, Doctor, ListRuns, Status, host_list
from pscale.config.case import UNCOUNTED
from pscale.errors import FAILED, LaunchError, ResultsError
from pscale.launch.job_manager import POLL_S
from pscale.launch.jobs import SubmittedJob, ending_of, jobs_of, open_jobs
from pscale.launch.scheduler import BY_NAME, Scheduler
from pscale.launch.scheduler.base import JobStatus, UnsureError
from pscale.runs.atomic_files import to_json
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Key, Launched
from pscale.runs.run_folders import run_folder

if TYPE_CHECKING:
    from pscale.report.brief import Card
    from pscale.report.table import Tone, Value

_LOOK_S = 2.0
_WORDS = {"timeout": "over their time limit", "node_failed": "lost with a node"}
_STYLES = {"running": "green", "completed": "green", "queued": "yellow"}
_MARKS = {"ok": "[green]✓[/green]", "warn": "[yellow]![/yellow]", "fail": "[red]✗[/red]"}


def status(options: Status) -> None:
    """Print the state of a run; with `watch` until it has finished."""
    journal = Journal.open(run_folder(options.path, options.reports))
    if options.as_json:
        print(to_json(state_of(journal)))
    elif options.watch:
        with changing(new_console()) as show:
            watch(journal, lambda state: show(page_of(state)))
    else:
        new_console().print(page_of(state_of(journal)), highlight=False)


def watch(journal: Journal, show: Callable[[dict[str, Any]], None], look_s: float = _LOOK_S) -> None:
    """Show the state of a run whenever it has changed, until the run has finished."""
    poll_s = max(look_s, float(journal.document.get("poll_s", POLL_S)))
    answer, asked = _asked(journal), time.monotonic()
    show(state := state_of(journal, answer))
    while not state["finished"]:
        time.sleep(look_s)
        if time.monotonic() - asked >= poll_s:
            answer, asked = _asked(journal), time.monotonic()
        before, state = state, state_of(journal, answer)
        if state != before:
            show(state)


def cancel(options: Cancel) -> None:
    """End all jobs of a run; what has ended is kept, and `pscale run` continues with the rest."""
    journal = Journal.open(run_folder(options.path, options.reports))
    scheduler, current = _scheduler(journal), open_jobs(journal)
    if scheduler is None or not current:
        tell(f"{journal.folder} has no running or queued jobs")
        return
    try:
        known = scheduler.poll_many(current)
        folders = {
            status.id: journal.job_folder(job.branch)
            for job in current
            if (status := known.get(job.name)) and status.phase != "ended"
        }
        if folders:
            scheduler.cancel(folders)
    except UnsureError as error:
        raise UnsureError(f"{error}; not known which jobs were cancelled: `pscale cancel` again") from error
    tell(f"cancelled {', '.join(folders) or 'nothing: no job is running or queued'}; `pscale run` continues")


def _scheduler(journal: Journal) -> Scheduler | None:
    return BY_NAME.get(journal.document.get("scheduler") or "")


def _asked(journal: Journal) -> tuple[Mapping[str, JobStatus], str]:
    """Ask the scheduler once, if a job may be running; return what it says of jobs, or why it cannot."""
    scheduler, current = _scheduler(journal), open_jobs(journal)
    try:
        return scheduler.poll_many(current) if scheduler and current else {}, ""
    except LaunchError as error:
        return {}, str(error)


def state_of(journal: Journal, answer: tuple[Mapping[str, JobStatus], str] | None = None) -> dict[str, Any]:
    """Return the state of a run for JSON, as its scheduler answers or has answered."""
    statuses, trouble = answer or _asked(journal)
    finished = journal.is_finished()  # before the events: if so, they have every end
    events = journal.events()
    ended = {event.key: event for event in events if isinstance(event, Ended)}
    begun = {event.key for event in events if isinstance(event, Launched)}
    labels = {case["id"]: case.get("label", case["id"]) for case in journal.document["cases"]}
    is_alone = not journal.document.get("scheduler") and journal.is_abandoned()  # nobody runs it
    under_way = (f"{labels.get(case, case)} #{repeat + 1}" for case, repeat in begun - ended.keys())
    return {
        "run": str(journal.folder),
        "launches": len(labels) * journal.document["repeats"],
        "until_precise": journal.document.get("auto") is not None,
        "ended": dict(Counter(event.status for event in ended.values())),
        "stopped": is_alone and not journal.is_finished(),
        "under_way": sorted(under_way),
        "finished": finished,
        "jobs": [_job(journal, job, statuses.get(job.name), ended.keys()) for job in jobs_of(journal)],
        "trouble": trouble,
    }


def _job(
    journal: Journal, job: SubmittedJob, status: JobStatus | None, ended: Collection[Key]
) -> dict[str, Any]:
    folder = journal.job_folder(job.branch)
    state = job.ending or ending_of(folder, status) or (status.phase if status else "unknown")
    return {
        "job": job.id or job.name,
        "state": state,
        "launches": len(job.keys),
        "ended": sum(key in ended for key in job.keys),
        "note": job.note or (status.note if status else ""),
        "log": str(folder / "log.txt"),
    }


def page_of(document: Mapping[str, Any]) -> RenderableType:
    """Return how many launches have ended and how, and a line for each job."""
    ended, total = document["ended"], document["launches"]
    counts = ", ".join(
        f"{count} {_WORDS.get(name, name)}"
        for name, count in sorted(ended.items(), key=lambda one: (one[0] != "ok", one))
    )
    count = sum(ended.values())
    of_all = f"{count} of {total} launches have ended"
    if document["until_precise"]:
        of_all = f"{count} launches have ended, of {total} or more"
    lines = [
        document["run"],
        f"{of_all}{f': {counts}' if counts else ''}",
    ]
    if document["under_way"]:
        now = "interrupted" if document["stopped"] else "running"
        lines.append(f"{now}: {', '.join(document['under_way'])}")
    if document["stopped"]:
        lines.append("not running; the same `pscale run` command continues it")
    if document["trouble"]:
        lines.append(f"{document['trouble']}; what the jobs do is not known: ask again")
    if ended.keys() - {"ok", "skipped", *UNCOUNTED}:
        lines.append(f"why launches failed: pscale report --full {document['run']}")
    text = Text("\n".join(lines), overflow="fold")
    return Group(text, "", _jobs(document["jobs"])) if document["jobs"] else text


def _jobs(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("job", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("launches", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for job in rows:
        style = _STYLES.get(job["state"], "red")
        table.add_row(
            escape(job["job"]),
            f"[{style}]{job['state']}[/{style}]",
            f"{job['ended']}/{job['launches']}",
            escape(job["note"]),
        )
    return table


def list_runs(options: ListRuns) -> None:
    """Print the runs in a folder, newest first, of one suite or of all."""
    from pscale.report.brief import cards

    reports, suite = options.reports, options.suite
    found = cards(reports, suite)
    if not found and not options.as_json:
        where = reports / suite if suite else reports
        raise ResultsError(f"{where}: no runs here; make one with 'pscale run SUITE'")
    shown = found[: options.most]
    if options.as_json:
        print(to_json([asdict(card) for card in shown]))
        return
    _show_runs(shown, len(found))


def _show_runs(shown: Sequence[Card], count: int) -> None:
    from pscale.report.table import Column, print_table
    from pscale.report.table import Table as ReportTable

    columns = (
        *(Column("run"), Column("started", wide=True), Column("cases", str)),
        *(Column("failed", str), Column("ranks", str), Column("best result", fold=True)),
        Column("host", wide=True),
    )
    bad: Tone = "bad"
    rows = tuple((bad if card.failed or card.trouble else "", _values(card)) for card in shown)
    left = f"{count - len(shown)} older runs not shown" if count > len(shown) else ""
    print_table(
        ReportTable(title="Runs", columns=columns, rows=rows, caption=left), new_console(highlight=False)
    )


def _values(card: Card) -> tuple[Value, ...]:
    begun = None
    with suppress(ValueError, OverflowError, OSError):  # a table may hold any number
        begun = datetime.fromtimestamp(card.begun_unix_s) if card.begun_unix_s else None
    return (
        "/".join(Path(card.path).parts[-2:]),
        f"{begun:%Y-%m-%d %H:%M}" if begun else None,
        f"{card.cases_ok}/{card.cases}",
        *(card.failed or None, card.ranks or None, card.trouble or _figure(card), card.host),
    )


def _figure(card: Card) -> str:
    match card.metric:
        case "efficiency":
            from pscale.analysis.messages import TARGET, efficiency
            from pscale.analysis.stats import Estimate

            answer = f", {TARGET.get(card.answer, card.answer)}" if card.answer else ""
            value = Estimate(value=card.value or 0.0, low=card.low, high=card.high)
            return f"{efficiency(value)} at {card.at}{answer}"
        case "samples_per_s":
            unsure = ", fastest undecided" * (card.answer == "undecided")
            return f"{rate(card.value or 0.0)} samples/s at {card.at}{unsure}"
    return "not finished" if card.pending else "-"


def doctor(options: Doctor) -> int:
    """Print what was found on this machine; return 1 if something keeps pscale from working."""
    from pscale.launch.doctor import findings

    if options.blas:
        return _doctor_of_blas(as_json=options.as_json)
    found = findings(options.reports, hosts=host_list(options.hosts))
    if options.as_json:
        print(to_json([asdict(finding) for finding in found]))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in found:
            text = escape(finding.text)
            if finding.advice:
                text += f"\n[bold]→[/bold] {escape(finding.advice)}"
            table.add_row(_MARKS[finding.level], f"[bold]{escape(finding.topic)}[/bold]", text)
        new_console().print(table, highlight=False)
    return FAILED if any(finding.level == "fail" for finding in found) else 0


def _doctor_of_blas(*, as_json: bool) -> int:
    """Print how fast each BLAS that is installed multiplies matrices; return 1 if none does."""
    from pscale.launch import doctor as blas
    from pscale.launch import machine

    cores = machine.inspect().usable_cores
    speeds = blas.ranking(cores)
    if as_json:
        print(to_json([asdict(speed) for speed in speeds]))
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("launch.blas", overflow="fold")
        table.add_column("kernels", no_wrap=True)
        table.add_column("threading", no_wrap=True)
        counts = ["1 thread", *([f"{cores} threads"] if cores > 1 else [])]
        for count in counts:
            table.add_column(count, justify="right", no_wrap=True)
        for speed in speeds:
            name = f"[bold]{escape(speed.name)}[/bold]{' = auto' if speed.auto else ''}"
            told = [
                name,
                escape(speed.choice),
                *([f"[red]{escape(speed.error)}[/red]"] if speed.error else []),
            ]
            figures = [speed.kernels, speed.threading, f"{speed.gflops:.0f}", f"{speed.gflops_all:.0f}"]
            table.add_row("\n".join(told), *([] if speed.error else figures[: 2 + len(counts)]))
        new_console().print(table, "GFLOP/s of matrix products in float32", highlight=False)
    return FAILED if all(speed.error for speed in speeds) else 0
