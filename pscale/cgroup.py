"""What the control groups of Linux leave to this process: containers and batch systems limit with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cpu_limit(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return how many CPUs' worth of time this process may use; None without a limit."""
    limits = []
    for folder in _folders("cpu", mount, own):
        words = content(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
        if not words:  # version 1: two files, -1 without a limit
            words = [content(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (int(word) if word.isdigit() else 0 for word in words[:2])
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """Return the bytes that this process may occupy; None without a limit."""
    limits = []
    for folder in _folders("memory", mount, own):
        word = content(folder / "memory.max") or content(folder / "memory.limit_in_bytes")
        if word.isdigit():
            limits.append(int(word))
    return min(limits, default=None)


def throttled_s(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return for how long the limit on CPU time has held this process's groups back; None where unknown."""
    found = []
    for folder in _folders("cpu", mount, own):
        told = dict(line.split() for line in content(folder / "cpu.stat").splitlines())
        if "throttled_usec" in told:
            found.append(int(told["throttled_usec"]) * 1e-6)
        elif "throttled_time" in told:  # version 1, in nanoseconds
            found.append(int(told["throttled_time"]) * 1e-9)
    return max(found, default=None)


def _folders(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """Yield the groups that hold this process, innermost first: the tightest limit of all of them counts."""
    for line in content(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        bases = [mount / controller, mount / controllers] if controllers else [mount, mount / "unified"]
        base = next((base for base in bases if base.is_dir()), mount)
        inner = base / path.lstrip("/")
        yield inner
        yield from (folder for folder in inner.parents if folder.is_relative_to(base))


def content(path: Path) -> str:
    """Return what a small file of the system says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
