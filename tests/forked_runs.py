"""Command lines in copies of a process that has imported everything: as many as a sweep takes."""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Each line is a folder, a terminal and what to do there. Answers are the copy's id, and how it ended.
SERVER = """
import ctypes, json, os, sys, traceback
from pathlib import Path
import pscale.analysis.frames, pscale.cli.app, pscale.cli.run, pscale.runs.store, pscale.suite
from pscale.cli import main
from pscale.cli import report
from pscale.report import drawing
pscale.cli.run._look = lambda *_: None  # half a second

def pscale(*words):
    sys.argv = ["pscale", *words]
    main()

def copy(folder, terminal, code):
    os.setsid()
    os.chdir(folder)
    output = os.open(terminal or "said", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    for number in (0, 1, 2) if terminal else (1, 2):
        os.dup2(output, number)
    ended = 99
    try:
        exec(code, {**globals(), "folder": folder})
        ended = 0
    except SystemExit as error:
        ended = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(ended)

for line in sys.stdin:
    if not (child := os.fork()):
        copy(*json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass
class Copy:
    """A copy that does something in a folder; its code is known once it has ended."""

    folder: Path
    pid: int
    answers: object
    code: int | None = None

    def poll(self):
        """Return its exit code, negative for a signal; None while it is at work."""
        if self.code is None and select.select([self.answers], [], [], 0)[0]:
            self.wait()
        return self.code

    def wait(self):
        """Return its exit code when it has ended."""
        if self.code is None:
            self.code = int(self.answers.readline())
        return self.code

    def kill(self, how=signal.SIGKILL):
        """Send it a signal."""
        os.kill(self.pid, how)

    @property
    def said(self):
        """What it has printed."""
        return (self.folder / "said").read_text()


class Copies:
    """Makes copies, one at a time."""

    def __init__(self, **environment):
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what has come is seen by select
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        )

    def start(self, folder, code, terminal=None):
        """Let a copy execute Python code in a folder."""
        self._server.stdin.write(json.dumps([str(folder), terminal, code]).encode() + b"\n")
        return Copy(folder, int(self._server.stdout.readline()), self._server.stdout)

    def close(self):
        """End the process that they are copies of."""
        self._server.communicate()
