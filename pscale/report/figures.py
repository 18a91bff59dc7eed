"""A run's figures, from its findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pscale.analysis.summary import Summary
from pscale.report import style
from pscale.report.draw_breakdown import breakdown
from pscale.report.draw_calls import calls
from pscale.report.draw_loss import loss
from pscale.report.draw_memory import memory
from pscale.report.draw_plans import plans
from pscale.report.draw_scaling import scaling
from pscale.report.draw_timeline import timeline
from pscale.report.draw_wait import wait
from pscale.report.look import SCREEN, Look

DRAWN: dict[str, Callable[[Summary], Figure | None]] = {
    "plans": plans,
    "scaling": scaling,
    "breakdown": breakdown,
    "wait": wait,
    "timeline": timeline,
    "calls": calls,
    "memory": memory,
    "loss": loss,
}


def draw_figures(summary: Summary, look: Look = SCREEN) -> dict[str, style.Placed]:
    """Draw every figure that the run has data for."""
    with style.styled(look):
        drawn = {name: draw(summary) for name, draw in DRAWN.items()}
        return {name: style.place(figure) for name, figure in drawn.items() if figure is not None}


def write_figures(
    figures: Mapping[str, style.Placed], folder: Path, formats: Sequence[str], look: Look = SCREEN
) -> list[Path]:
    """Write figures into `folder`; returns the files, figure by figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with style.styled(look):
        return [path for name, figure in figures.items() for path in figure.save(folder, name, formats)]


def inline_figures(figures: Mapping[str, style.Placed]) -> dict[str, str]:
    """Return figures as SVG for a page."""
    with style.styled():
        return {name: figure.inline() for name, figure in figures.items()}
