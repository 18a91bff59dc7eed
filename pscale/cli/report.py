"""`pscale report`: read a run, say what it means, write it where people look."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from pscale.analysis.contrasts import Proposal
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run, load, overlay
from pscale.cli import exit_code, fail, guard_outputs, tell
from pscale.cli.console import new_console
from pscale.cli.drawer import Drawer, is_worthwhile
from pscale.errors import FAILED, INTERRUPTED, PscaleError, UsageError, writing
from pscale.launch import isolated_process
from pscale.report.brief import FULL, Answer, Sources, card, print_answers
from pscale.report.exports import render_json, write_csv
from pscale.report.figure_style import STYLES
from pscale.report.markup import render_latex, render_markdown, render_sheet
from pscale.report.page import FORMATS, PRINTED, draw_figures, write_all, write_figures, write_page
from pscale.report.terminal import render_plots, render_terminal, render_topics
from pscale.report.topics import TOPICS
from pscale.report.topics.cases import EVIDENCE
from pscale.runs.journal import Journal, writing_in
from pscale.runs.store import compact
from pscale.simulator.network import Network

_READ = ("terminal", "html", "md")  # by people, who look at so many cases and no more
_LONGEST = 200  # characters of a folder's name
_FIGURE = r"""
% \usepackage{graphicx}; drawn by the same command without -f latex:
\begin{figure} \centering \includegraphics[width=\linewidth]{RUN/figures/publication/evidence.pdf}
\caption{Time and efficiency by size, with 95\% intervals} \end{figure}"""
_REFRESHES = 2  # a second


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Which figures to write: in what formats (none: those that suit the style; None: no figures)."""

    formats: Sequence[str] | None = ()
    style: str = "screen"
    plot: bool = False  # also in characters, on the terminal
    sources: Sources | None = None  # what they are made of, if of a run alone
    drawn: bool = False  # whether they are in its folder already, made of the same
    hint: str = FULL  # the command that prints all tables


def report(
    paths: Sequence[Path],
    reports: Path,
    as_format: str,
    pictures: Pictures,
    what_if: Sequence[str] = (),
    predict: Sequence[int] = (),
    bare: Path | None = None,
    drawer: Drawer | None = None,
    *,
    full: bool = False,
    proposal: Proposal | None = None,
) -> None:
    """Print a run in the format asked for; that of the terminal also leaves its files in the run's folder.

    On the terminal that is what it says in brief, and what was asked for beside it; with `full` everything.

    Several runs are laid over each other, and leave theirs in `reports`/overlays. `what_if` describes
    networks on which traced cases are replayed, `predict` sizes to predict, `bare` a run of bare collectives
    to compare calls with. A `drawer` draws what the terminal's report leaves. Evidence for a `proposal` is a
    sheet of its own as a page, Markdown and LaTeX.
    """
    if what_if and len(paths) > 1:
        raise UsageError("--what-if replays the calls of one run; name one")
    networks = _networks(what_if)
    run = _run(paths, reports)
    short = as_format in _READ
    findings = Findings(run, networks, predict, load(bare) if bare else None, short=short, proposal=proposal)
    if proposal and findings.evidence.empty:
        raise UsageError(
            f"{findings.path}: evidence compares sizes, and no series has two that were measured"
        )
    if predict:
        from pscale.cli.predict import by_parts  # it takes what predicts

        findings = by_parts(run, findings, predict)
    match as_format:
        case "md" if proposal:
            print(render_sheet(findings, EVIDENCE), end="")
        case "md":
            print(render_markdown(findings))
        case "json":
            print(render_json(findings))
        case "latex":
            print(render_latex(findings, (EVIDENCE,) if proposal else TOPICS), end="")
            if proposal:
                tell(_FIGURE.replace("RUN", findings.path))
        case "csv":
            with _writing(Path(findings.path)):
                _tell(write_csv(findings, Path(findings.path) / "csv"))
        case "html":
            with _writing(folder := Path(findings.path)):
                topic = EVIDENCE if proposal else None
                _tell([write_page(findings, folder, {} if pictures.formats is None else None, topic)])
        case _:
            asked = {"what-if": what_if, "evidence": proposal, "models": predict, "communication": bare}
            topics = [name for name, wanted in asked.items() if wanted]
            _report(findings, pictures, drawer, topics=None if full else topics)
            if proposal and pictures.style == "screen" and pictures.formats is not None:
                _tell([Path(findings.path) / "figures" / "publication" / "evidence.pdf"])


