"""Figures as SVG: what they say under the pointer; for a page text in its font, without paper and title."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from pscale.report.figure_style import PAPER, TITLE
from pscale.report.text import clean

if TYPE_CHECKING:
    from matplotlib.artist import Artist

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
