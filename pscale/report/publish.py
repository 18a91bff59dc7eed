"""A run's report as files beside its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pscale.analysis.summary import Summary
from pscale.report.exports import write_text
from pscale.report.look import Look
from pscale.report.markdown import render_markdown
from pscale.report.page import render_page
from pscale.without import without

if TYPE_CHECKING:
    from pscale.report.style import Placed

FORMATS = ("svg",)
PRINTED = ("pdf",)
_SHOWN = ("svg", "png")  # in Markdown, the first of these that was drawn


def write_all(summary: Summary, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write report.html, report.md and figures/ into `folder`; returns the files, the page first.

    Without `formats` there is no figure, neither in a file nor on the page.
    """
    drawn = _figures().draw_figures(summary) if formats else {}
    pictures = _figures().write_figures(drawn, folder / "figures", formats) if drawn else []
    shown = next((kind for kind in _SHOWN if kind in formats), None)
    linked = [f"figures/{path.name}" for path in pictures if path.suffix == f".{shown}"]
    markdown = write_text(folder / "report.md", render_markdown(summary, linked))
    return [_write_page(summary, folder, drawn), markdown, *pictures]


def write_pictures(summary: Summary, folder: Path, formats: Sequence[str], look: Look) -> list[Path]:
    """Write figures alone into `folder`; returns the files."""
    drawn: list[Path] = _figures().write_figures(
        _figures().draw_figures(summary, look), folder, formats, look
    )
    return drawn


def write_page(summary: Summary, folder: Path, *, figures: bool) -> Path:
    """Write report.html alone into `folder`; returns the file."""
    return _write_page(summary, folder, _figures().draw_figures(summary) if figures else {})


def _write_page(summary: Summary, folder: Path, drawn: Mapping[str, Placed]) -> Path:
    inline = _figures().inline_figures(drawn) if drawn else {}
    return write_text(folder / "report.html", render_page(summary, inline))


def _figures() -> ModuleType:
    with without("scipy"):  # seaborn would import it for densities, which no figure has: a second
        from pscale.report import figures  # noqa: PLC0415 - matplotlib takes half a second

    return figures
