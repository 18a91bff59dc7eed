"""How figures look, and what they say under the pointer; without the library that draws them."""

from __future__ import annotations

import json
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import numpy as np

from pscale.analysis.text import clean

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Sizes and fonts; `width` is in inches, None where every figure has the width that suits it.

    A figure without title is described where it is printed.
    """

    width: float | None = None
    scale: float = 1.0  # of texts, lines and bars
    family: str = "DejaVu Sans"  # comes with matplotlib: the same widths on every machine
    titled: bool = True


KINDS = {  # colours of the kinds of time, after Okabe and Ito
    "compute": "#0072b2",
    "transfer": "#e69f00",
    "wait": "#b4478a",
    "copy": "#009e73",
    "offload": "#8dd3c7",
    "wait_or_transfer": "#cd7345",  # between wait and transfer
}
PHASES = {  # shades of compute
    "data": "#c4d0dc",
    "forward": "#0b5394",
    "backward": "#58a9d6",
    "input": "#58a9d6",
    "weight": "#a9d5ec",
    "sync": "#7d9db5",
    "update": "#3b4f66",
}
CAUSES = {  # of lost time, beside its kinds
    "threads": "#999933",
    "outside": "#b7a57a",
    "scaling": "#7fc4e8",
    "imbalance": "#6a3d9a",
    "serialisation": KINDS["wait"],
    "bubble": "#d896bb",
    "unaccounted": "#999999",
}
DELAY = "#cc3311"  # injected on purpose
MAP = ("#faebdd", "#f6bb97", "#f4865e", "#ec4a3e", "#ca1a50", "#951c5b", "#601f52", "#2e1739")  # of maps
CLIPPED = 98  # percentile at which the colours of a map end
MEMORY = ("#4b3b2a", "#8c6d46", "#c9a66b", "#5f8a8b", "#a9c5c5")
SERIES = ("#222222", "#c44536", "#00818f", "#8a6d3b", "#7d8a2e", "#5a4fa2", "#8c8c8c", "#d98fa0", "#3f9a5f")


def of_phases(names: Iterable[str]) -> dict[str, str]:
    """Return the colours of compute in phases; those with names of a program's own take theirs in order."""
    own = sorted({*names} - {*PHASES})
    return PHASES | dict(zip(own, cycle((KINDS["compute"], *SERIES[1:])), strict=False))


INK, QUIET, GRID, BAD = "#222222", "#767676", "#e6e6e6", "#a11d33"
FAINT = (0.8, 0.8, 0.8)
Colour = tuple[float, float, float]
PAPER, TITLE = "paper", "title"  # groups of what is behind a figure and above it; a page has its own
SCREEN = FigureStyle()
_COLUMN = 3.5  # inches: IEEE, ACM and Nature have 3.3 to 3.5
STYLES = {
    "screen": SCREEN,
    "publication": FigureStyle(width=_COLUMN, scale=7 / 9, titled=False),
    "publication-serif": FigureStyle(
        width=_COLUMN, scale=7.8 / 9, family="STIXGeneral", titled=False
    ),  # like Times
}
_WIDE = 9.2  # inches: of an ordinary figure
_current: ContextVar[FigureStyle] = ContextVar("figure_style", default=SCREEN)


@contextmanager
def using(style: FigureStyle) -> Iterator[None]:
    """Let figures inside the block have a style."""
    token = _current.set(style)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> FigureStyle:
    """Return the style that figures have now."""
    return _current.get()


def sized(size: float) -> float:
    """Return the size of a text or line that has `size` points on a screen."""
    return size * current().scale


def narrow() -> bool:
    """Tell whether a figure has no room for two panels side by side."""
    return current().width is not None


def room(count: int) -> int:
    """Return how many of `count` characters, or legends side by side, there is room for."""
    width = current().width
    return count if width is None else max(1, round(count * width / (_WIDE * current().scale)))


def describe(axes: Axes, words: str) -> None:
    """Put words above the only picture of a kind; they go into the caption of a figure without title."""
    if current().titled:
        axes.set_title(words)


