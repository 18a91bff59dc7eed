"""Runs that compute nothing: a launcher that is a shell script, a suite for it, a journal and its notes."""

from collections.abc import Sequence
from pathlib import Path

from pscale.config import Case, to_dict
from pscale.launch.runner import ended
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Launched

WRITES_RESULT = """for folder; do :; done
echo '{"status": "ok", "reason": "", "columns": {"step_s": 21.95}}' > "$folder/result.json"
"""
SUITE = """
name: noop
scaling: throughput
data: {kind: synthetic}
train: {steps: 1, warmup: 0}
sweep: {train.seed: [1, 2, 3]}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {launcher: ./mpiexec, scheduler: none}
"""


def make_launcher(path: Path, script: str) -> Path:
    """Make a program that says that it is MPICH's, and otherwise runs `script`."""
    version = '[ "$1" = --version ] && echo "HYDRA build details: Version: 0" && exit'
    path.write_text(f"#!/bin/sh\n{version}\n{script}")
    path.chmod(0o755)
    return path


def make_suite(folder: Path) -> None:
    """Make the suite noop.yaml with its launcher."""
    make_launcher(folder / "mpiexec", WRITES_RESULT)
    (folder / "noop.yaml").write_text(SUITE)


def make_journal(
    root: Path, cases: Sequence[Case], repeats: int = 1, seed: int = 1, **document: object
) -> Journal:
    """Make a run of some cases."""
    known = {
        "suite": {"name": "s", "resolved": {}},
        "cases": [{**to_dict(case), "id": case.id} for case in cases],
        "repeats": repeats,
        "seed": seed,
        "provenance": {},
    }
    return Journal.create(root, "s", known | document)


def note_start(journal, key, order=0):
    journal.note(Launched(case=key[0], repeat=key[1], order=order))


def note_end(journal, key, status="ok", reason="", wall_s=1.0):
    journal.note(Ended(case=key[0], repeat=key[1], status=status, reason=reason, wall_s=wall_s))


def settling(row):
    """Return what settles a launch, of a function that writes its row and may return another outcome."""
    return lambda launch, outcome: ended(launch.key, row(launch, outcome) or outcome)
