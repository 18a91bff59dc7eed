"""`pscale trace`: the timeline of a launch whose notes were kept, as a file for a viewer of traces."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pscale.analysis.frames import Run, load, newest, records
from pscale.analysis.traced import HOW, Traced, notes, traced
from pscale.errors import ResultsError, UsageError
from pscale.report.trace import trace_lines

_WINDOW = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_VIEWERS = "open it in https://ui.perfetto.dev or chrome://tracing"
_NAMED = 8  # other cases


def trace(
    path: Path | None, reports: Path, case: str | None, number: int, steps: range | None, output: Path | None
) -> None:
    """Write launch `number` of a case, from 1, into `output` or the run's folder; `-` prints it."""
    run = load(path or newest(reports))
    launches = traced(run)
    launch = _chosen(run, launches, case, number)
    if steps is not None and steps.stop > launch.steps:
        raise UsageError(f"--steps: {launch.label} has measured steps 0 to {launch.steps - 1}")
    table = notes(run, launch, steps=steps)
    about = {"run": str(run.document.get("run", "")), "case": launch.case, "label": launch.label}
    lines = trace_lines(table, _places(run, launch), {**about, "launch": number})
    if output == Path("-"):
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    target = output or run.path / f"trace-{launch.case}-{number}.json"
    _write(target, lines)
    print(target)
    print(f"{launch.label}, launch {number}, {len(table):,} notes: {_VIEWERS}")
    _tell_others(launches, launch)


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


def _chosen(run: Run, launches: Sequence[Traced], case: str | None, number: int) -> Traced:
    """Return the launch that is asked for; without a case, that of one with most ranks."""
    if case is None:
        if not launches:
            raise UsageError(f"{run.path}: no launch that ended well was traced; {HOW}")
        case = max(launches, key=lambda launch: launch.ranks).case
    found = _of_case(run, launches, case)
    if not found:
        others = "; ".join(dict.fromkeys(f"{each.case} ({each.label})" for each in launches[:_NAMED]))
        raise UsageError(
            f"--case '{case}': no launch of it that ended well was traced; "
            + (f"traced are {others}" if others else HOW)
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
        raise UsageError(f"--case '{case}': could be {' or '.join(named[:_NAMED])}")
    return [launch for launch in launches if launch.case == named[0]]


def _places(run: Run, launch: Traced) -> dict[int, str]:
    """Return where every rank ran, in words."""
    ranks = run.ranks[(run.ranks["case"] == launch.case) & (run.ranks["repeat"] == launch.repeat)]
    rows = records(ranks[["rank", "host", "cpus"]])
    return {row["rank"]: f"{row['host']}" + (f", CPU {row['cpus']}" if row["cpus"] else "") for row in rows}


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file, packed if its name says so, under a temporary name first."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            gzip.open(temporary, "wt", 6, "utf-8")
            if path.suffix == ".gz"
            else temporary.open("w", encoding="utf-8") as file
        ):
            file.writelines(f"{line}\n" for line in lines)
        temporary.replace(path)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror or error}") from error


def _tell_others(launches: Sequence[Traced], launch: Traced) -> None:
    others = list(dict.fromkeys((each.case, each.label) for each in launches if each.case != launch.case))
    if others:
        print("other cases (--case):")
    for case, label in others[:_NAMED]:
        print(f"  {case}  {label}")
    if len(others) > _NAMED:
        print(f"  and {len(others) - _NAMED} more")