def wrapped(label: str, width: int, most: int = 2) -> str:
    """Break a label into at most `most` lines of `width` characters, fewer where a figure is narrow."""
    width = room(width)
    lines = textwrap.wrap(clean(label), width)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: width - 2].rstrip() + " …"]
    return "\n".join(lines)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Move heights as little as need be so that neighbours are `gap` apart and, if they fit, in 0 … 1."""
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []  # wanted places less offsets
    for place, index in enumerate(order):
        blocks.append([wanted[index] - place * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = [0.0] * len(wanted)
    starts = (float(np.mean(block)) for block in blocks for _ in block)
    for place, (index, start) in enumerate(zip(order, starts, strict=True)):
        found[index] = start + place * gap
    shift = max(0.0, -min(found)) - max(0.0, max(found) - 1) if found else 0.0
    return [place + shift for place in found]


# Figures as SVG

_PREFIX = "mark:"
_GROUP = re.compile(rf'<g id="({_PREFIX}[^"]*)">')
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_LONG = re.compile(r"-?\d+\.\d{3,}")
_LOCAL = re.compile(r"(?<=url\()#")
_SPACE = re.compile(r"\s+")
_BEHIND = re.compile(rf"{PAPER}(-\d+)?$|{TITLE}$")
_DROPPED = {f"{_SVG}metadata", f"{_SVG}style"}


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A figure for a page: what is inside its `<svg>`, and its size in points."""

    inside: str
    left: float  # where it begins
    top: float  # above is the title, which the page says
    width: float
    height: float


def vector(svg: str, name: str) -> Vector:
    """Return a figure that matplotlib wrote for a page; `name` makes its ids unique there."""
    root = ET.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for parent in list(root.iter()):
        for part in [part for part in parent if part.tag in _DROPPED or _BEHIND.match(part.get("id", ""))]:
            parent.remove(part)
    for part in list(root.iter()):
        _adapt(part, name)
    inside = "".join(ET.tostring(part, encoding="unicode") for part in root)
    return Vector(inside=inside, left=left, top=top, width=width, height=height)


def _adapt(part: ET.Element, name: str) -> None:
    """Shorten an element, and make its ids those of this figure."""
    part.tag = part.tag.removeprefix(_SVG)
    part.text, part.tail = (text if text and text.strip() else None for text in (part.text, part.tail))
    attributes = part.attrib
    if _adapt_mark(part):
        return
    identity = attributes.pop("id", "")
    if (target := attributes.pop(_LINK, None)) is not None:
        attributes["href"] = re.sub("^#", f"#{name}-", target)
    for declared in filter(None, map(str.strip, attributes.pop("style", "").split(";"))):
        key, value = declared.split(":", 1)
        if key != "font-family":  # the page's
            attributes[key] = value  # which, unlike a style, no Content-Security-Policy drops
    for key, value in attributes.items():
        short = _LONG.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
        attributes[key] = _LOCAL.sub(f"#{name}-", _SPACE.sub(" ", short).strip())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if identity.startswith("QuadMesh"):
        attributes["shape-rendering"] = "crispEdges"  # no seams between cells
    elif identity and part.tag != "g":  # nothing refers to a group
        attributes["id"] = f"{name}-{identity}"


def mark(artist: Artist, said: str, case: str = "", values: Sequence[str] = ()) -> None:
    """Let a figure say this of an artist, which is about a case; of a line also its values, point by point.

    A page highlights everything that is about the same case.
    """
    known = {"said": clean(said), "case": case, "values": [clean(value) for value in values]}
    artist.set_gid(_PREFIX + quote(json.dumps({name: value for name, value in known.items() if value})))


def with_titles(svg: str) -> str:
    """Return a drawing with the texts of its marks as titles, for viewers of files."""
    return _GROUP.sub(lambda found: f"<g><title>{escape(_read(found[1])['said'])}</title>", svg)


def _adapt_mark(group: ET.Element) -> bool:
    """Turn the mark on a group of a drawing into what a page holds of it; tells whether there was one."""
    identity = group.get("id", "")
    if not identity.startswith(_PREFIX):
        return False
    del group.attrib["id"]
    known = _read(identity)
    group.set("class", "mark")
    if "case" in known:
        group.set("data-case", known["case"])
    if "values" in known:
        group.set("data-values", "|".join(value.replace("|", "/") for value in known["values"]))
    title = ET.Element("title")
    title.text = known["said"]
    group.insert(0, title)
    return True


def _read(identity: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(unquote(identity.removeprefix(_PREFIX)))
    return known
