"""Under a real MPI: the replay of programs under every kind of plan."""

import gzip
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from trace_format import checked

from pscale.analysis.frames import by_case, load
from pscale.analysis.timeline import timeline
from pscale.cli.options import Trace
from pscale.cli.trace import trace
from pscale.errors import UsageError

pytestmark = pytest.mark.slow


def test_every_moment_of_every_step_is_accounted_for_and_no_step_is_faster_than_the_ideal_one(plans):
    steps = pd.DataFrame(plans.rows("steps"))
    assert {row["status"] for row in plans.cases.values()} == {"ok"}
    keys = ["case", "rank", "step"]
    kinds = ["compute_s", "transfer_s", "wait_s", "copy_s", "offload_s", "ideal_wait_s"]
    assert (steps[[*kinds, "unaccounted_s"]] > -1e-9).all(axis=None)
    whole = steps.groupby(keys)[kinds].sum().join(steps.groupby(keys)[["unaccounted_s", "end_s"]].first())
    walls = whole.groupby(["case", "rank"])["end_s"].diff().fillna(whole["end_s"])
    accounted = whole[["compute_s", "transfer_s", "wait_s", "copy_s", "offload_s", "unaccounted_s"]].sum(
        axis=1
    )
    assert (accounted - walls).abs().max() < 1e-9
    ends = steps.groupby(["case", "step"])[["end_s", "ideal_end_s"]].max()
    assert (ends["ideal_end_s"] <= ends["end_s"] + 1e-9).all()
    ideal = steps.groupby(["case", "rank"])["ideal_end_s"].max()
    stated = pd.DataFrame(plans.rows("ranks")).set_index(["case", "rank"])["t_ideal_s"]
    assert stated.to_dict() == pytest.approx(ideal.to_dict())
    local = whole[["compute_s", "copy_s", "offload_s", "unaccounted_s", "ideal_wait_s"]].sum(axis=1)
    assert local.groupby(["case", "rank"]).sum().to_dict() == pytest.approx(ideal.to_dict(), abs=1e-9)
    calls = pd.DataFrame(plans.rows("calls")).groupby(keys)[["wait_s", "ideal_wait_s"]].sum()
    assert (calls - whole[["wait_s", "ideal_wait_s"]]).abs().max(axis=None) < 1e-9


def test_every_note_is_kept_and_its_calls_add_up_to_the_sums(plans):
    events = pd.DataFrame(plans.rows("events"))
    calls = pd.DataFrame(plans.rows("calls"))
    counted = pd.DataFrame(plans.rows("ranks")).set_index(["case", "rank"])["events"]
    assert events.groupby(["case", "rank"]).size().to_dict() == counted.to_dict()
    keys = ["case", "rank", "step", "phase", "axis", "verb"]
    kept = events[(events["axis"] != "") & ~events["kind"].isin(["copied"])]
    kept = kept.assign(count=kept["kind"].isin(["call", "root", "posted"]))
    found = kept.groupby(keys)[["count", "bytes", "wait_s"]].sum()
    summed = calls.groupby(keys)[["count", "bytes", "wait_s"]].sum()
    assert (found - summed).abs().max(axis=None) < 1e-9
    labels = events[events["kind"] == "phase"].groupby("case")["label"].agg(set)
    cases = {row["case"]: label for label, row in plans.cases.items()}
    of_zero_bubble = next(labels[case] for case in cases if "zero-bubble" in cases[case])
    assert {"forward 3", "input 0", "weight 3"} <= of_zero_bubble
    of_interleaved = next(labels[case] for case in cases if "interleaved" in cases[case])
    assert {"forward 1", "backward 1.2", "backward 0.1"} <= of_interleaved


def test_both_ends_of_a_message_name_each_other_and_the_receiver_ends_after_the_sender_began(plans):
    events = pd.DataFrame(plans.rows("events"))
    posted = events[(events["kind"] == "posted") & (events["partner"] >= 0)]
    pair = ["case", "axis", "from", "to", "number"]
    sides = {}
    for verb, ends in (("send", ("rank", "partner")), ("receive", ("partner", "rank"))):
        side = posted[posted["verb"] == verb].rename(columns=dict(zip(ends, ("from", "to"), strict=True)))
        side = side.assign(number=side.groupby(pair[:-1]).cumcount())
        sides[verb] = side
    assert len(sides["send"]) == len(sides["receive"]) > 100
    completed = events[events["kind"] == "completed"].set_index(["case", "rank", "request"])["leave_s"]
    both = sides["send"].merge(sides["receive"], on=pair, suffixes=("", "_of_receiver"))
    assert len(both) == len(sides["send"])
    ended = completed.loc[
        list(zip(both["case"], both["to"], both["request_of_receiver"], strict=True))
    ].to_numpy()
    assert (ended >= both["enter_s"].to_numpy()).all()


