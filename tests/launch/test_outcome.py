import json

import pytest

from pscale.launch import outcome
from pscale.runs.launch_folder import LaunchFolder


@pytest.fixture
def report(tmp_path):
    """Let a rank report that it makes no progress."""

    def write(rank, ranks=4, host="a", still_s=61.0, **place):
        place = {"step": 7, "phase": "sync", "axis": None, "verb": None, "group": [], "stack": [], **place}
        line = {"rank": rank, "ranks": ranks, "still_s": still_s, **place}
        with (tmp_path / f"hang-{host}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    return write


def in_call(verb, axis, *group):
    return {"verb": verb, "axis": axis, "group": list(group)}


def test_a_hang_report_says_who_is_in_which_call_who_is_missing_and_where_those_are(report, tmp_path):
    for rank, host in ((0, "a"), (1, "a"), (3, "b")):
        report(rank, host=host, **in_call("all_reduce", "dp", 0, 1, 2, 3))
    report(2, host="b", stack=["/lib/x.py:9 outer: f()", "/lib/late.py:12 nap: time.sleep(1000)"])
    text = outcome.describe_hang(LaunchFolder(tmp_path))
    assert text.startswith("no progress for 61 s: ranks 0-1, 3 in all_reduce over dp (step 7, sync)")
    assert "rank 2 missing; rank 2 is in no call but at late.py:12 nap: time.sleep(1000)" in text


def test_ranks_that_are_in_different_calls_are_distinguished_and_so_are_groups_of_one_axis(report, tmp_path):
    report(0, **in_call("all_reduce", "tp", 0, 1))
    report(1, **in_call("broadcast", "tp", 0, 1))
    report(2, **in_call("all_reduce", "tp", 2, 3))
    text = outcome.describe_hang(LaunchFolder(tmp_path))
    assert "rank 0 in all_reduce over tp (step 7, sync), rank 1 missing" in text
    assert "rank 1 in broadcast over tp (step 7, sync), rank 0 missing" in text
    assert "rank 2 in all_reduce over tp (step 7, sync), rank 3 missing" in text
    assert "no report from rank 3" in text


def test_hang_reports_of_slow_ranks_are_waited_for_and_those_of_dead_ranks_are_not(report, tmp_path):
    now = 0.0
    reports = outcome.HangReports(LaunchFolder(tmp_path), clock=lambda: now)
    assert not reports.are_complete()
    assert not outcome.describe_hang(LaunchFolder(tmp_path))
    report(0, ranks=2, still_s=20.0)
    assert not reports.are_complete()  # the first report was seen just now
    now = 4.9  # a quarter of the time without progress
    assert not reports.are_complete()
    now = 5.1
    assert reports.are_complete()
    now = 0.0
    assert not reports.are_complete()
    report(1, ranks=2, host="b")
    assert reports.are_complete()


HYDRA = """why it failed
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 19045 RUNNING AT vm
=   EXIT CODE: 11
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
OPEN_MPI = """why it failed
[vm:19097] *** Process received signal ***
[vm:19097] Signal code:  (-6)
[vm:19097] Failing at address: 0x4a99
[vm:19097] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f0ee645a050]
[vm:19097] *** End of error message ***
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 19097 on node vm exited on
signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""
OPEN_MPI_CODE = """why it failed
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-19133@1,1]
   Exit code:    3
--------------------------------------------------------------------------
"""
LEFT_EARLY = """why it failed
--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 16329 on node alpha exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
one.

This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).

You can avoid this message by specifying -quiet on the prterun command
line.
--------------------------------------------------------------------------
"""
ABORTED = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[2381,1],1]
  Errorcode: 5

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
--------------------------------------------------------------------------
prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""


TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1\nZeroDivisionError: division by zero\n'
ENDS = "".join(f"srun: error: n{n}: task {n}: Exited with exit code 15\n" for n in range(4))
STACK = "Thread 0x7f (most recent call first):\n" + "".join(f"  File {n}, in f\n" for n in range(9))
SEGV = "rank 1 on node n exited on\nsignal 11 (Segv)"
UNSUPPORTED = "environment uses unsupported PMI version PMIx"


def failure(rank, unix_s=1.0, **said):
    document = {"rank": rank, "status": "failed", "traceback": "", "message": "", "unix_s": unix_s, **said}
    return {f"failure-{rank}.json": json.dumps(document)}


