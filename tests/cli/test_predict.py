"""`pscale predict` from end to end, on a run that is shipped."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.text import rate
from pscale.cli import predict as predict_module
from pscale.cli.options import Predict
from pscale.cli.predict import by_parts, predict
from pscale.config import Case, Model, Train
from pscale.errors import PlanError, ResultsError, SuiteError, UsageError
from pscale.launch import machine
from pscale.predict import simgrid
from pscale.predict.profile import Profile
from pscale.predict.simgrid import SimGridError
from pscale.predict.step_program import Segment, step_program
from pscale.runs import predictions
from pscale.runs.run_folders import prediction_file
from pscale.suite.load import Override
from pscale.suite.network import load_data_sheet

ROOT = Path(__file__).parents[2]
RUN = ROOT / "reports" / "gallery" / "pipeline"
SUITE = """
name: later
scaling: throughput
ranks: 2
model: {kind: gpt, layers: 8, width: 64, heads: 4, sequence: 128, vocabulary: 256}
data: {kind: synthetic}
train: {batch: "=8 * ranks", micro_batches: 4, steps: 5}
plan: {pp: 2, dp: rest}
launch: {oversubscribe: true}
"""


def asked(suite, reports, **given):
    known = {"profiled": RUN, "any_machine": True, "draws": 20, **given}
    return Predict(suite=suite, reports=reports, **known)


@pytest.fixture
def predicted(tmp_path, capsys):
    """What predicts a suite, and returns what is printed, or the document of its JSON."""

    def call(text=SUITE, **given):
        (tmp_path / "later.yaml").write_text(text)
        predict(asked(tmp_path / "later.yaml", tmp_path, **given))
        out = capsys.readouterr().out
        return json.loads(out) if given.get("as_json") else out

    return call


def test_a_prediction_prints_records_and_draws(predicted, tmp_path):
    said = " ".join(predicted(ranks="8", tokens="1B", price=2.0).split())
    for words in (
        "Predicted steps",
        "8*",
        "* no interval: no prediction for more than 2 ranks was checked",
        "Training on 1 billion tokens",
        "at 2 per rank",
    ):
        assert words in said
    assert re.search(r"are off by \d\.\d% on average", said)
    page = (tmp_path / "later.prediction.html").read_text()
    for words in ("Accuracy", "One step of some ranks", "Predicted steps", "First bottleneck", "<svg"):
        assert words in page
    (kept,) = predictions.read(tmp_path / "later")
    assert kept.ranks == 8
    assert kept.low_s < kept.step_s < kept.high_s
    assert sum(kept.losses_s.values()) == pytest.approx(kept.step_s)
    hours = kept.step_s * 1e9 / (64 * 128) / 3600  # sequences of 128 tokens, 8 a rank
    assert f"{hours:.3g} h {rate(8 * 2.0 * hours)}" in said


WEAK = SUITE.replace("throughput", "weak").replace('"=8 * ranks"', "8")


def test_the_factors_multiply_to_overall_and_that_is_the_efficiency_times_what_the_base_keeps(predicted):
    document = predicted(WEAK, ranks="4,64", as_json=True)
    base, large = document["cases"]
    assert document["base"] == base["label"]
    for case in (base, large):
        overall, *factors = case["factors"].values()
        assert math.prod(factors) == pytest.approx(overall)
        kept = base["losses_s"]["compute"] / base["step_s"]["value"]
        assert overall == pytest.approx(case["efficiency"]["value"] * kept)


def test_an_efficiency_refers_to_fewer_ranks_of_the_same_work_or_there_is_none(predicted):
    text = f"{WEAK}sweep: {{batch: [8, 64], ranks: [4, 16]}}\n".replace("ranks: 2\n", "", 1)
    cases = predicted(text, as_json=True)["cases"]
    by_work = {case["label"]: case for case in cases}
    for case in cases:
        base = by_work[case["base"]]
        assert base["label"].replace("4 ranks", "16 ranks") == case["label"] or base is case
        rate = base["step_s"]["value"] / case["step_s"]["value"]
        assert case["efficiency"]["value"] == pytest.approx(rate)
    document = predicted(text, only="batch == 64 and ranks == 16", as_json=True)
    assert document["cases"][0]["efficiency"] is None
    assert any("no other size of this work" in each for each in document["trust"])


def test_beyond_the_ranks_that_were_checked_nothing_has_an_interval(predicted):
    checked, beyond = predicted(WEAK, ranks="2,64", as_json=True)["cases"]
    for name in ("step_s", "efficiency"):
        assert checked[name]["low"] < checked[name]["value"] < checked[name]["high"]
        assert beyond[name]["value"] > 0
        assert (beyond[name]["low"], beyond[name]["high"]) == (None, None)
    assert (checked["unchecked_beyond_ranks"], beyond["unchecked_beyond_ranks"]) == (None, 2)
    said = predicted(WEAK, ranks="2,64", tokens="1B", price=2.0)
    lines = [line for line in said.splitlines() if "64 ranks" in line and "*" in line]
    assert len(lines) == 3  # steps, efficiency and training
    assert not any(" to " in line or "[" in line for line in lines)


def test_no_number_of_a_table_is_cropped_at_80_columns(predicted, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plans = "sweep: {ranks: [4, 262144], reduction: [bucketed, all-reduce], clip: [1.0, 2.0]}\n"
    tables = predicted(WEAK.replace("ranks: 2\n", "") + plans, draws=2).partition("Notes")[0]
    assert "…" not in tables
    rows = [line.split() for line in tables.partition("Efficiency by size")[2].splitlines()]
    sizes = [row for row in rows if "262,144*" in row]
    assert len(sizes) == 4
    assert all(cell.endswith("%") for row in sizes for cell in row[row.index("262,144*") + 1 :])


def test_a_number_type_and_threads_that_were_not_traced_are_noted(predicted):
    (case,) = predicted(f"{SUITE}precision: bf16\nthreads: 3\n", ranks="2", as_json=True)["cases"]
    assert (case["ranks"], len(case["draws_s"])) == (2, 20)
    assert any(note.startswith("bf16 was not traced, only float32") for note in case["notes"])
    assert any(note.startswith("ranks of 3 threads were not traced, only of 1") for note in case["notes"])


def test_sizes_that_a_throughput_run_is_asked_for_are_refused_with_the_reason():
    run = load(RUN)
    findings = by_parts(run, Findings(run, predict=[8]), [8])
    (model,) = findings.rows("models")
    assert list(model.asked) == [8]
    assert "compares no sizes" in model.refusal


def test_what_was_recorded_before_stays_and_what_was_changed_does_not_count(predicted, tmp_path):
    for _ in range(2):
        predicted()
    file = prediction_file(tmp_path / "later")
    document = json.loads(file.read_text())
    assert len(document["predictions"]) == 2
    document["predictions"][0]["step_s"] *= 2
    file.write_text(json.dumps(document))
    assert len(predictions.read(tmp_path / "later")) == 1


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"ranks": "8;9"}, UsageError, r"--ranks '8;9': expected numbers"),
        ({"tokens": "many"}, UsageError, r"--tokens 'many': expected how many"),
        ({"price": 1.0}, UsageError, r"--price .* on --tokens; add them"),
        ({"network": Path("none.yaml")}, SuiteError, r"none.yaml: does not exist"),
    ],
)
def test_what_cannot_be_is_refused(predicted, tmp_path, given, error, message):
    with pytest.raises(error, match=message):
        predicted(**given)
    assert not list(tmp_path.glob("later*/*"))
    assert not list(tmp_path.glob("*.prediction.*"))


@pytest.fixture
def network(tmp_path):
    file = tmp_path / "network.yaml"
    file.write_text("tiers: [{name: node, ranks: 8, latency: 1us, bandwidth: 10GB/s}]")
    return file


@pytest.mark.slow
def test_simgrid_predicts_what_the_vector_engine_does_where_nothing_is_shared(predicted, network):
    if not simgrid.is_there():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(simgrid.MISSING)
    step_s = {}
    for engine in ("vector", "simgrid"):
        (case,) = predicted(network=network, engine=engine, as_json=True)["cases"]
        step_s[engine] = case["step_s"]["value"]
        assert sum(case["losses_s"].values()) == pytest.approx(step_s[engine])
    assert step_s["simgrid"] == pytest.approx(step_s["vector"], rel=0.15)
    assert any("SimGrid" in note for note in case["notes"])


def test_simgrid_needs_a_network_and_to_be_there(predicted, network, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="add --network FILE"):
        predicted(engine="simgrid")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SimGridError, match="apt install libsimgrid-dev"):
        predicted(engine="simgrid", network=network)


def test_a_network_without_a_tier_for_all_ranks_is_refused_and_nothing_is_written(
    predicted, network, tmp_path
):
    said = r"network.yaml: tiers: the last, node, holds 8 ranks.*add a tier of at least 64 ranks"
    with pytest.raises(PlanError, match=said):
        predicted(network=network, ranks="64")
    assert not list(tmp_path.glob("later*/*"))
    assert not list(tmp_path.glob("*.prediction.*"))


def test_a_run_keeps_what_its_machine_took_for_small_models(tmp_path, monkeypatch):
    run = load(shutil.copytree(RUN, tmp_path / "run"))
    here, measured = SimpleNamespace(cpu_model=run.machine["cpu_model"], host=""), []
    monkeypatch.setattr(
        predict_module, "calibrate", lambda cases, _: measured.append(1) or [{"forward": 0.5}] * len(cases)
    )
    made = predict_module.profile_of(run, None, here, anywhere=False)
    assert {each.seconds for each in made.calibration} == {0.5}
    for anywhere in (False, True):
        assert predict_module.profile_of(run, None, here, anywhere=anywhere).calibration == made.calibration
    assert measured == [1]
    (run.path / "calibration.json").write_text('{"cases": [{}], "phases_s": 1}')
    assert Profile.of_run(run).calibration == ()


def test_a_run_of_another_machine_is_refused_unless_it_is_meant(predicted, monkeypatch):
    other = replace(machine.inspect(), cpu_model="another")
    monkeypatch.setattr(machine, "inspect", lambda: other)
    with pytest.raises(ResultsError, match=r"run.json: provenance.machine.cpu_model: .*--any-machine"):
        predicted(any_machine=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"probe": None}, r"--from RUN .*--on FILE .*--probe 30s"),
        ({"probe": "30s"}, r"2 ranks that exchange data: say .*--from RUN.*--bare RUN.*--network FILE"),
        ({"probe": "soon", "ranks": "1"}, r"--probe: expected a time such as .*'soon'"),
        ({"probe": "0s", "ranks": "1"}, r"--probe 0s: expected a time up to a day"),
        ({"probe": "30s", "any_machine": True}, r"--any-machine predicts for another: give one of them"),
        ({"probe": "30s", "ranks": "1", "set": "ghost.gflops=1"}, r"ghosts only sleep"),
    ],
    ids=["nothing", "no network", "no time", "no seconds", "elsewhere", "ghosts"],
)
def test_a_probe_without_what_it_needs_says_what_to_give(given, said, predicted):
    changed = [Override(text, "--set") for text in [given.pop("set", ""), "plan.pp=1"] if text]
    with pytest.raises(UsageError, match=said):
        predicted(**{"profiled": None, "any_machine": False, "overrides": changed, **given})


ALONE = SUITE.replace("ranks: 2\n", "ranks: 1\n").replace("pp: 2, ", "")
SHEET = """name: a card
peak: {float32: 1TFLOP/s}
products: 50%
memory: 1GB
bandwidth: inf
price: 3
network: {tiers: [{name: node, ranks: 8, latency: 2us, bandwidth: 1GB/s}]}
"""


@pytest.fixture
def by_sheet(predicted, tmp_path):
    """What predicts on a machine by its data sheet, and returns what is printed, or the cases as JSON."""

    def call(suite_text=ALONE, sheet=SHEET, **given):
        (tmp_path / "sheet.yaml").write_text(sheet)
        common = {"profiled": None, "any_machine": False, "sheet": tmp_path / "sheet.yaml"}
        said = predicted(suite_text, **{**common, **given})
        return said["cases"] if given.get("as_json") else " ".join(said.split())

    return call


def computed(ranks=1):
    """Return the FLOPs and bytes of the kernels of the suite's one rank."""
    model = Model(kind="gpt", layers=8, width=64, heads=4, sequence=128, vocabulary=256)
    case = Case(suite="", label="", model=model, train=Train(batch=8, micro_batches=4), ranks=ranks)
    (block,) = step_program(case).blocks
    works = [each for part in block.step if isinstance(part, Segment) for each in part.operations]
    return sum(each.flops for each in works), sum(each.bytes for each in works)


