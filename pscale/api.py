"""pscale from Python: run a suite, load runs, and have what a report says as data frames and figures.

Units are in the names of columns: `_s` seconds, `bytes`, `flops`; shares and efficiencies are fractions.
`_low` and `_high` are the bounds of 95 % intervals.
"""

from __future__ import annotations

import difflib
import html
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from pscale.analysis import frames
from pscale.analysis.columns import FRAMES
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run, overlay
from pscale.errors import PscaleError, ResultsError
from pscale.report import page
from pscale.report.exports import DATA, data_table
from pscale.report.figure_style import STYLES
from pscale.report.topics import TOPICS
from pscale.report.topics.cases import tables
from pscale.runs.run_folders import run_folder
from pscale.suite.shipped import suite_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Place = str | PathLike[str]
_FIGURES = {topic.figure.name: topic.figure for topic in TOPICS if topic.figure}


def load(*runs: Place, reports: Place = "reports") -> Results:
    """Load a run: its folder, its suite's folder or name, which mean the newest, or by default the newest.

    `weak~1` is the run of weak before the newest. Several are loaded as one, as `pscale report A B` does: the
    column `run` names them. Raises ResultsError where there is no run, or one of a newer pscale.
    """
    folder = partial(run_folder, reports=Path(reports), command="pscale.run(SUITE)")
    found = [frames.load(folder(Path(run))) for run in runs] or [frames.load(folder(None))]
    if len(found) == 1:
        return Results(found[0])
    name = "+".join(dict.fromkeys(run.path.resolve().name for run in found))
    return Results(overlay(found, Path(reports) / "overlays" / name))


def run(
    suite: Place | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    only: str | None = None,
    site: str | None = None,
    reports: Place = "reports",
    new: bool = False,
    quiet: bool = False,
) -> Results:
    """Measure a suite, as `pscale run` does, and load the run: a shipped one by name, a file or a dictionary.

    `set` overrides fields, `{"model.width": 512}`; `only` is a condition that cases have to meet, and `site`
    a profile of sites.yaml. An unfinished run of the same suite under `reports` is continued, unless `new`.
    Progress goes to standard error, unless `quiet`. Cases that fail are rows of `cases` with their reason;
    what keeps the suite from starting raises PscaleError. Any thread may call. After Ctrl-C the same call
    continues.
    """
    from pscale.cli.measure_process import measure  # noqa: PLC0415 - loading a run needs none of these
    from pscale.cli.options import RunOptions, SuiteOptions  # noqa: PLC0415

    overrides = [f"{name}={_yaml(value)}" for name, value in (set or {}).items()]
    with _file_of(suite) as path:
        options = SuiteOptions(
            overrides=overrides,
            only=only,
            site=site,
            folder=Path.cwd() if isinstance(suite, Mapping) else None,
        )
        folder = measure(path, options, RunOptions(reports=Path(reports), new=new), quiet=quiet)
        return Results(frames.load(folder))


