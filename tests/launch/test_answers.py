"""Outputs of outside programs that are cut, empty, mis-encoded or after a banner: no traceback, no lie."""

import json
from dataclasses import replace
from pathlib import Path

import fake_scheduler
import pytest

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch import blas, isolated_process, launcher, provenance, selection
from pscale.launch.command import Command
from pscale.launch.isolated_process import Answer
from pscale.launch.scheduler import SCHEDULERS, is_inherited
from pscale.launch.scheduler.base import JobHandle, JobRequest

NAME = "pscale-2026-11-20T094107-7f3a-1"
BY_NAME = {  # asking as `answers` says
    each.name: type(each)(is_inherited, lambda *words, **how: isolated_process.ask(*words, **how))  # noqa: PLW0108
    for each in SCHEDULERS
}
VERSIONS = {
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n    CC:  cc\n",
    "openmpi": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\n",
    "srun": "slurm-wlm 22.05.8\n",
    "flux": "commands:    \t\t0.60.0\nlibflux-core:\t\t0.60.0\n",
}
BANNERS = (
    "\n*** Maintenance on 24.12. | all | queues | at | 7 | a.m. | x ***\n",
    '{"size": "none"}\n[1, 2]\nJob Id: 7.other\n    job_state = F\n\n'
    + "{" * 2000
    + "\n1|RUNNING|None|x\n4 x\n",
    b"Gesch\xe4tzte Nutzer\xff\x00\xc3\x28 {\n".decode(errors="replace"),
)


