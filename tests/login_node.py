"""The command line on the login node of a cluster, and what its runs have noted."""

import json
import subprocess
import time
from pathlib import Path

from whole_runs import LIMIT_S, Cli

SITE = """
virtual:
  hosts: ["*"]
  poll: 0.5s
"""
WEAK = """
name: nodes
scaling: weak
model: {kind: gpt, layers: 1, width: 32, heads: 4, sequence: 32, vocabulary: 256}
data: {kind: synthetic}
train: {batch: 2, steps: 5, warmup: 1}
plan: {dp: ranks}
sweep: {ranks: [1, 2, 4]}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, ranks_per_node: 1, time_limit: 10m}
"""


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


class LoginNode(Cli):
    """A folder with a suite and the profile of a site that may be asked every second."""

    def __init__(self, folder: Path, site: str = SITE):
        super().__init__(folder)
        (folder / "sites.yaml").write_text(site)
        self.weak = self.suite(WEAK)

    def start(self, *options: str) -> subprocess.Popen:
        return subprocess.Popen(
            self.command("run", self.weak, "--reports", self.reports, "--no-report", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def say(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command(*arguments), "--reports", str(self.reports)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        return done.stdout

    def status(self) -> dict:
        return json.loads(self.say("status", "--json"))

    def events(self, kind: str) -> list[dict]:
        """Return what the run and its jobs have noted of one kind."""
        found = []
        for path in self.reports.glob("nodes/*/**/journal.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in found if record["event"] == kind]

    def job_at_work(self) -> str:
        """Return the id of the job that was submitted last, once a launch is under way."""
        wait_for(lambda: self.events("launched"))
        return self.events("submitted")[-1]["id"]
