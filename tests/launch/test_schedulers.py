"""What schedulers are told, word for word, and what they say in every state of a job."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import fake_scheduler
import pytest

import pscale
from pscale.config import Launch
from pscale.errors import LaunchError, ResultsError, UsageError
from pscale.launch.scheduler import SCHEDULERS, is_inherited
from pscale.launch.scheduler.base import JobHandle, JobRequest, LimitError

OTHER = "pscale-2026-11-20T094107-7f3a-2"
GOLDEN = Path(__file__).parent / "golden"
PACKAGE = Path(pscale.__file__).parent
BY_NAME = {scheduler.name: scheduler for scheduler in SCHEDULERS}
PLAIN = JobRequest(
    name="pscale-2026-11-20T094107-7f3a-1",
    folder=Path("/home/u/reports/weak/2026-11-20T094107-7f3a/jobs/001"),
    command=("/venv/bin/python", "-P", "-m", "pscale.cli.job", "/home/u/reports/weak/R/jobs/001"),
    nodes=4,
    ranks_per_node=8,
    cores_per_rank=2,
    time_limit_s=3721,
    launch=Launch(),
)
SITE = Launch(
    partition="batch",
    account="project7",
    constraint="fast",
    gpus=8,
    directives=("--exclusive",),
    modules=("gcc/13", "a b;c"),
    setup="source /venv/bin/activate\nexport UCX_TLS=sm,rc\n",
)
FULL = JobRequest(
    name="pscale-x-2",
    folder=Path("/scratch/a $(b) 'c' 100%/jobs/002"),
    command=("python", "-m", "m", "/scratch/a $(b) 'c' 100%/jobs/002"),
    nodes=1,
    ranks_per_node=4,
    cores_per_rank=1,
    time_limit_s=30,
    launch=SITE,
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put the commands of a scheduler on PATH; return it with the jobs that it knows."""

    def install(name):
        programs = fake_scheduler.install(tmp_path / name, name)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return BY_NAME[name], fake_scheduler.Jobs(tmp_path / name)

    return install


@pytest.fixture
def submitted(fake, tmp_path):
    """Submit a job to a scheduler."""

    def submit(name):
        scheduler, jobs = fake(name)
        script = tmp_path / "script.sh"
        script.write_text(scheduler.render(PLAIN))
        return scheduler, jobs, scheduler.submit(replace(PLAIN, folder=tmp_path), script)

    return submit


