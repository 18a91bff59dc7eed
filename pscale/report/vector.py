"""Figures as SVG inside a page: text as text in the page's font, without paper and title."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from pscale.report import marks
from pscale.report.figure_style import PAPER, TITLE

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
    if marks.adapt(part):
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
