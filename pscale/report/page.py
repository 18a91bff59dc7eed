"""A run's report as one page: HTML that needs no other file, no network and no JavaScript."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pscale import __version__
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.blocks import Context, Section
from pscale.report.embedded import embedded
from pscale.report.exports import csv_tables
from pscale.report.topics import TOPICS
from pscale.report.topics.headline import COLOURS
from pscale.report.topics.topic import Topic
from pscale.report.vector import Vector, vector

_CODE = re.compile(r"`([^`]+)`")
_VALUE = re.compile(r"\b[a-z]+_\w+ \d[\w.]*|[-+±≥≤]?\d[\d.]*(?: of \d+)? [a-zµ][\w/]*|\d+ of \d+")
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What stands above and below the sections: what the page is of, its title, facts and a last line."""

    of: str
    title: str
    facts: Sequence[tuple[str, str]]
    source: str


def render_page(
    findings: Findings,
    figures: Mapping[str, str],
    data: str | None = None,
    topics: Sequence[Topic] = TOPICS,
) -> str:
    """Return the report, or some topics, as one HTML page. All text of the run is escaped.

    `figures` are SVG by name; `data` is what its script draws again, if that is `embedded` already.
    """
    context = Context(findings=findings, vectors=vectors(figures), csv=csv_tables(findings))
    head = Head(
        of=f"{findings.suite} · run {findings.run}",
        title=findings.title,
        facts=findings.machine,
        source=f"from {text.plural(findings.launches, 'launch')}. Definitions: docs/measurement.md in the "
        "source tree of pscale. Complete tables: `pscale report --format csv`.",
    )
    sections = [section for topic in topics if (section := topic.section(context))]
    labels = {point.case: point.label for point in findings.rows("cases")}
    return render(head, sections, labels, embedded(findings) if data is None else data)


def vectors(figures: Mapping[str, str]) -> dict[str, Vector]:
    """Return SVG figures for one page, by name."""
    return {name: vector(svg, f"c{place}") for place, (name, svg) in enumerate(figures.items())}


def render(head: Head, sections: Sequence[Section], labels: Mapping[str, str], data: str = "") -> str:
    """Return a page of sections; `labels` are those of its cases, `data` is what its script draws again."""
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("page.html")
        .render(
            head=head,
            sections=sections,
            labels={case: text.clean(label) for case, label in labels.items()},
            parts=COLOURS,
            style=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
            data=Markup(data),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=__version__,
        )
    )


@cache
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
    """Return a sentence with what is in backticks as code, and no line break within a value."""
    found = str(escape(_printable(said))).replace(" ± ", "&nbsp;±&nbsp;")
    found = _VALUE.sub(r'<span class="value">\g<0></span>', found)
    return Markup(_CODE.sub(r"<code>\1</code>", found))


def _printable(value: Any) -> Any:
    """Return text without control characters, but for a quotation's line ends."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(text.clean(line) for line in value.split("\n"))
    return value
