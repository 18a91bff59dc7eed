import contextlib
import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from patience import LIMIT_S, wait_for

from pscale.errors import LaunchError
from pscale.launch import doctor, local
from pscale.launch.command import Command

RESULT = 'echo "{}" > "$FOLDER/result.json"\n'


@pytest.fixture
def job(tmp_path):
    """Run a shell script as if it were a launcher, in a folder with an awkward name."""
    folder = tmp_path / "a b; $(touch x) 'c"
    folder.mkdir()

    def launch(text, limit_s=LIMIT_S, observer=None, name="launcher"):
        script = tmp_path / name
        script.write_text("#!/bin/sh\n" + text)
        script.chmod(0o755)
        env = {**os.environ, "FOLDER": str(folder)}
        started = Command(argv=(str(script), "-n", "2", str(folder)), env=env)
        return local.launch(started, folder, limit_s, observer=observer)

    launch.folder = folder
    yield launch
    assert local.tagged(local.tag(folder)) == []


def failure(folder, rank, unix_s, **said):
    document = {"rank": rank, "status": "failed", "traceback": "", "message": "", "unix_s": unix_s, **said}
    (folder / f"failure-{rank}.json").write_text(json.dumps(document))


def test_a_job_with_a_result_is_well_and_its_words_are_kept(job):
    begun, started = time.time(), time.perf_counter()
    outcome = job(RESULT + "echo out; echo err >&2; read line || echo no input")
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("ok", "", 0)
    assert (job.folder / "stdout.log").read_text() == "out\nno input\n"
    assert (job.folder / "stderr.log").read_text() == "err\n"
    assert 0 < outcome.wall_s < time.perf_counter() - started
    assert begun <= outcome.started_unix_s <= time.time()


def test_no_shell_reads_what_is_handed_over(job):
    job(RESULT + 'printf "%s" "$3"')
    assert (job.folder / "stdout.log").read_text() == str(job.folder)
    assert not (job.folder.parent / "x").exists()


def test_a_job_that_does_not_end_is_ended_with_all_of_its_processes(job, monkeypatch):
    monkeypatch.setattr(local, "_GRACE_S", 0.2)

    begin = [time.monotonic() + 1e6]  # no time passes before it is stuck

    def stands_until_it_is_stuck():
        return (
            begin.pop() if begin else time.monotonic() + 1e9 * bool((job.folder / "stderr.log").read_text())
        )

    clock = SimpleNamespace(
        monotonic=stands_until_it_is_stuck,
        time=time.time,
        perf_counter=time.perf_counter,
        sleep=time.sleep,
    )
    monkeypatch.setattr(local, "time", clock)
    stubborn = "trap '' TERM; echo stuck >&2; setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000"
    outcome = job(stubborn, limit_s=0.3)  # what is ignored in a shell is ignored by what it starts
    assert outcome.status == "timeout"
    assert outcome.reason == f"no end after 0.3 s (time_limit): stuck [{job.folder / 'stderr.log'}]"


RANKS = """
export PMI_SIZE=2 MPI_LOCALNRANKS=2
PMI_RANK=0 sleep 1000 &
PMI_RANK=1 sh -c '{}' &
wait
"""


@pytest.mark.parametrize(
    ("rank", "is_joining", "status"),
    [
        ("exit 3", True, "failed"),
        ("exit 3", False, "timeout"),
        ("sleep 1000", True, "timeout"),
        ("sleep 1000 & exit", True, "timeout"),
        ("exec env -i sleep 1000", True, "timeout"),
    ],
)
def test_only_a_rank_of_which_nothing_lives_ends_a_job_that_waits_in_init(job, rank, is_joining, status):
    ending = "ended with exit code {}".format
    observer = local.Observer(look_s=0.05, is_joining=lambda: is_joining, ending=ending)
    limit_s = LIMIT_S if status == "failed" else 1.0
    outcome = job(RANKS.format(rank), limit_s, observer, name="prterun")  # the parent of ranks
    assert (outcome.status, outcome.cut_short) == (status, True)
    said = "rank 1 ended with exit code 1 before MPI_Init, in which the others wait"
    assert outcome.reason.startswith(said) == (status == "failed")


