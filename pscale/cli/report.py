"""`pscale report`: read a run, say what it means, write it where people look."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from pscale.analysis.contrasts import Proposal
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run, load, overlay
from pscale.cli import exit_code, fail, guard_outputs, tell
from pscale.cli.console import new_console
from pscale.cli.drawer import Drawer, is_worthwhile
from pscale.cli.options import Report
from pscale.errors import FAILED, INTERRUPTED, PscaleError, UsageError, writing
from pscale.launch import isolated_process
from pscale.report.brief import Answer, Sources, card, placed, print_answers
from pscale.report.exports import render_json, write_csv
from pscale.report.figure_style import STYLES
from pscale.report.markup import render_latex, render_latex_sheet, render_markdown, render_sheet
from pscale.report.page import FORMATS, PRINTED, draw_figures, write_all, write_figures, write_page
from pscale.report.terminal import render_plots, render_terminal, render_topics
from pscale.report.topics.cases import EVIDENCE
from pscale.runs.journal import Journal, writing_in
from pscale.runs.run_folders import run_folder
from pscale.runs.store import compact
from pscale.simulator.network import Network

_READ = ("terminal", "html", "md", "latex")  # by people, who look at so many cases and no more
_LONGEST = 200  # characters of a folder's name
_REFRESHES = 2  # a second


def report(
    folders: Sequence[Path],
    options: Report,
    drawer: Drawer | None = None,
    sources: Sources | None = None,
    *,
    drawn: bool = False,
) -> None:
    """Print runs in the format asked for; that of the terminal also leaves its files in the run's folder.

    On the terminal that is what it says in brief, and what was asked for beside it, or everything. Several
    runs are laid over each other, and leave theirs in `reports`/overlays. A `drawer` draws what the
    terminal's report leaves, which is remembered beside its `sources`, unless it is `drawn` already. Evidence
    for a proposal is a sheet of its own as a page, Markdown and LaTeX.
    """
    if options.what_if and len(folders) > 1:
        raise UsageError("--what-if replays the calls of one run; name one")
    proposal = Proposal(options.target or Proposal().target, options.units) if options.proposes else None
    run = _run(folders, options.reports)
    findings = Findings(
        run,
        _networks(options.what_if or ()),
        options.predict or (),
        load(run_folder(options.bare, options.reports)) if options.bare else None,
        short=options.as_format in _READ,
        proposal=proposal,
    )
    if proposal and findings.evidence.empty:
        raise UsageError(
            f"{findings.path}: evidence compares sizes, and no series has two that were measured"
        )
    if options.predict:
        from pscale.cli.predict import by_parts  # it takes what predicts

        findings = by_parts(run, findings, options.predict)
    folder = Path(findings.path)
    match options.as_format:
        case "md":
            print(render_sheet(findings, EVIDENCE), end="") if proposal else print(render_markdown(findings))
        case "json":
            print(render_json(findings))
        case "latex" if proposal:
            print(placed(render_latex_sheet(findings, EVIDENCE), Path(findings.path)), end="")
        case "latex":
            print(render_latex(findings), end="")
        case "csv":
            with _writing(folder):
                _tell(write_csv(findings, folder / "csv"))
        case "html":
            with _writing(folder):
                topic = EVIDENCE if proposal else None
                _tell([write_page(findings, folder, None if options.figures else {}, topic)])
        case _:
            _report(findings, options, drawer, sources, drawn=drawn)
            if proposal and options.leaves_files and options.figures:
                _tell([folder / "figures" / "publication" / "evidence.pdf"])


def _report(
    findings: Findings, options: Report, drawer: Drawer | None, sources: Sources | None, *, drawn: bool
) -> None:
    """Print what the run says in brief below what was asked for, or everything; write its files."""
    console, folder, formats = new_console(), Path(findings.path), options.formats
    if drawer is not None:
        drawer.ask(findings, folder / "figures", formats or FORMATS)
    asked = {
        "what-if": options.what_if,
        "evidence": options.proposes,
        "models": options.predict,
        "communication": options.bare,
    }
    topics = [name for name, wanted in asked.items() if wanted]
    if options.full:
        render_terminal(findings, console, plot=options.plot)
    else:
        if options.plot:
            render_plots(findings, console)
        render_topics(findings, console, topics)
    if options.full or options.plot or topics:
        console.print()
    answer = Answer.of(findings, page_of(findings) if options.leaves_files else "", EVIDENCE)
    written: list[Path] = []

    def finish() -> None:
        if not drawn:
            written.extend(write(findings, formats, options.style, drawer))
            if sources is not None:
                sources.remember(written, answer)

    print_answers([answer], new_console(highlight=False), full=options.hint, before_pages=finish)
    if options.style != "screen":
        _tell(written)


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


def write(findings: Findings, formats: Sequence[str] | None, style: str, drawer: Drawer | None) -> list[Path]:
    """Write the report with its figures; for publication the figures alone, into a folder of their own."""
    folder, draws = Path(findings.path), formats is not None
    doing = f"{'drawing figures and ' * draws}writing the page …"
    with _writing(folder), new_console(stderr=True).status(doing, refresh_per_second=_REFRESHES):
        if formats is None or style == "screen":
            kinds = formats or FORMATS if draws else ()
            return write_all(findings, folder, kinds, drawer.answer if drawer else None)
        look = STYLES[style]
        drawn = draw_figures(findings, look)
        return write_figures(drawn, folder / "figures" / style, formats or PRINTED, look)


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
    sources = Sources.of(folder)
    with Drawer() if is_worthwhile() else nullcontext() as drawer:
        run = load(folder)
        findings = Findings(run, short=True)
        if drawer is not None:
            drawer.ask(findings, folder / "figures", FORMATS)
        answer = Answer.of(findings, page_of(findings), EVIDENCE)
        sources.remember(write(findings, (), "screen", drawer), answer)
    card(folder, findings)  # `pscale list` reads cards alone
    print(json.dumps(asdict(answer)))
    return findings.complete and not run.pending


if __name__ == "__main__":
    outputs = guard_outputs()
    sys.exit(exit_code(outputs, main(Path(sys.argv[1]))))
