"""A run's report as files beside its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from pscale.analysis.findings import Findings
from pscale.import_guard import without
from pscale.report.drawn import write_file
from pscale.report.embedded import embedded
from pscale.report.figure_style import FigureStyle
from pscale.report.markdown import render_markdown
from pscale.report.page import render_page

Drawn = tuple[list[Path], dict[str, str]]  # files, and figures as SVG for the page by name
FORMATS = ("svg",)
PRINTED = ("pdf",)
_LINKED = ("svg", "png")  # in Markdown, the first of these that was drawn


def write_all(
    findings: Findings,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    drawn: Callable[[], Drawn] | None = None,
) -> list[Path]:
    """Write report.html, report.md and figures/ into `folder`; returns the files, the page first.

    Without `formats` there is no figure, neither in a file nor on the page. `drawn` waits for the figures
    where another process has been asked for them.
    """
    data = embedded(findings)  # while the other process draws
    pictures, inline = drawn() if drawn else draw_all(findings, folder / "figures", formats)
    linked_kind = next((kind for kind in _LINKED if kind in formats), None)
    linked = [f"figures/{path.name}" for path in pictures if path.suffix == f".{linked_kind}"]
    markdown = write_file(folder / "report.md", render_markdown(findings, linked))
    return [_write_page(findings, folder, inline, data), markdown, *pictures]


def draw_all(findings: Findings, folder: Path, formats: Sequence[str]) -> Drawn:
    """Write every figure that the run has data for into `folder`; none without `formats`."""
    if not formats:
        return [], {}
    drawn = figures().draw_figures(findings)
    return figures().write_figures(drawn, folder, formats) if drawn else [], figures().inline_figures(drawn)


def write_pictures(
    findings: Findings, folder: Path, formats: Sequence[str], style: FigureStyle
) -> list[Path]:
    """Write figures alone into `folder`; returns the files."""
    drawn: list[Path] = figures().write_figures(
        figures().draw_figures(findings, style), folder, formats, style
    )
    return drawn


def write_page(findings: Findings, folder: Path, *, drawn: bool) -> Path:
    """Write report.html alone into `folder`, with figures or without; returns the file."""
    return _write_page(
        findings, folder, figures().inline_figures(figures().draw_figures(findings)) if drawn else {}
    )


def _write_page(findings: Findings, folder: Path, inline: Mapping[str, str], data: str | None = None) -> Path:
    return write_file(folder / "report.html", render_page(findings, inline, data))


def figures() -> ModuleType:
    """Return the module that draws: importing it takes half a second."""
    with without("scipy"):  # seaborn would import it for densities, which no figure has: a second
        from pscale.report import figures as module  # noqa: PLC0415

    return module