def test_by_data_sheet_a_step_takes_its_flops_at_the_rate_of_products_or_its_bytes_at_the_bandwidth(by_sheet):
    flops, moved_bytes = computed()
    (case,) = by_sheet(as_json=True)
    assert case["step_s"]["value"] == pytest.approx(flops / 0.5e12)
    slow = SHEET.replace("1TFLOP/s", "999EFLOP/s").replace("bandwidth: inf", "bandwidth: 2GB/s")
    (case,) = by_sheet(sheet=slow, as_json=True)
    assert case["step_s"]["value"] == pytest.approx(moved_bytes / 2e9)


def test_a_rank_has_the_share_of_a_node_that_its_threads_are_of_the_cores(by_sheet):
    flops, _ = computed()
    (case,) = by_sheet(sheet=SHEET + "cores: 4\n", as_json=True)
    assert case["step_s"]["value"] == pytest.approx(flops / (0.5e12 / 4))
    hours = flops / (0.5e12 / 4) * 1e9 / (8 * 128) / 3600
    assert f"{hours:.3g} h {rate(hours * 3 / 4)}" in by_sheet(sheet=SHEET + "cores: 4\n", tokens="1B")


def test_calls_take_the_prices_of_the_sheets_network_or_of_another(by_sheet, tmp_path):
    two = SUITE.replace("pp: 2, dp: rest", "dp: rest, reduction: all-reduce")
    (case,) = by_sheet(two, as_json=True)
    transfer_s = case["losses_s"]["transfer"]
    (tmp_path / "fast.yaml").write_text("tiers: [{name: all, ranks: 8, latency: 1us, bandwidth: 2GB/s}]")
    (case,) = by_sheet(two, network=tmp_path / "fast.yaml", as_json=True)
    assert case["losses_s"]["transfer"] == pytest.approx(transfer_s / 2)


