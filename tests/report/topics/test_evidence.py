"""Evidence for a proposal: what it decides, that it computes nothing twice, that it says what it shows."""

import json
import re

import pytest
from synthetic import Point, write_run

from pscale.analysis.contrasts import Proposal
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Workload
from pscale.report import drawing
from pscale.report.figure_style import STYLES
from pscale.report.topics.cases import EVIDENCE as TOPIC

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
HALO = {
    "scaling": "strong",
    "workload": Workload(command="./halo 800"),
    "launch_noise": 0.01,
    "row": {"batch": None, "tokens": None, "model_flops": None, "wall_s": None},
}


def halo(ranks, compute_s, **settings):
    return Point(ranks=ranks, compute_s=compute_s, **{**HALO, "series": "", **settings})


def strong(**settings):
    """Sizes of which 4 ranks are the largest above 70 %, 8 are on it, and 16 below."""
    return [
        halo(1, 0.8, **settings),
        halo(2, 0.4, transfer_s=0.01, **settings),
        halo(4, 0.2, transfer_s=0.03, **settings),
        halo(8, 0.1, transfer_s=0.0427, **settings),
        halo(16, 0.05, transfer_s=0.06, **settings),
    ]


def asked(folder, points, target=0.7, units=None):
    return Findings(load(written(folder, points)), proposal=Proposal(target, units))


def written(folder, points):
    return write_run(folder, points, steps=8, joined=True)


def said(findings):
    return " ".join(TOPIC.paragraphs(findings))


def cells(findings):
    return [cell for table in TOPIC.tables(findings) for _, cells in table.texts() for cell in cells]


