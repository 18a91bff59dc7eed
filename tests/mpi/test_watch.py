"""Programs of others under `pscale watch`, and pscale's own under it beside its own recorder."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from patience import LIMIT_S, share
from recordings import table
from whole_runs import Results, needs_recorder

from pscale.errors import ResultsError
from pscale.watch.notes import read
from pscale.watch.preload import recorder, sibling_library

PROGRAMS = Path(__file__).parent.parent / "watch" / "programs"
ROUNDS, DELAY_S = 20, 0.005
STRATEGIES = Path(__file__).parents[2] / "suites" / "strategies.yaml"
SHORT = ("trace=true", "repeat=1", "train.steps=8", "timing.overhead_steps=0", "timing.gemm_peak=false")
UNDER_WATCH = """
import os, sys
if "pscale.worker" in sys.orig_argv:
    os.environ["PSCALE_WATCH"] = sys.orig_argv[-1] + "/notes"
    os.makedirs(os.environ["PSCALE_WATCH"], exist_ok=True)
"""


pytestmark = [pytest.mark.slow, needs_recorder]


def counts(results, rank):
    """Return how often a rank made each call, by axis and verb."""
    found = Counter()
    for row in results.rows("calls"):
        if row["rank"] == rank and row["count"]:
            found[row["axis"], row["verb"]] += row["count"]
    return found


def test_all_calls_of_a_fortran_program_are_counted_and_settled(watch, compilers, tmp_path):
    if not shutil.which("gfortran") or not (compilers / "mpicc").exists():
        assert not os.environ.get("CI"), "there must be a Fortran compiler"
        pytest.skip("there is no Fortran compiler")
    library, program = tmp_path / "libbindings.so", tmp_path / "program"
    flags = ["-DOPEN_MPI"] if (compilers / "ompi_info").exists() else []
    flags += ["-fallow-argument-mismatch", "-w", f"-J{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    sources = PROGRAMS / "mpi.F90", PROGRAMS / "calls.f90"
    binding = [compilers / "mpicc", "-shared", "-fPIC", "-o", library, PROGRAMS / "bindings.c"]
    subprocess.run(binding, check=True)
    subprocess.run(["gfortran", *flags, "-o", program, *sources, library], check=True)
    results = watch(4, program)
    assert counts(results, 1) == {
        ("world", "all_reduce"): 1,
        ("world", "send"): 2,
        ("world", "receive"): 3,  # one of them from anybody with any tag, by a status that is ignored
        ("world", "communicator"): 1,
        ("split", "all_gather"): 1,
        ("split", "communicator"): 1,
    }
    paid = {row["verb"]: row["bytes"] for row in results.rows("calls") if row["rank"] == 1 and row["bytes"]}
    assert paid == {"all_reduce": 800, "send": 880, "all_gather": 8}
    assert not any(row["axis"] == "not split" for row in results.rows("calls"))


@pytest.mark.parametrize("compiler", ["mpicc", "mpicc_abi"])
def test_all_calls_of_a_c_program_are_counted_and_settled(watch, compiler, compiled):
    results = watch(4, f"../{compiled(compiler).name}")
    assert counts(results, 1) == {
        ("world", "all_reduce"): 1,
        ("world", "barrier"): 8,
        ("world", "broadcast"): 1,
        ("world", "gather"): 1,
        ("world", "scan"): 1,
        ("world", "send"): 5,  # one nonblocking, three persistent, one of both ways
        ("world", "receive"): 6,  # and one blocking, from anybody
        ("world", "communicator"): 2,
        ("split", "all_reduce"): 1,
        ("split", "communicator"): 1,
        ("cart", "neighbours"): 1,
        ("cart", "all_reduce"): 1,
        ("cart", "communicator"): 1,
    }
    sent = sum(row["bytes"] for row in results.rows("calls") if row["rank"] == 1 and row["verb"] == "send")
    assert sent == 800 + 3 * 80 + 40
    assert not any(row["axis"] == "not split" for row in results.rows("calls"))


def test_a_delay_comes_back_as_wait_on_the_other_ranks_and_as_caused_by_the_late_one(watch):
    results = watch(3, sys.executable, PROGRAMS / "delay.py", str(DELAY_S))
    line = next(line for line in results.output.splitlines() if line.startswith("[["))
    came = np.array(json.loads(line))
    events = [row for row in results.rows("events") if row["verb"] == "all_reduce"]
    waits = np.array([[row["wait_s"] for row in events if row["rank"] == rank] for rank in range(3)])
    expected = (came.max(axis=0) - came)[:, 1:] * 1e-9  # the first round ends where the first step begins
    assert waits.shape == expected.shape == (3, ROUNDS - 1)
    assert np.median(expected[0]) >= DELAY_S * 0.9
    for rank in (0, 2):
        assert np.median(np.abs(waits[rank] - expected[rank])) < 0.02 * DELAY_S
    assert np.median(waits[1]) == 0
    caused = [
        sum(row["caused_wait_s"] for row in results.rows("steps") if row["rank"] == rank) for rank in range(3)
    ]
    assert np.argmax(caused) == 1


def test_pickled_objects_from_anybody_are_settled_and_a_file_is_named_as_not_split(watch, tmp_path):
    results = watch(3, sys.executable, PROGRAMS / "objects.py", str(tmp_path / "file"))
    assert counts(results, 0)["world", "receive"] == 2 * 10
    assert counts(results, 2)["world", "send"] == 10
    assert {row["phase"] for row in results.rows("steps")} == {"program", "talk"}
    assert results.rows("cases")[0]["steps"] == 10
    assert any(
        row["axis"] == "not split" and row["verb"] == "file_write_at_all" for row in results.rows("calls")
    )
    assert any("Not split: " in note for note in results.document["notes"])


def test_a_communicator_is_told_from_one_that_was_freed_within_a_call_and_had_its_handle(watch):
    # mpi4py sums objects over a communicator of its own, which MPI frees with the one that it is for.
    program = """
