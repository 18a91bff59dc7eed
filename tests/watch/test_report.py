"""A program under `pscale watch` is reported like a run of a suite."""

import os

import pytest
from recordings import Made, record_of, recorded

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.cli.watch import case_of, prepared, write
from pscale.config import Launch
from pscale.launch.outcome import Outcome
from pscale.launch.target import find_target
from pscale.report.markup import render_markdown
from pscale.report.topics import TOPICS, efficiency_tree

STEPS = 20


def rank(late):
    """Return calls in two phases, the second with a name of several words, in which rank 1 is late."""
    made = []
    for at in range(10, 10 + 1000 * STEPS, 1000):
        made += [
            Made("Pcontrol", at, at, comm=0, peer=1),
            Made("Pcontrol", at, at, comm=0, peer=1000),
            Made("Bcast", at + 100 + late, at + 400, peer=0, bytes=8),
            Made("Pcontrol", at + 400, at + 400, comm=0, peer=1001),
            Made("Scan", at + 500, at + 501),
            Made("Allreduce", at + 600 + late, at + 700, bytes=80),
        ]
    return made


@pytest.fixture
def summary(tmp_path):
    record = recorded(rank(0), rank(50), over=1000 * STEPS + 10)
    for facts in record.facts:
        facts.phases |= {1000: "halo", 1001: "forward 2 of two"}
    job = prepared(case_of("heat", 2), ["heat"], tmp_path, find_target(Launch(), os.environ, submits=False))
    outcome = Outcome(status="failed", reason="exit code 3", wall_s=1.0, exit_code=3, started_unix_s=0.0)
    write(job, record, outcome)
    return Findings(load(job.journal.folder))


def test_a_large_file_that_a_command_names_is_known_by_its_size(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    words, target = ["heat", str(tmp_path / "large")], find_target(Launch(), os.environ, submits=False)
    job = prepared(case_of("heat", 2), words, tmp_path, target)
    program = job.journal.document["provenance"]["program"]
    assert program["sha256 of large"].startswith("not hashed: 1099511627776 bytes, changed at ")


def test_the_report_of_a_program_says_what_a_step_takes_and_nothing_of_training(summary):
    text = render_markdown(summary)
    assert "At 2 ranks a step takes 1 ms" in text
    assert "samples/s" not in summary.headlines[0].text
    assert "The program failed: exit code 3" in text
    assert "Steps: as the program marks them" in text
    assert {"halo", "forward 2 of two", "program"} >= {time.phase for time in summary.rows("phases")}
    assert "train." not in text


def test_of_many_communicators_the_worst_come_first_and_those_with_next_to_nothing_are_one_line(summary):
    left = {"world": 0.7, "split": 0.999, "self": 1.0, "cart": 0.6, "dup": 0.9951}
    case = summary.rows("cases")[0].case
    trees = [
        row("axes", case=case, axis=axis, parallel=share, serialisation=1.0, transfer=share)
        for axis, share in left.items()
    ]
    (table,) = [
        table
        for table in efficiency_tree.tables(summary.replaced(axes=trees))
        if table.title == "Efficiency by axis"
    ]
    assert [values[1:3] for _, values in table.rows] == [("cart", 0.6), ("world", 0.7), ("3 others", 0.9951)]
    assert "others: the least of those with at least 99.5%" in table.caption


def test_every_figure_of_a_program_can_be_drawn(summary):
    drawn = [topic.name for topic in TOPICS if topic.figure and topic.figure.draw(summary)]
    assert {"phases", "pipeline", "communication"} <= set(drawn)


def test_a_run_that_is_read_again_means_its_only_record_inside_its_folder(pscale, tmp_path):
    runs = {name: tmp_path / "reports" / "heat" / name for name in ("one", "none", "two", "linked")}
    for run in runs.values():
        (run / "cases" / "a-0").mkdir(parents=True)
        (run / "run.json").write_text("{}")
    record_of(runs["one"] / "cases" / "a-0" / "notes")
    (runs["linked"] / "cases" / "a-0" / "notes").symlink_to(runs["one"] / "cases" / "a-0" / "notes")
    for case in ("a-0", "b-0"):
        (runs["two"] / "cases" / case).mkdir(exist_ok=True)
        record_of(runs["two"] / "cases" / case / "notes")

    def answer(word):
        code, _, said = pscale("watch", "--read", word, "--no-report", "--reports", "reports")
        return code, said

    for word in ("one", "reports/heat/one", "reports/heat/one/cases/a-0/notes"):
        code, said = answer(word)
        assert (code, "report it with" in said) == (0, True), said
    for word, why in {
        "none": "has no record of calls; runs of a suite with `workload.watch: true` do",
        "linked": "has no record of calls",
        "two": f"records of 2 launches; read that of one: pscale watch --read {runs['two']}/cases/a-0/notes",
        "heta": "did you mean 'heat'?",
        "reports/heat/two/cases": "nothing was recorded",
    }.items():
        code, said = answer(word)
        assert code == 5
        assert why in said
