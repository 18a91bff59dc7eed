"""The command line as a person meets it: what it prints, and with which exit code it ends."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.launch import doctor, launcher, machine
from pscale.launch.doctor import Speed

SUITES = Path(__file__).parents[2] / "suites"


@pytest.fixture
def on(monkeypatch):
    """Pretend that this machine has a number of cores."""

    def cores(count):
        here = machine.Machine(
            host="node",
            cpu_model="CPU",
            core_cpus=tuple((cpu,) for cpu in range(count)),
            memory_bytes=8 << 30,
        )
        monkeypatch.setattr(machine, "inspect", lambda: here)

    return cores


def test_show_prints_every_case_with_its_cost_and_starts_nothing(pscale, on, tmp_path):
    on(4)
    code, out, _ = pscale("show", SUITES / "weak.yaml")
    assert code == 0
    assert all(label in out for label in ("1 rank", "2 ranks", "4 ranks", "3,356,160"))
    assert "8 ranks" not in out
    assert list(tmp_path.iterdir()) == []


def test_show_writes_a_plan_as_the_product_of_its_degrees(pscale, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    _, out, _ = pscale("show", SUITES / "3d.yaml", "--only", "tp <= 2 and pp <= 2")
    assert all(plan in out for plan in ("dp 8", "dp 4 × tp 2", "dp 4 × pp 2", "dp 2 × tp 2 × pp 2"))


MANY = """
name: many
scaling: weak
launch: {oversubscribe: true}
sweep:
  ranks: [1, 2]
  threads: [1, 2]
  reduction: [bucketed, gather-broadcast]
  loading: [memory, mpi-io]
