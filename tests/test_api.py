"""pscale from Python: it loads fast, says what reports say, and runs suites."""

import asyncio
import ctypes
import io
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from noop_runs import make_suite
from patience import lives, wait_for
from synthetic import Point, write_run

import pscale
from pscale.analysis import text
from pscale.analysis.columns import SERIES
from pscale.errors import PlanError, ResultsError, SuiteError
from pscale.report.exports import csv_tables
from pscale.report.topics import cases, steps

ROOT = Path(__file__).parents[1]
WEAK = ROOT / "reports" / "gallery" / "weak"


@pytest.fixture(scope="module")
def weak():
    return pscale.load(WEAK)


def run_in(folder, name="a", **settings):
    points = [Point(ranks=ranks, noise=0.01, **settings) for ranks in (1, 2)]
    return write_run(folder / name, points, repeats=2, steps=5)


def test_importing_pscale_imports_nothing_else_and_no_mpi_when_loading(tmp_path):
    code = (
        "import sys; before = {*sys.modules}; import pscale\n"
        "new = {name for name in {*sys.modules} - before if not name.startswith('_')}\n"
        "assert new == {'pscale'}, new\n"
        f"pscale.load({str(run_in(tmp_path))!r}).cases\n"
        "assert 'mpi4py' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_names_are_completed_and_a_misspelt_one_is_an_error():
    assert {"load", "run", "Results"} <= {*dir(pscale)}
    with pytest.raises(AttributeError, match=r"no 'laod'; it has .*load"):
        _ = pscale.laod  # type: ignore[attr-defined]


def test_a_folder_of_runs_loads_the_newest_and_a_run_itself(tmp_path):
    suite = tmp_path / "reports" / "synthetic"
    for place, name in enumerate("cba"):
        os.utime(run_in(suite, name) / "run.json", (place, place))
    assert pscale.load(suite / "b").path == suite / "b"
    assert pscale.load(suite).path == suite / "a"
    assert pscale.load(reports=tmp_path / "reports").path == suite / "a"


def test_several_runs_are_one_with_a_column_that_tells_them_apart(tmp_path):
    both = pscale.load(run_in(tmp_path, "a"), run_in(tmp_path, "b"))
    assert both.cases["run"].tolist() == ["a", "a", "b", "b"]
    assert len(steps := both.records("steps")) == 2 * len(pscale.load(tmp_path / "a").records("steps"))
    assert steps["label"].nunique() == 4


def test_a_path_that_is_no_run_is_an_error_that_helps(tmp_path):
    run_in(tmp_path / "reports" / "weak")
    with pytest.raises(ResultsError, match=r"no such run.* did you mean '.*/weak'"):
        pscale.load(tmp_path / "reports" / "waek")
    (tmp_path / "empty").mkdir()
    with pytest.raises(pscale.PscaleError, match=r"no runs here; make one with pscale\.run"):
        pscale.load(tmp_path / "empty")


def test_every_table_is_that_of_the_csv_files(weak):
    for name in weak.tables:
        read = pd.read_csv(io.StringIO(csv_tables(weak.findings)[name]), dtype={"case": str})
        same = getattr(weak, name).drop(columns=[*SERIES.get(name, ())])
        assert [*same] == [*read]
        numbers = read.select_dtypes("number").dropna(axis="columns", how="all")
        assert len(same) == len(read) > 0
        written = same[[*numbers]].map(
            lambda each: " ".join(map(str, each)) if isinstance(each, tuple) else each
        )
        np.testing.assert_allclose(written.to_numpy(float), numbers.to_numpy(float), rtol=1e-12)


def test_a_table_that_does_not_exist_is_an_error_with_the_nearest_name(weak):
    with pytest.raises(AttributeError, match="no table 'phase'; did you mean 'phases'"):
        _ = weak.phase
    with pytest.raises(ResultsError, match="no records 'step'; did you mean 'steps'"):
        weak.records("step")
    assert {"cases", "phases", "crossings"} <= {*dir(weak)}


def cells(table, *names):
    shown = table
    places = [[column.name for column in shown.columns].index(name) for name in names]
    return [tuple(row[place] for place in places) for _, row in shown.texts()]


def test_efficiency_and_breakdown_are_the_tables_of_the_report_to_the_digit(weak):
    scaling = weak.cases
    (table,) = cases.tables(weak.findings)
    assert cells(table, "step", "efficiency") == [
        (text.duration(row.step_s), text.percent(row.efficiency)) for row in scaling.itertuples()
    ]
    largest = {verdict.case for verdict in weak.findings.rows("verdicts")}
    factors = weak.efficiency[weak.efficiency["case"].isin(largest)].iloc[0]
    assert factors["load_balance"] == weak.findings.of_case("efficiency")[factors["case"]].load_balance.value
    (table,) = (each for each in steps.PHASES.tables(weak.findings) if "by phase" in each.title)
    assert cells(table, "of step", "compute", "wait") == [
        (text.percent(row.share), text.duration_3(row.compute_s), text.duration_3(row.wait_s))
        for row in weak.phases.itertuples()
    ]


def test_steps_and_calls_hold_the_launches_that_ended_well_and_add_up_to_the_breakdown(tmp_path):
    points = [Point(ranks=1), Point(ranks=2, transfer_s=0.01, bad_repeats=(1,))]
    run = pscale.load(write_run(tmp_path / "run", points, repeats=3, steps=4))
    steps = run.records("steps")
    assert steps.groupby("label", observed=True)["repeat"].unique().map(list).to_list() == [[0, 1, 2], [0, 2]]
    kinds = [f"{kind}_s" for kind in ("compute", "wait", "transfer", "wait_or_transfer", "copy", "offload")]
    np.testing.assert_allclose(steps[kinds].fillna(0).sum(axis=1), steps["wall_s"])
    means = steps.groupby(["case", "phase"], observed=True)["transfer_s"].mean()
    for row in run.phases.itertuples():
        assert row.transfer_s == pytest.approx(means[row.case, row.phase])
    assert run.records("calls")["count"].sum() == 2 * 2 * 4  # launches x ranks x steps
    assert len(run.records("ranks")) == 3 * 1 + 2 * 2


def test_without_a_good_launch_cases_tell_why_and_steps_are_an_error(tmp_path):
    run = pscale.load(run_in(tmp_path, status="failed", reason="no MPI"))
    assert run.cases["reason"].tolist() == ["no MPI", "no MPI"]
    assert run.cases["step_s"].isna().all()
    assert not run.complete
    with pytest.raises(ResultsError, match="no launch succeeded"):
        run.records("steps")


def test_every_figure_is_drawn_or_says_that_there_is_nothing_to_show(weak):
    drawn, refused = [], {}
    for name in dir(weak.plot):
        try:
            figure = getattr(weak.plot, name)()
        except ResultsError as error:
            refused[name] = str(error)
        else:
            drawn.append(name)
            assert figure.axes
    assert all(f"has nothing to show in the figure '{name}'" in refused[name] for name in refused)
    assert {"scaling", "breakdown", "wait", "loss"} <= {*drawn}


def test_a_figure_has_a_style_and_shows_itself_in_notebooks(weak):
    figure = weak.plot.scaling(style="publication")
    assert figure.get_size_inches()[0] == 3.5
    assert figure._repr_svg_().startswith("<?xml")
    with pytest.raises(ResultsError, match="did you mean 'publication'"):
        weak.plot.scaling(style="publicaton")
    with pytest.raises(AttributeError, match="did you mean 'scaling'"):
        _ = weak.plot.scalling


def test_a_notebook_shows_headline_and_cases_and_no_text_of_a_suite_as_markup(tmp_path):
    folder = write_run(tmp_path / "run", [Point(ranks=1), Point(ranks=2)], title="<script>", repeats=2)
    run = pscale.load(folder)
    shown = run._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert run.headline.splitlines()[0] in shown.replace("&#x27;", "'")
    assert "2 cases, 4 launches" in repr(run)
    shown = pscale.load(write_run(tmp_path / "empty", [], title="empty"))._repr_html_()
    assert "<h4>empty</h4>" in shown
    assert "<table" not in shown


def test_losses_are_numbers_by_case_and_step(tmp_path):
    points = [Point(ranks=1, losses=(3.0, math.nan)), Point(ranks=2), Point(ranks=4, losses=(2.0,))]
    losses = pscale.load(write_run(tmp_path / "run", points, repeats=1)).loss
    assert losses["step"].tolist() == [0, 1, 0]
    assert losses["loss"].fillna(-1.0).tolist() == [3.0, -1.0, 2.0]
    assert losses["loss"].dtype == "float64"
    assert losses.index.tolist() == [0, 1, 2]


def test_a_suite_runs_from_a_file_with_settings_and_is_loaded(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_suite(tmp_path)
    run = pscale.run("noop.yaml", set={"sweep": {"train.seed": [4, 5]}, "model.width": 64}, quiet=True)
    assert run.cases["seed"].tolist() == [4, 5]
    assert run.complete
    assert run.path.parent == tmp_path / "reports" / "noop"
    assert capfd.readouterr() == ("", "")
    assert pscale.run("noop.yaml", quiet=True, only="seed == 2").cases["seed"].tolist() == [2]


def test_a_suite_may_be_a_dictionary_whose_errors_name_fields_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_suite(tmp_path)
    suite = {"name": "mine", "extends": "noop.yaml", "sweep": {"train.seed": [7]}}
    assert pscale.run(suite, quiet=True).cases["seed"].tolist() == [7]
    with pytest.raises(SuiteError) as error:
        pscale.run({**suite, "modle": {}})
    assert str(error.value) == "modle: a suite has no such field; did you mean 'model'?"
    with pytest.raises(PlanError, match=r"^2 ranks: the plan needs 3 ranks"):
        pscale.run({**suite, "ranks": 2, "plan": {"dp": 3}})


def test_numbers_of_numpy_and_paths_are_values_of_a_suite_too_whose_run_is_not_continued(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make_suite(tmp_path)
    suite = {"name": "mine", "extends": Path("noop.yaml"), "sweep": {"train.seed": [*np.arange(2)]}}
    first, second = (pscale.run(suite, set={"train.batch": np.int64(6)}, quiet=True) for _ in range(2))
    assert first.cases[["seed", "batch"]].to_numpy().tolist() == [[0, 6], [1, 6]]
    assert first.path != second.path, "it was returned"


def subreaper():
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
    return value.value


def test_a_run_in_a_thread_beside_an_event_loop_leaves_the_callers_processes_and_signals_alone(
    tmp_path, monkeypatch, capsys
):
    make_suite(tmp_path)
    launcher = tmp_path / "mpiexec"
    script = launcher.read_text()
    launcher.write_text(script.replace("for folder", f"touch {tmp_path}/started\nfor folder", 1))
    monkeypatch.chdir(tmp_path)

    def state():
        signals = [signal.getsignal(number) for number in signal.valid_signals()]
        return signals, subreaper(), Path.cwd(), dict(os.environ)

    before = state()
    others = []

    def start_others():
        wait_for((tmp_path / "started").exists)
        for apart in (False, True):
            others.append(subprocess.Popen(["sleep", "100000"], start_new_session=apart))
            others.append(subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=apart))

    async def notebook():
        starts = asyncio.create_task(asyncio.to_thread(start_others))
        run = await asyncio.to_thread(pscale.run, "noop.yaml", only="seed == 2")
        await starts
        assert pscale.run("noop.yaml", only="seed == 1", quiet=True).complete  # as a cell of a notebook does
        return run

    try:
        assert asyncio.run(notebook()).complete
        assert "1/1" in capsys.readouterr().err
        assert [each.poll() for each in others[::2]] == [None, None]
        assert [each.wait() for each in others[1::2]] == [7, 7]
        assert state() == before
    finally:
        for each in others:
            each.kill()
            each.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_interrupted_or_killed_leaves_no_process_and_the_same_call_continues(
    tmp_path, number, monkeypatch
):
    make_suite(tmp_path)
    script = (tmp_path / "mpiexec").read_text()
    waits = 'for folder; do :; done; setsid sleep 100000 & echo $! > "$folder/../rank"; wait\n'
    (tmp_path / "mpiexec").write_text(script.replace("for folder", waits + "for folder", 1))
    monkeypatch.chdir(tmp_path)
    code = "import pscale; pscale.run('noop.yaml', quiet=True, only='seed == 2')"
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    rank = wait_for(lambda: next((p for p in tmp_path.rglob("rank") if p.read_text().endswith("\n")), None))
    caller.send_signal(number)
    assert caller.wait() == -number
    wait_for(lambda: not lives(int(rank.read_text())))
    (tmp_path / "mpiexec").write_text(script)
    run = pscale.run("noop.yaml", quiet=True, only="seed == 2")
    assert run.complete
    assert rank.is_relative_to(run.path)
