"""Does a launcher make one world? Some ranks are really started to find out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pscale.config import Case, Launch, Plan
from pscale.launch import local
from pscale.launch.command import Command, command
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.outcome import STDOUT, Outcome

PROBE = (sys.executable, "-P", "-m", "pscale.worker.probe", "world")
_LIMIT_S = 60


def trial(launcher: Launcher, machine: Machine, asked: Launch, ranks: int) -> Command:
    """Return what starts ranks that say which world they are in, one on each node if there are several."""
    per_node = 1 if machine.nodes > 1 else 0
    launch = Launch(oversubscribe=True, ranks_per_node=per_node, extra=asked.extra, env=asked.env)
    case = Case(suite="trial", label="trial", ranks=ranks, plan=Plan(dp=ranks), launch=launch)
    return command(case, launcher, PROBE, machine, environ=os.environ, root=os.geteuid() == 0)


def worlds(order: Command, folder: Path, limit_s: float = _LIMIT_S) -> tuple[list[dict[str, Any]], Outcome]:
    """Return the answers of the first rank of every world that came to be, none after an error."""
    folder.mkdir(exist_ok=True, parents=True)
    outcome = local.launch(order, folder, limit_s)
    lines = (folder / STDOUT).read_text(errors="replace").splitlines() if outcome.exit_code == 0 else []
    return [json.loads(line) for line in lines if line.startswith("{")], outcome


def is_one_world(answers: Sequence[dict[str, Any]], ranks: int) -> bool:
    """Tell whether the answers are those of one world of `ranks` ranks."""
    return len(answers) == 1 and answers[0]["size"] == ranks
