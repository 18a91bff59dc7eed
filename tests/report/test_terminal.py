import io
import re
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise

import pytest
from rich.console import Console
from synthetic import Point, replicated, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.text import duration
from pscale.report.brief import Answer, Line, print_answers
from pscale.report.table import Column, Table, print_table
from pscale.report.terminal import render_terminal


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


def test_headings_break_between_words_and_notes_explain_the_columns_that_are_shown():
    hidden = Column("hidden", wide=True, note="of calls")
    columns = (*[Column("of all time", duration)] * 7, Column("most in", note="a phase"), hidden)
    rows = (("", (*[1e-3] * 7, "backward", "all" * 20)),)
    console = Console(file=io.StringIO(), width=80)
    print_table(Table(title="", columns=columns, rows=rows, caption="shares"), console)
    page = console.file.getvalue()
    assert page.count("of all") == 7
    assert "…" not in page
    assert page.endswith("shares; most in: a phase\n")


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


# The ten lines in which a run, or several, end on the terminal


def line(name="weak", answer="holds", causes="lost: transfer 2.0%, load imbalance 1.2%, serialisation 0.7%"):
    demand = f"{answer} (≥ 85.0%)" if answer else ""
    return Line(
        name=name, size="16 ranks", figure="97.1% ± 2.0%", answer=answer, judged=demand, causes=causes
    )


def answer(suite="weak", lines=(), sentences=(), concerns="2 warnings"):
    page = f"reports/{suite}/2026-01-01T000000-abcd/report.html"
    return Answer(suite=suite, lines=tuple(lines), sentences=tuple(sentences), concerns=concerns, page=page)


def printed(*answers, width, full="pscale report --full"):
    console = Console(file=io.StringIO(), width=width)
    print_answers(answers, console, full=full)
    return console.file.getvalue().splitlines()


def test_a_wide_terminal_has_a_line_for_each_suite_and_one_for_the_rest():
    assert printed(answer(lines=[line()]), width=120) == [
        "weak   16 ranks   97.1% ± 2.0%   holds (≥ 85.0%)   "
        "lost: transfer 2.0%, load imbalance 1.2%, serialisation 0.7%",
        "2 warnings · full tables: pscale report --full · "
        "page: reports/weak/2026-01-01T000000-abcd/report.html",
    ]


def test_two_suites_share_columns_and_tell_whose_warnings_and_pages_are_meant():
    both = printed(answer(lines=[line()]), answer("strong", [line("strong", "")], concerns=""), width=80)
    assert both == [
        "weak     16 ranks   97.1% ± 2.0%   holds (≥ 85.0%)",
        "  lost: transfer 2.0%, load imbalance 1.2%, serialisation 0.7%",
        "strong   16 ranks   97.1% ± 2.0%",
        "  lost: transfer 2.0%, load imbalance 1.2%, serialisation 0.7%",
        "weak: 2 warnings · full tables: pscale report --full",
        "page: reports/weak/2026-01-01T000000-abcd/report.html",
        "page: reports/strong/2026-01-01T000000-abcd/report.html",
    ]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("count", [1, 4, 7, 20])
def test_there_are_at_most_ten_lines_none_too_long_and_no_word_is_broken(width, count):
    long = "tensor-parallel degree two with sequence parallelism and selective checkpointing"
    lines = [line(f"{long} {place}" if place % 2 else f"dp {place}") for place in range(count)]
    sentences = ["Of four plans the first is fastest. " * 5, "Another sentence, which is long. " * 9]
    found = printed(answer(lines=lines, sentences=[[each] for each in sentences]), width=width)
    assert len(found) <= 10
    assert max(map(len, found)) <= width
    known = set(" ".join([long, *sentences, line().causes, *line().cells]).split())
    words = " ".join(found[:-3]).split()
    assert [
        word for word in words if word.isalpha() and word not in known | {"dp", "and", "more", "series"}
    ] == []


def test_what_falls_short_is_shown_where_there_is_no_room_for_all():
    lines = [line(f"dp {place}") for place in range(20)]
    lines[17] = line("dp 17", "falls short")
    found = printed(answer(lines=lines), width=100)
    assert sum("falls short" in each for each in found) == 1
    assert any(each.startswith("and 13 more series") for each in found)


def test_a_sentence_ends_where_it_ends_or_is_left_out():
    sentence = (
        "Of 4 plans on 2 ranks, zero-bubble is fastest here.",
        "1f1b takes 1.12 times as long: its bubble.",
    )
    (first, *_) = printed(answer(sentences=[sentence]), width=60)
    assert first == "Of 4 plans on 2 ranks, zero-bubble is fastest here. 1f1b"
    more = *sentence, "Third sentence, which would need another line of its own to be read."
    found = printed(answer(sentences=[more] * 4), width=60)
    assert found[1] == "takes 1.12 times as long: its bubble."
    assert not any("Third" in each for each in found)
    assert any("Third" in each for each in printed(answer(sentences=[more]), width=60)), "there is room"


def test_what_a_run_says_in_brief_crosses_to_another_process_and_has_the_numbers_of_the_tables(tmp_path):
    points = [Point(ranks=ranks, transfer_s=0.01 * (ranks > 1), noise=0.01) for ranks in (1, 2)]
    summary = Findings(load(write_run(tmp_path / "run", points, steps=8, repeats=5)))
    found = Answer.of(summary, "page")
    assert Answer.read(asdict(found)) == found
    (only,) = found.lines
    largest = max(summary.rows("cases"), key=lambda point: point.ranks)
    assert only.figure.startswith(f"{largest.efficiency.value:.1%} ± ")
    assert only.size == "2 ranks"
    assert only.causes.startswith("lost to: transfer")