def damaged(text):
    """Yield whether an answer still says all, and the answer."""
    yield from ((True, banner + text) for banner in BANNERS)
    yield from ((False, text[: len(text) * part // 60]) for part in range(60))
    yield from ((False, text.replace(letter, "\ufffd")) for letter in "|=:0123456789")


@pytest.fixture
def answers(monkeypatch):
    """Let programs answer the same to every question."""

    def answer(out, code=0):
        monkeypatch.setattr(
            isolated_process, "ask", lambda *_, **__: Answer(code=code, out=out, err="" if code == 0 else out)
        )

    return answer


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Return what the commands of a scheduler print of one job, which ended in a state."""

    def outputs(name, state, *argv):
        folder = tmp_path / name
        monkeypatch.setenv("PATH", f"{fake_scheduler.install(folder, name)}:/usr/bin:/bin")
        job = {"id": "1234", "name": NAME, "state": state, "file": f"{tmp_path}/log.txt"}
        (folder / "1234.json").write_text(json.dumps(job))
        return isolated_process.ask(argv, 600).out

    return outputs


QUESTIONS = {
    "cobalt": ("qstat", "--header"),
    "slurm": ("squeue",),
    "pbs": ("qstat", "-x", "-f", "1234"),
    "lsf": ("bjobs", "-o", "x", "1234"),
    "flux": ("flux", "jobs"),
}


ENDS = ["completed", "cancelled", "timeout", "preempted"]


@pytest.mark.parametrize(
    ("name", "state"),
    [(name, state) for name in QUESTIONS for state in ("running", *ENDS * (name != "cobalt"))],
)
def test_no_answer_about_a_job_ends_it_otherwise_than_it_has_ended(answers, real, name, state):
    text = real(name, state, *QUESTIONS[name])
    handles = [JobHandle(name=NAME, id="1234")]
    answers(text)
    true = BY_NAME[name].poll_many(handles)[NAME]
    assert true.ending == (None if state == "running" else state)
    for is_whole, said in damaged(text):
        answers(said)
        try:
            found = BY_NAME[name].poll_many(handles).get(NAME)
        except LaunchError:
            assert not is_whole, said
            continue
        if is_whole:
            assert replace(found, note="") == replace(true, note=""), said
        elif found and found.phase == "ended":
            assert found.ending == true.ending, said


SUBMITTED = {
    "slurm": "1234\n",
    "pbs": "1234.server.site.org\n",
    "lsf": "Job <1234> is submitted to default queue <normal>.\n",
    "flux": "ƒ2oJZXf7Hb\n",
    "cobalt": 'Job routed to queue "default".\n1234\n',
}


@pytest.fixture
def submit(tmp_path):
    """Return a function that submits a job to a scheduler, and returns the id that it is told."""
    script = tmp_path / "script.sh"
    script.touch()
    settings = {
        "nodes": 1,
        "ranks_per_node": 1,
        "cores_per_rank": 1,
        "time_limit_s": 60.0,
        "launch": Launch(),
    }
    request = JobRequest(name=NAME, folder=tmp_path, command=("true",), **settings)
    return lambda name: BY_NAME[name].submit(request, script)


@pytest.mark.parametrize("name", SUBMITTED)
@pytest.mark.parametrize("ending", ["", "later lines\n"])
def test_no_answer_to_a_submission_names_another_job(answers, submit, name, ending):
    true = SUBMITTED[name] + ending
    for is_whole, said in damaged(true):
        answers(said)
        try:
            found = submit(name)
        except LaunchError:
            assert not is_whole, said
        else:
            assert found in ("1234", "ƒ2oJZXf7Hb")


def test_slurm_may_name_its_cluster_behind_the_id(answers, submit):
    answers("Welcome to 2 clusters\n2026\n12;cluster\n")
    assert submit("slurm") == "12"


NODES = "small|0/2/0/2|1|2|1000|30:00|(null)\nmain*|1/2/1/4|1|2+|1000+|1-00:00:00|fast,big\n"


def test_other_answers_are_understood_or_refused_in_a_sentence(answers, tmp_path, monkeypatch):
    monkeypatch.setenv("FLUX_ENCLOSING_ID", "f1")
    monkeypatch.setattr(selection.local, "launch", lambda *_, **__: Answer(code=0, out="", err=""))
    started = Command(argv=("mpiexec",), env={})
    log = tmp_path / selection.STDOUT
    spec = json.dumps(
        {"attributes": {"system": {"shell": {"options": {"output": {"stdout": {"path": "/l"}}}}}}}
    )
    monkeypatch.setattr(Answer, "exit_code", 0, raising=False)

    def worlds():
        log.write_text(isolated_process.ask((), 1).out)
        return [each["size"] for each in selection.worlds(started, tmp_path)[0]][-1:]

    def identified():
        launcher.identify.cache_clear()
        return launcher.identify("/bin/mpiexec").flavour

    questions = [
        (NODES, lambda: BY_NAME["slurm"].resources(Launch()).nodes, 4),
        (
            "MPI plugin types are...\n\tpmix\n\tpmi2\n",
            lambda: [*BY_NAME["slurm"].launcher_interfaces("s", "mpich")],
            None,
        ),
        ("4 8\n", lambda: BY_NAME["flux"].resources(Launch()).cores_per_node, 2),
        ("4 8\n", lambda: BY_NAME["flux"].allocation({"FLUX_ENCLOSING_ID": "f1"}).nodes, 4),
        (f"{spec}\n", lambda: BY_NAME["flux"].file_in(isolated_process.ask((), 1).out), "/l"),
        ('{"gemm": 1.0}\n', lambda: blas.probe(1, {}), {"gemm": 1.0}),
        ('{"library": "x", "size": 2}\n', worlds, [2]),
        (
            "0123456789abcdef\n/work\n.git/objects\n.git/index\n",
            lambda: provenance._git(Path("/")) and None,
            None,
        ),
        *((text, identified, flavour) for flavour, text in VERSIONS.items()),
    ]
    for text, ask, true in questions:
        for is_whole, said in damaged(text):
            answers(said)
            try:
                found = ask()
            except LaunchError:
                assert not is_whole, said
            else:
                assert found == true or not is_whole or true is None, said
    launcher.identify.cache_clear()


def test_the_folder_of_a_job_is_known_also_where_a_banner_comes_before_it(answers, tmp_path):
    for scheduler, text in (("slurm", "{}\n"), ("lsf", "{}\n")):
        answers("Welcome\n" + text.format(tmp_path / "log.txt"))
        BY_NAME[scheduler].cancel({"12": tmp_path})
        answers("Welcome\n" + text.format("/other/log"))
        with pytest.raises(LaunchError, match="it has '/other/log'"):
            BY_NAME[scheduler].cancel({"12": tmp_path})
