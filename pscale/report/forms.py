"""A figure drawn once in two forms of SVG: with letters as outlines for a file, with text for a page.

Drawing asks every artist anew where it is; to write what it says twice costs next to nothing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure

_OUTLINES, _TEXT, _BOTH = "outlines", "characters", "both"  # elements before what is in these forms
_MARK = re.compile(rf" *<({_OUTLINES}|{_TEXT}|{_BOTH})/>\n")
_LETTERS = re.compile(rf" *<{_OUTLINES}/>.*?<{_TEXT}/>\n", re.DOTALL)
_CHARACTERS = re.compile(rf" *<{_TEXT}/>.*?<{_BOTH}/>\n", re.DOTALL)
_VIEW = re.compile(r'viewBox="[^"]*"')
_POINTS = 72  # an inch


class _BothForms(RendererSVG):
    """Writes each text in both forms, an element before either and one behind."""

    def draw_text(self, *arguments: Any, **options: Any) -> None:
        """Write a text."""
        for form, kind in ((_OUTLINES, "path"), (_TEXT, "none")):
            self.writer.element(form)
            mpl.rcParams["svg.fonttype"] = kind
            super().draw_text(*arguments, **options)  # type: ignore[no-untyped-call]
        self.writer.element(_BOTH)


def drawn(figure: Figure, dpi: int, metadata: Mapping[str, Any]) -> str:
    """Return a placed figure in both forms at once; pictures inside have `dpi` dots an inch."""
    file, own_dpi = io.StringIO(), figure.dpi
    width, height = (float(size) for size in figure.get_size_inches())
    svg: Any = _BothForms(_POINTS * width, _POINTS * height, file, image_dpi=dpi, metadata=metadata)  # type: ignore[no-untyped-call]
    figure.set_dpi(_POINTS)
    renderer: Any = MixedModeRenderer(figure, width, height, dpi, svg)
    figure.draw(renderer)
    renderer.finalize()
    figure.set_dpi(own_dpi)
    return file.getvalue()


def for_file(both: str) -> str:
    """Return the form whose letters are outlines, the same with any font."""
    return _MARK.sub("", _CHARACTERS.sub("", both))


def for_page(both: str, seen: Sequence[float]) -> str:
    """Return the form with text, and what is `seen` of it: left, top, width and height in points."""
    view = _VIEW.sub('viewBox="' + " ".join(f"{size:.2f}" for size in seen) + '"', both, count=1)
    return _MARK.sub("", _LETTERS.sub("", view))
