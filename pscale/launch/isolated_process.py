"""Other programs, and parts of pscale in an isolated process: memory and crashes stay there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The end of its output, in one line, without lines of stars."""
        said = map(str.strip, (self.err or self.out).splitlines())
        lines = [line for line in said if re.search(r"\w", line)]
        return " / ".join(lines[-3:]) or f"nothing, exit code {self.code}"


def ask(
    argv: Sequence[str], limit_s: float, *, stdin: str = "", env: Mapping[str, str] | None = None
) -> Answer:
    """Run a program to its end; raises OSError where it cannot be started, or subprocess.TimeoutExpired."""
    done = subprocess.run(
        argv,
        input=stdin,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def output(
    argv: Sequence[str], limit_s: float, *, stdin: str = "", env: Mapping[str, str] | None = None
) -> str | None:
    """Return what a program prints, stripped; None where it fails or cannot be asked."""
    try:
        answer = ask(argv, limit_s, stdin=stdin, env=env)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if answer.code else answer.out.strip()


def run(module: str, folder: Path, environ: Mapping[str, str]) -> Answer:
    """Run `python -m MODULE FOLDER` on this terminal; return output and exit code, negative for a signal.

    Its environment is that of this process, and `environ` where that says nothing else. Its input is a pipe
    that closes when this process ends, however it does: see `end_with_parent`.
    """
    argv = [sys.executable, "-P", "-m", module, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env={**environ, **os.environ}, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            out = process.stdout.read()
            return Answer(code=process.wait(), out=out, err="")
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
