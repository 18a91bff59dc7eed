"""`pscale trace`: the timeline of a launch whose events were kept, as a file for a viewer of traces."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from pscale.analysis.frames import Run, load, records
from pscale.analysis.timeline import (
    Traced,
    flights,
    how_to_trace,
    kept_steps,
    launch_events,
    shortest_step,
    spans,
    traced,
)
from pscale.cli import tell
from pscale.cli.options import Export, Trace
from pscale.cli.show import check_figure
from pscale.errors import UsageError, writing
from pscale.export.activities import Launch, launch_of
from pscale.export.chakra import write_chakra
from pscale.export.extrap import write_extrap
from pscale.export.goal import write_goal
from pscale.export.otf2_archive import write_otf2
from pscale.export.trace import trace_lines
from pscale.report.brief import is_special
from pscale.runs import atomic_files
from pscale.runs.run_folders import run_folder

_WINDOW = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_VIEWERS = "open it in https://ui.perfetto.dev or chrome://tracing"
_NAMED = 8  # other cases


def trace(options: Trace) -> None:
    """Write a launch of a case into `output` or the run's folder, `-` prints it; or draw a step of it."""
    run = load(run_folder(options.path, options.reports))
    case, number, output, steps = options.case, options.launch, options.output, window(options.steps)
    if options.figure is not None:
        if output is not None:
            raise UsageError(
                "--output is the file of the timeline for a viewer; --figure draws a step instead"
            )
        _draw(run, case, number, steps, options.figure)
        return
    launches = traced(run)
    launch = chosen(run, launches, case, number)
    _check_kept(run, launch, steps)
    table = launch_events(run, launch, steps=steps)
    about = {"run": run.name, "case": launch.case, "label": launch.label}
    lines = trace_lines(table, _places(run, launch), {**about, "launch": number})
    if output == Path("-"):
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    target = output or run.path / f"trace-{launch.case}-{number}.json"
    _write(target, lines)
    tell(f"{target}\n{launch.label}, launch {number}, {len(table):,} events: {_VIEWERS}")
    _tell_others(launches, launch)


def _draw(run: Run, case: str | None, number: int, steps: range | None, target: Path) -> None:
    """Draw a step of launch `number` of a case, or of all: the first of `steps`, else the shortest."""
    check_figure(target)
    launches = traced(run)
    every = [each for each in launches if each.repeat == number - 1 and case is None]
    from pscale.analysis import text
    from pscale.report import drawing
    from pscale.report.drawing import draw_steps, shares

    shown = every or [chosen(run, launches, case, number)]
    events = [shortest_step(run, launch, steps) for launch in shown]
    drawn = [[*spans(run, launch, *step, whole=True)] for launch, step in zip(shown, events, strict=True)]
    titles = [f"{launch.label}: {shares(each)}" for launch, each in zip(shown, drawn, strict=True)]
    calls = [list(flights(moved)) for moved, _ in events]
    suite = run.document["suite"]
    with drawing.styled():
        figure = draw_steps(drawn, titles, text.clean(suite.get("title") or suite["name"]), flights=calls)
        drawing.save(figure, target)
    tell(f"{target}")


