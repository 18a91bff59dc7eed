"""A run's report as files beside its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pscale.analysis.summary import Summary
from pscale.report.exports import write_text
from pscale.report.look import SCREEN, Look
from pscale.report.markdown import render_markdown
from pscale.without import without

FORMATS = ("svg", "png")
PRINTED = ("pdf",)
_SHOWN = ("png", "svg")  # in Markdown, the first of these that was drawn


def write_all(summary: Summary, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write report.md and figures/ into `folder`; returns the files, the report first."""
    pictures = write_pictures(summary, folder / "figures", formats, SCREEN) if formats else []
    shown = next((kind for kind in _SHOWN if kind in formats), None)
    linked = [f"figures/{path.name}" for path in pictures if path.suffix == f".{shown}"]
    return [write_text(folder / "report.md", render_markdown(summary, linked)), *pictures]


def write_pictures(summary: Summary, folder: Path, formats: Sequence[str], look: Look) -> list[Path]:
    """Write figures alone into `folder`; returns the files."""
    with without("scipy"):  # seaborn would import it for densities, which no figure has: a second
        from pscale.report.figures import write_figures  # noqa: PLC0415 - matplotlib takes half a second

    return write_figures(summary, folder, formats, look)
