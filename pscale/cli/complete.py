"""What a shell offers while a command is typed: suites, runs, cases, fields. Whatever goes wrong, nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from pscale.errors import ResultsError
from pscale.runs import atomic_files
from pscale.runs.run_folders import run_folder, run_folders
from pscale.suite import shipped as shipped_suites

REPORTS = "reports"
_MOST = 200  # more are no help


def suites(incomplete: str) -> list[str]:
    """Return YAML files where the word points, and at first the shipped suites too."""
    return [*_below(incomplete, lambda path: path.suffix in (".yaml", ".yml")), *shipped(incomplete)]


def shipped(incomplete: str) -> list[str]:
    """Return the names of shipped suites."""
    return _starting(shipped_suites.suites(), incomplete)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return suites that have runs under `--reports`, and the runs, newest first; else what a folder has."""
    root = Path(str(ctx.params.get("reports") or REPORTS))
    found = sorted(run_folders(root), key=lambda folder: folder.name, reverse=True)[:_MOST]
    suites_ = sorted({folder.parent.name for folder in found})
    known = [word for word in (*suites_, *map(str, found)) if word.startswith(incomplete)]
    return known or _below(incomplete, lambda path: (path / "run.json").exists())


def cases(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the cases of the run that is named before, or of the newest, with their labels."""
    named = ctx.params.get("path")
    root = Path(str(ctx.params.get("reports") or REPORTS))
    try:
        folder = run_folder(Path(str(named)) if named else None, root)
        listed = atomic_files.read_json(folder / "run.json")["cases"]
        known = [(str(case["id"]), str(case.get("label", ""))) for case in listed]
    except (OSError, ValueError, KeyError, TypeError, ResultsError):
        return []
    return [(case, label) for case, label in known if case.startswith(incomplete)][:_MOST]


def settings(incomplete: str) -> list[str]:
    """Return fields of suites, each with the sign after which its value comes."""
    from pscale.suite.fields import LEAVES

    return _starting([f"{leaf}=" for leaf in LEAVES], incomplete)


def names(incomplete: str) -> list[str]:
    """Return the names that the last word of a condition may be."""
    from pscale.suite.fields import SHORT

    before, space, last = incomplete.rpartition(" ")
    known = _starting(sorted(SHORT), last)
    return [f"{before}{space}{name}" for name in known]


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in known if word.startswith(incomplete)]


def _below(incomplete: str, wanted: Any) -> list[str]:
    """Return what is wanted, and folders to go on into, where the word points."""
    written, _, _ = incomplete.rpartition("/")
    folder = Path(written or ("/" if incomplete.startswith("/") else "."))
    found = _entries(folder, wanted)
    shown = [f"{path}/" if path.is_dir() and not wanted(path) else str(path) for path in found]
    return _starting(shown, incomplete)[:_MOST]


def _entries(folder: Path, wanted: Any) -> Iterator[Path]:
    try:
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(".") and (path.is_dir() or wanted(path)):
                yield path
    except OSError:
        return
