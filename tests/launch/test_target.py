"""Where pscale finds itself: on a login node, inside a job, or on a machine of its own."""

import re
from dataclasses import replace

import fake_scheduler
import pytest

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch import doctor
from pscale.launch.machine import Machine
from pscale.launch.scheduler import SCHEDULERS
from pscale.launch.target import detect_site, find_target

HERE = Machine(host="n1", cpu_model="c", core_cpus=((0, 4), (1, 5), (2, 6), (3, 7)), memory_bytes=1)
INSIDE = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}


def allocation(environ):
    """Return what the scheduler that recognises its job in `environ` says of it."""
    return next(filter(None, (scheduler.allocation(environ) for scheduler in SCHEDULERS)), None)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))

    def install(name):
        programs = fake_scheduler.install(tmp_path / name, name)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return programs

    return install


@pytest.mark.parametrize("name", ["slurm", "pbs", "lsf", "flux", "cobalt"])
def test_a_scheduler_that_answers_gets_the_jobs(commands, name):
    commands(name)
    found = detect_site("auto", {})
    assert found.scheduler is not None
    assert found.scheduler.name == name
    assert detect_site("none", {}).scheduler is None
    assert detect_site(name, {}).scheduler == found.scheduler


def test_without_a_scheduler_that_answers_launches_happen_here_and_it_is_said_why(commands):
    assert "no scheduler answers" in detect_site("auto", {}).reason
    assert doctor.site().level == "ok"
    programs = commands("slurm")
    (programs / "scontrol").write_text(
        "#!/bin/sh\nprintf 'DNS\\nCould not establish a configuration source\\n' >&2; exit 1\n"
    )
    told = doctor.site()
    assert (told.level, "`scontrol ping`" in told.advice) == ("warn", True)
    assert "configuration" not in told.text
    found = detect_site("auto", {})
    assert (found.scheduler, found.allocation) == (None, None)
    assert "Could not establish a configuration source" in found.reason
    with pytest.raises(LaunchError, match=r"scheduler: slurm: .*configuration source"):
        detect_site("slurm", {})
    with pytest.raises(LaunchError, match="scheduler: pbs: there is no qsub on PATH"):
        detect_site("pbs", {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "slurm",
            "Slurmctld(primary) at head is DOWN\n****\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n****",
        ),
        ("pbs", "Connection refused\nqstat: cannot connect to server head (errno=111)"),
        ("lsf", "lsid: ls_getentitlementinfo() failed: LIM is down; try later"),
    ],
)
def test_while_the_scheduler_cannot_be_reached_nothing_is_launched_on_its_login_node(commands, name, said):
    alive = {"slurm": "scontrol", "pbs": "qstat", "lsf": "lsid"}
    (commands(name) / alive[name]).write_text(f"#!/bin/sh\necho '{said}'; exit 1\n")
    with pytest.raises(LaunchError, match=r"try again when it answers.*scheduler=none") as refused:
        detect_site("auto", {})
    assert "***" not in str(refused.value)
    assert detect_site("none", {}).scheduler is None


def test_inside_a_job_launches_happen_in_it_whatever_could_be_submitted(commands):
    commands("slurm")
    for choice in ("auto", "slurm", "pbs"):
        found = detect_site(choice, INSIDE)
        assert found.scheduler is None
        assert found.allocation is not None
        assert (found.allocation.job, found.allocation.nodes) == ("17", 3)
    assert detect_site("none", INSIDE).allocation is None


def test_a_job_has_the_cores_that_it_was_given_not_those_of_its_nodes():
    whole = allocation({**INSIDE, "SLURM_JOB_CPUS_PER_NODE": "8(x3)"})
    part = allocation({**INSIDE, "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"})
    assert whole is not None
    assert part is not None
    assert (whole.machine(HERE).usable_cores, whole.machine(HERE).nodes) == (4, 3)
    assert part.machine(HERE).usable_cores == 2  # of two hardware threads each
    assert part.machine(HERE).names()["cores"] == 6
    assert part.machine(HERE).host == "n1 and 2 more"
    kept = replace(HERE, core_cpus=HERE.core_cpus[:2], restricted=True)
    assert part.machine(kept).usable_cores == 2, "an affinity is told, counts of CPUs have to be guessed at"
    assert part.machine(HERE).at_least(4).usable_cores == 4
    assert part.machine(HERE).at_least(1).usable_cores == 2


