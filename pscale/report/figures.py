"""A run's figures, from its findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pscale.analysis.findings import Findings
from pscale.report import drawing
from pscale.report.figure_style import SCREEN, FigureStyle
from pscale.report.topics import TOPICS


def draw_figures(findings: Findings, style: FigureStyle = SCREEN) -> dict[str, drawing.Placed]:
    """Draw every figure that the run has data for."""
    with drawing.styled(style):
        figures = [topic.figure for topic in TOPICS if topic.figure]
        drawn = {each.name: each.draw(findings) for each in figures}
        return {name: drawing.place(figure) for name, figure in drawn.items() if figure is not None}


def write_figures(
    figures: Mapping[str, drawing.Placed], folder: Path, formats: Sequence[str], style: FigureStyle = SCREEN
) -> list[Path]:
    """Write figures into `folder`; returns the files, figure by figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with drawing.styled(style):
        return [path for name, figure in figures.items() for path in figure.save(folder, name, formats)]


def inline_figures(figures: Mapping[str, drawing.Placed]) -> dict[str, str]:
    """Return figures as SVG for a page."""
    with drawing.styled():
        return {name: figure.inline() for name, figure in figures.items()}
