"""`pscale report` and `pscale check`: read a run, say what it means, write it where people look."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pscale.analysis.expect import Expectation
from pscale.analysis.frames import load, newest
from pscale.analysis.summary import Summary, summarise
from pscale.errors import FAILED, ResultsError
from pscale.report.exports import render_json, write_csv
from pscale.report.latex import render_latex
from pscale.report.look import LOOKS
from pscale.report.markdown import render_markdown
from pscale.report.publish import FORMATS, PRINTED, write_all, write_page, write_pictures
from pscale.report.terminal import render_terminal
from pscale.suite.network import read_network

_MARKS = {True: "[green]held[/green]", False: "[red]not held[/red]", None: "[yellow]unknown[/yellow]"}


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Which figures to write: in what formats (none: those that suit the style; None: no figures)."""

    formats: Sequence[str] | None = ()
    style: str = "screen"
    plot: bool = False  # also in characters, on the terminal


def report(
    path: Path | None,
    reports: Path,
    as_format: str,
    pictures: Pictures,
    what_if: Sequence[str] = (),
    predict: Sequence[int] = (),
) -> None:
    """Print a run in the format asked for; that of the terminal also leaves its files in the run's folder.

    `what_if` describes networks on which its traced cases are replayed, `predict` sizes to foretell.
    """
    networks = {text: read_network(text) for text in what_if}
    summary = summarise(load(path or newest(reports)), networks, predict)
    match as_format:
        case "md":
            print(render_markdown(summary))
        case "json":
            print(render_json(summary))
        case "latex":
            print(render_latex(summary), end="")
        case "csv":
            with _writing(Path(summary.path)):
                _tell(write_csv(summary, Path(summary.path) / "csv"))
        case "html":
            with _writing(Path(summary.path)):
                _tell([write_page(summary, Path(summary.path), figures=pictures.formats is not None)])
        case _:
            _present(summary, pictures)


def publish(folder: Path) -> bool:
    """Report a run that has just ended; tell whether every case ran well. Expectations are for `check`."""
    summary = summarise(load(folder))
    _present(summary, Pictures())
    return summary.complete


def check(path: Path | None, reports: Path, *, as_json: bool) -> int:
    """Say which expectations of the suite hold; returns 1 if one does not, or a case did not end well."""
    summary = summarise(load(path or newest(reports)), predict=None)
    if as_json:
        verdicts = [asdict(expectation) for expectation in summary.expectations]
        print(json.dumps({"run": summary.run, "passed": summary.passed, "expectations": verdicts}, indent=1))
        return 0 if summary.passed else FAILED
    console = Console(soft_wrap=True, highlight=False)
    for failure in summary.failures:
        console.print(f"[red]{failure.status}[/red]  {escape(failure.label)}: {escape(failure.reason)}")
    for expectation in summary.expectations:
        console.print(f"{_MARKS[expectation.held]}  {escape(_sentence(expectation))}")
    if not summary.expectations:
        console.print("the suite expects nothing: add `expect:` to it")
    return 0 if summary.passed else FAILED


def _sentence(expectation: Expectation) -> str:
    found = f"{expectation.value.value:.3g}" if expectation.value else expectation.text
    return ": ".join(part for part in (expectation.label, expectation.demand, found) if part)


def _present(summary: Summary, pictures: Pictures) -> None:
    render_terminal(summary, Console(), plot=pictures.plot)
    folder = Path(summary.path)
    with _writing(folder):
        written = _written(summary, folder, pictures)
    print()
    _tell(written)


def _written(summary: Summary, folder: Path, pictures: Pictures) -> list[Path]:
    """Write the report with its figures; for publication the figures alone, into a folder of their own."""
    if pictures.formats is None:
        return write_all(summary, folder, ())
    if pictures.style == "screen":
        return write_all(summary, folder, pictures.formats or FORMATS)
    formats, look = pictures.formats or PRINTED, LOOKS[pictures.style]
    return write_pictures(summary, folder / "figures" / pictures.style, formats, look)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what the system says against writing into a user's error."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"cannot write in {folder}: {error.strerror or error}") from error


def _tell(written: Sequence[Path]) -> None:
    for path in written:
        print(path)