def test_a_failure_that_the_others_wait_for_is_the_reason_of_the_time_out(job):
    failure(job.folder, 1, 1.0, message="boom")
    assert job("sleep 1000", limit_s=0.1).reason == "no end after 0.1 s (time_limit): rank 1: boom"


def test_what_a_launcher_leaves_behind_is_ended(job):
    outcome = job(RESULT + 'setsid sleep 1000 & echo $! > "$FOLDER/pid"')
    assert outcome.status == "ok"
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int((job.folder / "pid").read_text())).status() == psutil.STATUS_ZOMBIE


def test_an_interrupt_ends_the_job_before_it_goes_on(job):
    threads = threading.active_count() + 2  # `interrupt`, and what waits for the launcher

    def interrupt():
        wait_for(lambda: (job.folder / "ready").exists() and threading.active_count() >= threads)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        job('setsid sleep 1000 & echo > "$FOLDER/ready"; sleep 1000')
    # the fixture looks for survivors


def test_an_interrupt_while_its_shared_memory_is_looked_for_ends_a_job_all_the_same(job, monkeypatch):
    def interrupt(_processes):
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "segments_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job("setsid sleep 1000 & exit 1")
    # the fixture looks for survivors


def test_a_launcher_that_cannot_be_started_is_named(tmp_path):
    with pytest.raises(LaunchError, match="cannot start /none/mpiexec"):
        local.launch(Command(argv=("/none/mpiexec",), env={}), tmp_path, 1.0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(LaunchError, match=str(tmp_path / "missing")):
        local.launch(Command(argv=("true",), env={}), tmp_path / "missing", 1.0)


def test_a_process_that_pscale_itself_starts_meanwhile_is_none_of_the_job(job):
    helpers = []

    def start_helper():
        wait_for((job.folder / "ready").exists)
        helpers.append(psutil.Popen(["sleep", "1000"]))
        (job.folder / "go").touch()

    thread = threading.Thread(target=start_helper)
    thread.start()
    job(RESULT + 'touch "$FOLDER/ready"; until [ -e "$FOLDER/go" ]; do sleep 0.05; done')
    thread.join()
    (helper,) = helpers
    assert helper.poll() is None
    helper.kill()
    helper.wait()


MAPS = """
import mmap, sys, time
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    kept = mmap.mmap(file.fileno(), 0)
time.sleep(1000)
"""


def test_shared_memory_that_a_launch_leaves_is_removed_and_none_of_another_job(job, monkeypatch):
    folder = job.folder.parent
    monkeypatch.setattr(local, "SHARED_MEMORY", folder)
    left, mapped, old = (folder / f"mpich_shm_{name}_0" for name in ("1a", "2b", "3c"))
    old.touch()
    others = []

    def start():  # another job, meanwhile
        wait_for(left.exists)
        environ = {**os.environ, local.TAG: f"{folder}/other"}
        others.append(psutil.Popen([sys.executable, "-c", MAPS, mapped], env=environ))

    thread = threading.Thread(target=start)
    thread.start()
    job(f"touch '{left}'; until [ -s '{mapped}' ]; do sleep 0.05; done; kill -9 $$")
    thread.join()
    assert (left.exists(), mapped.exists(), old.exists()) == (False, True, True)
    found = doctor.shared_memory()
    assert (found.level, "have left 0.0 MiB in 1 files" in found.text) == ("warn", True)
    local.end(f"{folder}/other")  # as pscale does that comes back to a run
    others[0].wait()
    assert (mapped.exists(), old.exists()) == (False, True)


def test_processes_of_other_jobs_are_left_alone(tmp_path):
    other = psutil.Popen(["sleep", "1000"], env={**os.environ, local.TAG: f"{tmp_path}/other"})
    try:
        local.end(str(tmp_path))
        assert other.status() != psutil.STATUS_ZOMBIE
    finally:
        with contextlib.suppress(psutil.Error):
            other.kill()
            other.wait()
