"""Arguments and options that several commands share, and the choices that some have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pscale.cli import complete

REPORTS = Path("reports")


class Format(StrEnum):
    """What `pscale report` can write."""

    terminal = "terminal"
    html = "html"
    md = "md"
    json = "json"
    csv = "csv"
    latex = "latex"


class FigureFormat(StrEnum):
    """What figures can be written as."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


class FigureStyle(StrEnum):
    """What figures are made for."""

    screen = "screen"
    publication = "publication"
    publication_serif = "publication-serif"


SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A suite's YAML file.", autocompletion=complete.suites)
]
SuitePaths = Annotated[
    list[Path],
    typer.Argument(metavar="SUITE", help="One or more suites' YAML files.", autocompletion=complete.suites),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field: model.width=256.",
        autocompletion=complete.settings,
    ),
]
Only = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help='Keep cases such as "ranks == 2".', autocompletion=complete.names),
]
Reports = Annotated[Path, typer.Option("--reports", help="Folder that holds the runs.")]
RunPath = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="A run's folder; default: the newest.", autocompletion=complete.runs),
]
SiteName = Annotated[
    str | None, typer.Option("--site", help="Profile of sites.yaml; default: the one for this host.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