def test_every_sentence_says_that_nothing_was_measured_and_no_interval_is_stated(by_sheet, tmp_path):
    said = by_sheet(tokens="1B")
    for words in (
        "predicted from the data sheet",
        "(a card)",
        "Predicted steps by data sheet",
        "* no interval: by data sheet, nothing was measured",
        "Training on 1 billion tokens by data sheet",
        "cost at 3 per rank-hour",
        "by data sheet, nothing was measured: a kernel takes as long as its FLOPs at 50% of 1 TFLOP/s",
        "By data sheet: no time of a card was measured, and no interval is known.",
    ):
        assert words in said
    assert "needs" not in said
    (case,) = by_sheet(as_json=True)
    assert (case["step_s"]["low"], case["step_s"]["high"], case["unchecked_beyond_ranks"]) == (None, None, 0)
    page = (tmp_path / "later.prediction.html").read_text()
    assert "No bottleneck by data sheet" in page
    assert predictions.read(tmp_path / "later") == []  # no run of this machine is held to it


def test_a_model_that_no_machine_holds_is_predicted_without_its_memory_and_says_so(by_sheet):
    seventy = SUITE.replace("layers: 8, width: 64, heads: 4", "layers: 80, width: 8192, heads: 64")
    seventy = seventy.replace("ranks: 2\n", "ranks: 1\n").replace("pp: 2, ", "").replace("rest", "1")
    seventy = seventy.replace("micro_batches: 4", "micro_batches: 1")
    said = by_sheet(seventy)
    assert re.search(r"a rank needs [0-9.e+]+ GiB of memory and has 954 MiB: so this cannot run", said)


