"""Several runs of a folder: listed, and laid over each other."""

import json
import shutil
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.cli import report as publish
from pscale.config import Plan
from pscale.report.exports import render_json
from pscale.runs.store import LEAST

pytestmark = pytest.mark.slow

FAST = [Point(ranks=1), Point(ranks=2, transfer_s=0.01), Point(ranks=4, transfer_s=0.02)]
SLOW = [Point(ranks=1), Point(ranks=2, transfer_s=0.03), Point(ranks=4, status="failed", reason="died")]


def begun(points, unix_s):
    return [Point(**{**point.__dict__, "plan_row": {"started_unix_s": unix_s}}) for point in points]


@pytest.fixture
def runs(tmp_path):
    """Two runs, the slow one a day later."""
    root = tmp_path / "reports" / "synthetic"
    return [
        write_run(root / "fast", begun(FAST, 1.7e9), repeats=2, steps=8, joined=False),
        write_run(root / "slow", begun(SLOW, 1.7e9 + 86400), repeats=2, steps=8),
    ]


@pytest.mark.usefixtures("runs")
def test_runs_are_listed_newest_first_with_their_best_figure(pscale):
    code, out, err = pscale("list", "--json")
    assert (code, err) == (0, "")
    slow, fast = json.loads(out)
    assert (slow["run"], fast["run"]) == ("slow", "fast")
    assert (fast["metric"], fast["at"], fast["ranks"]) == ("efficiency", "dp 4 ranks", 4)
    assert fast["value"] == pytest.approx(0.1 / 0.12)
    assert slow["value"] == pytest.approx(0.1 / 0.13)
    assert (slow["cases"], slow["cases_ok"], slow["failed"], slow["pending"]) == (3, 2, 2, 0)
    _, out, _ = pscale("list")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if "synthetic/" in line] == ["synthetic/slow", "synthetic/fast"]
    assert "83.3% ± 0.0% at dp 4 ranks" in " ".join(out.split())


def test_a_list_calls_no_plan_the_fastest_that_may_not_be(pscale, tmp_path):
    plans = [
        Point(ranks=2, scaling="throughput", series=name, launch_noise=0.02, compute_s=compute_s, plan=plan)
        for name, compute_s, plan in (("dp", 0.1, Plan(dp=2)), ("tp", 0.101, Plan(tp=2)))
    ]
    write_run(tmp_path / "reports" / "synthetic" / "close", plans, repeats=3, steps=8)
    _, out, _ = pscale("list", "--json")
    assert [card["answer"] for card in json.loads(out)] == ["undecided"]
    assert "fastest undecided" in " ".join(pscale("list")[1].split())


@pytest.mark.usefixtures("runs")
def test_runs_of_a_suite_are_found_by_their_folder_and_where_they_lie_side_by_side(pscale):
    for reports in ("reports", "reports/synthetic"):
        found = json.loads(pscale("list", "--suite", "synthetic", "--reports", reports, "--json")[1])
        assert [one["run"] for one in found] == ["slow", "fast"], reports
    code, _, err = pscale("list", "--suite", "other", "--reports", "reports/synthetic")
    assert (code, "no runs" in err) == (5, True)


