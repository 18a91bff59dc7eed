"""Other programs, and parts of pscale in an isolated process: memory and crashes stay there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any


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


def documents(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in an output, one a line; other lines may be anybody's."""
    found = []
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


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


def exchange(module: str, request: bytes) -> tuple[int, bytes]:
    """Run `python -m MODULE` with `request` as its input; return its exit code and output.

    Its messages go to `sys.stderr`, which may be a notebook's. It has a session of its own, and gets SIGINT
    where this thread is interrupted. Its input closes when this process ends: see `end_with_parent`.
    """
    argv, pipe = [sys.executable, "-P", "-m", module], subprocess.PIPE
    errors = None if sys.stderr is sys.__stderr__ else pipe if sys.stderr else subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            for line in process.stderr or ():
                sys.stderr.write(line.decode(errors="replace"))
            output = process.stdout.read()
            return process.wait(), output
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def end_with_parent(end: Callable[[], object] | None = None) -> None:
    """End this process, started by `run` or `exchange`, as soon as the one that waits for it is gone."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing is ever written
        (end or partial(os._exit, 1))()

    threading.Thread(target=watch, daemon=True).start()