"""


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(140, set()), (120, {"id"}), (80, {"id", "plan"}), (60, {"id", "plan", "parameters"})],
)
def test_show_leaves_out_columns_before_it_breaks_words(pscale, tmp_path, monkeypatch, columns, left_out):
    monkeypatch.setenv("COLUMNS", str(columns))
    (tmp_path / "many.yaml").write_text(MANY)
    _, out, _ = pscale("show", "many.yaml")
    title, _, heading, *_ = out.splitlines()
    assert title.split() == ["many", "many.yaml"], "the name, as there is no title"
    names = {"id", "case", "plan", "batch", "parameters", "GFLOP", "calls", "sent", "memory"}
    assert set(heading.split()) == names - left_out
    assert "gather-broadcast" in out
    assert ("2 ranks · 2 threads · gather-broadcast · memory" in out) is (columns > 80)
    assert "…" not in out


def test_labels_break_between_their_parts_alone(pscale, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = pscale("show", SUITES / "pipeline.yaml", "--memory")
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("micro_batches ") == out.count("micro_batches") == 2 * 12
    assert any(line.strip() == "micro_batches 16" for line in out.splitlines())
    assert any(line.startswith("interleaved ·  ") for line in out.splitlines())


def test_the_memory_of_a_narrow_terminal_names_its_cases(pscale, tmp_path, monkeypatch):
    (tmp_path / "many.yaml").write_text(MANY)
    pages = {}
    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        page = pscale("show", "many.yaml", "--memory")[1]
        pages[columns] = page.partition("Memory of the fullest rank")[2]
        assert "gather-broadcast" in pages[columns]
        assert "…" not in pages[columns]
        assert max(map(len, pages[columns].splitlines())) <= columns
    assert "exchange" in pages[140]
    assert "exchange" not in pages[80]


def test_status_tells_how_many_launches_have_ended_also_without_jobs(pscale):
    _, out, _ = pscale("status", SUITES.parent / "reports" / "gallery" / "weak")
    assert "launches have ended: 6 ok\n" in out
    _, out, _ = pscale("status", SUITES.parent / "reports" / "gallery" / "endings")
    said = " ".join(out.split())
    assert (
        "8 of 8 launches have ended: 4 ok, 2 invalid, 2 over their time limit why launches failed: " in said
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    points = [Point(ranks=ranks, transfer_s=0.01 * (ranks > 1), losses=[2.0, 1.0]) for ranks in (1, 2)]
    return write_run(tmp_path_factory.mktemp("measured") / "run", points, steps=4)


def test_a_report_is_drawn_with_characters_where_it_is_asked_for(pscale, measured, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, plain, _ = pscale("report", measured, "--no-figures")
    _, drawn, _ = pscale("report", measured, "--no-figures", "--plot")
    bars = "Efficiency (shaded: 95% interval)"
    assert bars in drawn
    assert "█ compute" in drawn
    assert bars not in plain
    assert "\x1b" not in drawn, "it is not a terminal"


def test_a_report_gives_a_paper_its_tables_and_figures(pscale, measured):
    code, out, _ = pscale("report", measured, "--format", "latex")
    assert code == 0
    assert out.count(r"\begin{tabular}") == out.count(r"\bottomrule") > 2
    code, out, _ = pscale("report", measured, "--style", "publication", "--figure-format", "svg")
    written = [Path(line) for line in out.splitlines() if line.endswith(".svg")]
    assert code == 0
    assert {path.parent for path in written} == {measured / "figures" / "publication"}
    assert 'width="252' in written[0].read_text(), "3.5 inches of 72 points"


def test_show_as_json_agrees_with_the_formulas_of_data_parallelism(pscale, on):
    on(2)
    code, out, _ = pscale("show", SUITES / "weak.yaml", "--json", "--set", "plan.reduction=all-reduce")
    serial, parallel = json.loads(out)["cases"]
    parameters = 4 * (12 * 256**2 + 13 * 256) + 2 * 256 * 256 + 256 * 256 + 2 * 256
    assert code == 0
    assert serial["predicted"]["sent_bytes"] == 0
    assert parallel["predicted"]["sent_bytes"] == 4 * parameters
    assert parallel["predicted"]["memory_bytes"]["optimizer"] == 2 * 4 * parameters


def test_only_and_set_choose_and_change_cases(pscale, on):
    on(8)
    _, out, _ = pscale(
        "show", SUITES / "weak.yaml", "--json", "--only", "ranks == 4", "--set", "model.width=64"
    )
    (case,) = json.loads(out)["cases"]
    assert (case["ranks"], case["model"]["width"]) == (4, 64)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "no such.yaml"], 2, ["no such.yaml"]),
        (["show", SUITES / "weak.yaml", "--set", "model.widht=3"], 2, ["widht", "width"]),
        (
            ["show", SUITES / "weak.yaml", "--set", "sweep.ranks=[3]", "--set", "exclude=[]"],
            3,
            ["ranks 3", "cores"],
        ),
        (
            ["show", SUITES / "strong.yaml", "--set", "train.batch=7", "--only", "ranks==2"],
            3,
            ["batch 7", "6 or 8"],
        ),
        (["run", SUITES / "quick.yaml", "--set", "launch.launcher=/no/mpiexec"], 4, ["/no/mpiexec"]),
        (["report", "--reports", "empty"], 5, ["empty", "pscale run"]),
        (["report", "nowhere"], 5, ["nowhere"]),
        (["check", "nowhere"], 5, ["nowhere"]),
        (["frobnicate"], 2, ["frobnicate"]),
    ],
    ids=lambda value: " ".join(map(str, value[:1])) if isinstance(value, list) else "",
)
def test_a_mistake_ends_in_a_message_and_the_exit_code_of_its_kind(pscale, on, arguments, code, words):
    on(2)
    ended, _, err = pscale(*arguments)
    assert ended == code, err
    assert all(word in err for word in words), err
    assert "Traceback" not in err


VANISHING = """#!/bin/sh
rm "$0"
echo "HYDRA build details: Version: 0"
"""


@pytest.mark.parametrize(("option", "helps"), [("--size", True), ("-nx", False), ("--bind=none", False)])
def test_only_an_option_that_watch_does_not_know_may_be_one_of_the_program(pscale, option, helps):
    code, _, error = pscale("watch", option)
    assert code == 2
    assert ("options of the program follow its name" in error) is helps


def test_a_launcher_that_is_gone_is_told_below_the_time_that_was_expected(pscale, on, tmp_path):
    on(2)
    launcher.identify.cache_clear()
    (tmp_path / "mpiexec").write_text(VANISHING)
    (tmp_path / "mpiexec").chmod(0o755)
    code, _, err = pscale("run", SUITES / "linear.yaml", "--set", "launch.launcher=./mpiexec")
    assert code == 4
    *_, expected, told = err.splitlines()  # before them what other work keeps CPUs busy, if it does
    assert expected.startswith("linear: about ")
    assert told.startswith(f"pscale: cannot start {tmp_path / 'mpiexec'}")


def test_debug_shows_where_an_error_came_from():
    done = subprocess.run(
        [sys.executable, "-m", "pscale", "--debug", "report", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in done.stderr
    assert "ResultsError" in done.stderr


def test_schema_is_the_one_that_is_shipped(pscale):
    code, out, _ = pscale("schema")
    assert code == 0
    assert json.loads(out) == json.loads((SUITES / "suite.schema.json").read_text()), "make manual"


def test_show_draws_what_the_stages_of_a_pipeline_do(pscale, on):
    on(4)
    plan = ("--set", "plan.pp=2", "--set", "plan.dp=1", "--set", "train.micro_batches=2")
    code, out, _ = pscale("show", SUITES / "weak.yaml", "--schedule", "--only", "ranks == 2", *plan)
    assert code == 0
    assert "1f1b, bubble 50.0%" in out
    assert out.count("stage 0  F0 F1 ·  ·  B0 ── ·  B1 ──\nstage 1  ·  F0 B0 ── F1 B1 ── ·  ·") == 1
    assert "No case has more than one pipeline stage" in pscale("show", SUITES / "weak.yaml", "--schedule")[1]


def test_show_draws_schedules_into_a_file_of_the_kind_that_its_name_says(pscale, on, tmp_path):
    on(4)
    suite, file = SUITES / "pipeline.yaml", tmp_path / "new" / "schedules.svg"
    code, _, _ = pscale("show", suite, "--only", "micro_batches == 4", "--figure", file)
    assert code == 0
    assert "zero-bubble · micro_batches 4, bubble 25.0% of the work" in file.read_text()
    again = tmp_path / "again.svg"
    pscale("show", suite, "--only", "micro_batches == 4", "--figure", again)
    assert again.read_bytes() == file.read_bytes()
    code, _, err = pscale("show", suite, "--figure", tmp_path / "schedules.gif")
    assert code == 2
    assert ".svg, .png, .pdf" in err
    code, _, err = pscale("show", SUITES / "weak.yaml", "--figure", again)
    assert code == 2
    assert "more than one pipeline stage" in err


def test_the_picture_of_schedules_that_is_shipped_is_that_of_the_code(pscale, on, tmp_path):
    on(4)
    drawn = tmp_path / "schedules.svg"
    pscale("show", SUITES / "pipeline.yaml", "--only", "micro_batches == 4", "--figure", drawn)
    titles = re.compile(r"<!-- (.*) -->")
    shipped = (SUITES.parent / "docs" / "schedules.svg").read_text()
    assert titles.findall(drawn.read_text()) == titles.findall(shipped), "draw it again, as docs/tour.md says"


def test_ctrl_c_while_the_command_line_is_loaded_leaves_no_traceback():
    program = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "pscale.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from pscale.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_library_that_fails_is_ranked_with_its_reason_below_its_path(pscale, monkeypatch):
    speeds = {"gflops": 9.0, "gflops_all": 8.0}
    good = Speed(
        choice="numpy", auto=True, name="openblas 0.3", kernels="Zen", threading="pthreads", **speeds
    )
    bad = replace(
        good,
        choice=f"/opt/{20 * 'x'}/libmkl_rt.so",
        auto=False,
        name="",
        error="not measured: 19 s were over",
    )
    monkeypatch.setattr(doctor, "ranking", lambda _: [good, bad])
    code, out, _ = pscale("doctor", "--blas")
    assert code == 0
    assert all(text in out for text in ("openblas 0.3 = auto", "pthreads", bad.choice, bad.error))
