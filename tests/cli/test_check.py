"""`pscale check` as a person and a CI server meet it, on synthetic runs."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from synthetic import Point, write_run

from pscale.suite.load import load_references

COST = {"transfer_s": 0.02}
POINTS = [Point(ranks=1, noise=0.01), Point(ranks=2, noise=0.01, **COST)]
TWO = "dp 2 ranks"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "reports" / "synthetic" / "run", POINTS)


def references(folder, *entries, suite="synthetic"):
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump({"suite": suite, "expect": list(entries)}))
    return path


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("entry", "code", "shown"),
    [
        ({"where": "ranks == 2", "metric": "step_s", "value": 0.12, "upper": 0.13, "unit": "s"}, 0, "120 ms"),
        (
            {"case": TWO, "metric": "step_s", "value": 100, "upper": 110, "unit": "ms"},
            1,
            "≤ 110 ms",
        ),
        (
            {"case": TWO, "metric": "pe", "value": 80, "lower": 70, "upper": 90, "unit": "%"},
            0,
            "70.0%–90.0%",
        ),
        ({"where": "dp * width > 100", "metric": "efficiency", "at_least": 0.9}, 1, "≥ 90.0%"),
        ({"case": "no such case", "metric": "efficiency", "at_least": 0.1}, 1, "no case"),
    ],
)
def test_a_file_of_references_is_held_against_the_run(pscale, tmp_path, entry, code, shown):
    ended, out, err = pscale("check", "--reference", references(tmp_path, entry))
    assert (ended, err) == (code, "")
    assert shown in out
    assert ("passed" in out) is (code == 0)


@pytest.mark.usefixtures("run")
def test_markdown_has_the_verdict_first_then_what_does_not_hold_and_folded_tables(pscale, tmp_path):
    entries = [
        {"case": TWO, "metric": "step_s", "value": 100, "upper": 110, "unit": "ms"},
        {"case": TWO, "metric": "efficiency", "at_least": 0.5},
    ]
    code, out, _ = pscale("check", "--reference", references(tmp_path, *entries), "--format", "markdown")
    verdict, _, answer, _, folded, *_ = out.splitlines()
    assert (code, verdict) == (1, "**FAILED: run · 1 of 2 expectations hold**")
    assert answer.startswith(f"* {TWO}: step\\_s ≤ 110 ms: falls short")
    assert folded == "<details><summary>Expectations (2 rows)</summary>"


@pytest.mark.usefixtures("run")
def test_the_table_has_measured_reference_and_bounds_beside_each_other(pscale, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    entry = {"case": TWO, "metric": "step_s", "value": 0.1, "lower": 0.05, "upper": 0.11, "unit": "s"}
    _, out, _ = pscale("check", "--reference", references(tmp_path, entry))
    heading, row = (line for line in out.splitlines() if "metric" in line or "step_s" in line)
    assert heading.split() == [
        "case",
        "metric",
        "measured",
        "95%",
        "interval",
        "reference",
        "bounds",
        "verdict",
    ]
    assert row.split()[:5] == [*TWO.split(), "step_s", "120.5"]
    assert "✗" in row
    assert "100 ms 50 ms–110 ms" in " ".join(row.split())
    assert "0 of 1 expectations hold" in out


@pytest.mark.usefixtures("run")
def test_values_that_were_kept_from_a_run_hold_for_it_and_not_for_a_slower_one(pscale, tmp_path):
    code, out, _ = pscale("check", "--update", "--reference", "kept.yaml")
    assert (code, out) == (0, "kept.yaml: 3 values of 2 cases of run\n")
    assert pscale("check", "--reference", "kept.yaml")[0] == 0
    slower = [Point(ranks=1, noise=0.01), Point(ranks=2, noise=0.01, transfer_s=0.04)]
    other = write_run(tmp_path / "slower", slower, seed=2)
    code, out, _ = pscale("check", other, "--reference", "kept.yaml")
    assert code == 1
    assert out.count("✗") == 2, "step time and efficiency of two ranks"
    faster = [Point(ranks=1, noise=0.01), Point(ranks=2, noise=0.01)]
    assert pscale("check", write_run(tmp_path / "faster", faster), "--reference", "kept.yaml")[0] == 0


def test_kept_values_are_the_same_bytes_for_the_same_run_and_say_where_they_are_from(pscale, run, tmp_path):
    assert pscale("check", run, "--update")[0] == 0
    text = (tmp_path / "synthetic.reference.yaml").read_text()
    pscale("check", run, "--update", "--reference", "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == text
    assert all(said in text for said in ("run run, 6 launches", "CPU: Made-up CPU", "MPI: MPICH 4.3"))
    entries = yaml.safe_load(text)["expect"]
    step = next(entry for entry in entries if entry["case"] == TWO and entry["metric"] == "step_s")
    assert step["upper"] == pytest.approx(1.05 * step["value"], rel=1e-3)
    assert "lower" not in step


def test_bounds_are_as_wide_as_two_runs_may_differ_or_a_tenth_without_an_interval(pscale, tmp_path):
    noisy = write_run(tmp_path / "noisy", [Point(ranks=1, launch_noise=0.2)], repeats=5)
    lone = write_run(tmp_path / "lone", [Point(ranks=1)], repeats=1)
    found = {}
    for name, run in (("noisy", noisy), ("lone", lone)):
        pscale("check", run, "--update", "--reference", f"{name}.yaml")
        (found[name],) = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["expect"]
    _, out, _ = pscale("report", noisy, "--format", "json")
    case = json.loads(out)["cases"][0]
    far = (1 + 2**0.5) * (case["step_s_high"] - case["step_s"])
    assert found["noisy"]["upper"] == pytest.approx(case["step_s"] + far, rel=1e-3)
    assert found["lone"]["upper"] == pytest.approx(1.1 * found["lone"]["value"], rel=1e-3)


def test_cases_without_a_value_are_named_and_a_run_without_any_value_is_refused(pscale, tmp_path):
    died = Point(ranks=2, status="failed", reason="died")
    run = write_run(tmp_path / "half", [Point(ranks=1), died])
    code, out, _ = pscale("check", run, "--update", "--reference", "half.yaml")
    assert (code, "1 of 2 cases were not measured" in out) == (0, True)
    assert "# dp 2 ranks: failed, so it has no values" in (tmp_path / "half.yaml").read_text()
    code, _, err = pscale("check", write_run(tmp_path / "none", [died]), "--update")
    assert (code, "no case was measured" in err) == (5, True)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reference", "nowhere.yaml"], "nowhere.yaml"),
        (["--update", "--json"], "--update"),
        (["--update", "--junit", "x.xml"], "--update"),
        (["suite.yaml"], "pscale show SUITE"),
        (["--junit", "no folder/x.xml"], "cannot write"),
    ],
)
def test_what_is_misused_ends_with_2(pscale, arguments, said):
    code, _, err = pscale("check", *arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("suite: other\nexpect: []", "is for the suite 'other'"),
        ("expect: [{metric: efficiency, at_least: 1, where: rnks == 2}]", "values.yaml:1: expect[0]: "),
        ("expect: [{metric: step_s, value: 1}]", "values.yaml:1: expect[0]: expected at_least or at_most"),
        ("expcet: []", "the file has no such field; did you mean 'expect'?"),
        ("expect:\n- {metric: step, at_most: 1}", "values.yaml:2: expect[0].metric"),
    ],
)
def test_a_wrong_reference_is_named_by_its_line(pscale, tmp_path, text, said):
    (tmp_path / "values.yaml").write_text(text)
    code, _, err = pscale("check", "--reference", "values.yaml")
    assert code == 2
    assert said in err


def test_the_file_in_the_documentation_can_be_used(tmp_path):
    document = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    (tmp_path / "values.yaml").write_text(
        re.search(r"```yaml\n(suite: weak\n.*?)```", document, re.DOTALL)[1]
    )
    suite, entries = load_references(tmp_path / "values.yaml")
    assert (suite, [*entries][1:]) == ("weak", [f"{tmp_path / 'values.yaml'}:4: expect[1]"])


def junit(path):
    """Return the root, after holding it to the shape that readers of JUnit's XML share."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        tests = suite.findall("testcase")
        counted = {"tests": len(tests)}
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            counted[name] = len(suite.findall(f"testcase/{tag}"))
        for element in (root, suite):
            assert {name: int(element.get(name)) for name in counted} == counted
            assert float(element.get("time")) >= 0
        assert {child.tag for child in suite} == {"properties", "testcase"}
        endings = {"failure", "error", "skipped"}
        for test in tests:
            assert set(test.attrib) == {"classname", "name", "time"}
            ended = [child for child in test if child.tag != "system-out"]
            assert len(ended) <= 1
            assert all(child.tag in endings and child.get("message") for child in ended)
    return root


