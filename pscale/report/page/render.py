"""A page, written from its sections by the templates beside this file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pscale import __version__
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.page.blocks import Section
from pscale.report.page.context import Context
from pscale.report.page.sections.communication import communication
from pscale.report.page.sections.efficiency import efficiency
from pscale.report.page.sections.further import further
from pscale.report.page.sections.loss import loss
from pscale.report.page.sections.memory import memory
from pscale.report.page.sections.phases import phases
from pscale.report.page.sections.pipeline import pipeline
from pscale.report.page.sections.plans import plans
from pscale.report.page.sections.problems import problems
from pscale.report.page.sections.provenance import provenance
from pscale.report.page.sections.scaling import scaling
from pscale.report.page.sections.verdict import COLOURS, verdict
from pscale.report.page.sections.waits import waits
from pscale.report.page.vector import dark, mirrored, vector

_CODE = re.compile(r"`([^`]+)`")
_TEMPLATES = Path(__file__).parent / "templates"
_ORDER: tuple[Callable[[Context], Section | None], ...] = (
    *(verdict, plans, efficiency, scaling, phases, waits, communication, memory, pipeline, loss),
)
_LAST: tuple[Callable[[Context], Section | None], ...] = (problems, provenance)


def render_page(summary: Summary, figures: Mapping[str, str]) -> str:
    """Return the report as one HTML page; `figures` are SVG by name. All text of the run is escaped."""
    context = Context(
        summary=summary,
        vectors={name: vector(svg, f"c{place}") for place, (name, svg) in enumerate(figures.items())},
    )
    sections = [section for section in _sections(context) if section is not None]
    named = sorted({*COLOURS.values()}.union(*(each.colours for each in context.vectors.values())))
    heat = sorted(frozenset[str]().union(*(each.heat for each in context.vectors.values())))
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("page.html")
        .render(
            summary=summary,
            sections=sections,
            colours=[
                *((f"x{colour[1:]}", colour, dark(colour)) for colour in named),
                *((f"h{colour[1:]}", colour, mirrored(colour)) for colour in heat),
            ],
            parts={kind: colour[1:] for kind, colour in COLOURS.items()},
            style=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=__version__,
        )
    )


def _sections(context: Context) -> Iterator[Section | None]:
    yield from (section(context) for section in _ORDER)
    yield from further(context)
    yield from (section(context) for section in _LAST)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["size"] = text.size_of
    environment.filters["prose"] = _prose
    environment.filters["drawing"] = Markup  # of figures, in which matplotlib has escaped all texts
    return environment


def _prose(said: str) -> Markup:
    """Return a sentence whose words in backticks are set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(_printable(said)))))


def _printable(value: Any) -> Any:
    """Return text without control characters, but for a quotation's line ends."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(text.clean(line) for line in value.split("\n"))
    return value
