"""A run's report as files beside its data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pscale.analysis.findings import Findings
from pscale.report.drawn import write_file
from pscale.report.embedded import embedded
from pscale.report.figure_style import SCREEN, FigureStyle
from pscale.report.markdown import render_markdown
from pscale.report.page import render_page
from pscale.report.topics import TOPICS
from pscale.report.topics.topic import Topic

if TYPE_CHECKING:
    from pscale.report.drawing import Placed

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
    drawn = draw_figures(findings) if formats else {}
    return write_figures(drawn, folder, formats) if drawn else [], inline_figures(drawn)


def write_page(findings: Findings, folder: Path, *, drawn: bool) -> Path:
    """Write report.html alone into `folder`, with figures or without; returns the file."""
    return _write_page(findings, folder, inline_figures(draw_figures(findings) if drawn else {}))


def _write_page(findings: Findings, folder: Path, inline: Mapping[str, str], data: str | None = None) -> Path:
    return write_file(folder / "report.html", render_page(findings, inline, data))


def write_sheet(findings: Findings, folder: Path, topic: Topic, *, drawn: bool) -> Path:
    """Write one topic as a page of its own into `folder`, with its figure or without; returns the file."""
    inline = inline_figures(draw_figures(findings, topics=(topic,)) if drawn else {})
    page = render_page(findings, inline, data="", topics=(topic,))
    return write_file(folder / f"{topic.name}.html", page)


def write_pictures(
    findings: Findings,
    folder: Path,
    formats: Sequence[str],
    style: FigureStyle,
    topics: Sequence[Topic] = TOPICS,
) -> list[Path]:
    """Write figures alone into `folder`; returns the files."""
    return write_figures(draw_figures(findings, style, topics), folder, formats, style)


def draw_figures(
    findings: Findings, style: FigureStyle = SCREEN, topics: Sequence[Topic] = TOPICS
) -> Mapping[str, Placed]:
    """Draw every figure that the run has data for."""
    with drawing().styled(style):
        drawn = {each.name: each.draw(findings) for topic in topics if (each := topic.figure)}
        return {name: drawing().place(figure) for name, figure in drawn.items() if figure is not None}


def write_figures(
    figures: Mapping[str, Placed], folder: Path, formats: Sequence[str], style: FigureStyle = SCREEN
) -> list[Path]:
    """Write figures into `folder`; returns the files, figure by figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with drawing().styled(style):
        return [path for name, figure in figures.items() for path in figure.save(folder, name, formats)]


def inline_figures(figures: Mapping[str, Placed]) -> dict[str, str]:
    """Return figures as SVG for a page."""
    if not figures:
        return {}
    with drawing().styled():
        return {name: figure.inline() for name, figure in figures.items()}


def drawing() -> ModuleType:
    """Return the module that draws: importing it takes half a second."""
    sys.modules.setdefault("scipy", None)  # type: ignore[arg-type]  # seaborn would import it, for a second
    from pscale.report import drawing as module  # noqa: PLC0415

    if not sys.modules["scipy"]:
        del sys.modules["scipy"]
    return module