def test_junit_has_a_test_for_each_case_and_each_demand_with_equal_counts(pscale, tmp_path):
    hostile = "<b>&\"'\x1b[31m\x00 ]]>"
    points = [
        *POINTS,
        Point(ranks=4, status="failed", reason=hostile),
        Point(ranks=8, status="skipped", reason="no room"),
        Point(ranks=16, only_repeats=()),
    ]
    cases = [point.case.id for point in points[:3]]
    expect = [
        {"metric": "efficiency", "at_least": 0.9, "cases": cases, "where": "ranks < 5"},
        {"metric": "step_s", "at_most": 9, "cases": cases[:1]},
    ]
    run = write_run(tmp_path / "run", points, expect=expect, title=hostile)
    assert pscale("check", run, "--junit", "found.xml")[0] == 1
    root = junit(tmp_path / "found.xml")
    endings = {
        test.get("name"): "".join(child.tag for child in test if child.tag != "system-out")
        for test in root.iter("testcase")
    }
    assert endings == {
        "dp 1 ranks: runs": "",
        "dp 2 ranks: runs": "",
        "dp 4 ranks: runs": "error",
        "dp 8 ranks: runs": "skipped",
        "dp 16 ranks: runs": "error",
        "dp 2 ranks: efficiency ≥ 0.9 where ranks < 5": "failure",
        "dp 4 ranks: efficiency ≥ 0.9 where ranks < 5": "error",
        "dp 1 ranks: step_s ≤ 9": "",
    }
    (failure,) = root.iter("failure")
    assert re.match(
        r"falls short: measured 8.\..% \(95% interval 8.\..%–8.\..%\), exp", failure.get("message")
    )
    assert [said.text for said in root.iter("system-out")][-1].startswith("measured 100")
    assert "<b>&\"'" in next(root.iter("error")).get("message")


