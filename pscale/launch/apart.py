"""A part of pscale in a process of its own: neither its memory nor its end is that of the one that waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path


def run(module: str, folder: Path, environ: Mapping[str, str]) -> int:
    """Run `python -m MODULE FOLDER` on this terminal; return its exit code, negative where a signal ended it.

    Its environment is that of this process, and `environ` where that says nothing else. Its input is a pipe
    that closes when this process ends, however it does: see `end_with_parent`.
    """
    argv = [sys.executable, "-P", "-m", module, str(folder)]
    with subprocess.Popen(argv, env={**environ, **os.environ}, stdin=subprocess.PIPE) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # which the terminal has sent to both
            process.wait()
            raise


def start(module: str) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE`, whose input and output are pipes to this process."""
    argv = [sys.executable, "-P", "-m", module]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def end_with_parent() -> None:
    """End this process, which `run` has started, as soon as the one that waits for it is gone."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing is ever written
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
