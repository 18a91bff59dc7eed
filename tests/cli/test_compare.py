import csv
import io
import json
from types import SimpleNamespace

import pytest
from synthetic import Point, write_run

from pscale.analysis.stats import Estimate
from pscale.cli import main
from pscale.cli.check import condition

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write two runs: the second is 5 % slower on 2 ranks, too noisy on 4, and has no case of 8."""
    folder = tmp_path_factory.mktemp("runs")
    quiet = {"launch_noise": 0.005, "noise": 0.005}
    noisy = Point(ranks=4, launch_noise=0.3, label="=4 ranks [red]")
    a = [Point(ranks=1, **quiet), Point(ranks=2, **quiet), noisy, Point(ranks=8)]
    b = [Point(ranks=1, **quiet), Point(ranks=2, compute_s=0.105, **quiet), noisy]
    dead = [Point(ranks=1, status="failed", reason="died"), Point(ranks=2, status="failed", reason="died")]
    alike = a[:2]
    for name, points, seed in (
        *(("a", a, 1), ("b", b, 2), ("same", alike, 3), ("twin", alike, 3), ("dead", dead, 5)),
    ):
        write_run(folder / name, points, repeats=10, seed=seed)
    return folder


@pytest.fixture
def compare(runs, monkeypatch, capsys):
    def call(*arguments, a="a", b="b"):
        monkeypatch.chdir(runs)
        monkeypatch.setattr("sys.argv", ["pscale", "compare", a, *([b] if b else []), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def test_the_terminal_gets_answers_ratios_and_what_is_missing(compare, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = compare()
    assert code == 0
    assert "3 cases: 1 slower, 1 not different, 1 undecided" in out
    assert "=4 ranks [red]" in out
    assert "slower by" in out
    assert "not in its suite" in out
    assert "simultaneous tests (Holm)" in out


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        ([], 0),
        (["slower"], 1),
        (["slower:3%"], 1),
        (["slower:30%"], 0),
        (["faster"], 6),
        (["undecided"], 1),
        (["missing"], 1),
        (["faster", "slower:3%"], 1),
    ],
)
def test_conditions_decide_the_exit_code(compare, conditions, code):
    arguments = [word for text in conditions for word in ("--fail-if", text)]
    assert compare("--format", "csv", *arguments)[0] == code


def test_a_run_that_is_as_fast_fails_no_condition(compare):
    every = [word for text in ("slower", "faster", "undecided") for word in ("--fail-if", text)]
    assert compare(*every, a="same", b="twin")[0] == 0


@pytest.mark.parametrize(
    ("interval", "condition_", "code"),
    [
        ((1.04, 1.08), "slower:3%", 1),
        ((1.01, 1.06), "slower:3%", 6),
        ((0.97, 1.02), "slower:3%", 0),
        ((0.90, 0.95), "faster:3%", 1),
        ((0.90, 0.95), "slower:3%", 0),
        ((None, None), "slower:3%", 6),
    ],
)
@pytest.mark.figure
def test_a_percentage_is_decided_by_the_interval_of_the_ratio(interval, condition_, code):
    low, high = interval
    case = SimpleNamespace(answer="slower", ratio=Estimate(value=1.05, low=low, high=high))
    comparison = SimpleNamespace(compared=[case], missing=())
    assert condition(condition_).outcome(comparison) == code


@pytest.mark.figure
def test_a_gate_fails_closed_where_nothing_was_compared_and_says_so_first(compare):
    code, _, err = compare("--fail-if", "slower:3%", a="a", b="dead")
    assert code == 6
    assert err.startswith("pscale: undecided: no case was compared: ")
    assert "failed: died" in err.splitlines()[0]
    assert compare(a="a", b="dead")[0] == 0, "without a condition it is no gate"


@pytest.mark.figure
def test_a_run_is_not_compared_with_itself(compare):
    code, _, err = compare("--fail-if", "slower", a="same", b="./same")
    assert code == 2
    assert "A and B are the same run" in err


def test_json_and_csv_hold_the_same_figures(compare):
    _, text, _ = compare("--format", "json")
    document = json.loads(text)
    _, table, _ = compare("--format", "csv")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert (document["kind"], document["format"]) == ("pscale comparison", 2)
    assert [row["answer"] for row in rows] == [case["answer"] for case in document["cases"]]
    assert float(rows[1]["ratio_low"]) == document["cases"][1]["ratio_low"]
    assert rows[2]["label"] == "'=4 ranks [red]", "no formula"


def test_markdown_has_the_verdict_first_and_tables_folded_for_a_pull_request(compare):
    _, text, _ = compare("--format", "markdown")
    assert compare("--format", "md")[1] == text
    head, *folded = text.split("<details><summary>")
    assert head.startswith("**Step times of B against A, ")
    assert "* dp 2 ranks: slower by" in head
    assert "| case | A | B | B / A |" in folded[0]
    assert all(part.rstrip().endswith("</details>") for part in folded)
    assert "\\[red\\]" in text
    assert compare("--format", "md", "--fail-if", "slower:3%")[1].startswith("**FAILED: Step times")
    assert compare("--format", "md", "--fail-if", "slower:90%")[1].startswith(("**passed: ", "**UNDECIDED: "))


def test_latex_is_a_table_for_a_paper(compare):
    _, text, _ = compare("--format", "latex")
    assert r"{}case & A & B & B / A & 95\% interval & answer \\" in text
    assert "[red]" in text


def test_the_percentage_that_is_to_fail_is_what_is_relevant_unless_said(compare):
    relevant = [
        json.loads(compare("--format", "json", *more)[1])["relevant"]
        for more in ([], ["--fail-if", "slower:3%"], ["--fail-if", "slower:3%", "--relevant", "10%"])
    ]
    assert relevant == [0.05, 0.03, 0.1]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fail-if", "slow"], 2, "expected slower, faster"),
        (["--fail-if", "slower:3"], 2, "slower:3%"),
        (["--fail-if", "missing:3%"], 2, "no percentage"),
        (["--relevant", "five"], 2, "expected a percentage"),
        (["--relevant", "0%"], 2, "expected a percentage"),
    ],
)
def test_a_mistake_is_reported(compare, arguments, code, words):
    ended, _, err = compare(*arguments)
    assert (ended, "Traceback" in err) == (code, False)
    assert words in err


def test_variants_of_one_run_are_compared_with_its_first(compare, runs):
    points = [Point(ranks=2), Point(ranks=2, series="late", compute_s=0.105, launch_noise=0.002)]
    write_run(runs / "variants", points, repeats=10, seed=4)
    code, out, _ = compare("--format", "md", "--fail-if", "slower:3%", a="variants", b=None)
    assert code == 1
    assert "| late 2 ranks |" in out
    assert "compared in pairs" in out
    code, _, err = compare(a="same", b=None)
    assert code == 2
    assert "no variants to compare" in err
    assert "same B`" in err


def test_a_folder_that_is_no_run_is_reported(compare):
    ended, _, err = compare(b="nowhere")
    assert ended == 5
    assert "nowhere" in err


def test_a_page_is_refused_because_comparisons_have_none(compare):
    code, out, err = compare("-f", "html")
    assert (code, out) == (2, "")
    assert "'html' is not one of" in err
