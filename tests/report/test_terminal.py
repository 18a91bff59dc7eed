import io
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from rich.console import Console
from synthetic import replicated

from pscale.report.printing import print_table
from pscale.report.table import Column, Table
from pscale.report.terminal import render_terminal
from pscale.report.text import duration


def shown(summary, width=80, **settings):
    console = Console(file=io.StringIO(), width=width, **settings)
    render_terminal(summary, console)
    return console.file.getvalue()


@pytest.mark.figure
def test_what_the_tables_of_many_series_say_in_common_is_printed_once(summary):
    said = shown(replicated(summary, 5), 200)
    assert said.count("Efficiency: dp ") == 5
    assert said.count("parallel = load balance × communication") == 1


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_report_fits_the_terminal(summary, width):
    *lines, path = shown(summary, width).splitlines()
    assert max(map(len, lines)) <= width
    assert path == f"Data and logs: {summary.path}"


def test_a_wider_terminal_shows_more_columns(summary):
    assert "of peak  " not in shown(summary, 80)
    assert "of peak  launches" in shown(summary, 160)
    assert re.search(r"of peak  launches.* GFLOP/s", shown(summary, 160))
    assert re.search(r"of peak  launches(?!.* GFLOP/s)", shown(summary, 100))


def test_names_keep_some_letters_where_figures_fill_the_line():
    columns = (Column("case", fold=True), *[Column("of a figure", duration)] * 6)
    table = Table(title="", columns=columns, rows=(("", ("interleaved", *[0.0123] * 6)),))
    console = Console(file=io.StringIO(), width=80)
    print_table(table, console)
    assert "interlea" in console.file.getvalue()


def test_headings_break_between_words_and_captions_explain_what_is_shown():
    columns = (*[Column("of all time", duration)] * 7, Column("most in"), Column("hidden", wide=True))
    caption = "most in: a phase; hidden, exposed: of calls"
    rows = (("", (*[1e-3] * 7, "backward", "all" * 20)),)
    console = Console(file=io.StringIO(), width=80)
    print_table(Table(title="", columns=columns, rows=rows, caption=caption), console)
    page = console.file.getvalue()
    assert page.count("of all") == 7
    assert "…" not in page
    assert "most in: a phase" in page
    assert "exposed" in page  # as `hidden` is not all that it explains
    assert "hidden, " in page


def test_the_verdict_comes_first_and_every_part_follows_in_order(summary):
    page = " ".join(shown(summary).split())
    parts = (
        *("Weak scaling of something made up", "At 4 ranks, weak scaling is", "he main loss"),
        *("Caution:", "failed or invalid", "Scaling ranks"),
        *("Efficiency ranks", "Time by phase and kind", "Slowest ranks", "Communication"),
        *("Failed and invalid launches", "Expectations", "Warnings", "Notes"),
    )
    places = [page.index(part) for part in parts]
    assert all(first < second for first, second in pairwise(places))


def test_the_table_marks_the_base_and_shows_failed_and_pending_cases(summary):
    rows = [line.split() for line in shown(summary).splitlines()]
    (one,) = [row for row in rows if row[:3] == ["1", "100", "ms"]]
    assert "base" in one
    assert ["8", "failed"] in [row[:2] for row in rows]
    assert ["16", "pending"] in [row[:2] for row in rows]
    assert "rank 3 died: MemoryError" in shown(summary)


def test_a_pipe_gets_no_escape_codes_and_a_terminal_does(summary, monkeypatch):
    assert "\x1b" not in shown(summary)
    assert "\x1b" in shown(summary, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown(summary, force_terminal=True)


def test_texts_of_a_suite_are_never_markup_and_move_no_cursor(hostile):
    page = shown(hostile, 300)
    assert "[red]*b*[/red]" in page
    assert "\x1b" not in page


def test_a_run_without_results_gives_its_reasons(failed):
    page = shown(failed)
    assert "Nothing was measured" in page
    assert page.count("no MPI") == 2


def test_the_terminal_report_imports_no_plotting_library():
    code = "import sys, pscale.report.terminal; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"matplotlib", "seaborn"} & set(loaded)
