"""Two hosts on one machine: network namespaces with a link of limited rate between them; needs root.

Ranks in different namespaces communicate over a network that takes time but little of a core, as a network
card does. Frames are large (MTU 65,535), since cards segment and reassemble them; the kernel's token bucket
limits the rate.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ADDRESSES = ("10.203.0.1", "10.203.0.2")
SPACES = ("pscale-a", "pscale-b")
WIRE = "wire"
QUEUE = "64mb"  # more than sockets hold: frames that are dropped are sent again, which would be measured
SHELL = """#!/bin/sh
# Started by the launcher instead of ssh: [options] ADDRESS COMMAND...
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {0}) space={2} ;; *) space={3} ;; esac
shift
exec ip netns exec $space unshare --uts /bin/sh -c "hostname $space; $*"
"""


@dataclass(frozen=True)
class Link:
    """A link that is up; `shell` runs a command at one of its ends."""

    shell: Path
    ranks: int = 1  # at each end

    @property
    def prefix(self) -> list[str]:
        """What comes before a command that shall run at the first end."""
        return ["ip", "netns", "exec", SPACES[0]]

    def options(self, flavour: str) -> list[str]:
        """Return the options of the launcher that put ranks at each end, with nothing but the link."""
        hosts = ",".join(f"{address}:{self.ranks}" for address in ADDRESSES)
        if flavour == "openmpi":
            subnet = ADDRESSES[0].rpartition(".")[0] + ".0/24"
            only = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", subnet]
            agent = ["--prtemca", "plm_ssh_agent", str(self.shell), "--prtemca", "prte_if_include", subnet]
            return ["--host", hosts, *agent, *only, "--map-by", "node", "--bind-to", "none"]
        variables = [
            "-genv",
            "UCX_TLS",
            "tcp,self",
            "-genv",
            "UCX_NET_DEVICES",
            WIRE,
            "-genv",
            "FI_PROVIDER",
            "tcp",
        ]
        return ["-launcher", "ssh", "-launcher-exec", str(self.shell), "-hosts", hosts, *variables]


def missing() -> str:
    """Return why there can be no such link here, or nothing."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"no program {program} (iproute2)"
    try:
        with link("1gbit"):
            return ""
    except subprocess.CalledProcessError as error:
        return error.stderr.strip() or str(error)


@contextmanager
def link(rate: str, *, mtu: int = 65535, burst: str = "256kb", ranks: int = 1) -> Iterator[Link]:
    """Set up the namespaces with a link of `rate` each way (as tc writes it); take them down after use.

    As much as a `burst`, of at least a frame of `mtu` bytes, passes at once after a pause. `ranks` are those
    of each end.
    """
    _remove()
    try:
        for space in SPACES:
            _do("ip", "netns", "add", space)
        peer = ("peer", "name", WIRE, "netns", SPACES[1])
        _do("ip", "link", "add", WIRE, "netns", SPACES[0], "type", "veth", *peer)
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            _do("ip", "-n", space, "address", "add", f"{address}/24", "dev", WIRE)
            _do("ip", "-n", space, "link", "set", "lo", "up")
            _do("ip", "-n", space, "link", "set", WIRE, "mtu", str(mtu), "up")
            limit = ["tbf", "rate", rate, "burst", burst, "limit", QUEUE]
            _do("tc", "-n", space, "qdisc", "add", "dev", WIRE, "root", *limit)
        _wait_for_carrier()
        with TemporaryDirectory() as folder:
            shell = Path(folder, "shell")
            shell.write_text(SHELL.format(*ADDRESSES, *SPACES))
            shell.chmod(0o755)
            yield Link(shell, ranks)
    finally:
        _remove()


def _wait_for_carrier() -> None:
    """Return when both ends say that they are up, which the kernel takes up to a second to notice."""
    deadline = time.monotonic() + 10
    for space in SPACES:
        while "state UP" not in _do("ip", "-n", space, "link", "show", WIRE) and time.monotonic() < deadline:
            time.sleep(0.05)


def _remove() -> None:
    for space in SPACES:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def _do(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
