"""`pscale list`: the runs of a folder, those begun last first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pscale.analysis.history import Card, cards
from pscale.errors import ResultsError

if TYPE_CHECKING:
    from pscale.report.grid import Tone


def list_runs(reports: Path, suite: str | None, *, most: int | None, as_json: bool) -> None:
    """Print the runs in `reports`, of one suite or of all, `most` of them."""
    found = cards(reports, suite)
    if not found and not as_json:
        where = reports / suite if suite else reports
        raise ResultsError(f"{where}: no runs here; make one with 'pscale run SUITE'")
    shown = found[:most]
    if as_json:
        print(json.dumps([asdict(card) for card in shown], indent=1))
        return
    _show(shown, len(found))


def _show(shown: Sequence[Card], count: int) -> None:
    from pscale.cli.console import new_console
    from pscale.report.grid import Column, Grid
    from pscale.report.shown import show_grid

    columns = (
        *(Column("run", right=False), Column("begun", right=False, wide=True), Column("cases")),
        *(Column("failed"), Column("ranks"), Column("best figure", right=False, fold=True)),
        Column("host", right=False, wide=True),
    )
    rows = tuple((_tone(card), _cells(card)) for card in shown)
    left = f"{count - len(shown)} older runs are not shown" if count > len(shown) else ""
    show_grid(Grid(title="Runs", columns=columns, rows=rows, caption=left), new_console(highlight=False))


def _tone(card: Card) -> Tone:
    return "bad" if card.failed or card.trouble else ""


def _cells(card: Card) -> tuple[str, ...]:
    from pscale.report.text import clean

    begun = datetime.fromtimestamp(card.begun_unix_s) if card.begun_unix_s else None
    return (
        clean("/".join(Path(card.path).parts[-2:])),
        f"{begun:%Y-%m-%d %H:%M}" if begun else "-",
        f"{card.cases_ok}/{card.cases}",
        f"{card.failed}" if card.failed else "-",
        f"{card.ranks}" if card.ranks else "-",
        clean(card.trouble or _figure(card)),
        clean(card.host),
    )


def _figure(card: Card) -> str:
    match card.metric:
        case "efficiency":
            return f"{card.value:.0%} efficient at {card.at}"
        case "samples_per_s":
            return f"{card.value:.4g} samples/s at {card.at}"
    return "not finished" if card.pending else "-"