def _report(
    findings: Findings, pictures: Pictures, drawer: Drawer | None, *, topics: Sequence[str] | None
) -> None:
    """Print what the run says in brief below the tables of `topics`, or below everything; write its files."""
    console = new_console()
    if drawer is not None:
        drawer.ask(findings, Path(findings.path) / "figures", pictures.formats or FORMATS)
    if topics is None:
        render_terminal(findings, console, plot=pictures.plot)
        console.print()
    else:
        if pictures.plot:
            render_plots(findings, console)
        render_topics(findings, console, topics)
        if pictures.plot or topics:
            console.print()
    written: list[Path] = []
    answer = Answer.of(findings, page_of(findings) if pictures.style == "screen" else "")
    print_answers(
        [answer],
        new_console(highlight=False),
        full="" if topics is None else pictures.hint,
        before_pages=lambda: written.extend(write(findings, answer, pictures, drawer)),
    )
    for path in written if pictures.style != "screen" else ():
        tell(str(path))


def _networks(texts: Sequence[str]) -> dict[str, Network]:
    if not texts:
        return {}
    from pscale.suite.network import read_network  # what it stands on takes its time

    return {text: read_network(text) for text in texts}


def _run(paths: Sequence[Path], reports: Path) -> Run:
    runs = [load(path) for path in paths]
    if len(runs) == 1:
        return runs[0]
    name = "+".join(dict.fromkeys(run.path.resolve().name for run in runs))
    return overlay(runs, reports / "overlays" / name[:_LONGEST])


def page_of(findings: Findings) -> str:
    """Return where the page of a run is written."""
    return str(Path(findings.path) / "report.html")


def write(findings: Findings, answer: Answer, pictures: Pictures, drawer: Drawer | None) -> list[Path]:
    """Write a report's files into the run's folder, unless they are there; some as a `drawer` answers.

    The `answer` is remembered with them.
    """
    if pictures.drawn:
        return []
    folder = Path(findings.path)
    drawing = "" if pictures.formats is None else "drawing figures and "
    doing = new_console(stderr=True).status(f"{drawing}writing the page …", refresh_per_second=_REFRESHES)
    with _writing(folder), doing:
        written = _written(findings, folder, pictures, drawer)
        if pictures.sources is not None:
            pictures.sources.remember(written, answer)
        return written


def _written(findings: Findings, folder: Path, pictures: Pictures, drawer: Drawer | None) -> list[Path]:
    """Write the report with its figures; for publication the figures alone, into a folder of their own."""
    if pictures.formats is None:
        return write_all(findings, folder, ())
    if pictures.style == "screen":
        return write_all(findings, folder, pictures.formats or FORMATS, drawer.answer if drawer else None)
    return _published(findings, pictures.style, pictures.formats or PRINTED)


def _published(findings: Findings, style: str, formats: Sequence[str]) -> list[Path]:
    folder = Path(findings.path)
    with _writing(folder):
        drawn = draw_figures(findings, STYLES[style])
        return write_figures(drawn, folder / "figures" / style, formats, STYLES[style])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make a folder to write into, unless it is there: that of several runs is new."""
    with writing(f"in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def _tell(written: Sequence[Path]) -> None:
    for path in written:
        tell(str(path))


def main(folder: Path) -> int:
    """Report the run in `folder`; returns the exit code, `FAILED` where not every case ran well."""
    try:
        isolated_process.end_with_parent()
        return 0 if publish(folder) else FAILED
    except PscaleError as error:
        fail(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def publish(folder: Path) -> bool:
    """Write the report of a run, and print what it says in brief, as JSON; tell whether every case ran well.

    Expectations are for `check`.
    """
    # Two that join one table's parts would lose some.
    with Journal.open(folder).locked(), writing_in(folder):
        compact(folder / "data")
    sources = Sources.of(folder, ())
    with Drawer() if is_worthwhile() else nullcontext() as drawer:
        run = load(folder)
        findings = Findings(run, short=True)
        if drawer is not None:
            drawer.ask(findings, folder / "figures", FORMATS)
        answer = Answer.of(findings, page_of(findings))
        write(findings, answer, Pictures(sources=sources), drawer)
    card(folder, findings if findings.source is run else Findings(run))  # `pscale list` reads cards alone
    print(json.dumps(asdict(answer)))
    return findings.complete and not run.pending


if __name__ == "__main__":
    outputs = guard_outputs()
    sys.exit(exit_code(outputs, main(Path(sys.argv[1]))))