@pytest.mark.parametrize("name", BY_NAME)
def test_scripts_and_submissions_are_word_for_word_those_of_the_golden_files(name):
    scheduler = BY_NAME[name]
    parts = []
    full = FULL if "{gpus" in scheduler.options else replace(FULL, launch=replace(SITE, gpus=0))
    for request in (PLAIN, full):
        parts += [
            repr(scheduler.submission(request, request.folder / "script.sh")),
            scheduler.render(request),
        ]
    text = "\n".join(parts)
    path = GOLDEN / f"{name}.txt"
    if "PSCALE_GOLDEN" in os.environ:  # write them again, and read the difference before committing it
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", BY_NAME)
def test_nothing_but_its_own_file_names_a_scheduler(name):
    scheduler = BY_NAME[name]
    words = rf"\b({'|'.join(filter(None, (name, scheduler.submit_program, scheduler.launcher)))})\b"
    same = {f"{each.name}.py" for each in SCHEDULERS if each.submit_program == scheduler.submit_program}
    files = [path for part in ("launch", "cli") for path in (PACKAGE / part).rglob("*.py")]
    naming = {path.name for path in files if re.search(words, path.read_text(), re.IGNORECASE)}
    assert naming == same


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("state", fake_scheduler.STATES)
def test_each_state_is_told_by_id_and_while_the_id_is_unknown_by_name(submitted, name, state):
    scheduler, jobs, number = submitted(name)
    jobs.set(number, state)
    by_id = scheduler.poll_many([JobHandle(name=PLAIN.name, id=number), JobHandle(name=OTHER, id="99")])
    by_name = scheduler.poll_many([JobHandle(name=PLAIN.name), JobHandle(name=OTHER)])
    if state == "forgotten" or (name == "cobalt" and state not in {"queued", "running"}):
        assert by_id == by_name == {}
        return
    assert by_id == by_name
    assert by_id.keys() == {PLAIN.name}
    found = by_id[PLAIN.name]
    assert found.id == number
    if state in {"queued", "running"}:
        assert (found.phase, found.ending) == (state, None)
    else:
        lost = name == "flux" and state == "out_of_memory"
        assert (found.phase, found.ending) == ("ended", "failed" if lost else state)


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        ("COMPLETED|0:0", "completed"),
        ("CANCELLED by 1000|0:15", "cancelled"),
        ("NODE_FAIL|1:0", "node_failed"),
        ("PREEMPTED|0:0", "preempted"),
        ("OUT_OF_MEMORY|0:125", "out_of_memory"),
        ("RUNNING|0:0", None),
    ],
)
def test_what_squeue_has_forgotten_the_accounting_tells_where_there_is_one(submitted, said, ending):
    scheduler, jobs, number = submitted("slurm")
    jobs.set(number, "forgotten")
    (jobs.folder / "accounting").write_text(f"1|FAILED|1:0|x\n{number}|{said}|{PLAIN.name}\n")
    found = scheduler.poll_many([JobHandle(name=PLAIN.name, id=number)])[PLAIN.name]
    assert (found.id, found.ending) == (number, ending)
    assert found.phase == ("ended" if ending else "running")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_limit_on_jobs_is_distinguished_from_a_refusal(fake, tmp_path, name):
    scheduler, jobs = fake(name)
    script = tmp_path / "script.sh"
    script.write_text(scheduler.render(PLAIN))
    (jobs.folder / "limit").write_text("0")
    with pytest.raises(LimitError):
        scheduler.submit(PLAIN, script)
    program = jobs.folder / "bin" / scheduler.submit_program
    program.write_text("#!/bin/sh\necho 'invalid account' >&2; exit 1\n")
    with pytest.raises(LaunchError, match="invalid account") as refused:
        scheduler.submit(PLAIN, script)
    assert not isinstance(refused.value, LimitError)


POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("name", "said", "passes"),
    [
        ("slurm", f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", True),
        ("slurm", f"sbatch: error: AssocGrpSubmitJobsLimit\n{POLICY}", True),
        ("slurm", POLICY, True),
        ("slurm", f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", False),
        ("slurm", f"sbatch: error: AssocMaxNodePerJobLimit\n{POLICY}", False),
        ("pbs", "qsub: Job exceeds queue and/or server resource limits", False),
        ("lsf", "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", False),
        ("flux", "flux-batch: ERROR: requested duration exceeds policy limit of 1h", False),
    ],
)
def test_a_limit_that_the_end_of_other_jobs_does_not_lift_is_a_refusal(fake, tmp_path, name, said, passes):
    scheduler, jobs = fake(name)
    script = tmp_path / "script.sh"
    script.touch()
    program = jobs.folder / "bin" / scheduler.submit_program
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    with pytest.raises(LaunchError) as refused:
        scheduler.submit(PLAIN, script)
    assert isinstance(refused.value, LimitError) == passes


@pytest.mark.parametrize("name", BY_NAME)
def test_jobs_are_cancelled_also_those_that_are_over_and_none_of_another_folder(submitted, tmp_path, name):
    scheduler, _, number = submitted(name)
    handle = JobHandle(name=PLAIN.name, id=number)
    with pytest.raises(LaunchError, match=f"job {number} is not of this run: it has '{tmp_path}"):
        scheduler.cancel({number: tmp_path / name})
    assert scheduler.poll_many([handle])[PLAIN.name].phase == "queued"
    for _ in range(2):
        scheduler.cancel({number: tmp_path})
    found = scheduler.poll_many([handle]).get(PLAIN.name)
    assert (found and found.ending) == (None if name == "cobalt" else "cancelled")


IDS = ("1@host", "--help", "-x", "1 2", "1,2", "*", "7\n", "../7", "x")
NAMES = ("other", "--help", "pscale-*-1", "pscale-x-1\n", "pscale-x y-1", "pscale-x-1,other", "pscale")


@pytest.mark.parametrize("name", BY_NAME)
def test_no_command_is_given_a_name_or_an_id_that_pscale_does_not_write(name):
    scheduler = type(BY_NAME[name])(is_inherited, lambda argv, *_, **__: pytest.fail(f"starts {argv}"))
    handles = [JobHandle(name=PLAIN.name, id=each) for each in IDS] + [JobHandle(name=each) for each in NAMES]
    for handle in handles:
        with pytest.raises(ResultsError, match="the journal is damaged"):
            scheduler.poll_many([handle])
    for each in IDS:
        with pytest.raises(ResultsError, match="the journal is damaged"):
            scheduler.cancel({each: Path("/")})


def test_no_host_that_a_journal_names_is_asked_for_a_job_of_pbs(submitted):
    scheduler, _, number = submitted("pbs")
    handle = JobHandle(name=PLAIN.name, id=f"{number}.elsewhere.org")
    assert scheduler.poll_many([handle])[PLAIN.name].id == number
    with pytest.raises(UsageError, match="name the server in PBS_DEFAULT"):
        scheduler.render(replace(PLAIN, launch=Launch(partition="q@elsewhere.org")))


def test_nothing_of_the_login_shell_gets_into_a_job(submitted, monkeypatch):
    for variable in ("SBATCH_EXCLUSIVE", "SLURM_NTASKS", "SLURM_JOB_ID", "OMP_NUM_THREADS", "PMI_RANK"):
        monkeypatch.setenv(variable, "7")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/site/lib")
    monkeypatch.setenv("SLURM_CONF", "/site/slurm.conf")
    _, jobs, number = submitted("slurm")
    (job,) = [job for job in jobs.all() if job["id"] == number]
    assert not re.search("SBATCH_|SLURM_NTASKS|SLURM_JOB_ID|OMP_NUM|PMI_RANK", json.dumps(job["env"]))
    assert job["env"]["LD_LIBRARY_PATH"] == "/site/lib"
    assert job["env"]["SLURM_CONF"] == "/site/slurm.conf"


def test_where_the_scheduler_is_stays_known():
    kept = {"SLURM_CONF": "a", "PBS_SERVER": "b", "LSF_ENVDIR": "c", "FLUX_URI": "d", "HOME": "e"}
    inherited = {"PBS_NODEFILE": "x", "LSB_HOSTS": "x", "FLUX_JOB_ID": "x", "OMPI_COMM_WORLD_RANK": "0"}
    assert {name for name in {**kept, **inherited} if is_inherited(name)} == kept.keys()


def test_the_default_partition_or_the_one_that_is_named_says_what_its_nodes_are_like(fake):
    scheduler, _ = fake("slurm")
    found = scheduler.resources(Launch())
    assert (found.nodes, found.cores_per_node, found.max_time_s) == (4, 2, 86400)
    assert "main" in found.host
    assert scheduler.resources(Launch(partition="small")).nodes == 2
    with pytest.raises(LaunchError, match="no partition batch; it has: small, main"):
        scheduler.resources(Launch(partition="batch"))
    scheduler, _ = fake("flux")
    found = scheduler.resources(Launch())
    assert (found.nodes, found.cores_per_node) == (4, 2)


@pytest.mark.parametrize(
    ("name", "launch", "said"),
    [
        *(
            (name, Launch(qos="high"), "launch.qos: .* has no option for it")
            for name in BY_NAME
            if name != "slurm"
        ),
        ("cobalt", Launch(gpus=8), "launch.gpus: Cobalt has no option for it"),
        ("flux", Launch(gpus=9), "launch.gpus: .* 9 cannot be divided by 8 ranks per node"),
    ],
)
def test_what_a_scheduler_has_no_option_for_is_refused(name, launch, said):
    with pytest.raises(UsageError, match=said):
        BY_NAME[name].render(replace(PLAIN, launch=launch))
