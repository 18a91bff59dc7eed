"""`pscale report`: read a run, say what it means, write it where people look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pscale.analysis.frames import Run, load, newest
from pscale.analysis.overlay import overlay
from pscale.analysis.summary import Summary, summarise
from pscale.cli.console import new_console
from pscale.cli.drawer import Drawer
from pscale.errors import ResultsError, UsageError
from pscale.replay.network import Link
from pscale.report.exports import render_json, write_csv
from pscale.report.latex import render_latex
from pscale.report.look import LOOKS
from pscale.report.markdown import render_markdown
from pscale.report.publish import FORMATS, PRINTED, write_all, write_page, write_pictures
from pscale.report.terminal import render_terminal

_READ = ("terminal", "html", "md")  # by people, who look at so many cases and no more
_LONGEST = 200  # characters of a folder's name


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Which figures to write: in what formats (none: those that suit the style; None: no figures)."""

    formats: Sequence[str] | None = ()
    style: str = "screen"
    plot: bool = False  # also in characters, on the terminal


def report(
    paths: Sequence[Path],
    reports: Path,
    as_format: str,
    pictures: Pictures,
    what_if: Sequence[str] = (),
    predict: Sequence[int] = (),
    bare: Path | None = None,
    drawer: Drawer | None = None,
) -> None:
    """Print a run in the format asked for; that of the terminal also leaves its files in the run's folder.

    Several runs are laid over each other, and leave theirs in `reports`/overlays. `what_if` describes
    networks on which traced cases are replayed, `predict` sizes to foretell, `bare` a run of bare collectives
    to set calls beside. A `drawer` draws what the terminal's report leaves.
    """
    if what_if and len(paths) > 1:
        raise UsageError("--what-if replays the calls of one run; name one")
    networks = _networks(what_if)
    run = _run(paths or [newest(reports)], reports)
    short = as_format in _READ
    summary = summarise(run, networks, predict, load(bare) if bare else None, short=short)
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
                _tell([write_page(summary, Path(summary.path), drawn=pictures.formats is not None)])
        case _:
            present(summary, pictures, drawer)


def _networks(texts: Sequence[str]) -> dict[str, Mapping[str, Link]]:
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


def present(summary: Summary, pictures: Pictures, drawer: Drawer | None = None) -> None:
    """Print the report, and write its files into the run's folder."""
    folder = Path(summary.path)
    if drawer is not None:
        drawer.ask(summary, folder / "figures", pictures.formats or FORMATS)
    render_terminal(summary, new_console(), plot=pictures.plot)
    with _writing(folder):
        written = _written(summary, folder, pictures, drawer)
    print()
    _tell(written)


def _written(summary: Summary, folder: Path, pictures: Pictures, drawer: Drawer | None) -> list[Path]:
    """Write the report with its figures; for publication the figures alone, into a folder of their own."""
    if pictures.formats is None:
        return write_all(summary, folder, ())
    if pictures.style == "screen":
        return write_all(summary, folder, pictures.formats or FORMATS, drawer.answer if drawer else None)
    formats, look = pictures.formats or PRINTED, LOOKS[pictures.style]
    return write_pictures(summary, folder / "figures" / pictures.style, formats, look)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what the system says against writing into a user's error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)  # that of several runs is nobody's yet
        yield
    except OSError as error:
        raise ResultsError(f"cannot write in {folder}: {error.strerror or error}") from error


def _tell(written: Sequence[Path]) -> None:
    for path in written:
        print(path)
