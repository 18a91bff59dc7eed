"""`pscale trace`: the timeline of a launch whose events were kept, as a file for a viewer of traces."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pscale.analysis.frames import Run, load, records
from pscale.analysis.timeline import HOW, Step, Traced, kept_steps, launch_events, traced
from pscale.cli import tell
from pscale.cli.schedules import figure_format
from pscale.errors import ResultsError, UsageError
from pscale.report.drawn import is_special
from pscale.report.trace import trace_lines
from pscale.run_folders import newest

_WINDOW = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_VIEWERS = "open it in https://ui.perfetto.dev or chrome://tracing"
_NAMED = 8  # other cases


def trace(
    path: Path | None, reports: Path, case: str | None, number: int, steps: range | None, output: Path | None
) -> None:
    """Write launch `number` of a case, from 1, into `output` or the run's folder; `-` prints it."""
    run = load(path or newest(reports))
    launches = traced(run)
    launch = chosen(run, launches, case, number)
    if steps is not None and steps.stop > (kept := kept_steps(run, launch)):
        raise UsageError(
            f"--steps: events of {launch.label} were kept for its measured steps 0 to {kept - 1}"
        )
    table = launch_events(run, launch, steps=steps)
    about = {"run": str(run.document.get("run", "")), "case": launch.case, "label": launch.label}
    lines = trace_lines(table, _places(run, launch), {**about, "launch": number})
    if output == Path("-"):
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    target = output or run.path / f"trace-{launch.case}-{number}.json"
    _write(target, lines)
    tell(f"{target}\n{launch.label}, launch {number}, {len(table):,} events: {_VIEWERS}")
    _tell_others(launches, launch)


def draw(
    path: Path | None, reports: Path, case: str | None, number: int, steps: range | None, target: Path
) -> None:
    """Draw a step of launch `number` of a case, or of all: the first of `steps`, else the shortest."""
    kind = figure_format(target)
    run = load(path or newest(reports))
    launches = traced(run)
    every = [each for each in launches if each.repeat == number - 1 and case is None]
    drawn = [_step(run, launch, steps) for launch in every or [chosen(run, launches, case, number)]]
    from pscale.report import drawing
    from pscale.report.step_figure import figure

    suite = run.document["suite"]
    title = suite.get("title") or suite["name"]
    with drawing.styled():
        target.parent.mkdir(parents=True, exist_ok=True)
        drawing.place(figure(drawn, title)).save(target.parent, target.stem, [kind])


def _step(run: Run, launch: Traced, steps: range | None) -> Step:
    events = launch_events(run, launch, steps=steps and steps[:1])
    both = events[events["kind"] == "step"].groupby("step").agg({"enter": "min", "leave": "max"})
    step = (both["leave"] - both["enter"]).idxmin()  # other work has disturbed it least
    return Step(launch.label, events[events["step"] == step])


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
            raise UsageError(f"{run.path}: no successful launch was traced; {HOW}")
        case = max(launches, key=lambda launch: launch.ranks).case
    found = _of_case(run, launches, case)
    if not found:
        others = "; ".join(dict.fromkeys(f"{each.case} ({each.label})" for each in launches[:_NAMED]))
        raise UsageError(
            f"--case '{case}': no successful launch of it was traced; "
            + (f"traced: {others}" if others else HOW)
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


def _places(run: Run, launch: Traced) -> dict[int, str]:
    """Return where every rank ran, in words."""
    ranks = run.ranks[(run.ranks["case"] == launch.case) & (run.ranks["repeat"] == launch.repeat)]
    rows = records(ranks[["rank", "host", "cpus"]])
    return {row["rank"]: f"{row['host']}" + (f", CPU {row['cpus']}" if row["cpus"] else "") for row in rows}


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file, packed if its name says so, under a temporary name first."""
    temporary = path if is_special(path) else path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            gzip.open(temporary, "wt", 6, "utf-8")
            if path.suffix == ".gz"
            else temporary.open("w", encoding="utf-8") as file
        ):
            file.writelines(f"{line}\n" for line in lines)
        if temporary != path:
            temporary.replace(path)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror or error}") from error


def _tell_others(launches: Sequence[Traced], launch: Traced) -> None:
    others = list(dict.fromkeys((each.case, each.label) for each in launches if each.case != launch.case))
    if others:
        print("other cases (--case):")
    for case, label in others[:_NAMED]:
        tell(f"  {case}  {label}")
    if len(others) > _NAMED:
        print(f"  and {len(others) - _NAMED} more")