@pytest.mark.parametrize(
    ("left", "code", "status", "reason"),
    [
        (
            {**failure(0, 20.0, message="second"), **failure(3, 10.0, message="long", traceback=TRACE)},
            *(1, "failed", "rank 3: ZeroDivisionError: division by zero"),
        ),
        (
            failure(0, status="invalid", message="a world of 1\nnot 2"),
            1,
            "invalid",
            "rank 0: a world of 1 not 2",
        ),
        (
            {"failure-0.json": '{"rank": 0, "sta', "stderr.log": "gone wrong\n"},
            *(3, "failed", "exit code 3: gone wrong [FOLDER/stderr.log]"),
        ),
        (
            {"stderr.log": "one\ntwo\nthree\nfour\n----\n\n=====\n"},
            *(7, "failed", "exit code 7: two / three / four [FOLDER/stderr.log]"),
        ),
        ({"stderr.log": f"no address\n{ENDS}"}, 15, "failed", "exit code 15: no address ["),
        ({"stderr.log": ENDS}, 15, "failed", "srun: error: n1: task 1: Exited with exit code 15 / srun: "),
        (
            {"stderr.log": f"said before\n{STACK}"},
            7,
            "failed",
            "exit code 7: File 0, in f / File 1, in f / File 2",
        ),
        ({"stderr.log": HYDRA}, 11, "failed", "a rank was ended by SIGSEGV: why it failed ["),
        (
            {"stderr.log": HYDRA.replace("CODE: 11", "CODE: 2")},
            *(11, "failed", "a rank was ended by SIGINT: why it failed ["),
        ),
        (
            {"stderr.log": HYDRA.replace("CODE: 11", "CODE: 9")},
            *(11, "failed", "by SIGSEGV or SIGINT or SIGQUIT or SIGUSR1: why it failed ["),
        ),
        ({"stderr.log": OPEN_MPI}, 139, "failed", "a rank was ended by SIGSEGV: why it failed ["),
        ({"stderr.log": OPEN_MPI_CODE}, 3, "failed", "exit code 3: why it failed ["),
        (
            {"stderr.log": LEFT_EARLY},
            *(1, "failed", "rank 1 ended before MPI_Finalize, exit code 1 of the launcher: why it failed ["),
        ),
        (
            {"stderr.log": ABORTED},
            *(5, "failed", "exit code 5: MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD ["),
        ),
        ({}, 135, "failed", "exit code 135, of SIGBUS (often: /dev/shm or a disk is full) ["),
        ({}, 192, "failed", f"exit code 192, of {outcome.signal_name(64)} ["),
        ({}, 193, "failed", "exit code 193 ["),
        ({}, 255, "failed", "exit code 255 ["),
        (
            {"stderr.log": "Fortran runtime error: End of file\n"},
            *(2, "failed", "exit code 2; it read to the end of its input: a workload"),
        ),
        ({}, -11, "failed", "the launcher was ended by SIGSEGV"),
        (
            {"stdout.log": "APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"},
            *(9, "failed", "a rank was ended by SIGKILL"),
        ),
        ({"stderr.log": SEGV}, 139, "failed", "a rank was ended by SIGSEGV"),
        ({"stderr.log": "There are not enough slots available\n"}, 1, "failed", "oversubscribe: true"),
        ({"stderr.log": "detected an attempt to run as root\n"}, 1, "failed", "--allow-run-as-root"),
        ({"stderr.log": f"{UNSUPPORTED}\n"}, 16, "failed", "pscale doctor"),
        (
            {"stderr.log": "mpi/pmi2: value not properly terminated in client request\n"},
            *(1, "failed", "NETMOD: ofi"),
        ),
        ({"stderr.log": "OSError: [Errno 28] No space left on device\n"}, 1, "failed", "the disk is full"),
        ({}, 0, "failed", "ended without an error but left no results"),
        ({"result.json": "{}"}, 1, "failed", "exit code 1"),
        ({"result.json": "{}"}, 0, "ok", ""),
    ],
)
def test_what_a_job_left_and_its_exit_code_say_how_it_ended_and_why(tmp_path, left, code, status, reason):
    for name, text in left.items():
        (tmp_path / name).write_text(text)
    found = outcome.judge(LaunchFolder(tmp_path), code)
    assert found.status == status
    assert reason.replace("FOLDER", str(tmp_path)) in found.reason
    assert bool(found.reason) == bool(reason)


def test_a_line_that_is_being_written_is_left_for_the_next_look(report, tmp_path):
    report(0, ranks=2)
    (tmp_path / "hang-b.jsonl").write_text('{"rank": 1, ')
    assert "no report from rank 1" in outcome.describe_hang(LaunchFolder(tmp_path))
