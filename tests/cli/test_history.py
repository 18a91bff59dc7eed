"""`pscale history` from the runs of a suite to the exit code of a check."""

import json
import shutil
from dataclasses import replace

import pytest
from synthetic import Point, write_run

from pscale.runs import history

RUNS = 24
POINTS = (Point(ranks=1), Point(ranks=2, transfer_s=0.01))


def write(root, number, *, factor=1.0, points=POINTS, mpi="MPICH 4.3", name=""):
    """Write a run of three launches; every one of them takes `factor` times as long."""
    changed = [
        replace(
            point,
            compute_s=factor * point.compute_s,
            launch_noise=0.005,
            plan_row={
                "started_unix_s": 1.7e9 + 86400 * number,
                "provenance": json.dumps({"mpi": {"library": mpi}}),
            },
        )
        for point in points
    ]
    return write_run(root / (name or f"run{number:02}"), changed, steps=6, seed=number)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Take back the variables that the command sets."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a history of 24 runs: the last six are 10 % slower, with another MPI."""
    root = tmp_path_factory.mktemp("history")
    new = {"factor": 1.1, "mpi": "MPICH 5.0"}
    for number in range(RUNS):
        write(root / "reports" / "synthetic", number, **(new if number >= RUNS - 6 else {}))
    return root


@pytest.fixture
def kept(recorded, tmp_path, pscale):
    """Put all runs in the history of a folder of its own."""
    runs = sorted((recorded / "reports" / "synthetic").iterdir())
    code, out, err = pscale("history", "add", *runs)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "history/synthetic.jsonl: 2 of 2 cases of run00 added"
    return tmp_path / "history" / "synthetic.jsonl"


@pytest.mark.slow
def test_a_change_is_named_accepted_and_then_normal(pscale, kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = pscale("history", "synthetic")
    assert code == 0, "it only shows"
    assert "synthetic, 24 runs: 2 slower." in out
    assert out.count("MPI MPICH 4.3 → MPICH 5.0") == 4, "of two cases and two changes"
    assert "backward compute +6" in out
    code, out, _ = pscale("history", "synthetic", "--check")
    assert code == 1
    assert "since run18: MPI MPICH 4.3 → MPICH 5.0" in out
    before = kept.read_text()
    code, out, _ = pscale("history", "synthetic", "--accept", "the new MPI is more exact", "--check")
    assert code == 0
    assert kept.read_text().startswith(before), "nothing that was there is changed"
    assert "the new MPI is more exact" in pscale("history")[1]
    code, _, err = pscale("history", "synthetic", "--accept", "again")
    assert (code, "nothing to accept" in err) == (2, True)


@pytest.mark.slow
def test_every_format_says_the_same(pscale, kept):
    document = json.loads(pscale("history", "synthetic", "-f", "json")[1])
    (suite,) = document["suites"]
    assert (suite["answer"], suite["runs"], suite["launches"]) == ("slower", RUNS, 6 * RUNS)
    assert [case["answer"] for case in suite["cases"]] == ["slower", "slower"]
    rows = pscale("history", "synthetic", "-f", "csv")[1].splitlines()
    assert len(rows) == 3
    assert rows[0].startswith("case,label,step_s,normal_s,ratio,ratio_low,ratio_high,answer")
    assert "MPICH 4.3 → MPICH 5.0" in pscale("history", "synthetic", "-f", "md")[1]
    assert r"\begin{tabular}" in pscale("history", "synthetic", "-f", "latex")[1]
    assert pscale("history", "-f", "html")[1] == "history/synthetic.html\n"
    page = kept.with_suffix(".html").read_text()
    assert all(words in page for words in ("History of synthetic", "dp 2 ranks", "<svg", "MPICH 5.0"))
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_run_is_added_once_and_again_when_it_has_more_launches(pscale, tmp_path):
    root = tmp_path / "reports" / "synthetic"
    half = [replace(point, only_repeats=(0,)) for point in POINTS]
    write(root, 0, points=half, name="run")
    assert "2 of 2 cases of run added" in pscale("history", "add")[1]
    assert "0 of 2 cases of run added, 2 were there" in pscale("history", "add", root / "run")[1]
    shutil.rmtree(root / "run")
    write(root, 0, name="run")
    assert "2 of 2 cases of run added" in pscale("history", "add")[1]
    known = history.read(tmp_path / "history", "synthetic")
    assert [len(entry.steps) for entry in known.entries] == [3, 3]
    code, out, _ = pscale("history", "--check")
    assert (code, "undecided: 1 run so far, 8 needed" in out) == (6, True)


def test_a_counter_that_grew_fails_a_check_after_two_runs(pscale, tmp_path):
    root = tmp_path / "reports" / "synthetic"
    rows = {"row": {"executed_flops": 5e9}}
    write(root, 0)
    write(root, 1, points=[POINTS[0], replace(POINTS[1], **rows)])
    assert "executed FLOPs" not in pscale("history", "add", *sorted(root.iterdir()))[1]
    code, out, _ = pscale("history", "--check")
    assert code == 6, "5e9 is less than before"
    write(root, 2)
    pscale("history", "add", root / "run02")
    code, out, _ = pscale("history", "--check")
    assert code == 1
    assert "dp 2 ranks: more work (exact counter): executed FLOPs 5,000,000,000 → 9,600,000,000" in out


def test_a_check_says_which_lines_are_damaged_and_is_undecided_where_all_are(pscale, tmp_path):
    write(tmp_path / "reports" / "synthetic", 0)
    pscale("history", "add")
    path = tmp_path / "history" / "synthetic.jsonl"
    path.write_text(path.read_text() + '{"format":1,"run":"torn')
    for text, runs in ((path.read_text(), "1 run: 2 undecided"), ('{"format":1,', "0 runs: no cases")):
        path.write_text(text)
        code, out, _ = pscale("history", "--check")
        assert (code, f"synthetic, {runs}." in out) == (6, True)
        assert f"only partly read: {len(text.splitlines())}." in out


def test_mistakes_are_named(pscale, tmp_path):
    outside = write(tmp_path / "reports" / "synthetic", 0)
    document = json.loads((outside / "run.json").read_text())
    document["suite"]["name"] = "../outside"
    (outside / "run.json").write_text(json.dumps(document))
    failed = write(tmp_path / "other", 1, points=[replace(POINTS[0], status="failed", reason="died")])
    for arguments, code, said in (
        (("history", "add", outside), 5, 'suite.name: expected a name, got "../outside"'),
        (("history", "../outside"), 2, "'../outside' is not a valid suite name"),
        (("history", "suites/weak.yaml"), 2, "name one such as weak"),
        (("history",), 5, "no histories here; begin one with 'pscale history add RUN'"),
        (("history", "weak"), 5, "no history of 'weak'"),
        (("history", "add", failed), 5, "no case was measured"),
        (("history", "add", "--check"), 2, "only adds runs"),
        (("history", "one", "two"), 2, "name one suite"),
        (("history", "weak", "--case", "1 rank"), 2, "--accept REASON"),
        (("history", "--relevant", "5"), 2, "expected a percentage such as 5%"),
    ):
        assert (pscale(*arguments)[0], said in " ".join(pscale(*arguments)[2].split())) == (code, True), said
    assert not (tmp_path / "outside.jsonl").exists()
