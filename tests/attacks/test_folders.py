"""Folders of runs that are anything: readers say what is wrong, and leave the rest of the disk alone."""

import contextlib
import json
import math
import os
import shutil
import socket
import time
import tracemalloc
from pathlib import Path

import fake_scheduler
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutations import mutated, mutated_bytes
from noop_runs import note_end, note_start
from patience import check_spent
from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.timeline import launch_events, traced
from pscale.cli.status import page_of, state_of
from pscale.errors import PscaleError, ResultsError
from pscale.export.activities import launch_of
from pscale.export.chakra import write_chakra
from pscale.export.extrap import write_extrap
from pscale.export.goal import write_goal
from pscale.export.otf2_archive import write_otf2
from pscale.export.trace import trace_lines
from pscale.predict.engine import predict
from pscale.predict.profile import Profile, case_of
from pscale.report.brief import FILE, card
from pscale.report.exports import csv_tables, render_json
from pscale.report.markup import render_markdown
from pscale.runs.journal import Journal
from pscale.runs.run_events import Submitted, Submitting
from pscale.runs.store import part_path, write_part

POINTS = [
    Point(ranks=1, noise=0.01, losses=[3.0, 2.0]),
    Point(ranks=2, noise=0.01, transfer_s=0.01, losses=[3.0, 2.0]),
    Point(ranks=4, status="failed", reason="died"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A good run with its journal."""
    expect = [{"metric": "efficiency", "at_least": 0.5, "cases": [POINTS[1].case.id], "where": "ranks == 2"}]
    run = write_run(
        tmp_path_factory.mktemp("whole") / "run", POINTS, repeats=2, steps=6, expect=expect, joined=False
    )
    journal = Journal(run, {})
    for order, point in enumerate(POINTS):
        for repeat in range(2):
            note_start(journal, (point.case.id, repeat), order)
            note_end(journal, (point.case.id, repeat), "ok", "", 1.0)
    return run


def reported(run):
    """Read a run in every way; return the mistakes that are named."""
    found = []
    for read in (_report, card, lambda path: page_of(state_of(Journal.open(path)))):
        try:
            read(run)
        except PscaleError as error:
            found.append(error)
    assert all(error.exit_code == 5 and len(str(error)) < 2000 for error in found)
    return found


def _report(run):
    summary = Findings(load(run), predict=[16])
    assert render_markdown(summary)
    assert json.loads(render_json(summary))
    assert csv_tables(summary)


def noted(run, file):
    """Tell whether readers name a mistake; any other error shows what was in the file."""
    try:
        return bool(reported(run))
    except BaseException as error:
        error.add_note(f"with the file:\n{file.read_bytes()[:3000]!r}")
        raise


def attacked(whole, run, name, change):
    """Make a copy of a good run in which a file is changed."""
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    file = run / name
    file.write_bytes(change(file.read_bytes()))
    return run


def test_a_good_run_has_no_mistakes(whole):
    assert reported(whole) == []


def documents(raw, draw):
    """Return a document that differs from a good one in what it says, or as bytes."""
    if draw.random() < 0.3:
        return mutated_bytes(raw, draw)
    fields = ["repeats", "seed", "auto", "provenance.machine", "expect", "cases", "scheduler", "poll_s"]
    return json.dumps(mutated(json.loads(raw), fields, draw)).encode()


def lines(raw, draw):
    """Return a journal of which a line says something else, or that differs as bytes."""
    if draw.random() < 0.3:
        return mutated_bytes(raw, draw)
    kept = [json.loads(line) for line in raw.splitlines()]
    fields = ["event", "case", "repeat", "status", "job", "launches", "note", "id"]
    place = draw.randrange(len(kept))
    kept[place] = mutated(kept[place], fields, draw)
    return b"".join(json.dumps(line).encode() + b"\n" for line in kept)


@pytest.mark.parametrize(
    ("name", "change"), [("run.json", documents), ("journal.jsonl", lines)], ids=["document", "journal"]
)
def test_whatever_a_document_says_its_readers_say_what_is_wrong(whole, tmp_path, attack, name, change):
    refused = 0
    for _ in range(attack.times(16)):
        run = attacked(whole, tmp_path / "run", name, lambda raw: change(raw, attack.draw))
        refused += noted(run, run / name)
    assert refused


def rewritten(raw, change):
    """Return the bytes of a Parquet file whose table was changed."""
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(pa.BufferReader(raw))), sink)
    return sink.getvalue().to_pybytes()


def other_table(table, draw):
    """Return a table in which a column is lost, doubled, of another type, or has values that cannot be."""
    place = draw.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    match draw.randrange(7):
        case 0:
            changed = table.drop_columns([name])
        case 1:
            changed = table.append_column(draw.choice([name, "x", "pscale"]), column)
        case 2:
            strange = draw.choice(["x", None, [1.5], {"a": 1}, b"\xff"])
            changed = table.set_column(place, name, pa.array([strange] * len(column)))
        case 3:
            changed = table.set_column(place, name, impossible(column, draw))
        case 4:
            changed = table.slice(0, draw.randrange(len(table) + 1))
        case 5:
            changed = pa.concat_tables([table, table.slice(draw.randrange(max(1, len(table))))])
        case _:
            version = draw.choice([None, {"pscale_schema": "x"}, {"pscale_schema": "99"}])
            return table.replace_schema_metadata(version)
    return changed.replace_schema_metadata(table.schema.metadata)


def impossible(column, draw):
    """Return a column of which some values cannot be, if it can have them; else one of those alone."""
    values = draw.choice([[-1, 0, 2**40], [math.nan, math.inf, -1e300], ["", "../x", "\x1b[2J"]])
    made = [draw.choice(values) if draw.random() < 0.3 else each for each in column.to_pylist()]
    try:
        return pa.array(made, column.type)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array([draw.choice(values) for _ in made])


def parts(raw, draw):
    """Return a Parquet file that is cut, damaged, or says something else."""
    kind = draw.random()
    if kind < 0.15:
        return raw[: draw.randrange(len(raw))]
    if kind < 0.4:
        return mutated_bytes(raw, draw)
    return rewritten(raw, lambda table: other_table(table, draw))


def test_whatever_the_tables_of_a_run_hold_its_readers_say_what_is_wrong(whole, tmp_path, attack):
    names = sorted(path.name for path in (whole / "data").iterdir())
    for _ in range(attack.times(24)):
        name = f"data/{attack.draw.choice(names)}"
        run = attacked(whole, tmp_path / "run", name, lambda raw: parts(raw, attack.draw))
        noted(run, run / name)


def test_whatever_a_traced_run_holds_it_is_profiled_and_exported_or_refused(with_events, tmp_path, attack):
    assert _exported(with_events, tmp_path)
    names = ["run.json", *(f"data/{path.name}" for path in sorted((with_events / "data").iterdir()))]
    (events,) = (name for name in names if name.startswith("data/events"))
    for _ in range(attack.times(16)):
        name = events if attack.draw.random() < 0.6 else attack.draw.choice(names)
        change = documents if name == "run.json" else parts
        run = attacked(with_events, tmp_path / "run", name, lambda raw, of=change: of(raw, attack.draw))
        try:
            _exported(run, tmp_path)
        except BaseException as error:
            error.add_note(f"with {name}:\n{(run / name).read_bytes()[:1000]!r}")
            raise


def _exported(path, folder):
    """Profile, predict and export a run; tell whether it can be."""
    try:
        run = load(path)
        profile = Profile.of_run(run)
        predict(case_of(run, profile.paces[0].case), profile, draws=2)
        events = launch_events(run, traced(run)[0])
        assert json.loads("".join(trace_lines(events, {}, {})))
        found = launch_of(events, "title")
        assert write_extrap(run, folder)
        assert write_chakra(found, folder, "x")
        assert write_goal(found, folder, "x")
        assert write_otf2(found, folder, "x")
    except PscaleError:
        return False
    return True


def test_tables_that_would_fill_memory_are_refused(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    wide = part_path(run / "data", "steps", POINTS[1].case.id, 1)
    long = part_path(run / "data", "calls", POINTS[1].case.id, 0)
    table = pq.read_table(wide)
    many = {f"column {number}": table.column("rank") for number in range(20_000)}
    columns = pa.table(many | {name: table.column(name) for name in table.column_names})
    pq.write_table(columns.replace_schema_metadata(table.schema.metadata), wide)
    schema = pq.read_schema(long)
    empty = [pa.nulls(8_000_000, field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(empty, schema=schema), long, compression="zstd")
    begun = time.process_time()
    reasons = [failure.reason for failure in Findings(load(run)).rows("failures")]
    check_spent(begun, 5)
    for said in ("not a readable Parquet file", "says that it has 8000000 rows, too many for its size"):
        assert any(said in reason for reason in reasons), said


def test_a_run_of_impossible_times_is_listed_without_them(pscale, whole, tmp_path):
    for number, time_s in enumerate((1e300, -1e300, math.inf, -math.inf, math.nan)):
        run = shutil.copytree(whole, tmp_path / "runs" / "suite" / str(number))
        for path in (run / "data").glob("cases*"):
            rows = pq.read_table(path)
            for name in ("started_unix_s", "step_s"):
                place = rows.column_names.index(name)
                rows = rows.set_column(place, name, pa.array([time_s] * len(rows)))
            pq.write_table(rows, path)
    code, out, err = pscale("list", "--reports", tmp_path / "runs", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(out, parse_constant=pytest.fail)) == 5
    code, out, err = pscale("list", "--reports", tmp_path / "runs")
    assert (code, err) == (0, "")
    assert all(f"suite/{number} " in out for number in range(5))


def test_words_that_no_page_can_show_cost_their_launches_alone(pscale, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    first, second = (point.case.id for point in POINTS[:2])
    kernel = {"rank": 0, "calls": 1, "flops": 1, "bytes": 1, "time_s": 1.0, "phase": "forward"}
    write_part(run / "data", "kernels", second, 1, [kernel | {"kernel": "gemm\x01"}])
    for table, case, repeat, name in (("steps", first, 1, "phase"), ("calls", second, 0, "axis")):
        path = part_path(run / "data", table, case, repeat)
        words = pq.read_table(path)
        texts = pa.array([f"{text}\x1b]0;x" for text in words[name].to_pylist()])
        pq.write_table(words.set_column(words.column_names.index(name), name, texts), path)
    code, _, err = pscale("report", run)
    assert (code, "</html>" in (run / "report.html").read_text()) == (0, True), err
    reasons = [
        failure.reason for failure in Findings(load(run)).rows("failures") if failure.status == "invalid"
    ]
    for name in ("phase", "axis", "kernel"):
        assert any(f"has a {name} that cannot be shown" in reason for reason in reasons), name


def test_no_json_in_a_column_or_a_document_ends_a_report_otherwise_than_with_its_page(
    pscale, whole, tmp_path
):
    run = shutil.copytree(whole, tmp_path / "run")
    deep = 900 * '{"a":' + "1" + 900 * "}"
    columns = {
        (0, 0): "x",
        (0, 1): "[1]",
        (1, 0): 100_000 * "[",
        (1, 1): '{"mpi": {"vendor": [1]}, "x": ' + deep + "}",
    }
    for (place, repeat), text in columns.items():
        path = part_path(run / "data", "cases", POINTS[place].case.id, repeat)
        rows = pq.read_table(path)
        where = rows.column_names.index("provenance")
        pq.write_table(rows.set_column(where, "provenance", pa.array([text])), path)
    document = json.loads((run / "run.json").read_text())
    document["provenance"] |= {"kernel": "k", "machine": json.loads(deep)}
    (run / "run.json").write_text(json.dumps(document))
    code, _, err = pscale("report", run)
    assert (code, "</html>" in (run / "report.html").read_text()) == (0, True), err
    gaps = [gap for gap in load(run).gaps if "has an invalid provenance" in gap]
    assert len(gaps) == 3
    assert pscale("check", run)[0] == 1
    joined = pa.concat_tables(pq.read_table(path) for path in (run / "data").glob("cases-*"))
    pq.write_table(joined, run / "data" / "cases.parquet")
    code, _, err = pscale("report", run)
    assert (code, "has an invalid provenance" in err) == (5, True), err


def test_no_number_of_planned_launches_fills_memory(pscale, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "runs" / "suite" / "run")
    document = json.loads((run / "run.json").read_text())
    document["cases"] += [{"id": f"c{number}"} for number in range(len(POINTS), 10_000)]
    listed = ("list", "--json", "--reports", tmp_path / "runs")
    (run / "run.json").write_text(json.dumps(document | {"repeats": 10_000}))
    for command in (("report", run), ("status", run)):
        code, _, err = pscale(*command)
        assert (code, "repeats: expected at most 100 with 10000 cases, got 10000" in err) == (5, True), err
    assert [card["trouble"] for card in json.loads(pscale(*listed)[1])] == ["run.json is damaged"]
    (run / "run.json").write_text(json.dumps(document | {"repeats": 100}))
    tracemalloc.start()
    assert [card["pending"] for card in json.loads(pscale(*listed)[1])] == [1_000_000 - 6]
    assert "6 of 1000000 launches have ended" in pscale("status", run)[1]
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["run.json", "journal.jsonl", "data", "figures", "report.html", "data/x"])
def test_nothing_outside_of_a_run_is_read_or_written(pscale, whole, tmp_path, name):
    run, outside = shutil.copytree(whole, tmp_path / "run"), tmp_path / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    else:
        outside.mkdir()
    (run / name).symlink_to(outside)
    (run / FILE).unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in [outside, *outside.rglob("*")]}
    for options in (["report"], ["report", "-f", "csv"], ["report", "-f", "html"], ["status"]):
        code, _, err = pscale(*options, run)
        assert code == 5
        assert "leads out of the folder of the run" in err
    assert {path: path.stat().st_mtime_ns for path in [outside, *outside.rglob("*")]} == before
    assert "leads out" in card(run).trouble


WRITING = (
    *(("report", "-f", kind) for kind in ("html", "md", "csv", "json", "latex")),
    ("report", "--figure-format", "svg"),
    ("trace",),
    *(("export", "-f", kind) for kind in ("goal", "chakra", "extrap")),
)


def test_no_file_is_written_through_another_name_of_it(pscale, with_events, tmp_path):
    whole, run = (shutil.copytree(with_events, tmp_path / name / "run") for name in ("whole", "linked"))
    for command in WRITING:
        assert pscale(*command, whole)[0] == 0, command
    names = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    written = [name for name in names if not (with_events / name).exists()]
    assert {name.suffix for name in written} >= {".html", ".csv", ".svg", ".goal", ".et", ".jsonl", ".json"}
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for path in (run / name for name in written):
        path.parent.mkdir(parents=True, exist_ok=True)
        for name in {path.name, f".{path.name}.{os.getpid()}.tmp", f".{path.name}.tmp", f"{path.stem}.tmp"}:
            (path.parent / name).unlink(missing_ok=True)
            os.link(mine, path.parent / name)
    for command in WRITING:
        assert pscale(*command, run)[0] == 0, command
    assert mine.read_text() == "mine"


def _socket(path):
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # its name has to be short
        made.bind(path.name)


def _sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


NO_FILES = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "too large": _sparse,
    "a folder": Path.mkdir,
}
READ_BY_REPORTS = ("data/steps-a-0.parquet", FILE, "../../suite.prediction.json")
HELPFUL = (*READ_BY_REPORTS, "journal.jsonl", "jobs/cases/journal.jsonl", "lock")


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["run.json", *HELPFUL])
def test_what_is_no_file_in_the_place_of_one_is_no_trap(pscale, whole, tmp_path, name, kind):
    run = shutil.copytree(whole, tmp_path / "suite" / "run")
    path = Path(os.path.normpath(run / name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    NO_FILES[kind](path)
    codes = {}
    quick = ("status", run), ("list", "--reports", run.parents[1])
    for command in (("report", run, "--no-figures"), *quick) if name in READ_BY_REPORTS else quick:
        codes[command[0]], _, err = pscale(*command)
        assert "Traceback" not in err
        assert codes[command[0]] == 0 or path.name in err or "no runs here" in err
    assert set(codes.values()) <= {0, 5}
    assert name in HELPFUL or 5 in codes.values()


def test_a_run_may_be_deeper_than_calls_of_functions(pscale, whole, tmp_path):
    inner = shutil.copytree(whole, run := tmp_path / "run")
    for _ in range(1500):
        inner = inner / "x"
        inner.mkdir()
    assert pscale("status", run)[0] == 0
    while inner != run:  # pytest cannot
        inner.rmdir()
        inner = inner.parent


LIES = {  # of a job: name and id, and how `cancel` ends that ends none
    "another job's id": ("pscale-x-1", "1000", 0),
    "another job's name": ("mine", "", 5),
    "another run's job": ("pscale-mine-1", "1000", 4),
    "a host": ("pscale-x-1", "1@host", 5),
    "an option": ("pscale-x-1", "--help", 5),
    "an option as a name": ("--help", "", 5),
}


@pytest.mark.parametrize("scheduler", fake_scheduler.COMMANDS)
def test_no_journal_makes_pscale_end_a_job_of_another_run(pscale, whole, tmp_path, monkeypatch, scheduler):
    for lie, (name, number, code) in LIES.items():
        folder = tmp_path / lie / scheduler
        monkeypatch.setenv("PATH", f"{fake_scheduler.install(folder, scheduler)}:{os.environ['PATH']}")
        jobs, own = fake_scheduler.Jobs(folder), "pscale-mine-1" if lie == "another run's job" else "mine"
        script = "\n".join(f"{line}{own}" for line in fake_scheduler.NAMING)
        (folder / "accounting").write_text(f"1000|RUNNING|0:0|{own}\n")
        assert jobs.submit(scheduler, script, str(tmp_path / "mine" / "script.sh")) == "1000"
        run = shutil.copytree(whole, tmp_path / lie / "run")
        document = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(document | {"scheduler": scheduler}))
        journal = Journal(run, {})
        journal.note(Submitting(job=1, name=name, launches=[]))
        journal.note(Submitted(job=1, id=number))
        for state in ("queued", "forgotten"):  # by squeue, and known to the accounting
            jobs.set("1000", state)
            ended, _, err = pscale("cancel", run)
            assert [job["state"] for job in jobs.all()] == [state], lie
            assert ended in ({code} if state == "queued" else {0, 5}), (lie, err)


def test_neither_a_suite_nor_a_case_is_a_path(pscale, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "deep" / "run")
    good = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(good | {"suite": good["suite"] | {"name": "../outside"}}))
    code, _, err = pscale("check", run, "--update")
    assert (code, "suite.name: expected a name" in err) == (5, True)
    assert [path.name for path in tmp_path.rglob("*outside*")] == []
    good["cases"][0]["id"] = "x/../../../secret"
    (run / "run.json").write_text(json.dumps(good))
    with pytest.raises(ResultsError, match=r"cases\[0\]\.id: expected a name"):
        load(run)
    with pytest.raises(ResultsError, match="is not a case id"):
        part_path(run / "data", "steps", "x/../../../secret", 0)