RUNS = {
    "every answer": (strong(), {"units": 5e9}),
    "undecided": ([halo(1, 0.8), halo(2, 0.4, transfer_s=0.15)], {}),
    "one launch": (strong(only_repeats=(0,)), {}),
    "two series": ([*strong(series="a"), *strong(series="b", label="")], {"units": 2.5e6}),
    "threads": ([halo(1, 0.8), halo(2, 0.2, threads=2)], {}),
    "stated work": ([halo(n, 0.1, workload=Workload(command="./x", work=n)) for n in (1, 2)], {}),
    "disturbed": ([halo(1, 0.8), halo(2, 0.4, rank_row={"steal_s": 4.0})], {}),
    "training": ([Point(ranks=1), Point(ranks=2, transfer_s=0.01)], {"target": 0.85}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_number_of_the_paragraph_is_one_of_a_cell(tmp_path, name):
    points, settings = RUNS[name]
    findings = asked(tmp_path / "run", points, **settings)
    known = {number for cell in cells(findings) for number in NUMBER.findall(cell)}
    assert said(findings)
    assert {*NUMBER.findall(said(findings))} <= known


def test_sizes_are_above_the_target_below_it_or_undecided_by_their_whole_interval(tmp_path):
    findings = asked(tmp_path / "run", strong(launch_noise=0.02))
    rows = findings.rows("evidence")
    assert [row.answer for row in rows] == ["", "holds", "holds", "undecided", "falls short"]
    for row in rows[1:]:
        whole = row.efficiency.low, row.efficiency.high
        assert (row.answer == "holds") == (whole[0] >= 0.7)
        assert (row.answer == "falls short") == (whole[1] < 0.7)
    words = said(findings)
    assert "The largest size whose efficiency is above 70.0% with its whole interval is 4 ranks, at" in words
    assert re.search(r"It is undecided at 8 ranks: \S+% ± \S+%\. It would take .* to decide\.", words)
    assert "It is below 70.0% at 16 ranks" in words
    assert "Beyond 16 ranks, the limit is transfer in sync," in words


def test_a_target_is_the_one_that_is_asked_for(tmp_path):
    findings = asked(tmp_path / "run", strong(), target=0.4)
    assert {row.answer for row in findings.rows("evidence")} == {"", "holds"}
    assert "above 40.0% with its whole interval is 16 ranks" in said(findings)
    assert "No larger size has an efficiency above 99.9%" in said(asked(tmp_path / "b", strong()[::2], 0.999))


def test_efficiencies_are_those_of_the_report_and_core_hours_those_of_its_costs(tmp_path):
    findings = asked(tmp_path / "run", [Point(ranks=1), Point(ranks=2, transfer_s=0.02)], units=2e6)
    points, costs = findings.of_case("cases"), findings.of_case("costs")
    for row in findings.rows("evidence"):
        assert (row.efficiency, row.speedup) == (points[row.case].efficiency, points[row.case].speedup)
        assert (row.unit, row.per) == ("sample", 1e6)
        assert row.core_hours.value == pytest.approx(costs[row.case].core_hours.value)
        assert row.units_core_hours.value == pytest.approx(2 * row.core_hours.value)
    assert "For 2,000,000 samples they are" in said(findings)


def test_the_base_is_the_smallest_size_that_was_measured(tmp_path):
    points = [halo(1, 0.8, status="failed", reason="killed"), *strong()[1:], halo(32, 0.04, base=True)]
    findings = asked(tmp_path / "run", points)
    rows = findings.rows("evidence")
    assert [(row.ranks, row.base) for row in rows] == [(n, n == 2) for n in (2, 4, 8, 16, 32)]
    assert rows[0].efficiency.value == 1
    assert rows[1].efficiency.value == pytest.approx(0.89, abs=0.02)
    assert "Efficiency is relative to 2 ranks, the smallest size measured" in said(findings)
    assert [row.base for row in findings.rows("cases")] == [False] * 5 + [True], "the report keeps its own"


def test_the_work_of_a_program_is_what_the_suite_states_else_that_of_the_smallest_size(tmp_path):
    weak = {"scaling": "weak", "compute_s": 0.36}
    stated = [halo(ranks, **weak, workload=Workload(command="./x", work=5 * ranks)) for ranks in (2, 4)]
    unstated = [halo(ranks, **weak) for ranks in (2, 4)]
    of_two, of_four = asked(tmp_path / "stated", stated).rows("evidence")
    assert (of_four.unit, of_four.per) == ("unit", 1e6)
    assert of_four.core_hours.value == pytest.approx(1e6 * 4 * 0.36 / 3600 / 20, rel=0.02)
    findings = asked(tmp_path / "unstated", unstated, units=1000)
    of_two, of_four = findings.rows("evidence")
    assert (of_four.unit, of_four.per) == ("", 1)
    assert of_two.core_hours.value == pytest.approx(2 * 0.36 / 3600, rel=0.02)
    assert of_four.core_hours.value == pytest.approx(of_two.core_hours.value, rel=0.02), "of the same work"
    assert "for a launch of the smallest size" in said(findings)
    assert re.search(r"For 1,000 launches of the smallest size they are 0\.(2|199|201)", said(findings))


def test_the_fewest_core_hours_and_the_shortest_time_are_undecided_where_they_are(tmp_path):
    sure = asked(tmp_path / "sure", strong(launch_noise=0.002))
    assert [row.cost_answer for row in sure.rows("evidence")] == [""] + ["more"] * 4
    assert [row.time_answer for row in sure.rows("evidence")] == ["slower"] * 4 + [""]
    assert "are those of 1 rank. The same work" in said(sure)
    assert re.search(
        r"takes the shortest time at 16 ranks: \S+ ± \S+ ms a launch, a speed-up of 7", said(sure)
    )
    equal = asked(tmp_path / "equal", [halo(1, 0.8, launch_noise=0.002), halo(2, 0.4, launch_noise=0.002)])
    assert {row.cost_answer for row in equal.rows("evidence")} == {"", "equal"}
    assert re.search(r"are those of \d ranks? \(less than 5% apart from \d ranks?\)\.", said(equal))
    alone = asked(tmp_path / "alone", strong(only_repeats=(0,)))
    assert "(undecided against 2 ranks, 4 ranks, 8 ranks, 16 ranks)" in said(alone)
    assert "No larger size has an efficiency above 70.0%" in said(alone), "no interval decides nothing"


def test_interference_leaves_sizes_and_their_limit_undecided(tmp_path):
    findings = asked(tmp_path / "run", [halo(1, 0.8), halo(2, 0.4, rank_row={"steal_s": 4.0})])
    assert [row.answer for row in findings.rows("evidence")] == ["", "undecided"]
    assert "the limit is unknown, because the hypervisor took" in said(findings)


def test_a_training_has_no_evidence_unless_it_is_asked_for_and_sizes_to_compare(tmp_path):
    points = [Point(ranks=1), Point(ranks=2)]
    assert Findings(load(written(tmp_path / "run", points))).evidence.empty
    assert len(Findings(load(tmp_path / "run"), proposal=Proposal()).evidence) == 2
    assert len(Findings(load(written(tmp_path / "halo", strong()))).evidence) == 5
    for name, points in {
        "one": [Point(ranks=1)],
        "no": [Point(ranks=n, scaling="throughput") for n in (1, 2)],
    }.items():
        assert asked(tmp_path / name, points).evidence.empty


def test_what_is_not_known_of_a_machine_is_not_made_up(tmp_path):
    blas = dict.fromkeys(("blas", "blas_version", "blas_architecture", "blas_threading"))
    points = strong(rank_row={**blas, "host": None}, plan_row={"provenance": None, "nodes": None})
    folder = written(tmp_path / "run", points)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, "provenance": {}}))
    words = said(Findings(load(folder)))
    assert (
        "from 1 to 16 ranks, with 3 launches of each size. The machine is not recorded. Efficiency" in words
    )
    (folder / "run.json").write_text(json.dumps({**document, "provenance": {"machine": {"nodes": 1}}}))
    assert "from 1 to 16 ranks on 1 node, with" in said(Findings(load(folder))), "there was no other"


