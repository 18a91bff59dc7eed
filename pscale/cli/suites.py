"""`pscale suites` and `init`: the shipped suites, and a copy of one to edit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from pscale.analysis.wording import rough
from pscale.cli.console import new_console, say
from pscale.cli.prepare import SuiteOptions, load
from pscale.config import Case
from pscale.errors import PlanError, UsageError
from pscale.runs.atomic_files import to_json
from pscale.suite import shipped
from pscale.suite.expand import expand
from pscale.suite.load import Suite, load_suite

_SCHEMA = "suite.schema.json"


def list_suites(*, as_json: bool) -> None:
    """Print what every shipped suite measures, and its cases and launches on this machine."""
    files = shipped.suites()
    _, _, target = load(files["quick"], SuiteOptions())
    machine = target.machine.names()
    rows = []
    for name, path in files.items():
        suite = load_suite(path)
        try:
            cases: Sequence[Case] = expand(suite, machine).cases
        except PlanError:  # too large for this machine
            cases = ()
        rows.append((name, suite, cases, shipped.question(path)))
    if as_json:
        documents = [
            {"suite": name, "question": question, "cases": len(cases), "launches": _least(suite, cases)}
            for name, suite, cases, question in rows
        ]
        print(to_json(documents))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("suite", style="bold", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("launches", no_wrap=True)
    table.add_column("question")
    for name, suite, cases, question in rows:
        table.add_row(name, str(len(cases)), _launches(suite, cases), question)
    console = new_console(highlight=False)
    console.print(table)
    console.print(
        "Next: pscale show SUITE, run SUITE or init SUITE. Counts are for this machine.", style="dim"
    )


def _least(suite: Suite, cases: Sequence[Case]) -> int:
    return len(cases) * suite.repeat


def _launches(suite: Suite, cases: Sequence[Case]) -> str:
    if suite.auto is None or not cases:
        return str(_least(suite, cases))
    budget = "" if suite.auto.budget_s is None else f", at most {rough(suite.auto.budget_s)}"
    return f"until ±{100 * suite.auto.precision:g}%{budget}"


def init(name: str, file: Path | None) -> None:
    """Copy a shipped suite to `file`, by default NAME.yaml, with the schema that it names for editors.

    Raises UsageError for an unknown suite, and for a file that is there or cannot be written.
    """
    source = shipped.suites().get(name)
    if source is None:
        raise shipped.unknown(name)
    target = file or Path(source.name)
    text = source.read_text(encoding="utf-8")
    if target.stem != name:  # its runs are not those of the shipped one
        text = re.sub(r"^name: .*", f"name: {target.stem}", text, count=1, flags=re.MULTILINE)
    schema = target.with_name(_SCHEMA)
    try:
        with target.open("x", encoding="utf-8") as copy:
            copy.write(text)
        if not schema.exists():
            schema.write_bytes((shipped.FOLDER / _SCHEMA).read_bytes())
    except FileExistsError:
        raise UsageError(
            f"{target} already exists; choose another name: pscale init {name} FILE.yaml"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    say(new_console(highlight=False), f"{target}: edit it, then: pscale run {target}")
