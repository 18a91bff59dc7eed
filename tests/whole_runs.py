"""Whole runs of the command line under the MPI that is installed beside this Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import run_program

from pscale.config import Case, Launch, Plan, from_dict
from pscale.errors import LaunchError
from pscale.launch import launcher, machine
from pscale.launch.command import command
from pscale.runs.store import read_table
from pscale.watch.preload import recorder, sibling_library

FREE_OPEN_MPI = {  # root may start more ranks than there are cores
    **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
SMALL_TEXT = Path(json.__file__).parent / "*.py"  # soon read

TINY = f"""
name: tiny
title: Tiny
scaling: strong
model: {{kind: gpt, layers: 2, width: 32, heads: 4, sequence: 32, vocabulary: 256}}
precision: float64
data: {{kind: text, source: "{SMALL_TEXT}"}}
train: {{batch: 8, steps: 10, warmup: 0, lr: 1.0e-2, clip: 0.5}}
plan: {{dp: ranks}}
sweep: {{ranks: [1, 2, 4]}}
repeat: 1
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{oversubscribe: true, time_limit: 10m}}
"""

# Rank 1 stays away from the exchange of the fourth step. Ranks are watched once they stand where they stay,
# and all are heard: a machine that stops for some seconds before, or between their words, changes nothing.
NEVER_JOINS = """
import os
rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank is None:
    import pscale.launch.outcome as outcome
    outcome._REPORTS_S = 60.0
else:
    import sys, time
    import pscale.training.trainer as trainer
    from pscale.worker.watchdog import Watchdog
    update, limit_s, stays = trainer.Trainer.update, Watchdog.limit_s, []
    def late(self, *arguments):
        stays.extend([True] * bool(self.losses[3]))
        if stays and rank == "1":
            time.sleep(1000)
        update(self, *arguments)
    def watched(self):
        inside = self._call(sys._current_frames()[self._watched])
        return limit_s(self) if stays and (rank == "1" or inside) else 1000.0
    trainer.Trainer.update, Watchdog.limit_s = late, watched
"""


def _is_recorder_built() -> bool:
    try:
        return bool(recorder(sibling_library(Path(sys.executable))))
    except LaunchError:
        return False


needs_recorder = pytest.mark.skipif(not _is_recorder_built(), reason="there was no C compiler")


class Cli:
    """The command line with a folder of its own for runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.reports = folder / "runs of tests"

    def suite(self, text: str) -> Path:
        path = self.folder / "a suite.yaml"
        path.write_text(text)
        return path

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "pscale", *map(str, arguments)]

    def run(self, suite: Path, *options: str, code: int = 0, report: bool = False) -> "Results":
        """Run a suite and return what it left; the exit code has to be `code`. A report takes seconds."""
        reported = () if report else ("--no-report",)
        done = self.call("run", suite, "--reports", self.reports, *reported, *options, code=code)
        return self.newest(done.stdout + done.stderr)

    def verify(self, suite: Path, *options: str, code: int | None = 0) -> list[dict]:
        """Return the verdict of every case of a suite."""
        return json.loads(
            self.call("verify", suite, "--reports", self.reports, "--json", *options, code=code).stdout
        )

    def call(self, *arguments: str | Path, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
        """Return what a command said; its exit code has to be `code`, unless that is None."""
        done = run_program(self.command(*arguments), code=None, cwd=self.folder)
        assert code in (None, done.returncode), done.stdout + done.stderr + self._logs()
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def _logs(self) -> str:
        """Return what launches have said: a failure that comes once in a hundred runs explains itself."""
        logs = sorted(self.reports.glob("*/*/**/stderr.log"))
        return "".join(f"\n== {log}\n{log.read_text(errors='replace')[-4000:]}" for log in logs)

    def newest(self, output: str = "") -> "Results":
        newest = max(self.reports.glob("*/*/run.json"), key=lambda path: path.stat().st_mtime_ns)
        return Results(newest.parent, output)  # names of two runs of one second have no order


class Results:
    """What a run left on disk."""

    def __init__(self, folder: Path, output: str):
        self.folder, self.output = folder, output
        self.document = json.loads((folder / "run.json").read_text())

    def rows(self, table: str) -> list[dict]:
        return read_table(self.folder / "data", table).to_pylist()

    @property
    def cases(self) -> dict[str, dict]:
        """Rows of the `cases` table by label; each has to be there once."""
        rows = self.rows("cases")
        assert len({row["label"] for row in rows}) == len(rows)
        return {row["label"]: row for row in rows}

    def planned(self) -> list[Case]:
        return [
            from_dict(Case, {name: value for name, value in case.items() if name != "id"})
            for case in self.document["cases"]
        ]


def said_by_ranks(ranks: int, program: Path, *arguments: Path) -> str:
    """Start a program of the tests as pscale starts ranks, and return what they have printed."""
    launch = Launch(bind="none", oversubscribe=True)
    order = command(
        Case(suite="s", label="l", ranks=ranks, plan=Plan(dp=ranks), launch=launch),
        launcher.find(),
        (sys.executable, "-m", "mpi4py", str(program), *map(str, arguments)),
        machine.inspect(),
        environ=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        root=os.geteuid() == 0,
    )
    return run_program(order.argv, env=order.env).stdout


def start(cli, *arguments):
    return subprocess.Popen(
        cli.command("run", *arguments, "--reports", cli.reports),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers(process):
    """Return the ranks that are under way, wherever their launcher has put them in the tree."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "pscale.worker" in child.cmdline() and "mpi" not in child.name():
                found.append(child)
        except psutil.Error:
            continue
    return found