@pytest.mark.parametrize(
    ("scheduler", "job", "file", "cpus"),
    [
        ("pbs", "PBS_JOBID", "PBS_NODEFILE", 2),
        ("lsf", "LSB_JOBID", "LSB_DJOB_HOSTFILE", 2),
        ("cobalt", "COBALT_JOBID", "COBALT_NODEFILE", None),  # all of its nodes
    ],
)
def test_a_list_of_hosts_says_nodes_and_cores(tmp_path, scheduler, job, file, cpus):
    hosts = tmp_path / "hosts"
    hosts.write_text("a\na\nb\nb\n")
    found = allocation({job: "5", file: str(hosts)})
    assert found is not None
    assert (found.scheduler, found.nodes, found.cpus, found.hostfile) == (scheduler, 2, cpus, str(hosts))
    assert allocation({job: "5", file: str(tmp_path / "gone")}) is None


def test_a_flux_instance_inside_a_job_is_asked_what_it_has(commands):
    commands("flux")
    found = allocation({"FLUX_ENCLOSING_ID": "ƒ2"})
    assert found is not None
    assert (found.nodes, found.cpus) == (1, 2)


def test_a_login_node_speaks_of_the_nodes_of_its_partition(commands):
    commands("slurm")
    target = find_target(Launch(), {})
    assert target.machine.names() == {"cores": 8, "memory_gib": 1.0, "nodes": 4, "cores_per_node": 2}
    assert target.max_time_s == 86400
    stated = find_target(Launch(), {}, nodes=9, cores_per_node=48)
    assert stated.machine.names()["cores"] == 9 * 48


def test_what_a_scheduler_does_not_tell_a_profile_has_to(commands):
    commands("pbs")
    with pytest.raises(UsageError, match=r"pbs does not describe .*sites\.yaml"):
        find_target(Launch(), {})
    assert find_target(Launch(), {}, nodes=2, cores_per_node=4).machine.names()["cores"] == 8


def hosts(*named, environ=(), **launch):
    return find_target(Launch(hosts=named, **launch), dict(environ)).machine


def test_hosts_are_those_of_a_list_or_of_the_lines_of_a_file(tmp_path):
    (tmp_path / "lab").write_text("# the lab\n\na:4\nb slots=2  # old\nc.d.org slots = 3 max_slots=3\n")
    found = hosts(str(tmp_path / "lab"))
    assert found.hosts == {"a": 4, "b": 2, "c.d.org": 3}
    assert (found.names()["cores"], found.names()["cores_per_node"], found.names()["nodes"]) == (9, 2, 3)
    assert hosts("a:4", "b:2").host == "a and 1 more"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a:1\nb:1\na:2", "a is named twice"),
        ("a slots=2\nb", "'b' is no `host:cores` and no `host slots=cores`"),
        ("a:0", "'a:0' is no"),
        ("a:2 b:3", "'a:2 b:3' is no"),
        ("# none", "names no host"),
        (None, "No such file or directory; a host needs its cores, `"),
    ],
)
def test_hosts_without_a_number_of_cores_or_with_two_are_refused(tmp_path, text, reason):
    if text:
        (tmp_path / "lab").write_text(text)
    with pytest.raises(UsageError, match=re.escape(reason)):
        hosts(str(tmp_path / "lab"))


def test_hosts_beside_a_scheduler_or_its_job_are_refused():
    with pytest.raises(UsageError, match="run on the nodes of this job, slurm 17; leave `hosts` out"):
        hosts("a:1", environ=INSIDE)
    with pytest.raises(UsageError, match="pbs chooses the nodes; leave `hosts` or `scheduler` out"):
        hosts("a:1", scheduler="pbs")
