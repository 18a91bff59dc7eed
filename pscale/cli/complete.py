"""What a shell offers while a command is typed: suites, runs, cases, fields. Whatever goes wrong, nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

REPORTS = "reports"
_MOST = 200  # more are no help


def suites(incomplete: str) -> list[str]:
    """Return YAML files: those where the word points, and at first those in `suites` too."""
    return _below(incomplete, lambda path: path.suffix in (".yaml", ".yml"), beside=Path("suites"))


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the folders of runs under `--reports`, those begun last first, or where the word points."""
    root = Path(str(ctx.params.get("reports") or REPORTS))
    found = sorted(root.glob("*/*/run.json"), key=lambda file: file.parent.name, reverse=True)
    known = [str(file.parent) for file in found[:_MOST] if str(file.parent).startswith(incomplete)]
    return known or _below(incomplete, lambda path: (path / "run.json").exists())


def cases(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the cases of the run that is named before, or of the newest, with their labels."""
    named = ctx.params.get("path")
    root = Path(str(ctx.params.get("reports") or REPORTS))
    try:
        files = [Path(str(named)) / "run.json"] if named else list(root.glob("*/*/run.json"))
        newest = max(files, key=lambda file: file.stat().st_mtime_ns)
        listed = json.loads(newest.read_bytes())["cases"]
        known = [(str(case["id"]), str(case.get("label", ""))) for case in listed]
    except (OSError, ValueError, KeyError, TypeError):
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


def _below(incomplete: str, wanted: Any, beside: Path | None = None) -> list[str]:
    """Return what is wanted, and folders to go on into, where the word points."""
    written, _, _ = incomplete.rpartition("/")
    folder = Path(written or ("/" if incomplete.startswith("/") else "."))
    found = list(_entries(folder, wanted))
    if not written and beside is not None:
        found += [path for path in _entries(beside, wanted) if wanted(path)]
    shown = [f"{path}/" if path.is_dir() and not wanted(path) else str(path) for path in found]
    return _starting(shown, incomplete)[:_MOST]


def _entries(folder: Path, wanted: Any) -> Iterator[Path]:
    try:
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(".") and (path.is_dir() or wanted(path)):
                yield path
    except OSError:
        return
