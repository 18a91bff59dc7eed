"""Suites on several hosts without a scheduler, which are namespaces of this one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from patience import LIMIT_S, run_program, wait_for
from whole_runs import TINY, Cli

pytestmark = pytest.mark.slow

HOSTS = {"alpha": "10.213.7.1", "beta": "10.213.7.2"}
# Each has its own name and network, knows the other, and has a disk that it does not see.
HOST = """
hostname {name} && mount --bind {folder}/hosts /etc/hosts && mkdir -p {folder}/disk
mount -t tmpfs none {folder}/disk
ip link set lo up; echo $$ >{folder}/{name}.tmp && mv {folder}/{name}.tmp {folder}/{name}.up
exec sleep infinity
"""
# In place of ssh.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter -t "$(cat {folder}/$host.up)" -n -u -m --wd="$PWD" sh -c "$*"
"""
NOTES = """
import os, socket
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) and "SAID" in os.environ:
    with open(os.path.join(os.path.dirname(__file__), "said." + socket.gethostname()), "w") as file:
        file.write(os.environ["SAID"])
"""


class Lab:
    """Two hosts, and the agent that starts commands on them."""

    def __init__(self, folder):
        self.folder, self.agent = folder, folder / "agent"
        self.agent.write_text(AGENT.format(folder=folder))
        self.agent.chmod(0o755)
        (folder / "hosts").write_text(
            "".join(f"{at} {name}\n" for name, at in HOSTS.items()) + "127.0.0.1 localhost\n"
        )
        own = ("unshare", "--net", "--uts", "--mount")
        self.holders = {
            name: psutil.Popen([*own, "sh", "-c", HOST.format(name=name, folder=folder)]) for name in HOSTS
        }

    def connect(self):
        for name in HOSTS:
            wait_for((self.folder / f"{name}.up").exists)
        first, second = (str(self.holders[name].pid) for name in HOSTS)
        ip = ("nsenter", "-t", first, "--net", "ip", "link", "add")
        subprocess.run([*ip, "wire", "type", "veth", "peer", "name", "wire", "netns", second], check=True)
        for address, pid in zip(HOSTS.values(), (first, second), strict=True):
            for words in (f"addr add {address}/24 dev wire", "link set wire up"):
                subprocess.run(["nsenter", "-t", pid, "--net", "ip", *words.split()], check=True)

    def on(self, name, *words, cwd="/"):
        """Return the command that runs another on a host."""
        return ["nsenter", "-t", str(self.holders[name].pid), "-n", "-u", "-m", f"--wd={cwd}", *words]

    def processes(self, name):
        """Return what runs on a host besides the first process."""
        own = Path(f"/proc/{self.holders[name].pid}/ns/net").readlink()
        found = []
        for process in psutil.process_iter():
            with suppress(OSError):
                if (
                    Path(f"/proc/{process.pid}/ns/net").readlink() == own
                    and process.pid != self.holders[name].pid
                ):
                    found.append(process)
        return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")):
        assert not os.environ.get("CI"), "hosts of namespaces must be there"
        pytest.skip("hosts of namespaces need root, util-linux and iproute2")
    if " " in sys.prefix and (Path(sys.executable).parent / "ompi_info").exists():
        pytest.skip("Open MPI starts nothing on other hosts from a path with a space: pscale refuses it")
    for variable in ("HYDRA_LAUNCHER_EXEC", "PRTE_MCA_plm_ssh_agent"):
        monkeypatch.setenv(variable, str(tmp_path / "agent"))
    monkeypatch.setenv("HYDRA_LAUNCHER", "ssh")
    lab = Lab(tmp_path)
    try:
        lab.connect()
        yield lab
    finally:
        for holder in lab.holders.values():
            holder.kill()
            holder.wait()


def run(lab, cli, *options, ranks=3):
    suite = cli.suite(TINY.replace("[1, 2, 4]", f"[{ranks}]").replace("batch: 8", "batch: 6"))
    command = cli.command("run", suite, "--no-report", *options)
    return subprocess.Popen(
        lab.on("alpha", *command, cwd=cli.folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_ranks_fill_the_hosts_of_a_file_with_threads_binding_and_variables(lab, cli):
    (cli.folder / "lab").write_text("alpha slots=2\nbeta:1\n")
    (cli.folder / "sitecustomize.py").write_text(NOTES)
    variables = f'launch.env={{SAID: two  words, PYTHONPATH: "{cli.folder}"}}'
    settings = ("launch.hosts=[lab]", "launch.oversubscribe=false", variables)
    driver = run(lab, cli, "--reports", str(cli.reports), *(w for each in settings for w in ("--set", each)))
    said, _ = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 0, said
    ranks = cli.newest().rows("ranks")
    assert Counter(rank["host"] for rank in ranks) == {"alpha": 2, "beta": 1}
    cores = {str(rank["cpus"]) for rank in ranks if rank["host"] == "alpha"}
    assert len(cores) == 2, "each rank has a core of its host"
    assert {(cli.folder / f"said.{host}").read_text() for host in HOSTS} == {"two  words"}


def test_a_folder_that_another_host_does_not_see_is_named_before_anything_starts(lab, cli):
    driver = run(lab, cli, "--reports", f"{lab.folder}/disk", "--set", "launch.hosts=[alpha:2, beta:1]")
    said, _ = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 4, said
    assert "beta does not see" in said
    assert "share" in said


def test_an_interrupt_leaves_no_process_on_any_host(lab, cli):
    settings = ("launch.hosts=[alpha:2, beta:1]", "train.steps=1000000")
    driver = run(lab, cli, "--reports", str(cli.reports), *(w for each in settings for w in ("--set", each)))
    wait_for(lambda: [*cli.reports.glob("*/*/cases/*/born")] or driver.poll() is not None)
    assert lab.processes("beta")
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 130, said
    for host in HOSTS:
        wait_for(lambda host=host: not lab.processes(host))


MEETS = """
from mpi4py import MPI
import socket
print(sorted(set(MPI.COMM_WORLD.allgather(socket.gethostname()))), flush=True)
"""


def test_a_program_is_watched_on_hosts_of_which_doctor_has_said_that_they_meet(lab, cli):
    hosts = "--hosts", "alpha:2,beta:1", "--reports", str(cli.reports)

    def said(code, *words):
        command = lab.on("alpha", *cli.command(*words), cwd=cli.folder)
        return run_program(command, code=code).stdout

    program = sys.executable, "-c", MEETS
    watched = said(0, "watch", "-n", "3", *hosts, "--time-limit", "10m", "--no-report", "--", *program)
    assert watched.count("['alpha', 'beta']") == 3
    assert Counter(rank["host"] for rank in cli.newest().rows("ranks")) == {"alpha": 2, "beta": 1}
    findings = {each["topic"]: each for each in json.loads(said(None, "doctor", "--json", *hosts))}
    assert findings["hosts"]["level"] == "ok"
    assert "each of alpha:2, beta:1 met the others" in findings["hosts"]["text"]
    blind = json.loads(said(1, "doctor", "--json", *hosts[:2], "--reports", f"{lab.folder}/disk"))
    assert any("beta does not see" in each["text"] for each in blind if each["level"] == "fail")