@pytest.mark.parametrize(
    ("sheet", "given", "said"),
    [
        (
            SHEET.replace("float32", "flaot32"),
            {},
            "sheet.yaml:2: peak.flaot32: 'peak' has no such field; did you",
        ),
        (
            SHEET.replace("{float32: 1TFLOP/s}", "{}"),
            {},
            "sheet.yaml:2: peak: expected FLOP/s by number type",
        ),
        (
            SHEET.replace("1TFLOP/s", "1GB/s"),
            {},
            "sheet.yaml:2: peak.float32: expected a rate such as 312TFLOP/s",
        ),
        (SHEET.replace("50%", "150%"), {}, "sheet.yaml:3: products: expected at most 1"),
        (SHEET.replace("bandwidth: inf", "bandwith: inf"), {}, "did you mean 'bandwidth'?"),
        (SHEET.replace("latency: 2us, bandwidth: 1GB/s", ""), {}, "network.tiers[0]: has no latency"),
        (
            SHEET.replace("float32", "bf16"),
            {},
            "peak: has bf16, and 1 rank computes in float32: add its FLOP/s, or",
        ),
        (SHEET + "cores: 0\n", {}, "cores: expected at least 1"),
        (SHEET, {"profiled": RUN}, "leave out --from, or --on"),
        (SHEET, {"probe": "3s"}, "leave out --probe, or --on"),
        (SHEET[: SHEET.index("network")], {"ranks": "2"}, "network: is missing, and the 2 ranks of"),
    ],
)
def test_what_is_refused_of_a_data_sheet(by_sheet, sheet, given, said):
    with pytest.raises((SuiteError, UsageError)) as failed:
        by_sheet(sheet=sheet, **given)
    assert said in str(failed.value)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples" / "machines").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_example_of_a_data_sheet_is_read(file):
    sheet = load_data_sheet(file)
    assert sheet.network
    assert 1e11 < max(sheet.peak.values()) < 1e16
