"""`pscale doctor`: print what was found on this machine, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from pscale.cli.console import new_console
from pscale.errors import FAILED
from pscale.launch.doctor import findings

_MARKS = {"ok": "[green]✓[/green]", "warn": "[yellow]![/yellow]", "fail": "[red]✗[/red]"}


def doctor(*, as_json: bool) -> int:
    """Print the findings; return 1 if something keeps pscale from working."""
    found = findings()
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in found:
            text = escape(finding.text)
            if finding.remedy:
                text += f"\n[bold]→[/bold] {escape(finding.remedy)}"
            table.add_row(_MARKS[finding.level], f"[bold]{escape(finding.topic)}[/bold]", text)
        new_console().print(table, highlight=False)
    return FAILED if any(finding.level == "fail" for finding in found) else 0
