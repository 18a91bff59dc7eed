"""Run a program on SimGrid, an engine that shares the links of a network between all that goes over them.

The engine is not part of pscale: it has to be installed (Debian: libsimgrid-dev). Ranks run `simgrid.c`,
which makes the real collectives of SimGrid's MPI on the communicators of the mesh; computing takes the time
that it is given.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pscale.errors import PlanError, PscaleError, UsageError
from pscale.mesh.dry import AxisCall
from pscale.predict.step_program import PhaseEnd, Segment, StepProgram
from pscale.simulator.network import Link, Tier, Tiers

Seconds = NDArray[np.float64]

SELECTORS = ("ompi", "default")  # of collective algorithms; that of MPICH may abort in 3.32
MISSING = "--engine simgrid needs SimGrid's smpicc and smpirun on PATH; on Debian: apt install libsimgrid-dev"
_SOURCE = Path(__file__).with_name("simgrid.c")
_SETTINGS = {  # what the network says is what a message gets, alone on its links
    "smpi/simulate-computation": "no",  # what the program itself takes here is no time there
    "smpi/bw-factor": "0:1",
    "smpi/lat-factor": "0:1",
    "network/TCP-gamma": "0",
    "network/crosstraffic": "no",
}
_SPEED = "1Gf"


class SimGridError(PscaleError):
    """SimGrid is not there, or it failed."""


def is_there() -> bool:
    """Tell whether SimGrid's compiler and launcher are on PATH."""
    return shutil.which("smpicc") is not None and shutil.which("smpirun") is not None


def simulate(program: StepProgram, durations_s: Seconds, tiers: Tiers, *, selector: str = "ompi") -> Seconds:
    """Return when each step of each rank ends, ranks x steps.

    `durations_s` are those of the segments in order, ranks x steps x as many as the longest block has. Raises
    SimGridError.
    """
    if not is_there():
        raise SimGridError(MISSING)
    ranks, steps, _ = durations_s.shape
    units = units_of(tiers, ranks)
    with tempfile.TemporaryDirectory(prefix="pscale-simgrid-") as name:
        folder = Path(name)
        _write(folder, program, durations_s)
        (folder / "platform.xml").write_text(platform(units, ranks), encoding="utf-8")
        (folder / "hosts").write_text("".join(f"{host}\n" for host in hosts(units, ranks)), encoding="utf-8")
        _run(["smpicc", "-O1", "-o", str(folder / "rank"), str(_SOURCE)], folder / "rank")
        settings = [f"--cfg={key}:{value}" for key, value in _SETTINGS.items()]
        inputs = ["-platform", str(folder / "platform.xml"), "-hostfile", str(folder / "hosts")]
        chosen = [f"--cfg=smpi/coll-selector:{selector}", "--log=root.thres:error"]
        command = ["smpirun", "-np", str(ranks), *inputs, *settings, *chosen, str(folder / "rank"), name]
        _run(command, folder / "ends")
        return np.fromfile(folder / "ends").reshape(ranks, steps)


def _run(command: Sequence[str], written: Path) -> None:
    """Run a command that writes a file; one of an aborted program may end with 0."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not written.exists():
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise SimGridError(f"{command[0]} of SimGrid failed with exit code {done.returncode}:\n{said}")


def _write(folder: Path, program: StepProgram, durations_s: Seconds) -> None:
    """Write what `simgrid.c` reads."""
    sizes, groups = program.sizes, list(program.spans.values())
    lines = [
        " ".join(map(str, [*durations_s.shape, len(sizes), *sizes.values()])),
        str(len(groups)),
        *(" ".join(str(int(axis in span)) for axis in sizes) for span in groups),
    ]
    (folder / "mesh").write_text("\n".join(lines), encoding="utf-8")
    np.ascontiguousarray(durations_s, np.float64).tofile(folder / "durations")
    block_of, names = np.empty(tuple(sizes.values()), np.intc), list(program.spans)
    for number, block in enumerate(program.blocks):
        block_of[tuple(slice(each.start, each.stop) for each in block.places.values())] = number
        written = [_line(each, names) for each in block.step if not isinstance(each, PhaseEnd)]
        (folder / f"block-{number}").write_text("\n".join([str(len(written)), *written]), encoding="utf-8")
    block_of.tofile(folder / "blocks")


def _line(each: Segment | AxisCall, groups: Sequence[str]) -> str:
    """Return a segment or a call as `simgrid.c` reads it."""
    if isinstance(each, Segment):
        return "seg - 0 0 0 0 0 0"
    what = {"call": "cal", "start": "nbc", "wait": "end"}[each.event]
    if what == "nbc" and each.partner is not None:
        what = "snd" if each.verb == "send" else "rcv"
    numbers = (each.bytes, each.arriving, int(each.root), each.partner or 0, each.request or 0)
    return " ".join(map(str, (what, each.verb, groups.index(each.axis), *numbers)))


def units_of(tiers: Tiers, ranks: int) -> list[tuple[Tier, Link]]:
    """Return the tiers that so many ranks cross, each with its link; raises UsageError or PlanError."""
    found: list[tuple[Tier, Link]] = []
    for tier in tiers.tiers:
        if tier.link is None:
            message = f"--engine simgrid needs its latency and bandwidth: tier {tier.name} has none"
            raise UsageError(f"{tiers.origin}: tiers: {message}")
        found.append((tier, tier.link))
        if tier.ranks >= ranks:
            return found
    largest = tiers.tiers[-1]
    message = f"the largest, {largest.name}, holds {largest.ranks:,} ranks; add a tier of at least {ranks:,}"
    raise PlanError(f"{tiers.origin}: tiers: {message}")


def hosts(units: Sequence[tuple[Tier, Link]], ranks: int) -> list[str]:
    """Return the host of every rank, as `platform` calls it."""
    width = units[0][0].ranks
    return [f"unit0-{rank // width}-{rank % width}" for rank in range(ranks)]


def platform(units: Sequence[tuple[Tier, Link]], ranks: int) -> str:
    """Return SimGrid's description of a network, the tier of the smallest units first."""
    body = "\n".join(_unit(units, len(units) - 1, 0, ranks))
    header = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
    return f'{header}<platform version="4.1">\n{body}\n</platform>\n'