def test_the_timeline_of_every_plan_keeps_the_rules_of_its_format_and_has_all_that_was_noted(plans, tmp_path):
    events = pd.DataFrame(plans.rows("events"))
    for case, every in events.groupby("case"):
        file = tmp_path / f"{case}.json"
        trace(Trace(path=plans.folder, case=case, output=file))
        drawn = checked(file.read_text(encoding="utf-8"))
        notes = every[
            ~every["kind"].isin(["io_submitted", "io_done"])
        ]  # reads and writes are on a lane of their own
        moves = [
            each for found in drawn.slices.values() for each in found if each["name"] in ("read", "write")
        ]
        assert len(moves) == (every["kind"] == "io_done").sum()
        main = [
            each for (process, thread), found in drawn.slices.items() if thread % 1000 == 0 for each in found
        ]
        inside = [each for each in main if each["cat"] in ("wait", "transfer")]
        assert len(main) - len(inside) == len(notes)
        waited = sum(float(each["dur"]) for each in inside if each["cat"] == "wait")
        assert waited == pytest.approx(notes["wait_s"].sum() * 1e6)
        assert (
            sum(each["args"].get("bytes", 0) for each in main if each["cat"] == "call")
            == notes["bytes"].sum()
        )
        sends = (notes["kind"] == "posted") & (notes["verb"] == "send")
        assert sum(name == "message" for name, *_ in drawn.flows) == sends.sum()
        beside = sum(len(found) for (_, thread), found in drawn.slices.items() if thread % 1000)
        assert beside - len(moves) == (notes["kind"] == "posted").sum()


def test_one_step_can_be_drawn_alone_packed_or_to_the_terminal(plans, tmp_path, capsys):
    file = tmp_path / "new" / "second.json.gz"
    trace(Trace(path=plans.folder, steps="1", output=file))
    packed = gzip.decompress(file.read_bytes()).decode()
    assert {name for _, found in checked(packed).slices.items() for name in [found[0]["name"]]} == {"step 1"}
    assert "ui.perfetto.dev" in capsys.readouterr().out
    trace(Trace(path=plans.folder, steps="1", output=Path("-")))
    assert capsys.readouterr().out == packed


def test_the_report_draws_a_step_of_each_pipeline(plans):
    steps = by_case(timeline(load(plans.folder)))
    labels = {row["case"]: label for label, row in plans.cases.items()}
    (zero_bubble,) = (spans for case, spans in steps.items() if "zero-bubble" in labels[case])
    assert any("interleaved" in labels[case] for case in steps)
    assert {"forward", "input", "weight", "update", "wait"} <= {span.kind for span in zero_bubble}
    assert (plans.folder / "figures" / "timeline.svg").exists()


def test_a_network_that_is_not_there_can_be_asked_about_after_the_run(plans, cli):
    asked = ["all: ideal", "all: {latency: 1ms, bandwidth: 1GB/s}", "{pp: {latency: 1000s}, dp: ideal}"]
    questions = [part for network in asked for part in ("--what-if", network)]
    found = json.loads(cli.call("report", plans.folder, "--format", "json", *questions).stdout)["what_if"]
    assert len(found) == len(asked) * len(plans.cases)
    ideal = pd.DataFrame(plans.rows("ranks")).groupby("case")["t_ideal_s"].max()
    by_network = {
        network: {row["case"]: row for row in found if row["network"] == network} for network in asked
    }
    for case, row in by_network[asked[0]].items():
        assert row["expected_s"] * 4 == pytest.approx(ideal[case], abs=1e-9)
        slow = by_network[asked[1]][case]
        assert slow["expected_s"] > row["expected_s"] + 1e-3
    piped = {label: by_network[asked[2]][row["case"]]["expected_s"] for label, row in plans.cases.items()}
    assert {label for label, step_s in piped.items() if step_s > 1000} == {
        name for name in piped if "pp" in name
    }


def test_a_run_that_kept_no_calls_says_how_to_keep_them_and_unknown_axes_are_named(plans, cli, tmp_path):
    bare = shutil.copytree(plans.folder, tmp_path / "bare", ignore=shutil.ignore_patterns("events-*"))
    for asked, answer in (
        (("report", plans.folder, "--what-if", "ep: ideal"), "it has calls on"),
        (("report", bare, "--what-if", "dp: ideal"), "--set trace=true"),
        (("trace", bare), "--set trace=true"),
    ):
        assert answer in cli.call(*asked, code=2).stderr
    for case, number, steps, words in [
        ("zzz", 1, None, "it has"),
        (None, 2, None, "traced launches of dp 4 · gather-broadcast · micro_batches 2: 1"),
        (None, 1, "3-9", "measured steps 0 to 3"),
        (None, 1, "5-2", "first and last such as 3-5"),
    ]:
        with pytest.raises(UsageError, match=words):
            trace(Trace(path=plans.folder, case=case, launch=number, steps=steps))