def test_the_figure_has_logarithmic_times_beside_ideal_ones_and_the_target(tmp_path):
    findings = asked(tmp_path / "run", strong(), target=0.6)
    with drawing.styled(STYLES["publication"]):
        time, efficiency = TOPIC.figure.draw(findings).axes
    assert (time.get_xscale(), time.get_yscale()) == ("log", "log")
    (ideal,) = [line for line in time.lines if line.get_linestyle() == "--"]
    rows = findings.rows("evidence")
    assert list(ideal.get_ydata()) == pytest.approx(
        [rows[0].step_s.value / row.ranks for row in rows], rel=0.02
    )
    assert [line.get_ydata()[0] for line in efficiency.lines if line.get_linestyle() == ":"] == [0.6]


def test_the_command_prints_the_sheet_or_writes_it_in_every_format(tmp_path, pscale):
    folder = written(tmp_path / "run", strong())
    status, printed, _ = pscale("report", str(folder), "--evidence", "--units", "500")
    assert status == 0
    pdf = folder / "figures" / "publication" / "evidence.pdf"
    assert printed.splitlines()[-1] == str(pdf)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert printed.index("We measured strong scaling of './halo 800'") < printed.index("Evidence by size")
    assert 'id="evidence"' in (folder / "report.html").read_text()
    sheet = said(Findings(load(folder), proposal=Proposal(0.6, 500)))
    options = ("report", str(folder), "--target", "0.6", "--units", "500", "--format")
    assert sheet in pscale(*options, "md")[1]
    latex = pscale(*options, "latex")[1]
    assert sheet.replace("%", r"\%").replace("±", r"$\pm$") in latex
    assert f"\\includegraphics[width=\\linewidth]{{{pdf}}}" in latex
    assert pscale(*options, "html")[1] == f"{folder}/evidence.html\n"
    page = (folder / "evidence.html").read_text()
    assert re.findall(r'<section id="(.*?)"', page) == ["evidence", "data"]
    assert 'download="evidence.csv"' in page
    assert "<svg" in page
    assert "the limit is transfer in sync" in page


def test_evidence_of_no_sizes_is_refused(tmp_path, pscale):
    folder = written(tmp_path / "run", [Point(ranks=1)])
    status, _, error = pscale("report", str(folder), "--evidence")
    assert (status, "no series has two that were measured" in error) == (2, True)
