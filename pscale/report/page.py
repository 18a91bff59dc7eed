"""A run's report as files: one page of HTML that needs no other file, network or JavaScript; figures."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pscale import __version__
from pscale.analysis import text
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run
from pscale.analysis.network import launch_of
from pscale.analysis.steps import by_waiting, cells, wait_maps
from pscale.analysis.timeline import Traced, launch_events, shown, since_start, stages, traced, typical_step
from pscale.errors import ResultsError
from pscale.report.blocks import Attachment, Files, Section, Topic
from pscale.report.brief import write_changed
from pscale.report.exports import DATA, csv_text, data_table
from pscale.report.figure_style import (
    CLIPPED,
    DELAY,
    KINDS,
    MAP,
    SCREEN,
    STYLES,
    FigureStyle,
    Vector,
    of_phases,
    vector,
)
from pscale.report.markup import render_latex_sheet, render_markdown, render_sheet
from pscale.report.topics import TOPICS
from pscale.report.topics.cases import EVIDENCE
from pscale.report.topics.headline import COLOURS
from pscale.runs.schema import BETWEEN_TWO, FROM_ROOT, TO_ROOT, VERBS, Kind

if TYPE_CHECKING:
    from pscale.report.drawing import Placed

_CODE = re.compile(r"`([^`]+)`")
_VALUE = re.compile(r"\b[a-z]+_\w+ \d[\w.]*|[-+±≥≤]?\d[\d.]*(?: of \d+)? [a-zµ][\w/]*|\d+ of \d+")
_LARGEST_FILE = 300_000  # bytes of a CSV file inside the page
_PLAIN = ",;:/?=+$!*'()[]|~{}_.-@"  # in an address
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
    drawn = vectors(figures)
    tables = _attachments(findings, DATA if topics is TOPICS else [topic.name for topic in topics])
    files = Files(findings.given, tuple(tables))
    head = Head(
        of=f"{findings.suite} · run {findings.run}",
        title=findings.title,
        facts=findings.machine,
        source=f"from {text.plural(findings.launches, 'launch')}. Definitions: docs/measurement.md in the "
        "source tree of pscale. Complete tables: `pscale report --format csv`.",
    )
    sections = [section for topic in topics if (section := topic.section(findings, drawn))]
    sections.append(Section("data", "Data", "The suite, and all tables for programs.", [files]))
    labels = {point.case: point.label for point in findings.rows("cases")}
    return render(head, sections, labels, embedded(findings) if data is None else data)


def _attachments(findings: Findings, names: Sequence[str]) -> Iterator[Attachment]:
    """Yield CSV tables that have rows as files inside the page."""
    for name in names:
        content = csv_text(data_table(findings, name))
        size = len(content.encode())
        address = f"data:text/csv;charset=utf-8,{quote(content, safe=_PLAIN)}" * (size <= _LARGEST_FILE)
        if content.count("\n") > 1:
            yield Attachment(f"{name}.csv", size, address)


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
    environment.filters["kind"] = lambda block: type(block).__name__.lower()
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


# What a page draws by itself

CODES = {  # what the numbers in the rows of a step mean, for those who have no Python
    "kinds": {kind.name: int(kind) for kind in Kind},
    "verbs": [verb.replace("_", "-") for verb in VERBS],
    "sides": {
        name: [VERBS.index(verb) for verb in verbs]
        for name, verbs in (("to", TO_ROOT), ("from", FROM_ROOT), ("pair", BETWEEN_TWO))
    },
}
MOST_EVENTS, MOST_CELLS = 60_000, 200_000  # on a page; one step has at most a half of them
_MOST_STEPS, _MOST_MAPS = 24, 60
_LEVELS = 4000  # of a map, from nothing to its largest value
_NUMBERS = ("kind", "axis", "verb", "bytes", "request", "partner")
_TIMES = ("enter", "leave", "wait")
Json = dict[str, Any]
T = TypeVar("T")


def embedded(findings: Findings) -> str:
    """Return what the page needs to draw steps and maps, packed; empty where there is nothing of both."""
    run = findings.source
    order = by_waiting(findings.rows("cases"), findings.rows("phases"))
    several = [case for case in order if findings.case(case).ranks > 1]
    recorded = _within(
        recorded_steps(run, MOST_EVENTS // 2), MOST_EVENTS, _MOST_STEPS, lambda step: len(step[1])
    )
    steps = [_step(run, *step) for step in recorded]
    steps.sort(key=lambda step: order.index(step["case"]) if step["case"] in order else 0)
    maps = [*map(_map, _within(wait_maps(run, several), MOST_CELLS, _MOST_MAPS, lambda each: 2 * len(each)))]
    if not steps and not maps:
        return ""
    phases = of_phases(time.phase for time in findings.rows("phases"))
    document = {
        **CODES,
        "colours": {**KINDS, "injected": DELAY, "phases": phases, "map": MAP},
        "clipped": CLIPPED,
        "steps": steps,
        "maps": maps,
        "cases": len(order),
        "several": len(several),
    }
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    return base64.b64encode(packed).decode()


def _within(found: Iterable[T], most: int, count: int, size: Callable[[T], int]) -> Iterator[T]:
    """Yield the first of these that have room, `count` at most."""
    room = most
    for place, each in enumerate(found):
        room -= size(each)
        if room < 0 or place == count:
            return
        yield each


def recorded_steps(run: Run, most_events: int) -> Iterator[tuple[Traced, pd.DataFrame, int]]:
    """Yield a launch, the events of its step of typical length and that length, both in ns since it began.

    These are the first traced launch of each case, those that the report draws first. A step has at most
    `most_events` events: of more ranks than that has room for, some, evenly spread.
    """
    launches = traced(run)
    first = {launch.case: launch for launch in reversed(launches)}
    drawn = {launch.case: launch for launch in shown(run, launches)}
    others = sorted(first.values(), key=lambda launch: -launch.ranks)
    for launch in {**drawn, **{launch.case: launch for launch in others}}.values():
        with suppress(ResultsError):  # a file that is cut; `pscale trace` says so
            step = typical_step(run, launch)
            events, length_ns = since_start(launch_events(run, launch, steps=range(step, step + 1)))
            kept = events[events["rank"] % -(-len(events) // most_events) == 0]
            times_s = {f"{name}_s": kept[name] * 1e-9 for name in _TIMES}
            yield launch, kept.assign(**times_s).sort_values("rank", kind="stable"), length_ns


def _step(run: Run, launch: Traced, events: pd.DataFrame, length_ns: int) -> Json:
    """Return a step with its events rank after rank; ends are differences, as these are short.

    It can be simulated if it has all ranks, and every call that is completed in it was started in it.
    """
    by_rank = [rows for _, rows in events.groupby("rank")]
    labels = [rows["label"].tolist() for rows in by_rank]
    names = list(dict.fromkeys(chain.from_iterable(labels)))
    places = {name: place for place, name in enumerate(names)}
    recorded = launch_of(events)
    return {
        "case": launch.case,
        "repeat": launch.repeat,
        "step": int(events["step"].iloc[0]),
        "ranks": [int(rows["rank"].iloc[0]) for rows in by_rank],
        "stages": stages(run, launch.case),
        "simulated": len(by_rank) == launch.ranks
        and all(
            {*rows.loc[rows["kind"] == "completed", "request"]}
            <= {*rows.loc[rows["kind"] == "posted", "request"]}
            for rows in by_rank
        ),
        "of": launch.ranks,
        "ns": length_ns,
        "axes": recorded.axes,
        "groups": [[position.group for position in of_rank] for of_rank in recorded.positions],
        "sizes": [[position.size for position in of_rank] for of_rank in recorded.positions],
        "names": [text.clean(name) for name in names],
        "count": [len(of_rank) for of_rank in labels],
        "name": [places[name] for name in chain.from_iterable(labels)],
        **{code: np.concatenate([of_rank[code] for of_rank in recorded.rows]).tolist() for code in _NUMBERS},
        "leave": np.concatenate([np.diff(rows["leave"], prepend=0) for rows in by_rank]).tolist(),
        "length": (events["leave"] - events["enter"]).tolist(),
        "wait": events["wait"].tolist(),
    }


def _map(each: pd.DataFrame) -> Json:
    case, repeat, *_ = each.iloc[0]
    waits = cells(each)
    wait = "wait_or_transfer" if each["wait_or_transfer_s"].any() else "wait"
    return {
        "case": case,
        "repeat": int(repeat),
        "shape": waits.shape,
        "kinds": {wait: _levels(waits), "compute": _levels(cells(each, "compute_s"))},
    }


def _levels(values: NDArray[np.float64]) -> Json:
    """Return values as whole multiples of a unit in seconds."""
    unit = float(values.max()) / _LEVELS or 1.0
    return {"unit": unit, "values": np.rint(values / unit).astype(int).ravel().tolist()}


# A run's report as files beside its data

Drawn = tuple[list[Path], dict[str, str]]  # files, and figures as SVG for the page by name
FORMATS = ("svg",)
PRINTED = ("pdf",)
_LINKED = ("svg", "png")  # in Markdown, the first of these that was drawn


def write_all(
    findings: Findings,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    drawn: Callable[[], Drawn] | None = None,
) -> list[Path]:
    """Write report.html, report.md, figures/ and sheets of evidence into `folder`; returns the files.

    Without `formats` there is no figure, neither in a file nor on the page. `drawn` waits for the figures
    where another process has been asked for them.
    """
    data = embedded(findings)  # while the other process draws
    pictures, inline = drawn() if drawn else draw_all(findings, folder / "figures", formats)
    linked_kind = next((kind for kind in _LINKED if kind in formats), None)
    linked = [f"figures/{path.name}" for path in pictures if path.suffix == f".{linked_kind}"]
    markdown = write_changed(folder / "report.md", render_markdown(findings, linked))
    page = write_page(findings, folder, inline, data=data)
    sheet = {name: svg for name, svg in inline.items() if name == EVIDENCE.name}
    if not sheet:
        return [page, markdown, *pictures]
    texts = {"md": render_sheet(findings, EVIDENCE), "tex": render_latex_sheet(findings, EVIDENCE)}
    sheets = (write_changed(folder / f"evidence.{ending}", text) for ending, text in texts.items())
    return [page, markdown, *pictures, write_page(findings, folder, sheet, EVIDENCE), *sheets]


def draw_all(findings: Findings, folder: Path, formats: Sequence[str]) -> Drawn:
    """Write every figure that the run has data for into `folder`, that of evidence also for publication.

    Without `formats` it draws none.
    """
    drawn = draw_figures(findings) if formats else {}
    files = write_figures(drawn, folder, formats) if drawn else []
    if EVIDENCE.name in drawn:
        style = STYLES["publication"]
        printed = draw_figures(findings, style, (EVIDENCE,))
        files += write_figures(printed, folder / "publication", PRINTED, style)
    return files, inline_figures(drawn)


def write_page(
    findings: Findings,
    folder: Path,
    inline: Mapping[str, str] | None,
    topic: Topic | None = None,
    data: str | None = None,
) -> Path:
    """Write the page into `folder`, or one of a topic alone; without `inline` figures it draws them."""
    topics = (topic,) if topic else TOPICS
    figures = inline_figures(draw_figures(findings, topics=topics)) if inline is None else inline
    page = render_page(findings, figures, "" if topic else data, topics)
    return write_changed(folder / f"{topic.name if topic else 'report'}.html", page)


def draw_figures(
    findings: Findings, style: FigureStyle = SCREEN, topics: Sequence[Topic] = TOPICS
) -> Mapping[str, Placed]:
    """Draw every figure that the run has data for."""
    from pscale.report import drawing

    with drawing.styled(style):
        drawn = {each.name: each.draw(findings) for topic in topics if (each := topic.figure)}
        return {name: drawing.place(figure) for name, figure in drawn.items() if figure is not None}


def write_figures(
    figures: Mapping[str, Placed], folder: Path, formats: Sequence[str], style: FigureStyle = SCREEN
) -> list[Path]:
    """Write figures into `folder`; returns the files, figure by figure."""
    from pscale.report import drawing

    folder.mkdir(parents=True, exist_ok=True)
    with drawing.styled(style):
        return [path for name, figure in figures.items() for path in figure.save(folder, name, formats)]


def inline_figures(figures: Mapping[str, Placed]) -> dict[str, str]:
    """Return figures as SVG for a page."""
    if not figures:
        return {}
    from pscale.report import drawing

    with drawing.styled():
        return {name: figure.inline() for name, figure in figures.items()}