def window(text: str | None) -> range | None:
    """Read "3" or "3-5" as the steps that it means."""
    if text is None:
        return None
    found = _WINDOW.fullmatch(text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(
            f"--steps: expected a step such as 3, or the first and last such as 3-5, got '{text}'"
        )
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def chosen(run: Run, launches: Sequence[Traced], case: str | None, number: int) -> Traced:
    """Return the launch that is asked for; without a case, that of one with most ranks."""
    if case is None:
        if not launches:
            raise UsageError(f"{run.path}: no successful launch was traced; {how_to_trace(run)}")
        case = max(launches, key=lambda launch: launch.ranks).case
    found = _of_case(run, launches, case)
    if not found:
        others = "; ".join(dict.fromkeys(f"{each.case} ({each.label})" for each in launches[:_NAMED]))
        raise UsageError(
            f"--case '{case}': no successful launch of it was traced; "
            + (f"traced: {others}" if others else how_to_trace(run))
        )
    repeats = [launch.repeat + 1 for launch in found]
    if number not in repeats:
        raise UsageError(
            f"--launch {number}: traced launches of {found[0].label}: {', '.join(map(str, repeats))}"
        )
    return found[repeats.index(number)]


def _of_case(run: Run, launches: Sequence[Traced], case: str) -> list[Traced]:
    """Return the traced launches of the case with that id, the first letters of it, or that label."""
    known = {str(each["id"]): str(each.get("label", "")) for each in run.planned.values()}
    named = [name for name, label in known.items() if case in (name, label)]
    named = named or [name for name in known if case and name.startswith(case)]
    if not named:
        labels = "; ".join(f"{name} ({label})" for name, label in list(known.items())[:_NAMED])
        raise UsageError(f"--case '{case}': the run has no such case; it has {labels}")
    if len(named) > 1:
        raise UsageError(f"--case '{case}': ambiguous: {' or '.join(named[:_NAMED])}")
    return [launch for launch in launches if launch.case == named[0]]


def _check_kept(run: Run, launch: Traced, steps: range | None) -> None:
    if steps is not None and steps.stop > (kept := kept_steps(run, launch)):
        raise UsageError(
            f"--steps: events of {launch.label} were kept for its measured steps 0 to {kept - 1}"
        )


def _places(run: Run, launch: Traced) -> dict[int, str]:
    """Return where every rank ran, in words."""
    ranks = run.ranks[(run.ranks["case"] == launch.case) & (run.ranks["repeat"] == launch.repeat)]
    rows = records(ranks[["rank", "host", "cpus"]])
    return {row["rank"]: f"{row['host']}" + (f", CPU {row['cpus']}" if row["cpus"] else "") for row in rows}


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file, packed if its name says so, under a temporary name first."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") if is_special(path) else atomic_files.replacing(path, synced=False) as made,
            gzip.open(made, "wb", 6) if path.suffix == ".gz" else nullcontext(made) as file,
        ):
            file.writelines(f"{line}\n".encode() for line in lines)


def _tell_others(launches: Sequence[Traced], launch: Traced) -> None:
    others = list(dict.fromkeys((each.case, each.label) for each in launches if each.case != launch.case))
    if others:
        print("other cases (--case):")
    for case, label in others[:_NAMED]:
        tell(f"  {case}  {label}")
    if len(others) > _NAMED:
        print(f"  and {len(others) - _NAMED} more")


EXTRAP = "extrap"  # of all launches; the others are of one that was traced
_WRITERS: dict[str, Callable[[Launch, Path, str], list[Path]]] = {
    "chakra": write_chakra,
    "goal": write_goal,
    "otf2": write_otf2,
}
_READ_BY = {
    "chakra": "astra-sim --workload-configuration={folder}/{name} "
    "--comm-group-configuration={folder}/{name}.groups.json …",
    "goal": "txt2bin -i {file} -o {name}.bin && LogGOPSim -f {name}.bin",
    "otf2": "otf2-print {file}, or Vampir",
    EXTRAP: "extrap --json {file}",
}


def export(options: Export) -> None:
    """Write a run into the folder `output`, or export/FORMAT of the run's own, and say what reads it.

    All formats but Extra-P's are of a launch of a case, or of some measured steps of it.
    """
    as_format, case, number, steps = options.as_format, options.case, options.launch, window(options.steps)
    run = load(run_folder(options.path, options.reports))
    folder = options.output or run.path / "export" / as_format
    if as_format == EXTRAP:
        if case is not None or number is not None or steps is not None:
            raise UsageError(
                "--format extrap is of all launches; give it without --case, --launch and --steps"
            )
        _written(as_format, folder, lambda: write_extrap(run, folder))
        return
    launch = chosen(run, traced(run), case, number or 1)
    _check_kept(run, launch, steps)
    title = f"{launch.label}, launch {launch.repeat + 1}"
    found = launch_of(launch_events(run, launch, steps=steps), title)
    name = f"{launch.case}-{launch.repeat + 1}"
    _written(as_format, folder, lambda: _WRITERS[as_format](found, folder, name))


def _written(as_format: str, folder: Path, write: Callable[[], Sequence[Path]]) -> None:
    """Write into a folder, in place of what is there; print the files and what reads them."""
    with writing(f"in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        written = write()
    for path in written:
        tell(str(path))
    first = written[0]
    words = _READ_BY[as_format].format(file=first, folder=first.parent, name=first.name.partition(".")[0])
    tell(f"read by: {words}")