class Results:
    """The results of a run. Each table of its report is a data frame, such as `cases`.

    `tables` lists those with rows; docs/tables.md has their columns.
    """

    def __init__(self, source: Run):
        self._run = source

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._run.path

    @cached_property
    def findings(self) -> Findings:
        """Everything that a report says: frames, and facts of the whole run."""
        return Findings(self._run)

    @property
    def headline(self) -> str:
        """The first sentences of the report, a line for each series or question."""
        return "\n".join(" ".join(line.titled) for line in self.findings.headlines)

    @property
    def complete(self) -> bool:
        """Whether every planned launch has ended and every case ran well."""
        return self.findings.complete and not self._run.pending

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._tables]

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return a table of the report by its name, with all columns that docs/tables.md declares."""
        if name in FRAMES:
            return pd.DataFrame(getattr(self.findings, name))
        if name.startswith("_") or name not in self._tables:
            known = [] if name.startswith("_") else [*self._tables]
            raise AttributeError(f"there is no table {name!r}{_meant(name, known)}")
        return self._tables[name].copy()

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables that have rows: those of `pscale report --format csv`."""
        return tuple(name for name, table in self._tables.items() if len(table))

    def records(self, name: Literal["steps", "calls", "ranks"]) -> pd.DataFrame:
        """Return the records of the launches that ended well, for `steps` and `calls` all of their rows.

        * `steps`: a row a launch, rank, measured step and phase. `wall_s` is compute + transfer + wait +
          wait_or_transfer + copy + offload; `hidden_s` is beside them. `end_s` counts from the start of the
          first measured step.
        * `calls`: a row a launch, rank, step, phase, axis and verb: `count` of calls, `bytes`, times.
        * `ranks`: a row a launch and rank: host, CPUs, BLAS, memory, and other processes on its cores.
        """
        if name == "ranks":
            return self._labelled(self._run.ranks)
        read = {"steps": frames.steps, "calls": frames.calls}.get(name)
        if read is None:
            raise ResultsError(f"there are no records {name!r}{_meant(name, ['steps', 'calls', 'ranks'])}")
        cases = [point.case for point in self.findings.rows("cases") if point.launches]
        if not cases:
            raise ResultsError(f"{self.path}: no launch succeeded; `cases` has the reasons")
        rows = [read(self._run, case).astype({"case": str}) for case in cases]
        return self._labelled(pd.concat(rows, ignore_index=True))

    @property
    def plot(self) -> Plots:
        """The figures of the report: `run.plot.scaling()`."""
        return Plots(self)

    def report(self) -> Path:
        """Write report.html, report.md and figures/ into the run's folder; return the page."""
        self.path.mkdir(parents=True, exist_ok=True)
        return page.write_all(Findings(self._run, short=True), self.path)[0]

    def __repr__(self) -> str:
        found = self.findings
        return f"<pscale run {str(self.path)!r}: {len(found.cases)} cases, {found.launches} launches>"

    def _repr_html_(self) -> str:
        """Return title, headline and cases for a notebook."""
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.headline.splitlines())
        for whole in tables(self.findings):
            table = whole.narrow()
            names = [column.name for column in table.columns]
            cells = pd.DataFrame([texts for _, texts in table.texts()], columns=names)
            said += cells.to_html(index=False, border=0)
        return f"<h4>{html.escape(self.findings.title)}</h4>{said}"

    @cached_property
    def _tables(self) -> Mapping[str, pd.DataFrame]:
        return {name: data_table(self.findings, name) for name in DATA}

    def _labelled(self, rows: pd.DataFrame) -> pd.DataFrame:
        names = rows["case"].astype(str)
        found = rows.assign(case=names.astype("category"))
        found.insert(1, "label", names.map(dict(self.findings.labels)).astype("category"))
        return found.reset_index(drop=True)


class Plots:
    """The figures of a report, each drawn by the method of its name; `dir()` lists them."""

    def __init__(self, results: Results):
        self._results = results

    def __dir__(self) -> list[str]:
        return [*_FIGURES]

    def __getattr__(self, name: str) -> Callable[..., Figure]:
        if name not in _FIGURES:
            raise AttributeError(f"there is no figure {name!r}{_meant(name, _FIGURES)}")
        return partial(self._draw, name)

    def _draw(self, name: str, style: str = "screen") -> Figure:
        """Draw a figure; `style` is that of `pscale report --style`. ResultsError where it has nothing."""
        if style not in STYLES:
            raise ResultsError(f"there is no style {style!r}{_meant(style, STYLES)}")
        from pscale.report import drawing  # noqa: PLC0415 - takes its time

        with drawing.styled(STYLES[style]):
            figure = _FIGURES[name].draw(self._results.findings)
        if figure is None:
            raise ResultsError(f"{self._results.path} has nothing to show in the figure {name!r}")
        figure._repr_svg_ = partial(_svg, figure)  # type: ignore[attr-defined]  # notebooks show it
        return figure


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


def _meant(name: str, known: Mapping[str, Any] | list[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}" if known else ""


@contextmanager
def _file_of(suite: Place | Mapping[str, Any]) -> Iterator[Path]:
    """Yield the file of a suite; a dictionary is written to one, of which errors do not speak."""
    if not isinstance(suite, Mapping):
        yield Path(suite)
        return
    values = dict(suite)
    if isinstance(values.get("extends"), PathLike | str):
        values["extends"] = str(suite_file(Path(values["extends"])).resolve())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite.yaml"
        path.write_text(_yaml(values, indent=1), encoding="utf-8")
        try:
            yield path
        except PscaleError as error:
            error.args = (re.sub(rf"{re.escape(str(path))}(:\d+)?: ", "", str(error)),)
            raise


def _yaml(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, which is YAML; numbers of NumPy are numbers, paths are texts."""
    return json.dumps(value, indent=indent, default=lambda other: getattr(other, "item", other.__str__)())