def test_names_of_runs_are_whole_where_there_is_room_for_little_else(pscale, runs, monkeypatch):
    name = "2026-11-22T105945-b002"
    shutil.copytree(runs[0], runs[0].parents[1] / "communication" / name)
    monkeypatch.setenv("COLUMNS", "80")
    lines = pscale("list")[1].splitlines()
    assert any(line.startswith(f"communication/{name} ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("runs")
def test_a_list_is_short_where_it_is_asked_to_be(pscale):
    assert "1 older runs not shown" in pscale("list", "-n", "1")[1]
    assert json.loads(pscale("list", "--suite", "synthetic", "--json", "-n", "1")[1])[0]["run"] == "slow"
    code, _, err = pscale("list", "--suite", "other")
    assert (code, "no runs here" in err) == (5, True)
    assert json.loads(pscale("list", "--suite", "other", "--json")[1]) == []


def test_a_card_is_made_anew_when_its_run_has_changed_and_not_before(pscale, runs):
    fast = runs[0]
    pscale("list")
    kept = (fast / "brief.json").read_text()
    (fast / "brief.json").write_text(kept.replace("dp 4 ranks", "from the card"))
    assert "from the card" in pscale("list", "--json")[1]
    next((fast / "data").glob("cases-*.parquet")).unlink()
    cards = {card["run"]: card for card in json.loads(pscale("list", "--json")[1])}
    assert (cards["fast"]["launches"], cards["fast"]["pending"]) == (5, 1)
    assert cards["fast"]["at"] == "dp 4 ranks"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 1}'])
def test_a_damaged_run_is_listed_with_what_is_wrong(pscale, runs, content):
    (runs[0] / "run.json").write_text(content)
    found = {card["run"]: card["trouble"] for card in json.loads(pscale("list", "--json")[1])}
    assert found == {"fast": "run.json is damaged", "slow": ""}
    assert "run.json is damaged" in " ".join(pscale("list")[1].split())


def test_a_damaged_card_is_made_anew(pscale, runs):
    for content in ("", "{", '{"card": {"stamp": [0, 0]}}'):
        (runs[0] / "brief.json").write_text(content)
        assert json.loads(pscale("list", "--json")[1])[1]["value"] == pytest.approx(0.1 / 0.12)


def test_a_moved_run_is_listed_where_it_is(pscale, runs):
    pscale("list")
    moved = runs[0].parent / "moved"
    shutil.move(runs[0], moved)
    assert moved in {Path(card["path"]).resolve() for card in json.loads(pscale("list", "--json")[1])}


def test_runs_are_laid_over_each_other_each_against_its_own_base(pscale, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    code, out, err = pscale("report", *runs, "--format", "json")
    assert (code, err) == (0, "")
    points = json.loads(out)["cases"]
    found = {(p["run"], p["ranks"]): p["efficiency"] and round(p["efficiency"], 3) for p in points}
    assert found == {
        ("fast", 1): 1.0,
        ("fast", 2): round(0.1 / 0.11, 3),
        ("fast", 4): round(0.1 / 0.12, 3),
        ("slow", 1): 1.0,
        ("slow", 2): round(0.1 / 0.13, 3),
        ("slow", 4): None,
    }
    assert json.loads(out)["wait"][0]["case"].endswith("@fast")
    _, out, _ = pscale("report", *runs, "--full")
    (heading,) = [line for line in out.splitlines() if "speed-up" in line]
    assert heading.split()[:3] == ["run", "case", "ranks"]
    folder = tmp_path / "reports" / "overlays" / "fast+slow"
    assert "| slow | dp 2 ranks | 2 |" in (folder / "report.md").read_text()
    assert (folder / "figures" / "scaling.svg").exists()


def test_runs_of_different_suites_say_so_and_one_network_is_asked_of_one_run(pscale, runs):
    document = json.loads((runs[1] / "run.json").read_text())
    document["suite"] |= {"name": "other", "title": "Something else"}
    (runs[1] / "run.json").write_text(json.dumps(document))
    _, out, _ = pscale("report", *runs, "--format", "md")
    assert "The runs are of different suites: synthetic, other" in out
    assert "Weak scaling of something made up / Something else" in out
    code, _, err = pscale("report", *runs, "--what-if", "all: ideal")
    assert (code, "one run" in err) == (2, True)


def test_the_files_of_a_run_of_many_launches_are_joined_when_it_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "write", lambda *_: [])
    run = write_run(tmp_path / "run", [Point(ranks=1)], repeats=LEAST, steps=2, joined=False)
    before = render_json(Findings(load(run)))
    assert publish.publish(run)
    assert {path.name for path in (run / "data").iterdir()} == {
        *("cases.parquet", "ranks.parquet", "steps.parquet")
    }
    assert render_json(Findings(load(run))) == before