def test_what_the_interval_leaves_open_is_neither_passed_nor_failed(pscale, tmp_path):
    points = [Point(ranks=ranks, launch_noise=0.1) for ranks in (1, 2)]
    expect = [{"metric": "efficiency", "at_least": 0.9, "cases": [points[1].case.id]}]
    run = write_run(tmp_path / "run", points, expect=expect)
    code, out, _ = pscale("check", run, "--junit", "found.xml")
    assert code == 6
    assert "UNDECIDED: run · 0 of 1 expectations hold, 1 undecided" in out
    (skipped,) = junit(tmp_path / "found.xml").iter("skipped")
    assert skipped.get("message").startswith("undecided: the interval includes the bound: measured ")
    assert json.loads(pscale("check", run, "--json")[1])["outcome"] == "undecided"


def test_launches_that_failed_or_are_pending_are_counted_as_in_a_report(pscale, tmp_path):
    partly, never = Point(ranks=2, only_repeats=(0,)), Point(ranks=8, only_repeats=())
    run = write_run(tmp_path / "run", [Point(ranks=1), partly, Point(ranks=4, status="failed"), never])
    counted = ["3 launches failed or invalid", "5 launches pending"]
    assert " · ".join(counted) in " ".join(pscale("check", run)[1].split())
    assert ", ".join(counted) in pscale("report", run)[1]


def test_what_is_no_file_is_written_to_and_not_replaced(pscale, run, tmp_path):
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    for code, *options in ((6, "--junit", device), (0, "--update", "--reference", device)):
        assert pscale("check", run, *options)[0] == code
    assert device.is_char_device()
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


@pytest.mark.figure
def test_a_run_of_which_nothing_is_expected_does_not_pass(pscale, run):
    code, out, _ = pscale("check", run)
    assert (code, out.strip().partition(":")[0]) == (6, "nothing to check")
    assert "add `expect:` to the suite" in " ".join(out.split())
    document = json.loads(pscale("check", run, "--json")[1])
    assert (document["outcome"], document["passed"]) == ("nothing to check", False)


def test_junit_of_a_run_that_passes_has_no_failures(pscale, run, tmp_path):
    holds = references(tmp_path, {"metric": "step_s", "at_most": 9})
    assert pscale("check", run, "--reference", holds, "--junit", "found.xml")[0] == 0
    assert junit(tmp_path / "found.xml").get("tests") == "4"
