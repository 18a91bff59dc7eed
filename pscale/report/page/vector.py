"""Figures as SVG inside a page: text as text in the page's font, colours as variables that the page sets."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import numpy as np

from pscale.report.look import ON_PALE, PAPER, TITLE

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\s*font-family:[^;]*;")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#(\w+)\)")
_SPACE = re.compile(r"\s+")
_BEHIND = re.compile(rf"{PAPER}(-\d+)?$|{TITLE}$")
_DROPPED = {f"{_SVG}metadata", f"{_SVG}style"}


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A figure for a page: what is inside its `<svg>`, its size in points, the colours that it names."""

    inside: str
    left: float  # where it begins
    top: float  # above is the title, which the page says
    width: float
    height: float
    colours: frozenset[str]
    heat: frozenset[str] = frozenset()  # colours of cells, whose strength is their meaning


def vector(svg: str, name: str) -> Vector:
    """Return a figure that matplotlib wrote for a page; `name` makes its ids unique there."""
    root = ET.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for parent in list(root.iter()):
        for part in [part for part in parent if part.tag in _DROPPED or _BEHIND.match(part.get("id", ""))]:
            parent.remove(part)
    _mark(root)
    colours: dict[str, set[str]] = {"x": set(), "h": set()}
    for part in root.iter():
        _adapt(part, name, colours)
    inside = "".join(ET.tostring(part, encoding="unicode") for part in root)
    return Vector(
        inside=inside,
        left=left,
        top=top,
        width=width,
        height=height,
        colours=frozenset(colours["x"]),
        heat=frozenset(colours["h"]),
    )


def dark(colour: str) -> str:
    """Return what a colour becomes on dark paper: greys change places, hues become lighter, in order."""
    lightness, a, b = _to_oklab(colour)
    if np.hypot(a, b) < _GREY:
        lightness = _PAPER + (_INK - _PAPER) * (1 - lightness) / (1 - _INK_ON_WHITE)
        return _from_oklab(min(lightness, _INK), a, b)
    return _from_oklab(_DARKEST + _RANGE * lightness, a, b)


def mirrored(colour: str) -> str:
    """Return the colour of a cell on dark paper: what was close to the paper still is."""
    lightness, a, b = _to_oklab(colour)
    return _from_oklab(_PAPER + (_INK - _PAPER) * (1 - lightness), a, b)


_GREY = 0.02  # chroma
_PAPER, _INK, _INK_ON_WHITE = 0.21, 0.93, 0.25  # lightness of the paper and the ink of a dark page
_DARKEST, _RANGE = 0.50, 0.42  # of hues on it


def _mark(root: ET.Element) -> None:
    """Mark what is not coloured as all the rest: heat maps, pictures with their scale, texts on pale bars."""
    raster = next(root.iter(f"{_SVG}image"), None) is not None
    for group in root.iter(f"{_SVG}g"):
        if group.get("id", "").startswith("QuadMesh"):
            for part in group.iter():
                part.set("class", "literal" if raster else "cell")
            if raster:
                group.set("class", "raster")
            group.set("shape-rendering", "crispEdges")  # no seams between cells
        elif group.get("id") == ON_PALE:
            for part in group.iter():
                part.set("class", "literal")


def _adapt(part: ET.Element, name: str, colours: dict[str, set[str]]) -> None:
    """Shorten an element, make its ids those of this figure, and name its colours instead of stating them."""
    part.tag = part.tag.removeprefix(_SVG)
    part.text, part.tail = (text if text and text.strip() else None for text in (part.text, part.tail))
    attributes = part.attrib
    if (target := attributes.pop(_LINK, None)) is not None:
        attributes["href"] = target.replace("#", f"#{name}-", 1) if target.startswith("#") else target
    if "id" in attributes:
        if part.tag == "g":  # nothing refers to a group
            del attributes["id"]
        else:
            attributes["id"] = f"{name}-{attributes['id']}"
    if part.tag == "image":
        attributes.setdefault("class", "raster")
    for key, value in attributes.items():
        short = _LONG.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
        attributes[key] = _REFERENCE.sub(rf"url(#{name}-\1)", _SPACE.sub(" ", short).strip())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        styled = _FONT.sub("", attributes["style"])
        kind = {"cell": "h", "literal": ""}.get(attributes.get("class", ""), "x")
        if kind:
            colours[kind].update(_COLOUR.findall(styled))
            styled = _COLOUR.sub(lambda found: f"var(--{kind}{found[0][1:]})", styled)
        attributes["style"] = styled.replace(": ", ":")
    if attributes.get("class") in {"cell", "literal"}:
        del attributes["class"]


_TO_LMS = (
    np.array(  # Björn Ottosson, "A perceptual color space for image processing" (2020), from linear sRGB
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _to_oklab(colour: str) -> tuple[float, float, float]:
    rgb = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lightness, a, b = (float(value) for value in _TO_LAB @ np.cbrt(_TO_LMS @ linear))
    return lightness, a, b


def _from_oklab(lightness: float, a: float, b: float) -> str:
    linear = np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_LAB, np.array([lightness, a, b])) ** 3).clip(0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb.clip(0, 1))