from mpi4py import MPI
world, made = MPI.COMM_WORLD, []
for _ in range(4):
    part = world.Split_type(MPI.COMM_TYPE_SHARED)
    part.allreduce(1)
    part.Free()
    for _ in range(2):
        made.append(world.Create_cart([world.size]))
        made[-1].Barrier()
"""
    results = watch(2, sys.executable, "-c", program)
    names = ["cart", *(f"cart {number}" for number in range(2, 9))]
    assert [counts(results, rank)[name, "barrier"] for rank in range(2) for name in names] == [1] * 16


def test_calls_of_several_threads_and_one_sided_ones_are_counted_and_said_to_be_so(watch):
    results = watch(3, sys.executable, PROGRAMS / "several.py")
    assert counts(results, 1) == {
        ("world", "send"): 3 * 10,
        ("world", "receive"): 3 * 10,
        ("world", "communicator"): 1,
        ("graph", "neighbours"): 1,
        ("not split", "win_create"): 1,
        ("not split", "win_fence"): 2,
        ("not split", "get"): 1,
        ("not split", "win_free"): 1,
    }
    said = " ".join(results.document["notes"])
    assert "Not split: " in said
    assert "threads other than the one that initialised MPI count as hidden" in said
    sent = [row for row in results.rows("calls") if row["verb"] == "send"]
    assert sum(row["bytes"] for row in sent) == 3 * 3 * 10 * 64
    assert not any(row["wait_s"] for row in sent)


def test_a_program_that_is_killed_is_reported_up_to_its_last_calls(watch):
    results = watch(2, sys.executable, PROGRAMS / "ending.py", "killed", code=None)
    assert counts(results, 1)["world", "barrier"] == ROUNDS - 1  # of 20, the first begins the steps
    assert "The program failed" in results.output
    assert "rank 1 in no call" in results.output


def test_a_program_that_fails_before_it_calls_mpi_leaves_a_run_that_failed_and_ends_with_its_code(watch):
    results = watch(1, sys.executable, "-c", "raise SystemExit(3)", code=3)
    (row,) = results.rows("cases")
    assert row["status"] == "failed"
    assert "exit code 3; " in row["reason"]
    assert (
        "loaded no MPI library (libmpi*.so) and called neither MPI_Init nor MPI_Init_thread" in row["reason"]
    )
    assert "The program failed: exit code 3. " in results.output


def test_of_a_program_that_nothing_was_recorded_of_is_said_what_the_recorder_saw(watch, tmp_path):
    (tmp_path / "no_mpi.c").write_text("int main(void) { return 0; }")
    static = tmp_path / "static"
    subprocess.run(["cc", "-static", "-o", static, tmp_path / "no_mpi.c"], check=True)
    said = " ".join(watch(1, static).output.split())
    assert "no program loaded the recorder" in said
    dies = "from mpi4py import rc; rc.initialize = False; import mpi4py.MPI"
    said = " ".join(watch(1, sys.executable, "-c", dies).output.split())
    assert "loaded an MPI library, but never called MPI_Init or MPI_Init_thread" in said


def test_a_program_that_never_returned_from_initialising_mpi_is_said_to_with_the_function_it_called(watch):
    results = watch(1, sys.executable, "-c", "import mpi4py.MPI")
    (record,) = {file.parent for file in results.folder.rglob("facts.*")}
    for file in record.glob("facts.*"):
        file.unlink()
    with pytest.raises(ResultsError, match=r" called MPI_Init_thread, which did not return"):
        read(record)
    others = "loaded 0 1 0 sh\nended 0 1 0 sh\nloaded 0 2 0 sh\nended 0 2 1 sh\nloaded 0 2 0 python\n"
    (record / "programs").write_text(others + (record / "programs").read_text())
    known = "sh of rank 1 ended with exit code 0; python of rank 2 had not called MPI_Init; python"
    with pytest.raises(ResultsError, match=known):
        read(record)


def test_a_program_that_hangs_is_ended_with_the_call_in_which_each_rank_is(watch):
    results = watch(2, sys.executable, PROGRAMS / "ending.py", "hangs", options=("--hang-after", "2"), code=1)
    assert "made no progress and was ended" in results.output
    said = " ".join(results.output.split())
    assert "probe from rank 1 over world; rank 1 in MPI_Barrier over world" in said


@pytest.mark.parametrize("interpreter", [(), (sys.executable,)])
def test_a_program_started_in_another_way_by_pscale_in_a_path_with_a_space_leaves_notes(
    cli, tmp_path, monkeypatch, interpreter
):
    (cli.folder / "pscale").symlink_to(Path(__file__).parents[2] / "pscale")
    monkeypatch.setenv("PYTHONPATH", str(cli.folder))
    monkeypatch.setenv("PSCALE_WATCH", str(tmp_path / "notes"))
    script = [sys.executable, "-m", "pscale.watch", *interpreter, PROGRAMS / "delay.py", "0"]
    subprocess.run(script, check=True, capture_output=True, timeout=LIMIT_S)
    command = cli.command("watch", "--read", tmp_path / "notes", "--no-report", "--reports", cli.reports)
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    assert counts(cli.newest(), 0)["world", "barrier"] == ROUNDS - 1


def arrivals(rows, rank):
    """Return the calls that a rank made, in order: verb, bytes and when it came."""
    chosen = [row for row in rows if row["rank"] == rank and row["kind"] in ("call", "root", "posted")]
    return sorted(chosen, key=lambda row: row["enter_s"])


def waiting(rows, rank, chosen):
    """Return for each of these calls the row that waits: where it is completed, if it was started."""
    over = {row["request"]: row for row in rows if row["rank"] == rank and row["kind"] == "completed"}
    return [over.get(row["request"], row) for row in chosen]


def test_every_strategy_under_watch_is_what_its_own_recorder_says(cli, sitecustomize, monkeypatch):
    sitecustomize(UNDER_WATCH)
    shared = recorder(sibling_library(Path(sys.executable)))
    monkeypatch.setenv("LD_PRELOAD", shared.name)  # a path may have spaces
    monkeypatch.setenv("LD_LIBRARY_PATH", str(shared.parent), prepend=":")
    settings = [word for setting in SHORT for word in ("--set", setting)]
    suite = yaml.safe_load(STRATEGIES.read_text())
    suite["sweep"]["cases"] = share(suite["sweep"]["cases"])
    results = cli.run(cli.suite(yaml.safe_dump(suite)), *settings)
    monkeypatch.delenv("LD_PRELOAD")
    near = [each for case in results.rows("cases") for each in assert_same(results, case)]
    assert np.mean(near) > 0.99  # all, but where a rank was off its core between the readings of both


def assert_same(results: Results, case):
    """Hold every wait to what the readings allow; return which are within 1 % of the step or 2 us."""
    folder = results.folder / "cases" / f"{case['case']}-0" / "notes"
    seen = [row for row in table(read(folder), "events") if row["axis"] not in ("world", "dup")]
    told = [row for row in results.rows("events") if row["case"] == case["case"]]
    pairs = {}
    for rank in range(case["ranks"]):
        own, other = arrivals(told, rank), arrivals(seen, rank)
        start = offset(own, other)
        matched = other[start : start + len(own)]
        assert [(row["verb"], row["bytes"]) for row in matched] == [
            (row["verb"], row["bytes"]) for row in own
        ]
        pairs[rank] = own, matched
    late = {rank: times(matched) - times(own) for rank, (own, matched) in pairs.items()}
    zero = min(each.min() for each in late.values())  # of the clock of one in that of the other
    ended = max((times(two, "leave_s") - times(one, "leave_s")).max() for one, two in pairs.values())
    assert zero >= ended - 1e-7, case["label"]  # each call seen lies within the recorded one
    bound, near = max(0.01 * case["step_s"], 2e-6), []
    for rank, (own, matched) in pairs.items():
        told_waits, seen_waits = waiting(told, rank, own), waiting(seen, rank, matched)
        apart = np.abs(times(told_waits, "wait_s") - times(seen_waits, "wait_s"))
        own_late = sum(
            np.abs(times(seen_waits, name) - times(told_waits, name) - zero)
            for name in ("enter_s", "leave_s")
        )
        others = [
            (times(theirs), late[other] - zero) for other, (theirs, _) in pairs.items() if other != rank
        ]
        for call, one, two, difference, mine in zip(
            own, told_waits, seen_waits, apart, own_late, strict=True
        ):
            most = max((later_in(one, two["leave_s"] - zero, *other) for other in others), default=0.0)
            # What is between the readings of the two recorders, on this rank and on those that may have come
            # meanwhile, is all that their waits can differ by, however busy the machine is.
            assert difference <= mine + most + 1e-6, (case["label"], call["verb"], one)
            near.append(difference <= bound)
    return near


def later_in(call, left, entered, late):
    """Return by how much the calls of another rank that began in this one were seen later, at most.

    Where one began before this was over by one recorder, and after by the other, which saw it over at `left`,
    only one of them has anything to wait for: then it is how long this one took.
    """
    if ((entered <= call["leave_s"]) != (entered + late <= left)).any():
        return call["leave_s"] - call["enter_s"]
    within = (entered + late >= call["enter_s"]) & (entered <= call["leave_s"])
    return late[within].max(initial=0.0)


def times(rows, column="enter_s"):
    return np.array([row[column] for row in rows])


def offset(own, other):
    """Return from which of the other's calls on they are ours: those that come at the same distances."""
    ours, theirs = times(own), times(other)

    def spread(shift):
        later = theirs[shift : shift + len(ours)] - ours
        return np.median(np.abs(later - np.median(later)))  # of most: a few may be late by a forced pause

    return min(range(len(theirs) - len(ours) + 1), key=spread)
