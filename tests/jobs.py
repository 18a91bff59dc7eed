"""Single jobs under the MPI that is installed beside this Python, without the command line."""

import json
import os
import sys
import time
from collections import Counter

import numpy as np

from pscale.config import to_dict
from pscale.launch import local, machine, mpi
from pscale.launch.command import command
from pscale.parallel import strategies
from pscale.results.store import read_table


def launch(case, folder):
    """Run a case; return the columns of its result and its rows of the `calls` table."""
    data = folder / "data"
    data.mkdir()
    order = {"case": to_dict(case), "repeat": 0, "data": str(data), "launched_unix_s": time.time()}
    (folder / "case.json").write_text(json.dumps({"format": 1, **order}))
    argv = [sys.executable, "-m", "pscale.worker", str(folder)]
    root = os.geteuid() == 0
    job = command(case, mpi.find(), argv, machine.inspect(), environ=os.environ, root=root)
    outcome = local.launch(job, folder, time_limit_s=120)
    assert outcome.status == "ok", outcome.reason
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "ok", result["reason"]
    return result["columns"], read_table(data, "calls").to_pylist()


def counted(rows):
    """Sum the rows of the `calls` table: count and bytes by rank, step, axis and verb."""
    found = Counter()
    for row in rows:
        key = (row["rank"], row["step"], row["axis"], row["verb"])
        found[key] += np.array([row["count"], row["bytes"]])
    return {key: tuple(value) for key, value in found.items()}


def predicted(case):
    """Return what `counted` should be."""
    found = Counter()
    for rank in range(case.ranks):
        for call in strategies.calls(case, rank):
            for step in range(case.train.steps):
                found[rank, step, call.axis, call.verb] += np.array([call.count, call.step_bytes])
    return {key: tuple(value) for key, value in found.items()}
