"""What a figure says under the pointer: texts on its marks, which SVG files and pages hold as titles."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from pscale.report.text import clean

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_PREFIX = "mark:"
_GROUP = re.compile(rf'<g id="({_PREFIX}[^"]*)">')


def mark(artist: Artist, said: str, case: str = "", values: Sequence[str] = ()) -> None:
    """Let a figure say this of an artist, which is about a case; of a line also its values, point by point.

    A page highlights everything that is about the same case.
    """
    known = {"said": clean(said), "case": case, "values": [clean(value) for value in values]}
    artist.set_gid(_PREFIX + quote(json.dumps({name: value for name, value in known.items() if value})))


def titled(svg: str) -> str:
    """Return a drawing with the texts of its marks as titles, for viewers of files."""
    return _GROUP.sub(lambda found: f"<g><title>{escape(_read(found[1])['said'])}</title>", svg)


def adapt(group: ET.Element) -> bool:
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