def _unit(units: Sequence[tuple[Tier, Link]], level: int, number: int, ranks: int) -> Iterator[str]:
    """Yield the lines of unit `number` of a level: what connects those of the level below, or ranks."""
    (tier, link), name = units[level], f"unit{level}-{number}"
    if level == 0:
        yield _cluster(tier, link, name, min(tier.ranks, ranks - number * tier.ranks))
        return
    below, narrower = units[level - 1]
    width = tier.ranks // below.ranks
    here = range(number * width, min((number + 1) * width, -(-ranks // below.ranks)))
    yield f'<zone id="{name}" routing="Floyd">'
    for child in here:
        yield from _unit(units, level - 1, child, ranks)
    yield f'<zone id="{name}-switch" routing="Full"><router id="{name}-router"/></zone>'
    latency_s = max(link.latency_s - narrower.latency_s, 0.0) / 2  # of a way up or down, beyond those below
    for child in here:
        yield _link(f"unit{level - 1}-{child}-up", "SPLITDUPLEX", link.bytes_per_s, latency_s)
    yield _link(f"{name}-core", "SHARED", len(here) * link.bytes_per_s / tier.oversubscription, 0.0)
    for child in here:
        yield from _routes(f"unit{level - 1}-{child}", name, is_shared=tier.oversubscription > 1)
    yield "</zone>"


def _cluster(tier: Tier, link: Link, name: str, ranks: int) -> str:
    """Return the line of a unit of ranks, each with a link of its own."""
    whole = ranks * link.bytes_per_s / tier.oversubscription
    core = f'bb_bw="{whole:.17g}Bps" bb_lat="0s" ' if tier.oversubscription > 1 else ""
    return (
        f'<cluster id="{name}" prefix="{name}-" suffix="" radical="0-{ranks - 1}" speed="{_SPEED}" '
        f'bw="{link.bytes_per_s:.17g}Bps" lat="{link.latency_s / 2:.17g}s" sharing_policy="SPLITDUPLEX" '
        f'{core}router_id="{name}-router"/>'
    )


def _routes(child: str, parent: str, *, is_shared: bool) -> Iterator[str]:
    """Yield the ways up and down; what goes up shares the core where that carries less than all send."""
    ends = (child, f"{child}-router"), (f"{parent}-switch", f"{parent}-router")
    core = f'<link_ctn id="{parent}-core"/>' if is_shared else ""
    for (source, leaves), (target, enters), direction in ((*ends, "UP"), (*reversed(ends), "DOWN")):
        yield (
            f'<zoneRoute src="{source}" dst="{target}" gw_src="{leaves}" gw_dst="{enters}" symmetrical="NO">'
            f'<link_ctn id="{child}-up" direction="{direction}"/>{core if direction == "UP" else ""}'
            "</zoneRoute>"
        )


def _link(name: str, policy: str, bytes_per_s: float, latency_s: float) -> str:
    numbers = f'bandwidth="{bytes_per_s:.17g}Bps" latency="{latency_s:.17g}s"'
    return f'<link id="{name}" sharing_policy="{policy}" {numbers}/>'
