"""`pscale check`: a run against what its suite and files of references expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pscale.analysis.frames import Run, load, newest
from pscale.analysis.reference import references, with_cases
from pscale.analysis.summary import Summary, summarise
from pscale.cli.console import new_console
from pscale.errors import FAILED, ResultsError, UsageError
from pscale.report.exports import finite, write_text
from pscale.report.grids import failures
from pscale.report.grids_expect import expectations
from pscale.report.junit import render_junit
from pscale.report.references import render_references
from pscale.report.shown import show_grid


def check(
    path: Path | None,
    reports: Path,
    *,
    reference_files: Sequence[Path] = (),
    junit: Path | None = None,
    as_json: bool = False,
) -> int:
    """Say what holds of all that is expected of a run; returns 1 if not all of it does, or a case failed."""
    summary = summarise(_expected(_run(path, reports), reference_files), predict=None)
    if junit is not None:
        _write(junit, render_junit(summary))
    if as_json:
        verdicts = [asdict(expectation) for expectation in summary.expectations]
        document = {"run": summary.run, "passed": summary.passed, "expectations": verdicts}
        print(json.dumps(finite(document), indent=1, allow_nan=False))
    else:
        _show(summary)
    return 0 if summary.passed else FAILED


def update(path: Path | None, reports: Path, file: Path | None) -> int:
    """Write what a run measured as references for later ones; returns 1 if there was nothing to write."""
    summary = summarise(_run(path, reports), predict=None)
    target = file or Path(f"{summary.suite or 'pscale'}.reference.yaml")
    known = references(summary)
    if not known:
        raise ResultsError(f"{summary.path}: no case was measured, so there are no values to keep")
    _write(target, render_references(summary))
    missing = len(summary.points) - len({entry.case for entry in known})
    print(f"{target}: {len(known)} values of {len(summary.points) - missing} cases of {summary.run}")
    if missing:
        print(f"{missing} of {len(summary.points)} cases were not measured and are left out")
    return 0


def _run(path: Path | None, reports: Path) -> Run:
    if path is not None and path.suffix in (".yaml", ".yml") and not path.is_dir():
        raise UsageError(
            f"{path} is no run: `pscale check` takes the folder of one, by default the newest, and values "
            "to hold it to with --reference FILE. Whether a suite is valid says `pscale show SUITE`"
        )
    return load(path or newest(reports))


def _expected(run: Run, files: Sequence[Path]) -> Run:
    """Return the run with what files expect of it, after what its suite does."""
    if not files:
        return run
    from pscale.suite.reference import load_references  # pydantic takes its time

    entries = list(run.document.get("expect") or [])
    for file in files:
        found = load_references(file)
        if found.suite and found.suite != run.suite.get("name"):
            raise UsageError(
                f"{file}: is about the suite '{found.suite}', the run is of '{run.suite.get('name')}'"
            )
        entries += with_cases(
            run, found.entries, [found.place(number) for number in range(len(found.entries))]
        )
    return replace(run, document={**run.document, "expect": entries})


def _show(summary: Summary) -> None:
    console = new_console(highlight=False)
    for grid in (*failures(summary), *expectations(summary)):
        show_grid(grid, console)
    if not summary.expectations:
        print(
            "nothing is expected: add `expect:` to the suite, or keep references with `pscale check --update`"
        )
    held = sum(entry.held is True for entry in summary.expectations)
    told = f"{held} of {len(summary.expectations)} expectations hold"
    pending = sum(point.status == "pending" for point in summary.points)
    said = [told] if summary.expectations else []
    said += [f"{len(summary.failures)} failed or invalid"] if summary.failures else []
    said += [f"{pending} cases not measured yet"] if pending else []
    print(
        f"\n{'passed' if summary.passed else 'FAILED'}: {summary.run}"
        + "".join(f" · {part}" for part in said)
    )


def _write(path: Path, content: str) -> None:
    try:
        write_text(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
