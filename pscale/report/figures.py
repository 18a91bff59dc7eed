"""A run's figures, from its findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pscale.analysis.summary import Summary
from pscale.report import style
from pscale.report.draw_breakdown import breakdown
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
    "memory": memory,
    "wait": wait,
    "timeline": timeline,
    "loss": loss,
}


def write_figures(summary: Summary, folder: Path, formats: Sequence[str], look: Look = SCREEN) -> list[Path]:
    """Draw every figure that the run has data for into `folder`; returns the files, figure by figure."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style.styled(look):
        for name, draw in DRAWN.items():
            figure = draw(summary)
            if figure is not None:
                written += style.save(figure, folder, name, formats)
    return written
